"""The demand of the past on a bounded, regular grid: NaN where it is not known.

One grid serves all workloads: bin b covers the Unix seconds [300 b, 300 (b + 1)). A bin holds the
mean of what was known in it, and is NaN where less than half of it was known: a hole stays a hole,
and nothing is filled in. Five minutes resolve the steepest morning ramps seen; two weeks hold
what a daily and a weekly season are learned from. In single precision that is 16 KB per workload.

Rows are workloads, in the order that `Memory.keys` gives them.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gpuscale.controller.domain import Floats, Ints

BIN_S = 300.0
DAY_S = 86_400.0
BINS_PER_DAY = 288
DAYS_MAX = 15
"""Two weeks, and the day that is being written."""
BINS_MAX = DAYS_MAX * BINS_PER_DAY
KNOWN_MIN = 0.5
"""A bin counts as known where at least this share of it was."""
RECENT_S = 600.0
"""Ticks are kept this long: a trend compares the last five minutes with those before."""
TICKS_MAX = 600
"""Most ticks kept: with ticks below a second the span is shorter, the memory is not larger."""

_Scalar = TypeVar("_Scalar", bound=np.generic)


def aligned(
    values: NDArray[_Scalar], source: Ints, fill: float | NDArray[_Scalar]
) -> NDArray[_Scalar]:
    """Rows of `values` in a new order: row i is the old row `source[i]`, or `fill` where that is -1."""
    if len(values) == 0:
        out = np.empty((len(source), *values.shape[1:]), dtype=values.dtype)
        out[:] = fill
        return out
    out = values[np.maximum(source, 0)]
    out[source < 0] = fill
    return out


def resampled(times: Floats, demand: Floats, step_s: float, edges: Floats) -> Floats:
    """Means between consecutive `edges`, NaN where less than KNOWN_MIN of the span is known.

    `times` (m,) ascending Unix seconds, each the end of an interval of `step_s`; `demand` (m,) the
    mean over it, NaN where unknown; `edges` (k + 1,) ascending Unix seconds, result (k,). Intervals
    may be shorter or longer than a span and need not line up with it: what is integrated is the
    piecewise constant rate.
    """
    good = np.isfinite(demand) & (demand >= 0)
    times, demand = times[good], demand[good]
    if len(times) == 0:
        return np.full(len(edges) - 1, np.nan)
    starts = times - step_s
    # An interval that reaches into the one before it counts from where that one ended.
    starts[1:] = np.maximum(starts[1:], times[:-1])
    knots = np.column_stack([starts, times]).ravel()
    widths = times - starts
    known = np.cumsum(np.column_stack([np.zeros_like(widths), widths]).ravel())
    amount = np.cumsum(np.column_stack([np.zeros_like(widths), widths * demand]).ravel())
    known_s = np.diff(np.interp(edges, knots, known))
    units = np.diff(np.interp(edges, knots, amount))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(known_s >= KNOWN_MIN * np.diff(edges), units / known_s, np.nan)


class History:
    """Bins of all workloads, advanced in place.

    `values` (n, BINS_MAX) is a ring: bin b lies in column b % BINS_MAX. `current` is the number of
    the bin that is being filled; it and everything older than BINS_MAX - 1 bins is not history.
    """

    def __init__(self, n: int) -> None:
        self.values: NDArray[np.float32] = np.full((n, BINS_MAX), np.nan, dtype=np.float32)
        self.current: int | None = None
        self._sum: Floats = np.zeros(n)
        self._known_s: Floats = np.zeros(n)

    def add(self, now: float, tick_s: float, demand: Floats) -> None:
        """Enter the mean demand (n,) over (now - tick_s, now]; NaN adds nothing."""
        number = int((now - tick_s / 2) // BIN_S)
        if self.current is None:
            self.current = number
        if number > self.current:
            self._close(number)
        known = ~np.isnan(demand)
        self._sum += np.where(known, demand, 0.0) * tick_s
        self._known_s += np.where(known, tick_s, 0.0)

    def _close(self, number: int) -> None:
        """Finish the current bin, and leave those that were skipped unknown."""
        assert self.current is not None
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = self._sum / self._known_s
        mean = np.where(self._known_s >= KNOWN_MIN * BIN_S, mean, np.nan)
        # What a backfill knew of the bin in which it ended stands, unless there is better.
        column = self.current % BINS_MAX
        self.values[:, column] = np.where(np.isnan(mean), self.values[:, column], mean)
        newer = min(number - self.current, BINS_MAX)
        self.values[:, (self.current + 1 + np.arange(newer)) % BINS_MAX] = np.nan
        self.current = number
        self._sum[:] = 0.0
        self._known_s[:] = 0.0

    def put(self, row: int, times: Floats, demand: Floats, step_s: float) -> None:
        """Enter the past of one workload (`resampled` says how). What was observed here stands."""
        if len(times) == 0:
            return
        last = int((times[-1] - min(step_s, BIN_S) / 2) // BIN_S)
        if self.current is None:
            self.current = last
        if last > self.current:
            self._close(last)
        # The bin of the newest sample may be in progress: it is written, and counts once closed.
        first = max(self.current - BINS_MAX + 1, int((times[0] - step_s) // BIN_S))
        last = min(last, self.current)
        if last < first:
            return
        edges = np.arange(first, last + 2, dtype=np.float64) * BIN_S
        bins = resampled(times, demand, step_s, edges).astype(np.float32)
        columns = np.arange(first, last + 1) % BINS_MAX
        own = self.values[row, columns]
        self.values[row, columns] = np.where(np.isnan(own), bins, own)

    def recent(self, row: int, bins: int) -> tuple[Floats, Floats]:
        """(start times, means) of the last `bins` closed bins of one workload, oldest first."""
        if self.current is None:
            return np.empty(0), np.empty(0)
        numbers: Ints = self.current - np.arange(min(bins, BINS_MAX - 1), 0, -1, dtype=np.int64)
        times: Floats = numbers.astype(np.float64) * BIN_S
        return times, self.values[row, numbers % BINS_MAX].astype(np.float64)

    def align(self, source: Ints) -> None:
        """Put rows into a new order; -1 is a new workload."""
        self.values = aligned(self.values, source, np.nan)
        self._sum = aligned(self._sum, source, 0.0)
        self._known_s = aligned(self._known_s, source, 0.0)


class Recent:
    """The last ticks of all workloads, advanced in place: means over seconds and minutes.

    A ring that is written twice, so that the last k ticks are always one slice.
    """

    def __init__(self, n: int, tick_s: float) -> None:
        self._tick_s = tick_s
        self._size = min(TICKS_MAX, max(2, round(RECENT_S / tick_s)))
        self._values: NDArray[np.float32] = np.full((n, 2 * self._size), np.nan, dtype=np.float32)
        self._next = 0

    def add(self, demand: Floats) -> None:
        """Enter one tick (n,), NaN where unknown."""
        self._values[:, self._next] = demand
        self._values[:, self._next + self._size] = demand
        self._next = (self._next + 1) % self._size

    def mean(self, seconds: float, before_s: float = 0.0) -> Floats:
        """(n,) mean of what is known of the `seconds` that ended `before_s` ago; NaN where nothing is."""
        end = self._next + self._size - min(self._size - 1, round(before_s / self._tick_s))
        start = max(self._next, end - max(1, round(seconds / self._tick_s)))
        part = self._values[:, start:end]
        known = ~np.isnan(part)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean: Floats = np.where(known, part, 0.0).sum(axis=1, dtype=np.float64) / known.sum(
                axis=1
            )
        return mean

    def seed(self, row: int, newest_first: Floats) -> None:
        """Put the ticks of one workload that went before the coming one; what was observed stands."""
        count = min(len(newest_first), self._size)
        back = (self._next - 1 - np.arange(count)) % self._size
        own = self._values[row, back]
        ticks = np.where(np.isnan(own), newest_first[:count], own)
        self._values[row, back] = ticks
        self._values[row, back + self._size] = ticks

    @property
    def size(self) -> int:
        """Ticks that are kept."""
        return self._size

    def align(self, source: Ints) -> None:
        """Put rows into a new order; -1 is a new workload."""
        self._values = aligned(self._values, source, np.nan)
