"""The composition root of `gpuscale controller`: builds the rooms, listens, ticks, and ends in order.

`Controller` can also be run inside another loop and under another `Clock` (the demo, tests): it is
given what it would otherwise build (a signal source, a cluster, a writer of replicas).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from gpuscale import runtime
from gpuscale.clock import Clock, SystemClock
from gpuscale.config import ControllerSettings
from gpuscale.controller.domain import (
    FleetDecision,
    FleetObservation,
    ReplicaState,
    Scaler,
    Signal,
    Snapshot,
    Workload,
)


class Cluster(Protocol):
    """What the controller asks of a Kubernetes cluster: answered from memory, in no time."""

    def scaled_objects(self) -> Sequence[Mapping[str, object]]:
        """Every ScaledObject in the watched namespaces, as the API server gave it."""
        ...

    def replicas(self, workloads: Sequence[Workload]) -> Mapping[str, ReplicaState]:
        """The replicas by key; a workload whose target is not known has no entry."""
        ...

    def unsynced(self) -> str | None:
        """What the caches still wait for, one sentence; None when they are complete."""
        ...


class Controller:
    """The controller, to be started once in a `runtime.Daemon`.

    `signal`, `cluster` and `scaler` replace what the settings would build: a source of readings, the
    view of the cluster, the writer of replicas in direct mode. Without them: Prometheus where
    `settings.prometheus` names one, else direct scraping; a cluster where
    `settings.kubernetes.enabled` finds one, else none.
    """

    def __init__(
        self,
        settings: ControllerSettings,
        clock: Clock,
        *,
        signal: Signal | None = None,
        cluster: Cluster | None = None,
        scaler: Scaler | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock

    async def start(self, daemon: runtime.Daemon, *, ticking: bool = True) -> None:
        """Listen and start ticking every `tick_s` of the clock; raises ListenError and ConfigError.

        Returns once both addresses are bound. With `ticking=False` nothing is decided until the
        caller calls `tick()`, which suits one who owns time.
        """
        raise NotImplementedError

    @property
    def http_address(self) -> tuple[str, int]:
        """(host, port) of the page, the API and /metrics; known once started."""
        raise NotImplementedError

    @property
    def grpc_address(self) -> tuple[str, int]:
        """(host, port) of the external scaler; known once started."""
        raise NotImplementedError

    @property
    def observation(self) -> FleetObservation | None:
        """What the last tick saw; None before the first."""
        raise NotImplementedError

    @property
    def decision(self) -> FleetDecision | None:
        """What the last tick decided; None before the first."""
        raise NotImplementedError

    async def tick(self) -> Snapshot:
        """Observe, decide, publish, write, record, render: once. Returns what is answered now.

        Never raises for a source, a workload or a target that fails: these are logged once per
        change, exported, and tried again at the next tick.
        """
        raise NotImplementedError


def run(settings: ControllerSettings, clock_of: Callable[[], Clock] = SystemClock) -> int:
    """Run the controller until SIGTERM; returns the exit code."""
    return runtime.run(Controller(settings, clock_of()).start)
