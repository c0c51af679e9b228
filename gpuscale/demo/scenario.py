"""What the demo plays: three workloads of different kinds on four nodes, on a Monday morning.

A chat model with office hours, whose steep morning begins twenty simulated minutes in; an embedder
with a rush every twenty minutes; an image model with a burst that nobody could foresee. Their true
start times and capacities stand here; what the controller is told stands in `settings`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from gpuscale import config, workload
from gpuscale.settings import ControllerSettings
from gpuscale.simulation.cluster import SimulatedWorkload

EPOCH = 1_767_571_200.0
"""Monday 2026-01-05 00:00 UTC: days and weeks of the shapes begin here."""
BEGIN = EPOCH + 7 * 86_400.0 + 6 * 3600.0 + 40 * 60.0
"""A week later, 06:40: twenty minutes before the office's rush. The past before it is the shapes' own."""

NODES = {"gpu-a": 8, "gpu-b": 8, "gpu-c": 8, "gpu-d": 8}
CARD = "h100"

HOUR = 3600.0
MINUTE = 60.0


def _demand(shape: workload.Shape) -> Callable[[float], float]:
    def at(now: float) -> float:
        return shape.at(now - EPOCH)

    return at


CHAT = workload.Noise(
    of=workload.RepeatedRamp(
        period_s=24 * HOUR, rise_s=25 * MINUTE, hold_s=9 * HOUR, fall_s=2 * HOUR,
        low=6.0, high=64.0, offset_s=7 * HOUR,
    ),
    seed=1, ratio=0.05, step_s=5.0,
)  # fmt: skip
EMBED = workload.Noise(
    of=workload.RepeatedRamp(
        period_s=20 * MINUTE, rise_s=2 * MINUTE, hold_s=6 * MINUTE, fall_s=2 * MINUTE,
        low=30.0, high=190.0, offset_s=5 * MINUTE,
    ),
    seed=2, ratio=0.05, step_s=5.0,
)  # fmt: skip
IMAGES = workload.Noise(
    of=workload.Sum(
        parts=(
            workload.Constant(level=1.0),
            workload.Burst(start_s=BEGIN - EPOCH + 30 * MINUTE, duration_s=15 * MINUTE, level=3.5),
        )
    ),
    seed=3, ratio=0.1, step_s=5.0,
)  # fmt: skip

WORKLOADS: tuple[SimulatedWorkload, ...] = (
    SimulatedWorkload(
        namespace="chat", name="llama-8b", server="vllm", demand=_demand(CHAT),
        capacity=8.0, start_s=240.0, replicas=2,
    ),
    SimulatedWorkload(
        namespace="search", name="embedder", server="triton", demand=_demand(EMBED),
        capacity=40.0, start_s=75.0, replicas=1,
    ),
    SimulatedWorkload(
        namespace="images", name="diffusion", server="vllm", demand=_demand(IMAGES),
        capacity=1.0, start_s=150.0, gpus=2, replicas=2,
    ),
)  # fmt: skip

POLICIES: dict[str, dict[str, Any]] = {
    "chat/llama-8b": {"server": "vllm", "capacity": 8.0, "start_time_s": 300.0, "risk": 0.97},
    "search/embedder": {"server": "triton", "capacity": 60.0, "start_time_s": 30.0},
    "images/diffusion": {"server": "vllm", "capacity": 1.0, "start_time_s": 180.0},
}
"""What the owners write down, by workload. People wait for the chat, so that lateness is dearer there
than by default: at 10/11 a rush of one hour a day is worth some of it. The embedder's are wrong: its replicas carry a third less
than declared, and take more than twice as long to start. Its first rush shows both."""

BOUNDS: dict[str, tuple[int, int]] = {
    "chat/llama-8b": (1, 12),
    "search/embedder": (1, 8),
    "images/diffusion": (1, 6),
}
"""Least and most replicas of the ScaledObjects."""


def policy_of(key: str) -> str:
    """Name of a workload's policy."""
    return key.replace("/", "-")


def settings(
    *, listen: str, listen_grpc: str, metrics_port: int, exporters: Sequence[str]
) -> ControllerSettings:
    """The controller's settings: a policy per workload, named as the workload is, for its namespace.

    `metrics_port` is where the simulated pods' pages are served, `exporters` where the nodes' are.
    """
    policies = {
        policy_of(key): {
            **policy,
            "mode": "act",
            "metrics_port": metrics_port,
            "namespaces": [key.split("/")[0]],
        }
        for key, policy in POLICIES.items()
    }
    return config.convert(
        {
            "listen": listen,
            "listen_grpc": listen_grpc,
            "policies": policies,
            "kubernetes": {"enabled": "off"},  # whatever cluster its user has is left alone
            "exporters": {"urls": list(exporters), "fresh_s": 2.0},
        },
        ControllerSettings,
        where="demo",
    )
