"""What the controller's rooms hand each other. Types only: no input, no output, no clock.

Two shapes live here. Around the edges values are per workload (a `SignalReading`, a
`ReplicaState`, a `Decision`). In the middle they are arrays over all workloads at once
(`FleetObservation`, `FleetDecision`), so that ten thousand workloads cost one pass of numpy.

Absence: None per workload, NaN in arrays; neither is ever read as zero. A workload for which no
number can be given is a `Hold`, which is a type of its own and never a number with a flag.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from gpuscale.settings import Policy, Server

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

QUANTILES: tuple[float, ...] = (0.5, 0.75, 0.9, 0.95, 0.99)
"""Levels at which every forecast is given, ascending."""


# ---------------------------------------------------------------- around the edges, per workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The Kubernetes object whose scale subresource is read, and in direct mode written."""

    api_version: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A declared workload: who it is, how it is scaled, where its signals are."""

    namespace: str
    name: str
    policy: Policy
    policy_name: str
    actuator: Literal["keda", "scale", "none"]
    """keda: a ScaledObject names gpuscale; scale: direct mode; none: answered over gRPC only."""
    target: Target | None
    endpoints: tuple[str, ...] = ()
    """Metrics pages named in the settings; empty: the pods' own, by the API server."""
    paused: str | None = None
    """What pauses it, an annotation or a person; None when it is not paused."""
    only_trigger: bool = True
    """False where the ScaledObject has other triggers beside gpuscale's."""

    @property
    def key(self) -> str:
        """NAMESPACE/NAME, the identity of a workload everywhere."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalTarget:
    """What a signal source needs to know of one workload."""

    key: str
    namespace: str
    name: str
    server: Server
    selector: str
    """PromQL label matchers, already filled in."""
    endpoints: tuple[str, ...]
    """Metrics pages of the pods that are ready; empty where none is known."""
    pods_expected: int | None
    """Pods that should answer; None where it is not known."""
    queries: Mapping[str, str] = field(default_factory=dict)
    """PromQL by signal, already filled in, for the server `custom`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalReading:
    """One reading of one workload, all pods together. Each value is None where it is unknown."""

    key: str
    at: float
    """Wall time of the newest sample behind it."""
    arrivals: float | None
    """Requests per second that arrive (completions plus the change of what waits and runs)."""
    running: float | None
    waiting: float | None
    pods_answered: int
    pods_expected: int | None
    kv_fraction: float | None = None
    queue_seconds: float | None = None
    """Mean seconds that a request waited, of those that ended."""
    in_flight: float | None = None
    """Requests that run or wait."""
    throughput: float | None = None
    """What ends per second, in the unit of the arrivals."""
    latency_s: float | None = None
    """Mean seconds that a request spent in the server, of those that ended."""
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    """Tokens per second."""
    busy: float | None = None
    """Share of time in which the pods' GPUs worked, 0-1, mean over the pods that say so."""
    startup_s: float | None = None
    """Seconds that the slowest pod's engine took to start."""
    models: frozenset[str] = frozenset()
    """Names of the models that are served; empty where they are not told."""
    reason: str | None = None
    """Why values are missing, one sentence; None when none is."""


class Signal(Protocol):
    """A source of readings."""

    async def read(
        self, targets: Sequence[SignalTarget], now: float
    ) -> Mapping[str, SignalReading | Exception]:
        """One entry per target, in bounded time: a reading, or the SourceError that stood in its way."""
        ...

    async def history(
        self, targets: Sequence[SignalTarget], start: float, end: float, step_s: float
    ) -> Mapping[str, tuple[Floats, Floats]]:
        """(times, demand) of the past on a regular grid, NaN where missing; empty where the source keeps none."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...


STAGES_OF_A_START: tuple[str, ...] = ("schedule", "provision", "pull", "load", "ready")
"""In their order; leadtime.py says what each is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How long one pod took to start."""

    total_s: float
    """From its creation to Ready, without `unschedulable_s`."""
    stages: Mapping[str, float] = field(default_factory=dict)
    """Seconds by stage, of those that are known; names in STAGES_OF_A_START."""
    unschedulable_s: float = 0.0
    """Time in which no node would take it, and none was on its way."""
    build: str = ""
    """What it runs; empty where unknown."""
    witnessed: bool = True
    """False for a pod that was ready when it was first seen: its Ready may be a later one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """The replicas of one workload as the API server shows them."""

    key: str
    asked: int | None
    """spec.replicas of the scale target; None where it is unknown."""
    ready: int
    starting: int
    """Scheduled and not ready yet."""
    pending: int
    """Not scheduled."""
    endpoints: tuple[str, ...]
    """HOST of every ready pod (metrics port and path belong to the policy)."""
    starts: tuple[Start, ...]
    """Of pods that became ready since the last state, oldest first."""
    pending_reason: str | None = None
    build: str = ""
    """What most of the ready pods run (image, arguments, resources); empty where unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """The demand of one workload before it was decided for, as `decide.backfill` takes it."""

    key: str
    times: Floats
    demand: Floats
    step_s: float


class Scaler(Protocol):
    """The actuator of direct mode."""

    async def scale(self, workload: Workload, replicas: int) -> None:
        """Set spec.replicas through the scale subresource. Raises ApiError."""
        ...


# ---------------------------------------------------------------- in the middle, arrays


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPolicy:
    """The policies of all workloads, one array each of shape (n,); inf where there is no limit."""

    risk: Floats
    min_replicas: Floats
    max_replicas: Floats
    headroom: Floats
    step_up_max: Floats
    step_down_max: Floats
    dwell_s: Floats
    stale_after_s: Floats
    hold_s: Floats
    coverage_min: Floats

    @classmethod
    def of(cls, policies: Sequence[Policy]) -> "FleetPolicy":
        """Arrays of the policies, in their order."""

        def column(name: str) -> Floats:
            values = (getattr(p, name) for p in policies)
            return np.array([np.inf if v is None else float(v) for v in values], dtype=np.float64)

        return cls(**{name: column(name) for name in cls.__dataclass_fields__})


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetObservation:
    """Everything `decide` may know at one tick. All arrays have shape (n,), in the order of `keys`."""

    now: float
    """Unix seconds; the end of the interval that `demand` covers."""
    tick_s: float
    keys: tuple[str, ...]
    policy: FleetPolicy
    demand: Floats
    """Mean arrivals in units/s over (now - tick_s, now]; NaN where unknown."""
    backlog: Floats
    """Units that wait, at `now`; NaN where unknown."""
    coverage: Floats
    """Pods that answered over pods that should have, 0–1; NaN where unknown."""
    age_s: Floats
    """Age of the newest sample; inf where there never was one."""
    asked: Floats
    """Replicas asked for at present (spec.replicas); NaN where unknown."""
    ready: Floats
    starting: Floats
    pending: Floats
    """Replicas by stage; NaN where unknown."""
    capacity: Floats
    """Units/s that one ready replica carries; NaN where it is neither declared nor learned."""
    lead_s: Floats
    """Seconds from asking for a replica to its first served request (P90 learned, or declared)."""
    paused: Bools


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetForecast:
    """Quantiles of the highest demand over (now, now + lead_s]."""

    levels: tuple[float, ...]
    quantiles: Floats
    """Shape (n, len(levels)), ascending along the last axis; NaN where there is no history."""
    level: Floats
    """Shape (n,): the demand of the present, smoothed; NaN where unknown."""
    coverage: Floats
    """Shape (n, len(levels)): share of past outcomes at or below the quantile; NaN until there are some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one guard did to one workload's plan, and why. Only changes are recorded."""

    guard: str
    before: int
    after: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The numbers of one workload that a decision was made from; None where unknown."""

    demand: float | None
    backlog: float | None
    coverage: float | None
    age_s: float | None
    asked: int | None
    ready: int | None
    starting: int | None
    pending: int | None
    capacity: float | None
    lead_s: float
    min_replicas: int
    max_replicas: int
    risk: float
    headroom: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was decided for one workload, with everything that is needed to explain it."""

    key: str
    now: float
    planned: int
    """The raw plan of the candidate policy in use, before the guardrails."""
    desired: int
    verdicts: tuple[Verdict, ...]
    candidate: str
    candidate_costs: Mapping[str, float]
    """Discounted virtual cost per candidate, relative to the best (1.0); empty until there is one."""
    forecast: Mapping[float, float]
    """Quantile level -> highest demand over the lead time; empty where there is no forecast."""
    forecast_coverage: Mapping[float, float]
    inputs: Inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """No new number: the last one stands, or there is none."""

    key: str
    now: float
    reason: str
    """One sentence: what is missing, since when, what would cure it."""
    answer: int | None
    """The last desired number, while it may still be given; None: the answer is an error."""
    inputs: Inputs


class FleetDecision(Protocol):
    """The outcome for all workloads; a workload's own `Decision` or `Hold` is made when asked for."""

    @property
    def now(self) -> float:
        """Of the observation."""
        ...

    @property
    def keys(self) -> tuple[str, ...]:
        """Of the observation."""
        ...

    @property
    def desired(self) -> Floats:
        """Shape (n,): replicas to answer; the last ones while held; NaN where the answer is an error."""
        ...

    @property
    def held(self) -> Bools:
        """Shape (n,): True where it is a Hold."""
        ...

    @property
    def forecast(self) -> FleetForecast:
        """As of this tick."""
        ...

    def of(self, index: int) -> Decision | Hold:
        """The outcome of one workload, with its verdicts and reasons."""
        ...


# ---------------------------------------------------------------- what is answered


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the external scaler says of one workload."""

    desired: int | None
    """None: no number may be given, the call fails and the HPA holds."""
    reason: str
    """Why there is none (a sentence for the RPC status), or how the number came about."""
    active: bool | None
    """For IsActive; None: unknown, the call fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All answers of one tick, immutable and numbered; RPCs are answered from it alone."""

    number: int
    at: float
    """Wall time of the tick."""
    answers: Mapping[str, Answer] = field(default_factory=dict)
