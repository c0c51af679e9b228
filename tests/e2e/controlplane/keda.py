"""KEDA's operator and metrics adapter beside a plane, as its own manifests connect them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import yaml

from tests.e2e.controlplane import binaries, objects
from tests.e2e.controlplane.api import when
from tests.e2e.controlplane.plane import Plane
from tests.e2e.controlplane.processes import Program, free_ports, wait_until

NAMESPACE = "keda"
SERVICE = "keda-metrics-apiserver"
METRICS = "v1beta1.external.metrics.k8s.io"


class Keda:
    """The two programs. `operator` may be stopped and started again."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._metrics_port, self._health_port, self._secure_port, page_port = free_ports(4)
        certificates = self._certificates()
        environ = {
            "KUBECONFIG": str(plane.kubeconfig),
            "POD_NAMESPACE": NAMESPACE,
            "KEDA_CLUSTER_OBJECT_NAMESPACE": NAMESPACE,
            "WATCH_NAMESPACE": "",
        }
        self.operator = Program(
            "keda-operator",
            [
                binaries.path("keda-operator"),
                f"--cert-dir={certificates}",
                "--enable-prometheus-metrics=false",
                f"--health-probe-bind-address=127.0.0.1:{self._health_port}",
                f"--metrics-service-bind-address=127.0.0.1:{self._metrics_port}",
                "--zap-log-level=info",
                "--zap-encoder=console",
                "--zap-time-encoding=rfc3339",
            ],
            plane.folder,
            environ,
        )
        self.adapter = Program(
            "keda-adapter",
            [
                binaries.path("keda-adapter"),
                "--bind-address=127.0.0.1",
                f"--secure-port={self._secure_port}",
                f"--port={page_port}",
                f"--client-ca-file={certificates / 'ca.crt'}",
                f"--tls-cert-file={certificates / 'tls.crt'}",
                f"--tls-private-key-file={certificates / 'tls.key'}",
                f"--cert-dir={certificates}",
                f"--metrics-service-address=localhost:{self._metrics_port}",
                *(
                    f"--{whose}-kubeconfig={plane.kubeconfig}"
                    for whose in ("lister", "authentication", "authorization")
                ),
            ],
            plane.folder,
            environ,
        )

    def start(self) -> None:
        """Install the CRDs and the metrics API, start both, wait until the metrics API is served."""
        api = self._plane.api
        for file in binaries.crds():
            api.create(yaml.safe_load(file.read_text()))
        api.create(objects.namespace(NAMESPACE))
        api.create(self._service())
        api.create(self._api_service())
        wait_until(
            "the API server knows ScaledObjects",
            when(lambda: api.ready("apis/keda.sh/v1alpha1/scaledobjects")),
        )
        self.operator.start()
        self.adapter.start(self._served)

    def stop(self) -> None:
        """End both."""
        self.adapter.stop()
        self.operator.stop()

    def _served(self) -> bool:
        found: Mapping[str, Any] = self._plane.api.find("APIService", METRICS) or {}
        conditions = found.get("status", {}).get("conditions", ())
        return any(c["type"] == "Available" and c["status"] == "True" for c in conditions)

    def _certificates(self) -> Any:
        folder = self._plane.folder / "keda-certs"
        folder.mkdir()
        authority = self._plane.authority
        pair = authority.server("keda", f"{SERVICE}.{NAMESPACE}.svc")
        (folder / "ca.crt").write_bytes(authority.certificate.read_bytes())
        (folder / "tls.crt").write_bytes(pair.certificate.read_bytes())
        (folder / "tls.key").write_bytes(pair.key.read_bytes())
        return folder

    def _service(self) -> dict[str, Any]:
        # A name instead of a cluster address: nobody routes the latter here.
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": SERVICE, "namespace": NAMESPACE},
            "spec": {
                "type": "ExternalName",
                "externalName": "localhost",
                "ports": [{"name": "https", "port": self._secure_port}],
            },
        }

    def _api_service(self) -> dict[str, Any]:
        return {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": METRICS},
            "spec": {
                "service": {"name": SERVICE, "namespace": NAMESPACE, "port": self._secure_port},
                "group": "external.metrics.k8s.io",
                "version": "v1beta1",
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "insecureSkipTLSVerify": True,
            },
        }


@contextmanager
def running(plane: Plane) -> Iterator[Keda]:
    """KEDA that is stopped whatever happens."""
    keda = Keda(plane)
    try:
        keda.start()
        yield keda
    finally:
        keda.stop()
