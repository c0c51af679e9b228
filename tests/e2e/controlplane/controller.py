"""`gpuscale controller` as a process of a plane: with the chart's role, and demand that a test sets."""

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from tests import tools
from tests.chart import render
from tests.e2e.controlplane.api import kubeconfig
from tests.e2e.controlplane.background import Background
from tests.e2e.controlplane.plane import Plane
from tests.e2e.controlplane.processes import Program, free_ports
from tests.fakes.prometheus import FakePrometheus, vector

NAMESPACE = "gpu-system"
"""Where tests.chart renders the release."""
ACCESS = (
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
)
CONTROLLER = "controller"
TICK_S = 1.0
CUSTOM = {"arrivals": 'arrivals{{namespace="{namespace}",workload="{name}"}}'}
"""PromQL that the Prometheus of the tests is asked, and answers with what the test set."""


class Controller:
    """The process, and a Prometheus that knows the demand that the test sets."""

    def __init__(
        self,
        plane: Plane,
        policies: Mapping[str, Mapping[str, Any]],
        *,
        chart: tuple[str, ...] = (),
        workloads: Sequence[Mapping[str, Any]] = (),
        namespaces: Sequence[str] = (),
        settings: Mapping[str, Any] = MappingProxyType({}),
        name: str = CONTROLLER,
    ) -> None:
        self._plane = plane
        self._chart = render(*chart)
        self._background = Background("prometheus of the tests")
        self._prometheus = FakePrometheus()
        self._background.run(self._prometheus.start())
        http, grpc = free_ports(2)
        self.url = f"http://127.0.0.1:{http}"
        self.address = f"localhost:{grpc}"
        self._account = self._install()
        config = plane.folder / f"{name}.yaml"
        config.write_text(
            json.dumps(
                {
                    "listen": f"127.0.0.1:{http}",
                    "listen_grpc": f"127.0.0.1:{grpc}",
                    "tick_s": TICK_S,
                    "prometheus": {"url": self._prometheus.url},
                    "journal": {"path": str(plane.folder / f"{name}.db")},
                    "kubernetes": {
                        "enabled": "on",
                        "kubeconfig": str(self._kubeconfig(name)),
                        "namespaces": list(namespaces),
                    },
                    "workloads": list(workloads),
                    "policies": {
                        each: {"server": "custom", "custom": CUSTOM, **policy}
                        for each, policy in policies.items()
                    },
                    **settings,
                }
            )
        )
        self.process = Program(
            name,
            [sys.executable, "-m", "gpuscale", "controller", "--config", config],
            plane.folder,
            {"PYTHONPATH": str(tools.REPOSITORY)},
        )

    @property
    def user(self) -> str:
        """How the API server's audit log names it."""
        return f"system:serviceaccount:{NAMESPACE}:{self._account}"

    def demand(self, **arrivals: float) -> None:
        """Requests per second that arrive at each workload of the namespace `ai`, from now on."""
        self._prometheus.answer(vector({f"arrivals/ai/{w}": v for w, v in arrivals.items()}))

    def start(self) -> None:
        """Start it and wait until it is ready."""
        self.process.start(lambda: self.get("/readyz") is not None)

    def get(self, path: str) -> str | None:
        """The body; None where it does not answer well."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as response:
                body: str = response.read().decode()
        except (urllib.error.URLError, OSError):
            return None
        return body

    def workload(self, name: str) -> dict[str, Any]:
        """Its row in the API; empty where there is none."""
        listed = json.loads(self.get("/api/v1/workloads") or '{"items": []}')["items"]
        return next((w for w in listed if w["name"] == name), {})

    def rules(self) -> set[tuple[str, str, str]]:
        """What the chart's role allows: (API group, resource, verb)."""
        return {
            (group, resource, verb)
            for each in self._chart
            if each["kind"] in ("ClusterRole", "Role") and CONTROLLER in each["metadata"]["name"]
            for rule in each["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }

    def close(self) -> None:
        """End the process and the Prometheus."""
        self.process.stop()
        self._background.run(self._prometheus.close())
        self._background.close()

    def _install(self) -> str:
        """Create what the chart gives the controller; the name of its account."""
        api = self._plane.api
        api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        wanted = [
            each
            for each in self._chart
            if each["kind"] in ACCESS
            and each["metadata"].get("labels", {}).get("app.kubernetes.io/component") == CONTROLLER
        ]
        for each in wanted:
            api.create(each)
        (account,) = [e["metadata"]["name"] for e in wanted if e["kind"] == "ServiceAccount"]
        return str(account)

    def _kubeconfig(self, name: str) -> Any:
        plane = self._plane
        token = plane.api.token(self._account, NAMESPACE)
        return kubeconfig(
            plane.folder / f"{name}.kubeconfig", plane.url, plane.authority, token=token
        )


@contextmanager
def running(
    plane: Plane, policies: Mapping[str, Mapping[str, Any]], **how: Any
) -> Iterator[Controller]:
    """A controller that is stopped whatever happens; `how` as its constructor takes it."""
    controller = Controller(plane, policies, **how)
    try:
        controller.start()
        yield controller
    finally:
        controller.close()
