"""Simple experts for the highest demand over (now, now + lead], as rises above the present level.

Every expert says how far above the present the peak will lie. That form keeps the season what it
is worth: a correction on top of the current level, never a level of its own, so that a workload
that grew fivefold is forecast at its new size the same hour. A peak includes the very next moment,
so no rise is below zero: what falls, peaks now.

    last        nothing: the level stays
    trend       the slope of the last five minutes against the five before, damped (Gardner &
                McKenzie 1985) with a time constant of ten minutes and never more than doubling
    yesterday   what this stretch of the day added yesterday
    days        … on average over the last seven days
    week        … a week ago

Functions here are pure and work on rows: workloads at one time when they run live, times of one
workload when the past is learned.
"""

import numpy as np
from numpy.typing import NDArray

from gpuscale.controller.domain import Bools, Floats, Ints
from gpuscale.controller.history import BIN_S, BINS_MAX, BINS_PER_DAY

EXPERTS: tuple[str, ...] = ("last", "trend", "yesterday", "days", "week")

TREND_SPAN_S = 300.0
TREND_DAMPING_S = 600.0
"""Time constant after which a slope is no longer believed."""
SEASON_DAYS = 7
SEASON_SCALE_MAX = 2.0
"""A past day is scaled to today's level by at most this factor, up or down."""
POINTS_MAX = 12
"""Points of the lead time at which past days are read: their grid has five minutes, and beyond an
hour the peak of a day is wide."""
HORIZON_S_MAX = 12 * 3600.0
"""Longer lead times are forecast as this one: past days must lie in the past."""


def rises(
    *,
    level: Floats,
    recent: Floats,
    before: Floats,
    values: NDArray[np.float32],
    rows: Ints,
    now_s: Floats,
    lead_s: Floats,
    peak: bool = True,
) -> Floats:
    """Rises of all experts, shape (r, len(EXPERTS)); NaN where an expert knows nothing.

    To the highest demand within `lead_s`, which are not negative, or, without `peak`, to the demand
    at its end.

    `level`, `recent`, `before` (r,): mean demand of the last minute, of the last five, and of the
    five before. `values`, `rows`: `History.values` and the row of it that belongs to each row here.
    `now_s`, `lead_s` (r,): Unix seconds, and seconds ahead.
    """
    lead_s = np.minimum(lead_s, HORIZON_S_MAX)
    out = np.zeros((len(level), len(EXPERTS)))
    out[:, 1] = _trend(level, recent, before, lead_s, peak)
    out[:, 2:] = _seasons(
        level=level, values=values, rows=rows, now_s=now_s, lead_s=lead_s, peak=peak
    )
    return out


def _trend(level: Floats, recent: Floats, before: Floats, lead_s: Floats, peak: bool) -> Floats:
    slope = (recent - before) / TREND_SPAN_S
    # The five minutes' mean lags the present by half of them.
    reach = TREND_DAMPING_S * (1.0 - np.exp(-(lead_s + TREND_SPAN_S / 2) / TREND_DAMPING_S))
    lowest = np.zeros_like(level) if peak else -level
    return np.clip(recent + slope * reach - level, lowest, level)


def _seasons(
    *,
    level: Floats,
    values: NDArray[np.float32],
    rows: Ints,
    now_s: Floats,
    lead_s: Floats,
    peak: bool,
) -> Floats:
    """(r, 3) rises by yesterday, by the mean of the last days, by the same day of last week."""
    points = int(min(POINTS_MAX, max(2.0, np.ceil(lead_s.max(initial=0.0) / BIN_S) + 1)))
    share = np.linspace(0.0, 1.0, points + 1)
    # Bins as they are, not interpolated: a step at eight o'clock is a step, and must not have begun
    # a little before. Shape (r, 1, points + 1); days ago along the middle axis.
    when = np.floor((now_s[:, None, None] + lead_s[:, None, None] * share) / BIN_S)
    days = np.arange(1, SEASON_DAYS + 1)[:, None] * BINS_PER_DAY
    column = (when.astype(np.int64) - days) % BINS_MAX
    path = values[rows[:, None, None], column].astype(np.float64)
    return np.stack(
        [
            _rise(path[:, 0], level, peak),
            _rise(_mean_known(path), level, peak),
            _rise(path[:, SEASON_DAYS - 1], level, peak),
        ],
        axis=1,
    )


def _mean_known(path: Floats) -> Floats:
    """Mean over the days that are known throughout, shape (r, points + 1)."""
    known: Bools = ~np.isnan(path.sum(axis=2))
    with np.errstate(invalid="ignore", divide="ignore"):
        total = np.where(known[:, :, None], path, 0.0).sum(axis=1)
        mean: Floats = total / known.sum(axis=1)[:, None]
    return mean


def _rise(path: Floats, level: Floats, peak: bool) -> Floats:
    """How far the path climbs above its start, or ends from it, at the size of today."""
    start = path[:, 0]
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = np.where(start > 0, level / start, 1.0)
        scale = np.clip(scale, 1.0 / SEASON_SCALE_MAX, SEASON_SCALE_MAX)
        goal = path.max(axis=1) if peak else path[:, -1]
        rise: Floats = (goal - start) * scale
    return rise


def combined(rise: Floats, loss: Floats) -> Floats:
    """The experts' rises (r, e) weighted by their recent losses (r, e): one rise per row (r,).

    Weights fall exponentially with the excess over the least loss; an expert without a rise or
    without a loss has none. Where nobody is left, the level stays.
    """
    usable = ~np.isnan(rise) & ~np.isnan(loss)
    cost = np.where(usable, loss, np.inf)
    least = cost.min(axis=1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        excess = np.where(usable, (cost - least) / np.maximum(least, 1e-12), np.inf)
    weight = np.exp(-np.minimum(excess, 700.0 * LOSS_SCALE) / LOSS_SCALE) * usable
    total = weight.sum(axis=1)
    mixed = (weight * np.where(usable, rise, 0.0)).sum(axis=1)
    return np.where(total > 0, mixed / np.maximum(total, 1e-300), 0.0)


LOSS_SCALE = 0.1
"""An expert whose loss is a tenth above the best one's weighs 1/e of it."""
