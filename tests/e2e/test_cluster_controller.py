"""The whole of it on a real control plane: demand rises, gpuscale asks, KEDA and the HPA scale a Deployment.

The controller is the real process, with the chart's service account and nothing more.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from gpuscale.config import convert
from gpuscale.controller import scaledobject
from gpuscale.settings import ControllerSettings
from tests import tools
from tests.e2e.controlplane import binaries, controller, keda, objects, plane
from tests.e2e.controlplane.processes import wait_until

pytestmark = [
    binaries.requires(*binaries.KUBERNETES, *binaries.KEDA),
    tools.requires("helm"),
    pytest.mark.timeout(400),
]

CAPACITY = 2.0
START_S = 5.0
POLICY: Mapping[str, Any] = {
    "mode": "act", "capacity": CAPACITY, "capacity_pinned": True, "start_time_s": START_S,
    "max_replicas": 40, "dwell_s": 0, "stale_after_s": 5, "hold_s": 15,
}  # fmt: skip
POLICIES = {"model": POLICY}
FOLLOW_S = 90.0
LOW, HIGH = 6.0, 30.0
GONE_S = 30.0

DIRECT = {"plain": "Deployment", "stateful": "StatefulSet", "other": "ReplicaSet"}
"""Workloads of the settings file; the ReplicaSet stands for kinds that gpuscale does not watch."""
CHART = (
    "controller.directMode=true",
    "controller.rbac.extraScaleTargets[0].apiGroup=apps",
    "controller.rbac.extraScaleTargets[0].resource=replicasets",
)


@dataclass
class Rig:
    """A cluster with KEDA and GPUs, and the controller with what the chart allows it."""

    plane: plane.Plane
    gpuscale: controller.Controller

    def deploy(self, name: str) -> None:
        """A Deployment, and the ScaledObject that names a policy of the controller."""
        api = self.plane.api
        api.create(objects.servers("ai", name, start_s=START_S))
        given = {
            n: {**p, "server": "custom", "custom": controller.CUSTOM} for n, p in POLICIES.items()
        }
        settings = convert({"policies": given}, ControllerSettings, where="settings")
        workload, metadata = scaledobject.declare("ai", name, settings, policy="model")
        made = scaledobject.scaledobject(workload, metadata, address=self.gpuscale.address)
        made["spec"]["pollingInterval"] = 1
        api.create(made)

    def replicas(self, name: str, kind: str = "Deployment") -> tuple[int, int]:
        """(asked, ready) of the target."""
        found = self.plane.api.get(kind, name, "ai")
        return found["spec"]["replicas"], found.get("status", {}).get("readyReplicas", 0)

    def follows(self, name: str, least: float, kind: str = "Deployment") -> int:
        """Wait until `least` replicas and more are asked for by gpuscale and all are ready."""

        def arrived() -> int | None:
            desired: int | None = self.gpuscale.workload(name).get("desired")
            if desired is None or desired < least:
                return None
            return desired if self.replicas(name, kind) == (desired, desired) else None

        wait_until(
            f"{name} has what gpuscale asks: {self.gpuscale.workload(name)}", arrived, FOLLOW_S
        )
        return self.replicas(name, kind)[0]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with (
        plane.running(tmp_path_factory.mktemp("plane")) as running,
        keda.running(running),
    ):
        for i in range(8):
            running.api.create(objects.node(f"gpu-{i}"))
        running.api.create(objects.namespace("ai"))
        direct = [
            {
                "namespace": "ai",
                "name": name,
                "policy": "model",
                "target": {"kind": kind, "name": name},
            }
            for name, kind in DIRECT.items()
        ]
        with controller.running(running, POLICIES, chart=CHART, workloads=direct) as gpuscale:
            yield Rig(running, gpuscale)


def test_a_scaledobject_is_found_and_its_replicas_follow_the_demand(rig: Rig) -> None:
    rig.gpuscale.demand(chat=LOW)
    rig.deploy("chat")
    few = rig.follows("chat", LOW / CAPACITY)
    rig.gpuscale.demand(chat=HIGH)

    assert rig.follows("chat", HIGH / CAPACITY) > few


@pytest.mark.slow
def test_replicas_hold_while_gpuscale_is_away(rig: Rig) -> None:
    """A stop and a start move nothing, whatever demand does meanwhile."""
    rig.gpuscale.demand(chat=HIGH, away=HIGH)
    rig.deploy("away")
    before = rig.follows("away", HIGH / CAPACITY)

    rig.gpuscale.process.stop()
    rig.gpuscale.demand(away=LOW)
    until = time.monotonic() + GONE_S
    while time.monotonic() < until:
        assert rig.replicas("away") == (before, before)
        time.sleep(1)
    rig.gpuscale.demand(away=HIGH)
    rig.gpuscale.start()

    wait_until("it answers again", lambda: rig.gpuscale.workload("away").get("desired"), FOLLOW_S)
    assert rig.replicas("away")[0] >= before
    assert rig.follows("away", HIGH / CAPACITY) >= HIGH / CAPACITY


def test_direct_mode_scales_whatever_has_a_scale_without_keda(rig: Rig) -> None:
    for name, kind in DIRECT.items():
        rig.plane.api.create(objects.servers("ai", name, kind=kind, start_s=START_S))
    rig.gpuscale.demand(chat=LOW, **dict.fromkeys(DIRECT, LOW))

    for name, kind in DIRECT.items():
        rig.follows(name, LOW / CAPACITY, kind)


def test_the_charts_role_is_what_the_audit_log_shows_was_used(rig: Rig) -> None:
    """Nothing that was tried is missing from the role, and nothing is in it that nobody needed."""
    used = rig.plane.audited(rig.gpuscale.user)
    allowed = rig.gpuscale.rules()
    assert sorted(used - allowed) == []
    assert sorted(allowed - used) == []


def test_a_controller_of_some_namespaces_needs_no_more_than_its_role_there(rig: Rig) -> None:
    with controller.running(
        rig.plane,
        POLICIES,
        chart=("controller.config.kubernetes.namespaces={ai}", "fullnameOverride=narrow"),
        namespaces=["ai"],
        name="narrow",
    ) as narrow:
        wait_until(
            "it has used all that it may",
            lambda: rig.plane.audited(narrow.user) >= narrow.rules(),
        )
        time.sleep(5 * controller.TICK_S)
        assert sorted(rig.plane.audited(narrow.user) - narrow.rules()) == []
