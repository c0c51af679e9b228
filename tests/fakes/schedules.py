"""Many workloads under one controller, each with faults of its own, drawn from a seed.

The truth is a `Fleet` over all of them at once. What the controller reads of it goes through the
faults: every fourth workload is read pod by pod, the others as one number, as a Prometheus gives
it. What is really true is kept beside, so that answers are judged by it and not by what the
controller believed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from gpuscale.controller import scaledobject
from gpuscale.controller.domain import Floats, ReplicaState, SignalReading, SignalTarget
from gpuscale.controller.fleet import Fleet
from gpuscale.controller.podsample import PodSample
from gpuscale.errors import SourceUnreachable
from tests.fakes.clock import ManualClock
from tests.fakes.cluster import FakeCluster, replica_state
from tests.fakes.controllers import TICK_S, settings_of
from tests.fakes.podsignal import PodSignal

Kind = Literal[
    "outage", "missing", "silent", "nan", "negative", "stale", "reset", "duplicate", "unknown"
]
KINDS: tuple[Kind, ...] = (
    "outage", "missing", "silent", "nan", "negative", "stale", "reset", "duplicate", "unknown",
)  # fmt: skip
"""reset: all pods' counters begin anew; duplicate: each pod's sample arrives twice, once garbled;
unknown: the API server does not say what replicas there are."""
BLINDING: frozenset[Kind] = frozenset({"outage", "missing", "nan", "negative", "stale"})
"""Faults under which nothing trustworthy is read."""
DOUBTFUL: frozenset[Kind] = BLINDING | {"silent", "unknown"}
"""Faults under which nothing may be scaled down."""
STALE_TICKS = 3
"""Ticks for which an old sample is not stale (stale_after_s is 45 s)."""
SERVICE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of one workload over the ticks [start, stop)."""

    kind: Kind
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One workload's life: demand by tick, policy, truth, faults."""

    name: str
    demand: Floats
    capacity: float
    start_s: float
    replicas: int
    policy: Mapping[str, Any]
    by_pods: bool
    faults: tuple[Fault, ...]

    @property
    def key(self) -> str:
        return f"ml/{self.name}"

    def at(self, tick: int) -> frozenset[Kind]:
        """The faults of a tick."""
        return frozenset(f.kind for f in self.faults if f.start <= tick < f.stop)

    def felt(self, tick: int) -> frozenset[Kind]:
        """The faults that must be noticed: an old sample is good until it is stale."""
        return frozenset(
            f.kind
            for f in self.faults
            if f.start + (STALE_TICKS if f.kind == "stale" else 0) <= tick < f.stop
        )


def _demand(rng: np.random.Generator, ticks: int, peak: float) -> Floats:
    """One of six shapes with noise, units/s per tick."""
    t = np.arange(ticks) * TICK_S
    period = rng.uniform(900.0, 7200.0)
    phase = rng.uniform(0.0, period)
    shapes = (
        np.full(ticks, 0.6),
        np.clip((t - rng.uniform(0, 3000)) / rng.uniform(60, 3000), 0.05, 1.0),
        np.where((t + phase) % period < period / 2, 1.0, 0.2),
        0.55 - 0.45 * np.cos(2 * np.pi * (t + phase) / period),
        np.where((t + phase) % period < 180.0, 1.0, 0.1),
        np.where((t + phase) % period < period / 3, 0.8, 0.0),
    )
    shape = shapes[int(rng.integers(len(shapes)))]
    return np.asarray(peak * shape * rng.gamma(50.0, 0.02, ticks), dtype=np.float64)


def drawn(seed: int, ticks: int, *, stale: bool) -> Schedule:
    """The schedule of a seed; `stale`: whether old samples may be among its faults."""
    rng = np.random.default_rng(seed)
    capacity = float(rng.uniform(2.0, 20.0))
    low = int(rng.choice([0, 1, 1, 2]))
    policy: dict[str, Any] = {
        "min_replicas": low,
        "max_replicas": low + int(rng.choice([4, 8, 12, 40])),
        "dwell_s": float(rng.choice([0.0, 60.0, 300.0])),
        "hold_s": float(rng.choice([120.0, 300.0])),
    }
    for name in ("step_up_max", "step_down_max"):
        if rng.random() < 0.5:
            policy[name] = int(rng.integers(1, 4))
    kinds = [k for k in KINDS if stale or k != "stale"]
    faults = []
    for _ in range(int(rng.integers(2, 6))):
        kind = kinds[int(rng.integers(len(kinds)))]
        start = int(rng.integers(0, ticks))
        length = 1 if kind == "reset" else int(rng.integers(1, 80))
        faults.append(Fault(kind=kind, start=start, stop=start + length))
    return Schedule(
        name=f"schedule-{seed}",
        demand=_demand(rng, ticks, capacity * float(rng.uniform(0.5, 6.0))),
        capacity=capacity,
        start_s=float(rng.choice([60.0, 180.0, 600.0])),
        replicas=int(rng.integers(max(1, low), min(10, policy["max_replicas"]) + 1)),
        policy=policy,
        by_pods=seed % 4 == 1,
        faults=tuple(faults),
    )


@dataclass
class _Pod:
    name: str
    started_at: float
    completed: float = 0.0


class Truth:
    """All schedules at once: replicas, queues, pods' counters, and what is told of them."""

    def __init__(self, schedules: Sequence[Schedule], clock: ManualClock) -> None:
        self.schedules = tuple(schedules)
        self.clock = clock
        self.tick = -1
        self.asked: Floats = np.array([float(s.replicas) for s in schedules])
        self._fleet = Fleet(
            tick_s=TICK_S,
            capacity=np.array([s.capacity for s in schedules]),
            lead_s=np.array([s.start_s for s in schedules]),
            replicas=self.asked,
        )
        self.ready: Floats = self.asked.copy()
        self.backlog: Floats = np.zeros(len(schedules))
        self.demand: Floats = np.zeros(len(schedules))
        self._index = {s.key: i for i, s in enumerate(schedules)}
        self._pods: list[list[_Pod]] = [[] for _ in schedules]
        self._serial = 0
        self._stale: dict[str, SignalReading | Exception] = {}
        self.view = FakeCluster(objects=[_scaled_object(s) for s in schedules])
        self.pod_signal = PodSignal(pods=self._samples)

    def advance(self, asked: Floats) -> None:
        """One tick with these replicas asked for."""
        self.tick += 1
        self.demand = np.array([s.demand[self.tick] for s in self.schedules])
        before = self._fleet.backlog.copy()
        outcome = self._fleet.step(asked, self.demand)
        self.asked, self.ready, self.backlog = outcome.asked, outcome.ready, outcome.backlog
        ended = np.maximum(0.0, before + outcome.arrived - outcome.backlog)
        for i, pods in enumerate(self._pods):
            self._settle(pods, int(self.ready[i]))
            for pod in pods:
                pod.completed += ended[i] / len(pods)
        for i, schedule in enumerate(self.schedules):
            if "reset" in schedule.at(self.tick):
                for pod in self._pods[i]:
                    pod.completed, pod.started_at = 0.0, self.clock.wall()
        self.view.states = {
            s.key: self._state(i, s)
            for i, s in enumerate(self.schedules)
            if "unknown" not in s.at(self.tick)
        }

    def _settle(self, pods: list[_Pod], ready: int) -> None:
        del pods[ready:]
        while len(pods) < ready:
            self._serial += 1
            pods.append(_Pod(name=f"pod-{self._serial}", started_at=self.clock.wall()))

    def _state(self, i: int, schedule: Schedule) -> ReplicaState:
        asked, ready = int(self.asked[i]), int(self.ready[i])
        state = replica_state(schedule.key, asked=asked, ready=ready)
        return replace(state, endpoints=tuple(pod.name for pod in self._pods[i]))

    # ------------------------------------------------------------ as a source of signals

    def _samples(self, key: str) -> list[PodSample]:
        i = self._index[key]
        pods = self._pods[i]
        busy = self.demand[i] * SERVICE_S / max(1, len(pods))
        out: list[PodSample] = []
        for number, pod in enumerate(pods):
            sample = PodSample(
                pod=pod.name,
                at=self.clock.wall(),
                completed={"requests": pod.completed},
                running=busy,
                waiting=self.backlog[i] / len(pods),
                started_at=pod.started_at,
            )
            out += _garbled(sample, number, self.schedules[i].at(self.tick))
        return out

    async def read(
        self, targets: Sequence[SignalTarget], now: float
    ) -> Mapping[str, SignalReading | Exception]:
        by_pods = [t for t in targets if self.schedules[self._index[t.key]].by_pods]
        read = dict(await self.pod_signal.read(by_pods, now))
        for target in targets:
            i = self._index[target.key]
            faults = self.schedules[i].at(self.tick)
            if target.key not in read:
                read[target.key] = self._summed(target, i, faults)
            if "stale" not in faults:
                self._stale[target.key] = read[target.key]
            elif target.key in self._stale:
                read[target.key] = self._stale[target.key]
            if "outage" in faults:
                read[target.key] = SourceUnreachable("the source does not answer: wait for it")
        return read

    def _summed(self, target: SignalTarget, i: int, faults: frozenset[Kind]) -> SignalReading:
        """One number for all pods, as a query gives it."""
        pods, answered = int(self.ready[i]), int(self.ready[i])
        arrivals: float | None = float(self.demand[i]) if pods else None
        waiting: float | None = float(self.backlog[i]) if pods else None
        if "silent" in faults and pods:
            answered = pods // 2
            share = answered / pods
            arrivals = float(self.demand[i]) * share if answered else None
            waiting = float(self.backlog[i]) * share if answered else None
        if "missing" in faults:
            arrivals = None
        if "nan" in faults:
            arrivals = float("nan")
        if "negative" in faults:
            arrivals = -3.0
        return SignalReading(
            key=target.key,
            at=self.clock.wall() - 5.0,
            arrivals=arrivals,
            running=None,
            waiting=waiting,
            pods_answered=answered,
            pods_expected=target.pods_expected,
            reason=None if arrivals is not None else "no series matches",
        )

    async def history(
        self, targets: Sequence[SignalTarget], start: float, end: float, step_s: float
    ) -> Mapping[str, tuple[Floats, Floats]]:
        return {}

    async def close(self) -> None:
        """Nothing is held."""


def _garbled(sample: PodSample, number: int, faults: frozenset[Kind]) -> list[PodSample]:
    """What arrives of one pod's sample."""
    if "missing" in faults:
        sample = replace(sample, completed=None)
    if "nan" in faults:
        sample = replace(sample, completed={"requests": float("nan")}, running=float("nan"))
    if "negative" in faults:
        sample = replace(sample, completed={"requests": -5.0}, waiting=-1.0)
    if "silent" in faults and number % 2 == 0:
        return []
    if "duplicate" in faults:
        return [sample, replace(sample, at=sample.at - 30.0, completed={"requests": 1e9}), sample]
    return [sample]


def _scaled_object(schedule: Schedule) -> dict[str, Any]:
    """As its owner would commit it."""
    settings = settings_of({"defaults": {"mode": "act"}})
    own = {
        "capacity": schedule.capacity,
        "start_time_s": schedule.start_s,
        **schedule.policy,
    }
    workload, metadata = scaledobject.declare("ml", schedule.name, settings, fields=own)
    return scaledobject.scaledobject(workload, metadata)
