"""Capacities of all workloads, learned tick by tick: which ticks count, and what is made of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuscale.controller.capacity.knee import BAD_MIN, Knee
from gpuscale.controller.capacity.laws import Laws
from gpuscale.controller.capacity.result import (
    DECLARED,
    LEARNED,
    LIMITS,
    PINNED,
    UNKNOWN,
    FleetCapacity,
)
from gpuscale.controller.domain import Bools, Floats, Ints
from gpuscale.controller.history import aligned
from gpuscale.settings import Policy

BLOCK_S = 30.0
BLOCK_MAX_S = 300.0
ENDED_MIN = 50.0
"""One block: at least BLOCK_S, and until so many requests ended (a count of 50 scatters by 14 %) or
BLOCK_MAX_S have passed."""
STABLE_S = 60.0
"""Replicas must have stood this long: those that have just come are not loaded yet."""
COVERAGE_MIN = 0.9
"""What a few of the pods said is not what a replica does."""
RANGE = 8.0
"""A learned value this many times off the declared one is more likely a broken measurement."""
CHANGE_TICKS = 4
"""A new build or model must stand this long: one odd page changes nothing."""
STILL = 0.05
"""A learned value moves when it is this far from the one in use: less would be scatter, and every
move may be a scale event."""
LOWERED = 0.9
"""A law lowers the declared value only by more than it may be wrong itself."""

_SUMS = ("x", "c", "waiting", "kv", "busy", "kv_seen", "busy_seen")
X, C, WAITING, KV, BUSY, KV_SEEN, BUSY_SEEN = range(len(_SUMS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What one tick shows of all workloads, shape (n,), NaN where unknown."""

    now: float
    tick_s: float
    throughput: Floats
    """What ends per second, all replicas together."""
    in_flight: Floats
    """Requests that run or wait, all replicas together."""
    waiting: Floats
    kv_fraction: Floats
    busy: Floats
    """Share of time in which the GPUs work."""
    replicas: Floats
    """Ready."""
    coverage: Floats
    objective_s: Floats
    """Seconds that a request may spend in the server; NaN where the policy sets none."""
    builds: Sequence[str]
    """What runs there (image, arguments, GPUs, model); empty where unknown."""


class Capacities:
    """What is learned of all workloads. Not for two tasks at once."""

    def __init__(self) -> None:
        self._keys: tuple[str, ...] = ()
        self._knee = Knee(0)
        self._laws = Laws(0)
        self._replicas = np.empty(0)
        self._stable_s = np.empty(0)
        self._ticks = np.empty(0)
        self._sums = np.empty((0, len(_SUMS)))
        self._least = np.empty(0)
        """Fewest requests that one replica had inside at any tick of the block."""
        self._used = np.empty(0)
        """Learned values in use, NaN where none is."""
        self._builds: list[str] = []
        self._changed: list[int] = []
        """Ticks for which another build has been seen."""
        self._begun: list[str | None] = []

    def align(self, keys: tuple[str, ...]) -> None:
        """Follow the workloads: known ones keep what was learned, new ones begin."""
        if keys == self._keys:
            return
        row = {key: i for i, key in enumerate(self._keys)}
        source = np.array([row.get(key, -1) for key in keys], dtype=np.int64)
        self._knee.align(source)
        self._laws.align(source)
        self._replicas = aligned(self._replicas, source, np.nan)
        self._stable_s = aligned(self._stable_s, source, 0.0)
        self._ticks = aligned(self._ticks, source, 0.0)
        self._sums = aligned(self._sums, source, 0.0)
        self._least = aligned(self._least, source, np.inf)
        self._used = aligned(self._used, source, np.nan)
        at = source.tolist()
        self._builds = ["" if i < 0 else self._builds[i] for i in at]
        self._changed = [0 if i < 0 else self._changed[i] for i in at]
        self._begun = [None if i < 0 else self._begun[i] for i in at]
        self._keys = keys

    def observe(self, sight: Sight) -> None:
        """Learn one tick. Its arrays are in the order of the keys last aligned to."""
        self._notice(sight.builds)
        with np.errstate(invalid="ignore"):
            same = sight.replicas == self._replicas
            self._stable_s = np.where(same, self._stable_s + sight.tick_s, 0.0)
            counts = (
                (self._stable_s >= STABLE_S)
                & (sight.replicas >= 1)
                & (sight.coverage >= COVERAGE_MIN)
                & np.isfinite(sight.throughput)
                & np.isfinite(sight.in_flight)
            )
        self._replicas = sight.replicas.copy()
        self._accumulate(sight, counts)
        seconds = self._ticks * sight.tick_s
        ended = self._sums[:, X] * sight.tick_s * np.where(counts, sight.replicas, 0.0)
        enough = (ended >= ENDED_MIN) | (seconds >= BLOCK_MAX_S)
        full = np.flatnonzero((seconds >= BLOCK_S) & enough)
        if len(full):
            self._enter(full, sight.objective_s[full])

    def _notice(self, builds: Sequence[str]) -> None:
        """Begin anew where another build or model has stood for CHANGE_TICKS."""
        if builds == self._builds:
            self._changed = [0] * len(builds)
            return
        for i, build in enumerate(builds):
            before = self._builds[i]
            if not build or build == before:
                self._changed[i] = 0
            elif not before:
                self._builds[i] = build
            else:
                self._changed[i] += 1
                if self._changed[i] >= CHANGE_TICKS:
                    self._builds[i], self._changed[i] = build, 0
                    self._begin(np.array([i]), "what the pods run has changed")

    def _begin(self, rows: Ints, why: str) -> None:
        self._knee.reset(rows)
        self._laws.reset(rows)
        self._ticks[rows], self._sums[rows], self._least[rows] = 0.0, 0.0, np.inf
        for i in rows.tolist():
            self._begun[i] = why

    def _accumulate(self, sight: Sight, counts: Bools) -> None:
        # A tick that does not count ends its block unfinished: blocks are of ticks in a row.
        self._ticks = np.where(counts, self._ticks + 1.0, 0.0)
        self._sums[~counts] = 0.0
        each = np.where(counts, sight.replicas, 1.0)
        columns = np.column_stack(
            [
                sight.throughput / each,
                sight.in_flight / each,
                np.nan_to_num(sight.waiting / each),
                np.nan_to_num(sight.kv_fraction),
                np.nan_to_num(sight.busy),
                np.isfinite(sight.kv_fraction),
                np.isfinite(sight.busy),
            ]
        )
        self._sums += np.where(counts[:, None], columns, 0.0)
        self._least = np.where(counts, np.fmin(self._least, columns[:, C]), np.inf)

    def _enter(self, rows: Ints, objective: Floats) -> None:
        """Learn the blocks that are complete."""
        ticks = self._ticks[rows]
        means = self._sums[rows] / ticks[:, None]
        waiting, running = means[:, WAITING], means[:, C] - means[:, WAITING]
        another = self._knee.add(
            rows,
            means[:, X],
            means[:, C],
            least=self._least[rows],
            objective_s=objective,
            queueing=(waiting >= 1.0) & (waiting > running),
        )
        whole = self._sums[rows]
        self._laws.add(
            rows,
            means[:, X],
            np.where(whole[:, BUSY_SEEN] == ticks, means[:, BUSY], np.nan),
            np.where(whole[:, KV_SEEN] == ticks, means[:, KV], np.nan),
        )
        self._ticks[rows], self._sums[rows], self._least[rows] = 0.0, 0.0, np.inf
        if len(another):
            self._begin(another, "replicas have carried far less than before for half an hour")

    def of(self, policies: Sequence[Policy], units: Sequence[str]) -> FleetCapacity:
        """The capacities in use under these policies, in the order of the keys."""
        declared = np.array(
            [np.nan if p.capacity is None else p.capacity for p in policies], dtype=np.float64
        )
        pinned = np.array([p.capacity_pinned for p in policies], dtype=np.bool_)
        knee, carried = self._knee.value, self._knee.carried
        # A law says what there can be, and not that it was carried: it only lowers.
        known = np.fmax(declared, carried)
        busy, full = self._laws.utilization, self._laws.kv
        full = np.where(np.isnan(full), np.nan, np.fmax(full, carried))
        value, limits = declared.copy(), np.full(len(policies), -1)
        with np.errstate(invalid="ignore"):
            for name, candidate, applies in (
                ("carried", carried, carried > declared),
                ("utilization", busy, busy < LOWERED * known),
                ("saturation", knee, np.isfinite(knee)),
            ):
                value = np.where(applies, candidate, value)
                limits = np.where(applies, LIMITS.index(name), limits)
            # Without a knee there is no KV limit to fear but below what is believed otherwise.
            lower = full < LOWERED * value
            value = np.where(lower, full, value)
            limits = np.where(lower, LIMITS.index("kv"), limits)
            bounded = np.clip(value, declared / RANGE, declared * RANGE)
        value = np.where(np.isfinite(declared), bounded, value)
        with np.errstate(invalid="ignore"):
            near = np.abs(value - self._used) <= STILL * self._used
        self._used = np.where(limits >= 0, np.where(near, self._used, value), np.nan)
        value = np.where(limits >= 0, self._used, value)
        value = np.where(pinned, declared, value)
        limits = np.where(pinned, -1, limits)
        sources = np.where(
            pinned,
            PINNED,
            np.where(limits >= 0, LEARNED, np.where(np.isnan(value), UNKNOWN, DECLARED)),
        )
        weight = self._knee.weight
        sure = np.where(limits == LIMITS.index("saturation"), weight / (weight + 2 * BAD_MIN), 0.5)
        return FleetCapacity(
            values=value,
            declared=declared,
            sources=sources,
            limits=limits,
            carried=carried.copy(),
            confidence=np.where(limits >= 0, sure, 0.0),
            begun=tuple(self._begun),
            units=units,
        )


def declared(policies: Sequence[Policy]) -> FleetCapacity:
    """The capacities of workloads of which nothing has been learned."""
    capacities = Capacities()
    capacities.align(tuple(map(str, range(len(policies)))))
    return capacities.of(policies, ("requests",) * len(policies))
