"""A signal source over simulated pods: the real arithmetic of demand, without pages and sockets.

Between a pod and its sample stands whatever a story puts there: silence, garbage, a copy of the
same series, a counter that began anew.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpuscale.controller.demand import DemandState, update
from gpuscale.controller.domain import Floats, SignalReading, SignalTarget
from gpuscale.controller.podsample import PodSample
from gpuscale.errors import SourceUnreachable
from gpuscale.simulation.cluster import SimulatedCluster, SimulatedPod
from gpuscale.simulation.pages import KV_REQUESTS

Spoil = Callable[[PodSample, float], Iterable[PodSample]]
"""What becomes of one pod's sample at a time: nothing, itself, something else, several."""


@dataclass
class PodSignal:
    """Samples of every pod that is expected to answer, by key of the workload."""

    pods: Callable[[str], Sequence[PodSample]]
    """What the pods' pages say now."""
    spoil: dict[str, Spoil] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """Why nothing can be read at all, by key; `*` for everybody."""
    past: dict[str, tuple[Floats, Floats]] = field(default_factory=dict)
    _states: dict[str, DemandState] = field(default_factory=dict)

    async def read(
        self, targets: Sequence[SignalTarget], now: float
    ) -> Mapping[str, SignalReading | Exception]:
        return {t.key: self._one(t, now) for t in targets}

    def _one(self, target: SignalTarget, now: float) -> SignalReading | Exception:
        key = target.key
        failure = self.failures.get("*", self.failures.get(key))
        if failure is not None:
            return SourceUnreachable(failure)
        samples: Sequence[PodSample] = self.pods(key)
        spoil = self.spoil.get(key)
        if spoil is not None:
            samples = [left for sample in samples for left in spoil(sample, now)]
        state = self._states.get(key, DemandState())
        expected = target.pods_expected
        self._states[key], seen = update(state, samples, expected=expected, now=now)
        return SignalReading(
            key=key,
            at=seen.at,
            arrivals=seen.arrivals,
            running=seen.running,
            waiting=seen.waiting,
            in_flight=seen.in_flight,
            throughput=seen.throughput,
            latency_s=seen.latency_s,
            queue_seconds=seen.queue_seconds,
            kv_fraction=seen.kv_fraction,
            busy=seen.busy,
            startup_s=seen.startup_s,
            models=seen.models,
            pods_answered=seen.pods_answered,
            pods_expected=expected,
            reason=seen.reason,
        )

    async def history(
        self, targets: Sequence[SignalTarget], start: float, end: float, step_s: float
    ) -> Mapping[str, tuple[Floats, Floats]]:
        found = {}
        for key in (t.key for t in targets if t.key in self.past):
            times, demand = self.past[key]
            inside = (times > start) & (times <= end)
            found[key] = (times[inside], np.asarray(demand[inside], dtype=np.float64))
        return found

    def forget(self) -> None:
        """Begin as a new process does: no pod was ever seen."""
        self._states.clear()

    async def close(self) -> None:
        """Nothing is held."""


def samples_of(cluster: SimulatedCluster, key: str) -> list[PodSample]:
    """What the ready pods of a simulated deployment show."""
    return [sample_of(pod, cluster.now) for pod in cluster.pods(key) if pod.ready]


def sample_of(pod: SimulatedPod, at: float) -> PodSample:
    """One pod's page, as a server with counters of requests and seconds writes it."""
    return PodSample(
        pod=pod.name,
        at=at,
        completed={"requests": pod.completed + pod.lost},
        unserved=pod.lost,
        running=pod.running,
        waiting=pod.waiting,
        sojourn_s=pod.queue_seconds + pod.service_seconds,
        queue_s=pod.queue_seconds,
        kv_fraction=min(1.0, pod.running / KV_REQUESTS),
        busy=pod.busy,
        started_at=pod.created_at,
    )
