"""From successive samples of pods to demand: what arrives, whatever the pods do meanwhile.

For one pod, what arrived over an interval is what ended plus the change of what is in the server:

    arrivals = Δcompleted + Δwaiting + Δrunning                 (conservation of requests)

Completions alone under-read while a queue grows, and gauges alone cannot tell idle from fast.
Everything that goes wrong with that sum in production is handled here and nowhere else: counter
resets, engine restarts, pods that come and go, pods that do not answer, gauges that lag.

State is a value: `update(state, samples, ...)` returns the next one. O(pods), bounded by PODS_MAX
pods of SERIES_MAX counters. Missing stays missing: a pod that does not answer is never a zero.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuscale.controller.podsample import SERIES_MAX, PodSample, clean, cleaned

PODS_MAX = 10_000
"""Pods of one workload; those beyond it (in the order given) are not read."""

RATE_MAX = 1e7
"""Largest believable arrivals of one pod, requests per second; beyond it a counter jumped."""

REMEMBER_S = 300.0
"""A pod that stops answering is remembered this long, so that its counters bridge a short gap."""

SETTLE_S = 60.0
"""A pod counts as silent only when it has been expected this long: new pods answer, and have a
rate, some scrapes after they are ready. Until then the old pods still carry all of the demand, and
scaling their sum up would read a doubling into every scale-up."""

GAUGES_LAG_S = 30.0
"""vLLM's gauges read 0 for up to about 18 s after a cold start while requests wait (vllm#49538):
for this long, zeros of a pod that has completed nothing are unknown, not idle."""

EXPECTED_MAX = 64
"""Remembered changes of the number of expected pods within SETTLE_S; older ones merge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodMemory:
    """What is remembered of one pod."""

    last: PodSample
    first_seen: float
    owed: float = 0.0
    """Arrivals, <= 0, by which the last interval came out negative: gauges that lag the counters
    give with one hand what they take with the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """The numbers of pods that were expected lately: (since, count), ascending in time."""

    steps: tuple[tuple[float, int], ...] = ()

    def next(self, count: int | None, now: float) -> "Expectation":
        """With `count` pods expected at `now`; None (unknown) changes nothing."""
        steps = self.steps
        if count is None:
            return self
        if not steps or steps[-1][1] != count:
            steps = (*steps, (now, count))
        # The last step before the window still holds within it.
        start = 0
        while start + 1 < len(steps) and steps[start + 1][0] <= now - SETTLE_S:
            start += 1
        return Expectation(steps=steps[start:][-EXPECTED_MAX:])

    @property
    def settled(self) -> int | None:
        """Pods that have been expected for the whole of SETTLE_S; None where that is unknown."""
        return min((count for _, count in self.steps), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandState:
    """What one workload's demand is computed from, beside the samples of the moment."""

    pods: Mapping[str, PodMemory] = field(default_factory=dict)
    expected: Expectation = Expectation()


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """All pods of one workload together, at one time; None where unknown."""

    at: float
    """Time of the newest sample; -inf where there is none."""
    arrivals: float | None
    running: float | None
    waiting: float | None
    """None too where demand counts tokens: requests that wait are no amount of those."""
    in_flight: float | None
    """Requests that run or wait."""
    throughput: float | None
    """What ends per second, in the unit of the demand."""
    latency_s: float | None
    queue_seconds: float | None
    """Mean seconds that a request spent in the server, and waited in it, over the interval."""
    prompt_tokens: float | None
    generation_tokens: float | None
    """Tokens per second."""
    kv_fraction: float | None
    busy: float | None
    startup_s: float | None
    models: frozenset[str]
    pods_answered: int
    reason: str | None
    """Why `arrivals` is None; None when it is not."""


def offered(served: float, running: float | None, waiting: float | None) -> float:
    """Tokens per second that are wanted, where requests are not counted.

    Those that wait want as much as those that run get. Where nothing runs, nothing is known of it.
    """
    return served * (1.0 + (waiting or 0.0) / running) if running else served


def filled(total: float, known: int, answered: int, settled: int | None) -> float:
    """`total` of `known` pods, with each silent pod taken to carry the mean of those known.

    Silent are the settled pods beyond those that answered; a pod that answered without a value is
    new and adds nothing yet.
    """
    silent = max(0, (settled or 0) - answered)
    return total * (known + silent) / known


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flow:
    """What one pod shows over the interval since its last sample; None where unknown."""

    arrivals: float | None = None
    running: float | None = None
    waiting: float | None = None
    throughput: float | None = None
    ended: float | None = None
    queued_s: float | None = None
    sojourn_s: float | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    lagging: bool = False


def update(
    state: DemandState, samples: Iterable[PodSample], *, expected: int | None, now: float
) -> tuple[DemandState, Demand]:
    """The demand at `now` from the samples of the pods that answered, and the state for next time.

    `expected` is the number of pods that should answer, None where it is not known. Order and
    duplicates among `samples` do not matter: of two samples of one pod the newest counts.
    """
    newest: dict[str, PodSample] = {}
    for sample in samples:
        known = newest.get(sample.pod)
        if known is None and len(newest) >= PODS_MAX:
            continue
        if known is None or sample.at > known.at:
            newest[sample.pod] = cleaned(sample)
    pods = {
        pod: memory
        for pod, memory in state.pods.items()
        if pod not in newest and now - memory.last.at <= REMEMBER_S
    }
    flows: list[_Flow] = []
    for pod, sample in newest.items():
        pods[pod], flow = _step(state.pods.get(pod), sample)
        flows.append(flow)
    if len(pods) > PODS_MAX:
        kept = sorted(pods.items(), key=lambda item: item[1].last.at, reverse=True)[:PODS_MAX]
        pods = dict(kept)
    expectation = state.expected.next(expected, now)
    demand = _together(flows, list(newest.values()), expectation.settled, expected)
    return DemandState(pods=pods, expected=expectation), demand


def _step(memory: PodMemory | None, sample: PodSample) -> tuple[PodMemory, _Flow]:
    """One pod from its last sample to this one."""
    if memory is None or not 0.0 < sample.at - memory.last.at <= REMEMBER_S:
        # New, forgotten, or the clock stepped back: there is no interval to speak of.
        return _begin(sample, sample.at)
    last = memory.last
    restarted = _restarted(last, sample)
    first_seen = sample.at if restarted else memory.first_seen
    if _lagging(sample, first_seen):
        return _begin(sample, first_seen)
    seconds = sample.at - last.at
    ended = _ended(last, sample)
    arrivals, owed = None, 0.0
    if ended is not None:
        change = ended if sample.in_tokens else ended + _growth(last, sample, restarted=restarted)
        arrivals = clean(max(0.0, change + memory.owed) / seconds, ceiling=RATE_MAX)
        owed = min(0.0, change)
    queued_s = _increase(last.queue_s, sample.queue_s)
    waiting = sample.waiting
    if waiting is None and queued_s is not None:
        waiting = queued_s / seconds
    flow = _Flow(
        arrivals=arrivals,
        running=_running(last, sample, waiting),
        waiting=waiting,
        throughput=None if ended is None else _served(last, sample, ended) / seconds,
        ended=ended,
        queued_s=queued_s,
        sojourn_s=_increase(last.sojourn_s, sample.sojourn_s),
        prompt_tokens=_rate(last.prompt_tokens, sample.prompt_tokens, seconds),
        generation_tokens=_rate(last.generation_tokens, sample.generation_tokens, seconds),
    )
    return PodMemory(last=_remembered(last, sample), first_seen=first_seen, owed=owed), flow


def _begin(sample: PodSample, first_seen: float) -> tuple[PodMemory, _Flow]:
    """A sample without an interval before it: gauges at most."""
    if _lagging(sample, first_seen):
        sample = replace(sample, running=None, waiting=None)
        return PodMemory(last=sample, first_seen=first_seen), _Flow(lagging=True)
    flow = _Flow(running=sample.running, waiting=sample.waiting)
    return PodMemory(last=sample, first_seen=first_seen), flow


def _lagging(sample: PodSample, first_seen: float) -> bool:
    """Whether zeros of this pod are no news: it has just come up and has served nothing yet."""
    idle = not (sample.running or sample.waiting or any((sample.completed or {}).values()))
    return idle and sample.at - first_seen < GAUGES_LAG_S


def _begun_anew(last: PodSample, sample: PodSample) -> bool:
    """Whether the process is another one; its start time is rounded to the kernel's ticks."""
    if last.started_at is None or sample.started_at is None:
        return False
    return abs(sample.started_at - last.started_at) > 1.0


def _restarted(last: PodSample, sample: PodSample) -> bool:
    """Whether the server began anew: another process, or a counter that fell."""
    before, after = last.completed or {}, sample.completed or {}
    fell = any(count < before.get(series, 0.0) for series, count in after.items())
    return fell or _begun_anew(last, sample)


def _ended(last: PodSample, sample: PodSample) -> float | None:
    """Requests that ended in between; a counter that fell began again at 0. None where unknown.

    A new series of the same process adds nothing: it may be an old one that was unreadable
    before, and its whole past would be one burst.
    """
    before, after = last.completed, sample.completed
    if before is None or after is None:
        return None
    if _begun_anew(last, sample):
        return math.fsum(after.values())
    return math.fsum(
        count - before[series] if count >= before[series] else count
        for series, count in after.items()
        if series in before
    )


def _served(last: PodSample, sample: PodSample, ended: float) -> float:
    """Those of the ended that were served. Whoever gave up while waiting shows no capacity."""
    unserved = _increase(last.unserved, sample.unserved)
    return min(max(0.0, ended - (unserved or 0.0)), RATE_MAX * (sample.at - last.at))


def _growth(last: PodSample, sample: PodSample, *, restarted: bool) -> float:
    """Change of the requests in the server; after a restart everything in it has arrived since."""
    growth = 0.0
    for before, after in ((last.waiting, sample.waiting), (last.running, sample.running)):
        if after is not None and restarted:
            growth += after
        elif after is not None and before is not None:
            growth += after - before
    return growth


def _running(last: PodSample, sample: PodSample, waiting: float | None) -> float | None:
    """The gauge where there is one, else the mean number in the server (Little's law) less what waits."""
    if sample.running is not None:
        return sample.running
    sojourn_s = _increase(last.sojourn_s, sample.sojourn_s)
    if sojourn_s is None:
        return None
    return max(0.0, sojourn_s / (sample.at - last.at) - (waiting or 0.0))


def _increase(before: float | None, after: float | None) -> float | None:
    """Growth of a sum of counters; None over a reset, where the part before it is lost."""
    if before is None or after is None or after < before:
        return None
    return after - before


def _rate(before: float | None, after: float | None, seconds: float) -> float | None:
    increase = _increase(before, after)
    return None if increase is None else clean(increase / seconds)


def _remembered(last: PodSample, sample: PodSample) -> PodSample:
    """The sample, with the last counts of series that are missing in it (one scrape's NaN)."""
    if last.completed is None or sample.completed is None:
        return sample
    merged = {**last.completed, **sample.completed}
    return replace(sample, completed=merged) if len(merged) <= SERIES_MAX else sample


def _together(
    flows: Sequence[_Flow], samples: Sequence[PodSample], settled: int | None, expected: int | None
) -> Demand:
    """All pods of a workload as one; sums are exact, so that the order of pods does not matter."""
    answered = len(flows)

    def total(values: Iterable[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return filled(math.fsum(known), len(known), answered, settled) if known else None

    arrivals = total(flow.arrivals for flow in flows)
    running = total(flow.running for flow in flows)
    waiting = total(flow.waiting for flow in flows)
    in_tokens = any(sample.in_tokens for sample in samples)
    if arrivals is not None and in_tokens:
        arrivals = clean(offered(arrivals, running, waiting), ceiling=RATE_MAX * answered)
    return Demand(
        at=max((sample.at for sample in samples), default=-math.inf),
        arrivals=arrivals,
        running=running,
        waiting=None if in_tokens else waiting,
        in_flight=None if running is None else running + (waiting or 0.0),
        throughput=total(flow.throughput for flow in flows),
        latency_s=None if in_tokens else _each((flow.sojourn_s, flow.ended) for flow in flows),
        queue_seconds=None if in_tokens else _each((flow.queued_s, flow.ended) for flow in flows),
        prompt_tokens=total(flow.prompt_tokens for flow in flows),
        generation_tokens=total(flow.generation_tokens for flow in flows),
        kv_fraction=_mean(sample.kv_fraction for sample in samples),
        busy=_mean(sample.busy for sample in samples),
        startup_s=max((s.startup_s for s in samples if s.startup_s is not None), default=None),
        models=frozenset[str]().union(*(sample.models for sample in samples)),
        pods_answered=answered,
        reason=None if arrivals is not None else _why(flows, samples, expected),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _each(sums: Iterable[tuple[float | None, float | None]]) -> float | None:
    """Seconds per request from the (seconds, requests) of every pod that has both."""
    known = [(seconds, count) for seconds, count in sums if seconds is not None and count]
    ended = math.fsum(count for _, count in known)
    return math.fsum(seconds for seconds, _ in known) / ended if ended > 0 else None


def _why(flows: Sequence[_Flow], samples: Sequence[PodSample], expected: int | None) -> str:
    """Why there are no arrivals, in one sentence."""
    if not flows:
        return nobody(expected)
    if all(flow.lagging for flow in flows):
        return LAGGING
    if all(sample.completed is None for sample in samples):
        return "no pod shows a readable count of completed requests, so arrivals are unknown"
    return "a rate needs two samples of a pod, and no pod has given its second yet"


LAGGING = (
    "the pods have just started and have served nothing, so that their zeros may only be late: "
    f"demand is unknown for up to {GAUGES_LAG_S:g} s"
)


def nobody(expected: int | None) -> str:
    """Why there is nothing where no pod answered."""
    if expected == 0:
        return "no pod is ready, so nothing can be measured: demand is unknown, not zero"
    if expected is None:
        return "no pod answered, and how many should have is not known"
    return f"none of the {expected} pods that should answer did"
