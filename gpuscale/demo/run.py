"""Runs the demo: wires the real daemons to the simulated cluster, moves its time, tells what happened."""

import asyncio
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpuscale import config, runtime
from gpuscale.clock import SystemClock
from gpuscale.controller import explain, scaledobject
from gpuscale.controller.daemon import Controller
from gpuscale.controller.signals.scrape import ScrapeSignal
from gpuscale.controller.status import WorkloadStatus
from gpuscale.demo import scenario
from gpuscale.demo.keda import Scaled, SimulatedKeda, SimulatedKubelet
from gpuscale.demo.time import VirtualClock
from gpuscale.demo.world import ClusterView, PodPages, SignalWithPast
from gpuscale.doctor.visit import Visits
from gpuscale.exporter import simulated
from gpuscale.exporter.daemon import Exporter
from gpuscale.settings import ControllerSettings, ExporterSettings
from gpuscale.simulation.cluster import SimulatedCluster
from gpuscale.simulation.hpa import Hpa, HpaBehavior

TICK_S = 15.0
"""The controller's tick and the HPA's sync, simulated."""
SLOWNESS_MAX = 3.0
"""A machine that cannot keep the speed ends after this many times the wanted duration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line asks for."""

    listen: str
    duration_s: float | None
    """Real seconds; None runs until it is stopped."""
    speed: float
    """Simulated seconds per real second."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A change of what a workload was asked."""

    at_s: float
    asked: int | None
    replicas: int
    ready: int


class Demo:
    """The running demo."""

    def __init__(self, options: Options, tell: Callable[["Demo"], None]) -> None:
        """`tell` is called after every simulated minute, for whoever watches."""
        self._options = options
        self._tell = tell
        self.clock = VirtualClock(scenario.BEGIN)
        self.cluster = SimulatedCluster(
            scenario.NODES, scenario.WORKLOADS, now=scenario.BEGIN, seed=options.seed
        )
        self.events: dict[str, list[Event]] = {key: [] for key in self.cluster.keys}
        self.exporters: dict[str, Exporter] = {}
        self.kubelets: dict[str, SimulatedKubelet] = {}
        self._uuids: dict[str, tuple[str, ...]] = {}
        self.controller: Controller
        self.keda: SimulatedKeda

    @property
    def elapsed_s(self) -> float:
        """Simulated seconds since the beginning."""
        return self.clock.wall() - scenario.BEGIN

    async def start(self, daemon: runtime.Daemon) -> None:
        """Start everything; the daemon owns it from here."""
        await self._start_nodes(daemon)
        pages = PodPages(self.cluster)
        port = await pages.start()
        daemon.close_with("pods", pages.close)
        settings = scenario.settings(
            listen=self._options.listen,
            listen_grpc="127.0.0.1:0",
            metrics_port=port,
            exporters=[_url(exporter.address) for exporter in self.exporters.values()],
        )
        objects = [_scaled_object(key, settings) for key in self.cluster.keys]
        self.controller = Controller(
            settings,
            self.clock,
            signal=SignalWithPast(ScrapeSignal(settings.scrape, self.clock), self.cluster, port),
            cluster=ClusterView(self.cluster, objects),
            doctor=Visits(settings, SystemClock()).results,
        )
        await self.controller.start(daemon, ticking=False)
        host, grpc_port = self.controller.grpc_address
        self.keda = SimulatedKeda(f"{host}:{grpc_port}", [_scaled(o) for o in objects])
        daemon.close_with("keda", self.keda.close)
        for key in self.cluster.keys:
            daemon.own(f"stream of {key}", self.keda.listen(key))
        daemon.own("demo", self._play(daemon))

    async def _start_nodes(self, daemon: runtime.Daemon) -> None:
        folder = tempfile.TemporaryDirectory(prefix="gpuscale-demo-")

        async def remove() -> None:
            folder.cleanup()

        daemon.close_with("sockets", remove)
        real = SystemClock()
        for number, (node, gpus) in enumerate(scenario.NODES.items()):
            socket = str(Path(folder.name) / f"{node}.sock")
            driver = simulated.driver(f"{scenario.CARD}x{gpus}", real.wall, seed=number)
            driver.follow(self._load(node))
            uuids = self._uuids[node] = tuple(d.identity.uuid for d in driver.devices())
            kubelet = self.kubelets[node] = SimulatedKubelet(socket, uuids)
            await kubelet.start()
            daemon.close_with(f"kubelet of {node}", kubelet.close)
            settings = config.convert(
                {"listen": "127.0.0.1:0", "pod_resources": {"socket": socket, "period_s": 1.0}},
                ExporterSettings,
                where="demo",
            )
            self.exporters[node] = Exporter(settings, node=node, driver=driver, clock=real)
            await self.exporters[node].start(daemon)

    def _load(self, node: str) -> Callable[[int], float]:
        return lambda gpu: self.cluster.busy(node, gpu)

    async def _play(self, daemon: runtime.Daemon) -> None:
        """Move time: cluster, controller, KEDA; until the duration is over or somebody stops it."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        o = self._options
        while True:
            self.cluster.advance(self.clock.wall() + TICK_S)
            self.clock.advance_to(self.clock.wall() + TICK_S)
            for node, kubelet in self.kubelets.items():
                kubelet.holders = self._holders(node)
            await self.controller.tick()
            for key in self.cluster.keys:
                await self._sync(key)
            if self.elapsed_s % 60.0 < TICK_S:
                self._tell(self)
            real = loop.time() - began
            if o.duration_s is not None and (
                self.elapsed_s >= o.duration_s * o.speed or real >= o.duration_s * SLOWNESS_MAX
            ):
                daemon.stop()
            await asyncio.sleep(max(0.0, self.elapsed_s / o.speed - real))

    def _holders(self, node: str) -> list[tuple[str, str, tuple[str, ...]]]:
        held: dict[str, list[str]] = {}
        namespaces: dict[str, str] = {}
        for pod, gpu in self.cluster.holders(node):
            held.setdefault(pod.name, []).append(self._uuids[node][gpu])
            namespaces[pod.name] = pod.key.split("/")[0]
        return [(namespaces[pod], pod, tuple(uuids)) for pod, uuids in held.items()]

    async def _sync(self, key: str) -> None:
        current = self.cluster.asked(key)
        replicas = await self.keda.sync(key, now=self.clock.wall(), current=current)
        if replicas != current:
            self.cluster.scale(key, replicas)
            asked = self.keda.objects[key].asked
            self.events[key].append(
                Event(
                    at_s=self.elapsed_s,
                    asked=None if asked is None else int(asked),
                    replicas=replicas,
                    ready=sum(p.ready for p in self.cluster.pods(key)),
                )
            )

    # ------------------------------------------------------------------ what happened

    def known(self, key: str) -> WorkloadStatus | None:
        """What the controller saw, learned and decided last; None before its first tick."""
        status = self.controller.status
        return None if status is None else status.workload(key)

    def report(self) -> dict[str, Any]:
        """What each workload was asked, got and why; and where everything listened."""
        return {
            "simulated_s": self.elapsed_s,
            "speed": self._options.speed,
            "seed": self._options.seed,
            "page": _url(self.controller.http_address),
            "external_scaler": "{}:{}".format(*self.controller.grpc_address),
            "exporters": [
                {
                    "node": node,
                    "metrics": f"{_url(e.address)}/metrics",
                    "gpus": scenario.NODES[node],
                }
                for node, e in self.exporters.items()
            ],
            "workloads": [self._workload(key) for key in self.cluster.keys],
        }

    def _workload(self, key: str) -> dict[str, Any]:
        pods = [p for p in self.cluster.pods(key) if p.deleted_at is None]
        ready = sum(p.ready for p in pods)
        pending = sum(p.node is None for p in pods)
        totals = self.cluster.totals(key)
        scaled = self.keda.objects[key]
        known = self.known(key)
        return {
            "workload": key,
            "server": self.cluster.workload(key).server,
            "asked": None if scaled.asked is None else int(scaled.asked),
            "got": {
                "replicas": self.cluster.asked(key),
                "ready": ready,
                "starting": len(pods) - ready - pending,
                "pending": pending,
            },
            "why": [] if known is None else _why(known),
            "capacity": None if known is None else asdict(known.capacity),
            "start": None if known is None else asdict(known.lead),
            "requests": round(totals.arrived),
            "late_ratio": totals.late / totals.arrived if totals.arrived else None,
            "replica_hours": totals.replica_seconds / 3600.0,
            "peak_replicas": totals.peak_replicas,
            "scaler_calls": scaled.calls,
            "scaler_error": scaled.error,
            "changes": [
                {"at_s": e.at_s, "asked": e.asked, "replicas": e.replicas, "ready": e.ready}
                for e in self.events[key]
            ],
        }


def _url(address: tuple[str, int]) -> str:
    return f"http://{address[0]}:{address[1]}"


def _why(known: WorkloadStatus) -> list[str]:
    return list(explain.sentences(known.outcome, capacity=known.capacity, lead=known.lead))


def _scaled_object(key: str, settings: ControllerSettings) -> dict[str, Any]:
    """The ScaledObject that an owner would commit, with the policy of the workload's name."""
    namespace, name = key.split("/")
    bounds = scenario.BOUNDS[key]
    workload, metadata = scaledobject.declare(
        namespace, name, settings, policy=scenario.policy_of(key),
        fields={"min_replicas": bounds[0], "max_replicas": bounds[1]},
    )  # fmt: skip
    return scaledobject.scaledobject(workload, metadata)


def _scaled(manifest: dict[str, Any]) -> Scaled:
    return Scaled(
        namespace=manifest["metadata"]["namespace"],
        name=manifest["metadata"]["name"],
        metadata=manifest["spec"]["triggers"][0]["metadata"],
        hpa=Hpa(HpaBehavior.of(manifest["spec"])),
    )
