"""The autoscalers that gpuscale is measured against, as arrays over cases × targets.

Each family below decides for every case (row) and every target (column) at once:

- `ask(tick, asked=, ready=)` gives the replicas wanted, NaN for no change, from what was seen
  before the tick; `asked` and `ready` are the state when the tick begins, shape (cases, targets);
- `see(seen, busy=, backlog=)` tells what the tick showed: the arrivals in units/s, shape (cases,),
  NaN where the metric was missing, and each fleet's busy replicas and its backlog at the end.

None is given data by being told that nothing came: without data they hold.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from gpuscale.controller.domain import Bools, Floats
from gpuscale.errors import InputError, foreign

POLICIES = ("gpuscale", "keda-rate", "hpa-util", "knative", "static-peak", "oracle")
"""What a backtest runs by default."""

TARGET_DEFAULT: Mapping[str, float] = {
    "keda-rate": 0.7,
    "hpa-util": 0.7,
    "knative": 0.7,
    "static-peak": 0.7,
    "oracle": 1.0,
}
"""Each peer, and the share of a replica's capacity that it plans with by default."""

TARGET_MAX = 1.5
"""A target beyond this is a percentage or a number of requests by mistake: a replica that is planned
to carry half as much again as it can is late all day."""

WINDOW_S = 60.0
"""What the rate, the utilization and the stable concurrency are averaged over."""

HPA_SYNC_S = 15.0
"""--horizontal-pod-autoscaler-sync-period, and how often a recommendation is made."""

HPA_TOLERANCE = 0.1
"""--horizontal-pod-autoscaler-tolerance: within it the HPA does nothing."""

HPA_STABILIZATION_S = 300.0
"""--horizontal-pod-autoscaler-downscale-stabilization: down to the highest of this window only."""

HPA_UP_PODS = 4
"""Default scale-up policy of autoscaling/v2: the greater of this many pods and doubling, per sync."""

PANIC_WINDOW_S = 6.0
"""Knative's panic-window-percentage, 10 % of the stable window."""

PANIC_RATIO = 2.0
"""Knative's panic-threshold-percentage: this many times what the ready pods carry is a panic."""

DOWN_RATE_MAX = 2.0
"""Knative's max-scale-down-rate: at most down to ready / 2 per decision."""

SERVICE_S = 10.0
"""How long a request is in service: by Little's law a backlog of B adds B / SERVICE_S to the
concurrency, in units of the arrival rate."""

EPSILON = 1e-9
"""Taken off before rounding up, so that 7.000000001 replicas are 7."""

_NEVER = -(10**9)
"""A tick that lies before all windows."""


def target_of(policy: str) -> tuple[str, float | None]:
    """(family, target) of a policy's name, `NAME` or `NAME@TARGET`.

    A peer's target is the share of a replica's capacity that it plans with; gpuscale finds its own,
    and takes its `risk` there; None for the default one.
    """
    family, at, text = policy.partition("@")
    if family != "gpuscale" and family not in TARGET_DEFAULT:
        raise InputError(
            f"there is no policy {foreign(policy)!r}; choose from {', '.join(POLICIES)}, or NAME@TARGET"
        )
    if not at:
        return family, TARGET_DEFAULT.get(family)
    try:
        target = float(text)
    except ValueError:
        target = math.nan
    if family == "gpuscale" and not 0 < target < 1:
        raise InputError(
            f"the risk of {foreign(policy)!r} must lie between 0 and 1, e.g. gpuscale@0.95; without one the default is used"
        )
    if not 0 < target <= TARGET_MAX:
        raise InputError(
            f"the target of {foreign(policy)!r} must be a share of a replica's capacity, above 0 and at most {TARGET_MAX:g}, e.g. {family}@0.8"
        )
    return family, target


def is_policy(text: str) -> bool:
    """Whether this reads as a policy's name."""
    return text.partition("@")[0] in POLICIES


class RollingMean:
    """Mean of what is known of the last `ticks` values, per element; NaN where nothing is."""

    def __init__(self, shape: tuple[int, ...], ticks: int) -> None:
        # Values with 0 for unknown, and 1 where they are known: sums then need no look at NaN.
        self._values: Floats = np.zeros((ticks, *shape))
        self._known: Floats = np.zeros((ticks, *shape))
        self._next = 0

    def push(self, values: Floats) -> None:
        """Enter one tick's values, NaN where unknown."""
        known = values == values  # noqa: PLR0124 - NaN
        self._known[self._next] = known
        self._values[self._next] = np.where(known, values, 0.0)
        self._next = (self._next + 1) % len(self._values)

    def value(self) -> Floats:
        """The mean, shape as pushed."""
        with np.errstate(invalid="ignore"):
            mean: Floats = np.add.reduce(self._values) / np.add.reduce(self._known)
        return mean


class _Hpa(ABC):
    """The HPA's algorithm (autoscaling/v2, its defaults) over a load in busy replicas."""

    def __init__(self, *, rows: int, targets: Sequence[float], tick_s: float) -> None:
        self._target = np.asarray(targets, dtype=np.float64)
        self._sync_ticks = max(1, int(HPA_SYNC_S / tick_s))
        memory = max(1, int(HPA_STABILIZATION_S / tick_s) // self._sync_ticks)
        self._recommended: Floats = np.full((memory, rows, len(targets)), -np.inf)
        self._syncs = 0

    @abstractmethod
    def load(self) -> Floats:
        """Load in replicas' worth, shape (cases, targets) or (cases, 1); NaN without data."""

    def settled(self, want: Floats, load: Floats, *, asked: Floats, ready: Floats) -> Floats:
        """A last word on the raw recommendation, before stabilization."""
        del load, asked, ready
        return want

    def ask(self, tick: int, *, asked: Floats, ready: Floats) -> Floats:
        """Replicas wanted at this tick; NaN for no change."""
        if tick % self._sync_ticks:
            return np.full_like(asked, np.nan)
        load = np.broadcast_to(self.load(), asked.shape)
        with np.errstate(divide="ignore", invalid="ignore"):
            off_target = np.abs(load / (self._target * asked) - 1.0) > HPA_TOLERANCE
        want = np.where(off_target, np.ceil(load / self._target - EPSILON), asked)
        want = self.settled(want, load, asked=asked, ready=ready)
        blind = np.isnan(load)
        self._recommended[self._syncs % len(self._recommended)] = np.where(blind, -np.inf, want)
        self._syncs += 1
        stabilized = np.minimum(asked, self._recommended.max(axis=0))
        want = np.where(want < asked, stabilized, want)
        want = np.minimum(want, np.maximum(2 * asked, asked + HPA_UP_PODS))
        return np.where(blind, np.nan, want)


class HpaRate(_Hpa):
    """The HPA on the arrival rate per replica, as KEDA's Prometheus trigger gives it to it."""

    def __init__(self, *, capacity: Floats, targets: Sequence[float], tick_s: float) -> None:
        super().__init__(rows=len(capacity), targets=targets, tick_s=tick_s)
        self._capacity = capacity
        self._rate = RollingMean(capacity.shape, _ticks(WINDOW_S, tick_s))

    def load(self) -> Floats:
        """Shape (cases, 1): the same for every target."""
        return (self._rate.value() / self._capacity)[:, None]

    def see(self, seen: Floats, *, busy: Floats, backlog: Floats) -> None:
        """What the tick showed: the rate alone is used."""
        del busy, backlog
        self._rate.push(seen)


class HpaUtilization(_Hpa):
    """The HPA on GPU utilization, which saturates at 1 however much waits."""

    def __init__(self, *, capacity: Floats, targets: Sequence[float], tick_s: float) -> None:
        super().__init__(rows=len(capacity), targets=targets, tick_s=tick_s)
        shape = (len(capacity), len(targets))
        self._busy = RollingMean(shape, _ticks(WINDOW_S, tick_s))

    def load(self) -> Floats:
        """Shape (cases, targets): each fleet has its own."""
        return self._busy.value()

    def settled(self, want: Floats, load: Floats, *, asked: Floats, ready: Floats) -> Floats:
        """Pods that start have no utilization yet: while the ready ones are above the target, the
        HPA does not scale down for the sake of those."""
        return np.where((want < asked) & (load > self._target * ready), asked, want)

    def see(self, seen: Floats, *, busy: Floats, backlog: Floats) -> None:
        """What the tick showed: the busy replicas, where the metric was there."""
        del backlog
        self._busy.push(np.where(np.isnan(seen)[:, None], np.nan, busy))


class Knative:
    """Knative's KPA on concurrency: a stable window, and panic on bursts, never down in a panic."""

    def __init__(self, *, capacity: Floats, targets: Sequence[float], tick_s: float) -> None:
        shape = (len(capacity), len(targets))
        self._per_replica = capacity[:, None] * np.asarray(targets, dtype=np.float64)
        self._tick_s = tick_s
        self._stable = RollingMean(shape, _ticks(WINDOW_S, tick_s))
        self._burst = RollingMean(shape, _ticks(PANIC_WINDOW_S, tick_s))
        self._panicked = np.full(shape, _NEVER)
        self._high: Floats = np.zeros(shape)

    def ask(self, tick: int, *, asked: Floats, ready: Floats) -> Floats:
        """Replicas wanted at this tick; NaN for no change."""
        running = np.maximum(1.0, ready)
        load, burst = self._stable.value(), self._burst.value()
        blind = np.isnan(load) | np.isnan(burst)
        stable = np.maximum(
            np.ceil(load / self._per_replica - EPSILON), np.floor(running / DOWN_RATE_MAX)
        )
        panic = np.ceil(burst / self._per_replica - EPSILON)
        self._panicked = np.where(~blind & (panic / running >= PANIC_RATIO), tick, self._panicked)
        panicking: Bools = (tick - self._panicked) * self._tick_s <= WINDOW_S
        high = np.maximum.reduce([self._high, panic, stable, asked])
        high = np.where(panicking, high, 0.0)
        self._high = np.where(blind, self._high, high)
        want = np.where(panicking, high, stable)
        return np.where(blind, np.nan, want)

    def see(self, seen: Floats, *, busy: Floats, backlog: Floats) -> None:
        """What the tick showed: arrivals and what waits make the concurrency."""
        del busy
        concurrency = seen[:, None] + backlog / SERVICE_S
        self._stable.push(concurrency)
        self._burst.push(concurrency)


FAMILIES: Mapping[str, type[HpaRate] | type[HpaUtilization] | type[Knative]] = {
    "keda-rate": HpaRate,
    "hpa-util": HpaUtilization,
    "knative": Knative,
}
"""The families that are made from (capacity, targets, tick_s)."""


class Planned:
    """A plan that stands from the beginning: the clairvoyant's, or none at all (static)."""

    def __init__(self, plan: Floats | None) -> None:
        """`plan`: shape (ticks, cases, columns); None asks for nothing ever."""
        self._plan = plan

    def ask(self, tick: int, *, asked: Floats, ready: Floats) -> Floats:
        """The plan's number at this tick; NaN for no change."""
        del ready
        return np.full_like(asked, np.nan) if self._plan is None else self._plan[tick]

    def see(self, seen: Floats, *, busy: Floats, backlog: Floats) -> None:
        """A plan looks at nothing."""


def clairvoyant(
    demand: Floats,
    *,
    capacity: float,
    lag_ticks: int,
    hold_ticks: float,
    replicas_min: int,
    replicas_max: int,
) -> Floats:
    """The least replica-hours that carry `demand` (ticks,) at every tick, knowing it beforehand.

    The k-th replica is needed where ceil(demand / capacity) >= k. It is asked for `lag_ticks`
    before each such stretch, and kept through the gap to the next one where the gap is not longer
    than `hold_ticks` (the cold start and the drain, in ticks): what a restart costs. The replicas
    are independent of each other, so this is exact.
    """
    need = np.clip(np.ceil(demand / capacity - EPSILON), replicas_min, replicas_max).astype(int)
    plan = np.zeros(len(demand) + 1)
    for level in range(1, int(need.max(initial=0)) + 1):
        edges = np.diff(np.concatenate([[False], need >= level, [False]]).astype(np.int8))
        starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
        release = starts[1:] - ends[:-1] > hold_ticks
        asks = np.maximum(0, starts[np.concatenate([[True], release])] - lag_ticks)
        # Stretches of one level do not overlap, so adding the steps gives the level itself.
        np.add.at(plan, asks, 1.0)
        np.add.at(plan, ends[np.concatenate([release, [True]])], -1.0)
    return np.cumsum(plan)[:-1]


def _ticks(seconds: float, tick_s: float) -> int:
    """Whole ticks within so many seconds, at least one."""
    return max(1, int(seconds / tick_s))
