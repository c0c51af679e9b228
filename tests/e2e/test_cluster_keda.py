"""What the external scaler answers becomes the replicas of a real Deployment, through KEDA and the HPA.

The answers are written by the test, the server that gives them and the ScaledObject are gpuscale's.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from gpuscale.config import convert
from gpuscale.controller import scaledobject
from gpuscale.settings import ControllerSettings
from tests.e2e.controlplane import binaries, keda, objects, plane
from tests.e2e.controlplane.api import Api, when
from tests.e2e.controlplane.processes import Program, wait_until
from tests.e2e.controlplane.scripted import ScriptedScaler

pytestmark = [
    binaries.requires(*binaries.KUBERNETES, *binaries.KEDA),
    pytest.mark.timeout(400),
]

START_S = 3.0
"""Of the simulated pods."""
FOLLOW_S = 60.0
COOLDOWN_S = 5
HOLD_S = 4.0 * plane.HPA_SYNC_S
AWAY_S = 20.0
QUOTA = f"requests.{objects.GPU}"
PAUSED = "autoscaling.keda.sh/paused"


@dataclass
class Rig:
    """A cluster with KEDA and GPUs, and a scaler whose answers the test writes."""

    api: Api
    apiserver: Program
    keda: keda.Keda
    scaler: ScriptedScaler

    def deploy(self, name: str, namespace: str = "ai") -> None:
        """A Deployment and the ScaledObject that `gpuscale scaledobject` prints for it."""
        self.api.create(objects.servers(namespace, name, start_s=START_S))
        self.api.create(declared(namespace, name, self.scaler.address))

    def asked(self, name: str, namespace: str = "ai") -> int:
        found = self.api.get("Deployment", name, namespace)
        replicas: int = found["spec"]["replicas"]
        return replicas

    def ready(self, name: str, namespace: str) -> int:
        found = self.api.get("Deployment", name, namespace)
        replicas: int = found.get("status", {}).get("readyReplicas", 0)
        return replicas

    def follows(self, name: str, desired: int) -> float:
        """Say it, and wait until the Deployment has so many; seconds that it took."""
        self.scaler.say(f"ai/{name}", desired)
        return wait_until(
            f"{name} has {desired}, not {self.asked(name)}",
            lambda: self.asked(name) == desired,
            FOLLOW_S,
        )


def declared(namespace: str, name: str, address: str) -> dict[str, Any]:
    """The ScaledObject as printed, with the waits of its scale-down shortened."""
    settings = convert(
        {"defaults": {"mode": "act", "min_replicas": 0, "max_replicas": 40}},
        ControllerSettings,
        where="settings",
    )
    workload, metadata = scaledobject.declare(namespace, name, settings)
    made = scaledobject.scaledobject(workload, metadata, address=address)
    spec = made["spec"]
    spec |= {"pollingInterval": 1, "cooldownPeriod": COOLDOWN_S}
    spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"][
        "stabilizationWindowSeconds"
    ] = 0
    return made


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    scaler = ScriptedScaler()
    try:
        with (
            plane.running(tmp_path_factory.mktemp("plane")) as running,
            keda.running(running) as operator,
        ):
            for i in range(8):
                running.api.create(objects.node(f"gpu-{i}"))
            running.api.create(objects.namespace("ai"))
            yield Rig(running.api, running.apiserver, operator, scaler)
    finally:
        scaler.close()


def test_replicas_are_what_was_answered_dead_band_and_zero_included(rig: Rig) -> None:
    """1→3→8→24→22→0→1: the HPA's own tolerance would leave 24 at 24, and 11 at 10."""
    rig.scaler.say("ai/chat", 1)
    rig.deploy("chat")
    wait_until("KEDA holds a stream by itself", lambda: rig.scaler.streams() == 1)

    for desired in (3, 8, 24, 22, 10, 11, 0, 1):
        rig.follows("chat", desired)

    hpa = rig.api.get("HorizontalPodAutoscaler", "keda-hpa-chat", "ai")
    (metric,) = hpa["spec"]["metrics"]
    assert metric["external"]["metric"]["name"] == "s0-desired-replicas"
    assert metric["external"]["target"] == {"type": "AverageValue", "averageValue": "1"}
    assert hpa["spec"]["behavior"]["scaleUp"]["tolerance"] == "0"


def test_without_the_printed_tolerance_the_hpa_would_not_follow(rig: Rig) -> None:
    """The dead band is real: within 10 % the HPA stays where it is, whatever is answered."""
    rig.scaler.say("ai/band", 20)
    rig.api.create(objects.servers("ai", "band", start_s=START_S))
    made = declared("ai", "band", rig.scaler.address)
    behavior = made["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    for way in behavior.values():
        del way["tolerance"]
    rig.api.create(made)
    rig.follows("band", 20)

    rig.scaler.say("ai/band", 22)
    holds(rig, "band", 20)
    rig.scaler.say("ai/band", 18)
    holds(rig, "band", 20)


def test_what_gpuscale_does_not_know_moves_nothing(rig: Rig) -> None:
    """An answer that is an error becomes the fallback of the printed ScaledObject: what runs, stays."""
    rig.deploy("unsure")
    rig.follows("unsure", 5)
    rig.scaler.say("ai/unsure", None)

    def fallen_back() -> bool:
        found = rig.api.get("ScaledObject", "unsure", "ai")["status"]["conditions"]
        return any(c["type"] == "Fallback" and c["status"] == "True" for c in found)

    wait_until("KEDA falls back", fallen_back)
    holds(rig, "unsure", 5)
    rig.follows("unsure", 6)


def test_a_keda_that_restarts_moves_nothing_and_follows_again(rig: Rig) -> None:
    rig.deploy("steady")
    rig.follows("steady", 7)

    rig.keda.operator.stop()
    rig.scaler.say("ai/steady", 9)
    holds(rig, "steady", 7)
    rig.keda.operator.start()

    wait_until("it follows again", lambda: rig.asked("steady") == 9, FOLLOW_S)


def test_a_pause_freezes_the_replicas_until_it_is_lifted(rig: Rig) -> None:
    rig.deploy("paused")
    rig.follows("paused", 4)

    annotate(rig, "paused", "true")
    wait_until(
        "KEDA has put its HPA away",
        lambda: rig.api.find("HorizontalPodAutoscaler", "keda-hpa-paused", "ai") is None,
    )
    rig.scaler.say("ai/paused", 9)
    holds(rig, "paused", 4)
    annotate(rig, "paused", None)

    wait_until("it follows again", lambda: rig.asked("paused") == 9, FOLLOW_S)


@pytest.mark.slow
def test_an_api_server_that_is_away_moves_nothing_and_is_followed_again(rig: Rig) -> None:
    rig.deploy("patient")
    rig.follows("patient", 6)

    rig.apiserver.stop()
    rig.scaler.say("ai/patient", 8)
    time.sleep(AWAY_S)
    rig.apiserver.start(rig.api.ready, within_s=120)

    wait_until("it follows again", when(lambda: rig.asked("patient") == 8), 2 * FOLLOW_S)


@pytest.mark.slow
def test_a_quota_stops_pods_and_not_the_answer(rig: Rig) -> None:
    """The Deployment asks for what was answered; what the quota refuses comes as soon as it is raised."""
    rig.api.create(objects.namespace("tight"))
    rig.api.create(objects.quota("tight", "gpus", 3))
    rig.scaler.say("tight/model", 5)
    rig.deploy("model", namespace="tight")

    wait_until("five are asked for", lambda: rig.asked("model", "tight") == 5, FOLLOW_S)
    wait_until("three are ready", lambda: rig.ready("model", "tight") == 3, FOLLOW_S)
    conditions = rig.api.get("Deployment", "model", "tight")["status"]["conditions"]
    (failure,) = [c["message"] for c in conditions if c["type"] == "ReplicaFailure"]
    assert "exceeded quota: gpus" in failure
    rig.api.patch("ResourceQuota", "gpus", "tight", {"spec": {"hard": {QUOTA: "5"}}})
    wait_until("all are ready", lambda: rig.ready("model", "tight") == 5, 2 * FOLLOW_S)


def holds(rig: Rig, name: str, replicas: int) -> None:
    """The replicas stay for HOLD_S, several rounds of the HPA."""
    until = time.monotonic() + HOLD_S
    while time.monotonic() < until:
        assert rig.asked(name) == replicas
        time.sleep(0.5)


def annotate(rig: Rig, name: str, value: str | None) -> None:
    rig.api.patch("ScaledObject", name, "ai", {"metadata": {"annotations": {PAUSED: value}}})
