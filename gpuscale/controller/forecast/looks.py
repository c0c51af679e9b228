"""What the regressions look at: how recent demand and past days lie to the present.

Every look is a difference from the present level, in units of the workload's own scale, so that what
was learned at one size holds at another; an unknown one is 0, which says nothing. `rise` is how far
demand went from the same place of the season until the same place of the horizon, `level` how far
the season lay above the present.

    one                   the constant
    mean5, mean15, mean60 mean of so many minutes
    slope                 five minutes beside the five before
    day-rise              yesterday
    week-rise, week-level this day last week
    days-rise, days-level mean of the last seven days
    days-scaled           the same rise, brought to the present size
    days-smooth           the same rise between half hours, in which noise is averaged out

Pure functions on rows: workloads at one time when they run live, times of one workload when the past
is learned.
"""

import numpy as np
from numpy.typing import NDArray

from gpuscale.controller.domain import Floats, Ints
from gpuscale.controller.history import BIN_S, BINS_MAX, BINS_PER_DAY

NEAR: tuple[str, ...] = ("one", "mean5", "mean15", "mean60", "slope")
"""What needs no season; they come first."""
LOOKS: tuple[str, ...] = (
    *NEAR,
    "day-rise",
    "week-rise",
    "week-level",
    "days-rise",
    "days-level",
    "days-scaled",
    "days-smooth",
)

SPAN_S = 300.0
"""Of the newest mean; what is older is read from the history's bins."""
DAYS = 7
SEASON_SCALE_MAX = 2.0
"""A past day is scaled to today's level by at most this factor, up or down."""
AROUND = 2
"""Bins on either side that a smooth day is averaged over."""
SMOOTH_MIN = 3
"""Of the five bins, so many must be known."""
POINTS_MAX = 12
"""Points of the horizon at which a past peak is read: bins have five minutes, and beyond an hour the
peak of a day is wide."""
HORIZON_S_MAX = 12 * 3600.0
"""Longer lead times are forecast as this one: past days must lie in the past."""
LOOK_MAX = 4.0
"""No look counts for more, in scales: an outlier must not turn a regression."""


def looks(
    *,
    level: Floats,
    recent: Floats,
    before: Floats,
    scale: Floats,
    values: NDArray[np.float32],
    rows: Ints,
    now_s: Floats,
    lead_s: Floats,
    step_s: float,
    peak: bool,
) -> Floats:
    """Shape (r, len(LOOKS)), within ±LOOK_MAX, 0 where unknown.

    `level`, `recent`, `before`, `scale` (r,): demand of the present, mean of the last five minutes
    and of the five before, what errors are measured by. `values`, `rows`: `History.values` and the
    row of it that belongs to each row here. `now_s`, `lead_s` (r,) Unix seconds and seconds ahead;
    `peak`: whether the highest step of the horizon is forecast, or its last one; `step_s` its length.
    """
    lead_s = np.minimum(lead_s, HORIZON_S_MAX)
    past = _Past(values, rows, end_s=now_s, centre_s=now_s - step_s / 2, lead_s=lead_s, peak=peak)
    start, end, smooth_start, smooth_end = past.days()
    known = ~np.isnan(start + end)
    mean_start, mean_end = _mean(start, known), _mean(end, known)
    with np.errstate(invalid="ignore", divide="ignore"):
        size = np.where(mean_start > 0, level / mean_start, 1.0)
    size = np.clip(size, 1.0 / SEASON_SCALE_MAX, SEASON_SCALE_MAX)
    smooth = smooth_end - smooth_start
    older = past.bins_before(now_s)
    found = np.stack(
        [
            scale,
            recent - level,
            _mean_with(recent, older[:, :2]) - level,
            _mean_with(recent, older) - level,
            recent - before,
            (end - start)[:, 0],
            (end - start)[:, -1],
            start[:, -1] - level,
            mean_end - mean_start,
            mean_start - level,
            (mean_end - mean_start) * size,
            _mean(smooth, ~np.isnan(smooth)),
        ],
        axis=1,
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        found = found / scale[:, None]
    bounded: Floats = np.nan_to_num(np.clip(found, -LOOK_MAX, LOOK_MAX), nan=0.0)
    return bounded


class _Past:
    """Reads the history around one moment of each row, a day, a week or some cycles ago."""

    def __init__(
        self,
        values: NDArray[np.float32],
        rows: Ints,
        *,
        end_s: Floats,
        centre_s: Floats,
        lead_s: Floats,
        peak: bool,
    ) -> None:
        self._values, self._rows, self._peak = values, rows, peak
        self._end, self._centre, self._lead = end_s, centre_s, lead_s
        points = int(min(POINTS_MAX, max(1.0, np.ceil(lead_s.max(initial=0.0) / BIN_S))))
        self._shares = np.arange(1, points + 1) / points
        """Of the lead time, where a peak is read."""

    def days(self) -> tuple[Floats, Floats, Floats, Floats]:
        """(r, DAYS) at the present and at the horizon, as they were and smooth."""
        back = np.arange(1, DAYS + 1) * BINS_PER_DAY
        start, smooth_start = self._around(self._centre, back)
        end, smooth_end = self._around(self._centre + self._lead, back)
        if self._peak:
            # Until the end, not the middle, of the last step: a replica that is a step late is late.
            at = self._end[:, None] + self._lead[:, None] * self._shares
            number = np.floor(at / BIN_S).astype(np.int64)
            path = self._read(number[:, None, :] - back[None, :, None])
            end = np.fmax(end, np.fmax.reduce(path, axis=2))
        return start, end, smooth_start, smooth_end

    def _around(self, at: Floats, back: Ints) -> tuple[Floats, Floats]:
        """(r, k) demand `back` bins before, on the line between the centres of bins, and smooth."""
        position = at / BIN_S - 0.5
        number = np.floor(position)
        share = (position - number)[:, None]
        offsets = np.arange(-AROUND, AROUND + 2)
        around = number.astype(np.int64)[:, None, None] - back[None, :, None] + offsets
        found = self._read(around)
        line = _line(found[:, :, AROUND], found[:, :, AROUND + 1], share)
        known = ~np.isnan(found)
        amount = np.where(known, found, 0.0)
        low = _smooth(amount[:, :, :-1].sum(axis=2), known[:, :, :-1].sum(axis=2))
        high = _smooth(amount[:, :, 1:].sum(axis=2), known[:, :, 1:].sum(axis=2))
        return line, _line(low, high, share)

    def bins_before(self, now_s: Floats) -> Floats:
        """(r, 11) bins that ended before the newest five minutes, the newest first."""
        number = np.floor((now_s - SPAN_S) / BIN_S + 1e-6).astype(np.int64)
        return self._read(number[:, None] - np.arange(1, 12))

    def _read(self, numbers: Ints) -> Floats:
        rows = self._rows.reshape(-1, *(1,) * (numbers.ndim - 1))
        found: Floats = self._values[rows, numbers % BINS_MAX].astype(np.float64)
        return found


def _line(before: Floats, after: Floats, share: Floats) -> Floats:
    """Between two neighbours; what lies on one of them needs no other."""
    found: Floats = np.where(share > 1e-6, before + (after - before) * share, before)
    return found


def _smooth(total: Floats, count: Ints) -> Floats:
    found: Floats = np.where(count >= SMOOTH_MIN, total / np.maximum(count, 1), np.nan)
    return found


def _mean(values: Floats, known: NDArray[np.bool_]) -> Floats:
    """(r,) over what is known; NaN where nothing is."""
    count = known.sum(axis=1)
    total = np.where(known, values, 0.0).sum(axis=1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _mean_with(recent: Floats, older: Floats) -> Floats:
    known = ~np.isnan(older)
    total: Floats = recent + np.where(known, older, 0.0).sum(axis=1)
    mean: Floats = total / (1 + known.sum(axis=1))
    return mean
