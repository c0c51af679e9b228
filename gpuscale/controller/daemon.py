"""The composition root of `gpuscale controller`: builds the rooms, listens, ticks, and ends in order.

`Controller` can also be run inside another loop and under another `Clock` (the demo, tests): it is
given what it would otherwise build (a signal source, a cluster, a writer of replicas).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import msgspec
from aiohttp import web

from gpuscale import __version__, httpd, log, runtime
from gpuscale.clock import Clock, SystemClock
from gpuscale.config import convert
from gpuscale.controller import declared, kube, metrics
from gpuscale.controller.actuators.keda import STALE_AFTER_S, ExternalScaler
from gpuscale.controller.actuators.scale import ScaleSubresource
from gpuscale.controller.audit import PodAudit
from gpuscale.controller.backfill import Backfill
from gpuscale.controller.cluster import KubeCluster
from gpuscale.controller.domain import (
    FleetDecision,
    FleetObservation,
    ReplicaState,
    Scaler,
    Signal,
    Snapshot,
    Workload,
)
from gpuscale.controller.eventstream import Ticks
from gpuscale.controller.exporters import Exporters
from gpuscale.controller.faults import Faults
from gpuscale.controller.journal import Journal
from gpuscale.controller.keyfiles import KeyFiles
from gpuscale.controller.loop import Loop
from gpuscale.controller.records import DEMAND_STEP_S
from gpuscale.controller.signals.prometheus import PrometheusSignal
from gpuscale.controller.signals.scrape import ScrapeSignal
from gpuscale.controller.status import FleetStatus, Tally
from gpuscale.controller.web import Page
from gpuscale.settings import ControllerSettings

STALE_TICKS = 4
"""A snapshot is no answer any more after four ticks, and never before STALE_AFTER_S: one late tick
must not turn into errors on every HPA."""
SYNC_WAIT_S = 10.0
"""The first tick waits this long for the caches; an API server that refuses must not stop the workloads of the file."""
SYNC_POLL_S = 0.25
PAST_S = 14 * 86_400.0
PAST_STEP_S = 60.0
"""What is asked of a source that is no Prometheus, and of the journal: two weeks, as Prometheus is."""

_log = log.get("controller")


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


Doctor = Callable[[], Awaitable[Mapping[str, Any]]]
"""What the doctor finds, for the page; it stands above this room, so it is handed in."""


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
        doctor: Doctor | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._signal = signal
        self._cluster = cluster
        self._scaler = scaler
        self._kube: KubeCluster | None = None
        """The cluster that this controller connected to itself; None for one that was given."""
        self._writes: ScaleSubresource | None = None
        self._audit: PodAudit | None = None
        self._doctor = doctor
        self._faults = Faults()
        self._journal = Journal(settings.journal)
        self._keys = None if settings.grpc_tls is None else KeyFiles(settings.grpc_tls)
        self._external = ExternalScaler(
            clock,
            stale_after_s=max(STALE_AFTER_S, STALE_TICKS * settings.tick_s),
            keys=self._keys,
        )
        self._page = metrics.render(None, Tally())
        self._loop: Loop | None = None
        self._http: httpd.HttpServer | None = None
        self._grpc_address: tuple[str, int] | None = None
        self._ticking = asyncio.Lock()
        self._ticks = Ticks()

    async def start(self, daemon: runtime.Daemon, *, ticking: bool = True) -> None:
        """Listen and start ticking every `tick_s` of the clock; raises ListenError and ConfigError.

        Returns once both addresses are bound. With `ticking=False` nothing is decided until the
        caller calls `tick()`, which suits one who owns time.
        """
        await self._connect(daemon)
        source, signal = self._source()
        daemon.close_with("signal", signal.close)
        await self._journal.open()
        daemon.close_with("journal", self._journal.close)
        loop = self._loop = self._build(source, signal)
        self._http = await httpd.HttpServer.start(
            self._application(loop), self._settings.listen, self._settings.web.config_file
        )
        daemon.close_with("http", self._http.close)
        if self._settings.web.config_file is not None:
            daemon.own("web config", self._http.keep_config())
        self._grpc_address = await self._external.start(self._settings.listen_grpc)
        daemon.close_with("external scaler", self._external.close)
        host, port = self._http.address
        _log.info("listening", service="http", host=host, port=port)
        host, port = self._grpc_address
        _log.info("listening", service="grpc", host=host, port=port)
        _log.info(
            "controller started",
            version=__version__,
            source=source,
            workloads=len(self._settings.workloads),
            cluster=self._cluster is not None,
            tick_s=self._settings.tick_s,
        )
        if ticking:
            daemon.own("tick", self._tick_for_ever())

    @property
    def http_address(self) -> tuple[str, int]:
        """(host, port) of the page, the API and /metrics; known once started."""
        assert self._http is not None, "not started"
        return self._http.address

    @property
    def grpc_address(self) -> tuple[str, int]:
        """(host, port) of the external scaler; known once started."""
        assert self._grpc_address is not None, "not started"
        return self._grpc_address

    @property
    def status(self) -> FleetStatus | None:
        """Everything that the last tick saw, decided and answered; None before the first."""
        return None if self._loop is None else self._loop.status

    @property
    def observation(self) -> FleetObservation | None:
        """What the last tick saw; None before the first."""
        return None if (status := self.status) is None else status.observation

    @property
    def decision(self) -> FleetDecision | None:
        """What the last tick decided; None before the first."""
        return None if (status := self.status) is None else status.decision

    async def tick(self) -> Snapshot:
        """Observe, decide, publish, write, record: once. Returns what is answered now.

        Never raises for a source, a workload or a target that fails: these are logged once per
        change, exported, and tried again at the next tick.
        """
        assert self._loop is not None, "not started"
        async with self._ticking:
            status = await self._loop.tick()
            self._page = metrics.render(status, self._tally())
            self._ticks.announce(status.snapshot.number)
            return status.snapshot

    # ------------------------------------------------------------ building

    async def _connect(self, daemon: runtime.Daemon) -> None:
        """Connect to the cluster that the settings name, unless one was given. Raises ConfigError."""
        if self._cluster is not None:
            return
        gateway = await kube.connect(self._settings.kubernetes, self._clock)
        if gateway is None:
            return
        daemon.close_with("kubernetes", gateway.close)
        self._kube = KubeCluster(gateway, self._clock, self._settings.kubernetes)
        self._cluster = self._kube
        if self._scaler is None:
            self._scaler = self._writes = ScaleSubresource(gateway)
        daemon.own("cluster", self._kube.run())
        self._audit = PodAudit(gateway, self._clock, self._settings, namespace=kube.own_namespace())
        daemon.own("audit", self._audit.run())

    def _source(self) -> tuple[str, Signal]:
        """(its name in metrics and logs, the source)."""
        prometheus = self._settings.prometheus
        if self._signal is not None:
            return type(self._signal).__name__, self._signal
        if prometheus is not None:
            return "prometheus", PrometheusSignal(prometheus, self._settings.tick_s, self._clock)
        return "scrape", ScrapeSignal(self._settings.scrape, self._clock)

    def _build(self, source: str, signal: Signal) -> Loop:
        prometheus = self._settings.prometheus
        backfill = Backfill(
            signal,
            self._journal.demand,
            span_s=PAST_S if prometheus is None else prometheus.backfill_s,
            step_s=PAST_STEP_S if prometheus is None else prometheus.backfill_step_s,
            keep_s=min(PAST_S, self._settings.journal.keep_s),
            journal_step_s=DEMAND_STEP_S,
        )
        return Loop(
            self._settings,
            self._clock,
            source=source,
            signal=signal,
            surroundings=_Surroundings(
                self._settings, self._cluster, self._kube, self._journal, self._keys
            ),
            scaler=self._scaler,
            backfill=backfill,
            recorder=self._journal,
            publish=lambda s: self._external.publish(s.snapshot, s.refusals),
            faults=self._faults,
        )

    def _application(self, loop: Loop) -> web.Application:
        app = httpd.application(
            page=lambda: self._page,
            ready=self._unready,
            scrapes_max=self._settings.web.max_scrapes_in_flight,
        )
        Page(
            status=lambda: loop.status,
            tally=self._tally,
            ready=self._unready,
            now=self._clock.wall,
            ring=loop.ring,
            decision_at=self._journal.decision,
            origin_at=self._journal.origin,
            gpus=Exporters(self._settings.exporters, self._clock).map,
            ticks=self._ticks,
            audit=self._audited,
            doctor=self._doctor,
        ).attach(app)
        return app

    def _audited(self) -> dict[str, Any] | None:
        """What the audit knows; None without a cluster."""
        return None if self._audit is None else self._audit.state.as_dict()

    def _unready(self) -> str | None:
        """Why this replica may not be asked yet; None when it may."""
        waiting = None if self._cluster is None else self._cluster.unsynced()
        if waiting is not None:
            return waiting
        return "the first decision is not made yet" if self.status is None else None

    def _tally(self) -> Tally:
        counted = Tally() if self._loop is None else self._loop.tally()
        if self._writes is not None:
            counted = replace(counted, actuator_writes=self._writes.writes)
        if self._kube is not None:
            counted = replace(counted, cache_synced=self._kube.synced, cache_age_s=self._kube.age_s)
        if self._audit is not None:
            audited = self._audit.state
            counted = replace(counted, audit_findings=audited.counts(), audit_at=audited.at)
        return replace(
            counted,
            scaler_requests=self._external.requests,
            scaler_streams=self._external.streams,
        )

    async def _tick_for_ever(self) -> None:
        """Wait a little for the caches, then tick on the grid.

        Before they are complete, workloads would be missing from the snapshot, and KEDA be told
        that they are not known.
        """
        waited_s = 0.0
        while waited_s < SYNC_WAIT_S and self._cluster is not None and self._cluster.unsynced():
            await self._clock.sleep(SYNC_POLL_S)
            waited_s += SYNC_POLL_S

        async def step() -> None:
            await self.tick()

        await runtime.every(self._clock, self._settings.tick_s, step)


class _Surroundings:
    """What the loop asks beside its signals: the settings file, and the cluster where there is one."""

    def __init__(
        self,
        settings: ControllerSettings,
        cluster: Cluster | None,
        kube: KubeCluster | None,
        journal: Journal,
        keys: KeyFiles | None,
    ) -> None:
        self._keys = keys
        self._declarations = declared.Declarations(settings)
        self._cluster = cluster
        self._kube = kube
        self._journal = journal

    def declared(self) -> declared.Declared:
        return self._declarations.read(
            () if self._cluster is None else self._cluster.scaled_objects()
        )

    def replicas(self, workloads: Sequence[Workload]) -> Mapping[str, ReplicaState]:
        return {} if self._cluster is None else self._cluster.replicas(workloads)

    def faults(self) -> Mapping[str, Sequence[str]]:
        found: dict[str, Sequence[str]] = {}
        if self._kube is not None:
            found |= dict.fromkeys(self._kube.problems, ())
        if self._cluster is not None and (waiting := self._cluster.unsynced()) is not None:
            found[waiting] = ()
        if self._journal.problem is not None:
            found[self._journal.problem] = ()
        if self._keys is not None and self._keys.problem is not None:
            found[self._keys.problem] = ()
        return found


def with_options(
    settings: ControllerSettings,
    options: Mapping[str, str | None],
    *,
    exporters: str | None,
    log_options: Mapping[str, str | None],
) -> ControllerSettings:
    """The settings with what the command line gave in place; None is not given. Raises ConfigError."""
    data = msgspec.to_builtins(settings)
    data |= {key: value for key, value in options.items() if value is not None}
    if exporters is not None:
        data["exporters"]["urls"] = [exporters]
    data["log"] |= {key: value for key, value in log_options.items() if value is not None}
    return convert(data, ControllerSettings, where="command line")


def run(settings: ControllerSettings, *, doctor: Doctor | None = None) -> int:
    """Run the controller until a signal; the exit code."""
    log.configure(settings.log.level, settings.log.format)
    return runtime.run(Controller(settings, SystemClock(), doctor=doctor).start)
