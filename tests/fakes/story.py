"""A whole life in closed loop: simulated cluster, real controller, KEDA's HPA; time moves by ticks.

The controller reads pods and answers; the HPA of every ScaledObject takes the answer as KEDA hands
it over (an error is no number), and the cluster is scaled to what comes out.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from gpuscale.controller import scaledobject
from gpuscale.controller.domain import Decision, Hold, Snapshot
from gpuscale.demo.world import ClusterView
from gpuscale.simulation.cluster import SimulatedCluster, SimulatedWorkload
from gpuscale.simulation.hpa import Hpa, HpaBehavior
from tests.fakes.clock import ManualClock
from tests.fakes.controllers import TICK_S, Running, running, settings_of
from tests.fakes.podsignal import PodSignal, samples_of

BEGIN = 1_700_006_400.0
"""A midnight (UTC)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One workload after one tick."""

    at_s: float
    answer: int | None
    asked: int
    ready: int
    pending: int


@dataclass
class Story:
    """What lives, and what happened so far."""

    cluster: SimulatedCluster
    signal: PodSignal
    clock: ManualClock
    objects: dict[str, dict[str, Any]]
    hpas: dict[str, Hpa]
    rows: dict[str, list[Row]]
    fields: Mapping[str, Any]
    control: Running | None = None
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def now_s(self) -> float:
        """Seconds since the beginning."""
        return self.cluster.now - BEGIN

    async def start(self) -> None:
        """Start a controller that knows nothing, as a new pod of it would."""
        self.signal.forget()
        view = ClusterView(self.cluster, list(self.objects.values()))
        self.control = await self._stack.enter_async_context(
            running(self.fields, signal=self.signal, cluster=view, clock=self.clock)
        )

    async def stop(self) -> None:
        """Kill the controller: nobody answers KEDA any more."""
        self.control = None
        await self._stack.aclose()

    async def pass_s(self, seconds: float, until: Callable[[], bool] | None = None) -> list[Row]:
        """Let time pass; the rows of the first workload since. `until` ends it earlier."""
        key = next(iter(self.rows))
        begun = len(self.rows[key])
        for _ in range(round(seconds / TICK_S)):
            await self._tick()
            if until is not None and until():
                break
        return self.rows[key][begun:]

    async def _tick(self) -> None:
        snapshot: Snapshot | None = None
        await self.clock.advance(TICK_S)
        self.cluster.advance(self.cluster.now + TICK_S)
        if self.control is not None:
            snapshot = await self.control.controller.tick()
        for key, hpa in self.hpas.items():
            self._sync(key, hpa, None if snapshot is None else snapshot.answers[key].desired)

    def _sync(self, key: str, hpa: Hpa, answer: int | None) -> None:
        current = self.cluster.asked(key)
        value = None if answer is None else float(answer)
        wanted = current
        if not _paused(self.objects[key]):
            wanted = hpa.sync(now=self.cluster.now, current=current, value=value)
        if wanted != current:
            self.cluster.scale(key, wanted)
        live = [p for p in self.cluster.pods(key) if p.deleted_at is None]
        self.rows[key].append(
            Row(
                at_s=self.now_s,
                answer=answer,
                asked=wanted,
                ready=sum(p.ready for p in live),
                pending=sum(p.node is None for p in live),
            )
        )

    def outcome(self, key: str) -> Decision | Hold:
        """What was decided last."""
        assert self.control is not None
        decision = self.control.controller.decision
        assert decision is not None
        return decision.of(decision.keys.index(key))

    def annotate(self, key: str, annotations: Mapping[str, str]) -> None:
        """Set the ScaledObject's annotations, as kubectl would: the object is a new one."""
        manifest = self.objects[key]
        manifest["metadata"] = {**manifest["metadata"], "annotations": dict(annotations)}


def _paused(manifest: Mapping[str, Any]) -> bool:
    """Whether KEDA has paused it, and with it the HPA."""
    annotations = manifest["metadata"].get("annotations", {})
    return "autoscaling.keda.sh/paused" in annotations


def asked(rows: Sequence[Row]) -> list[int]:
    """spec.replicas, tick by tick."""
    return [row.asked for row in rows]


def model(
    demand: Callable[[float], float],
    *,
    name: str = "model",
    capacity: float = 10.0,
    start_s: float = 180.0,
    replicas: int = 2,
) -> SimulatedWorkload:
    """A vLLM deployment of one GPU per replica; `demand`: requests/s at a Unix time."""
    return SimulatedWorkload(
        namespace="ml", name=name, server="vllm", demand=demand,
        capacity=capacity, start_s=start_s, replicas=replicas,
    )  # fmt: skip


@asynccontextmanager
async def told(
    *workloads: SimulatedWorkload,
    nodes: Mapping[str, int] | None = None,
    seed: int = 0,
    fields: Mapping[str, Mapping[str, Any]] | None = None,
    defaults: Mapping[str, Any] | None = None,
    past: Mapping[str, Any] | None = None,
) -> AsyncIterator[Story]:
    """A story with a started controller; every workload declares its true capacity and start time.

    `nodes`: GPUs by node, plenty by default. `fields`: fields of a workload's policy by key;
    `defaults`: of all. `past`: (times, demand) by key, as a Prometheus would have kept it.
    """
    plenty = {f"node-{i}": 8 for i in range(20)}
    cluster = SimulatedCluster(nodes or plenty, workloads, now=BEGIN, seed=seed)
    common = {"defaults": {"mode": "act", **(defaults or {})}}
    settings = settings_of(common)
    objects, hpas = {}, {}
    for each in workloads:
        own = {
            "server": each.server,
            "capacity": each.capacity,
            "start_time_s": each.start_s,
            **(fields or {}).get(each.key, {}),
        }
        workload, metadata = scaledobject.declare(each.namespace, each.name, settings, fields=own)
        objects[each.key] = scaledobject.scaledobject(workload, metadata)
        hpas[each.key] = Hpa(HpaBehavior.of(objects[each.key]["spec"]))
    story = Story(
        cluster=cluster,
        signal=PodSignal(pods=lambda key: samples_of(cluster, key), past=dict(past or {})),
        clock=ManualClock(BEGIN),
        objects=objects,
        hpas=hpas,
        rows={w.key: [] for w in workloads},
        fields=common,
    )
    await story.start()
    try:
        yield story
    finally:
        await story.stop()
