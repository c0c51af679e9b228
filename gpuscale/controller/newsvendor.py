"""How much demand is worth a replica: the newsvendor's order, taken from samples.

A replica that stands by costs its time. When demand exceeds what stands by, a queue forms, and then
not the excess alone but *everything* that arrives waits too long. So what serves `level` costs, per
unit of time,

    level + price × mean over the samples of (sample where it is above level, else 0)

where `price` is that of a late unit in units of idle capacity (the newsvendor's ratio of underage
to overage; Arrow, Harris & Marschak, "Optimal Inventory Policy", 1951, for the plain form). The
best level is always one of the samples. It is no fixed quantile: where outcomes lie close together
it covers nearly all of them, and along a thin tail it stops, because a step up the tail costs as
much as any other and is needed less and less often.

Two kinds of samples are judged here:

- how far demand rose within a start time, in the last two hours and around this time of the last
  seven days, added to the present mean of five minutes;
- the minutes of the last hour as they were, for demand that swings about a mean.

Pure functions; a row is a workload now, or a minute of one workload's past.
"""

import numpy as np
from numpy.typing import NDArray

from gpuscale.controller.domain import Floats, Ints
from gpuscale.controller.history import BIN_S, BINS_MAX, DAY_S

DAYS = 7
AROUND_BINS = 6
"""Half an hour before and after the same time of past days: people are not punctual."""
RECENT_BINS = 24
POINTS = 5
"""Points of the start time at which a past path is read; a path between bins is a straight line."""
SAMPLES_MIN = 12
"""An hour's worth: with fewer there is no margin, and the level itself stands."""
LEAD_S_MAX = 12 * 3600.0
"""Longer start times are judged as this one: the day before must have ended."""

_UNKNOWN = -np.inf


def best_levels(samples: Floats, price: Floats) -> Floats:
    """The level that costs least, shape (r, k); NaN without SAMPLES_MIN known samples.

    `samples` (r, m): demand that may come, not negative, NaN where unknown. `price` (r, k).
    """
    known = ~np.isnan(samples)
    count = known.sum(axis=1)
    ordered = -np.sort(-np.where(known, samples, _UNKNOWN), axis=1)
    inside = np.arange(samples.shape[1]) < count[:, None]
    ordered = np.where(inside, ordered, 0.0)
    # What lies strictly above the j-th highest, but for ties, which cost nothing to be exact about.
    above = (np.cumsum(ordered, axis=1) - ordered) / np.maximum(count, 1)[:, None]
    rows = np.arange(len(samples))
    out = np.empty(price.shape)
    for column in range(price.shape[1]):
        cost = np.where(inside, ordered + price[:, column, None] * above, np.inf)
        out[:, column] = ordered[rows, cost.argmin(axis=1)]
    return np.where((count >= SAMPLES_MIN)[:, None], out, np.nan)


def rises(values: NDArray[np.float32], rows: Ints, now: Floats, lead_s: Floats) -> Floats:
    """How far demand rose within `lead_s`, at times like the present: samples (r, m), NaN unknown.

    `values`, `rows`: `History.values`, and the row of it for each row here; `now`, `lead_s` (r,)
    Unix seconds and seconds. Demand is the trailing mean of five minutes. Nothing after `now`, nor
    in the bin that `now` lies in, is read.
    """
    lead_s = np.minimum(lead_s, LEAD_S_MAX)[:, None]
    days = (
        np.arange(1, DAYS + 1)[:, None] * DAY_S + np.arange(-AROUND_BINS, AROUND_BINS + 1) * BIN_S
    )
    recent = BIN_S * np.arange(1, RECENT_BINS + 1)
    back = np.concatenate(
        [
            np.broadcast_to(days.ravel(), (len(rows), days.size)),
            lead_s + recent,
        ],
        axis=1,
    )
    start = now[:, None] - np.maximum(back, lead_s)
    begin = _mean_at(values, rows, start)
    peak = begin
    for share in np.linspace(0.0, 1.0, POINTS)[1:]:
        peak = np.maximum(peak, _mean_at(values, rows, start + lead_s * share))
    closed = np.floor(now / BIN_S)[:, None] * BIN_S
    return np.where(start + lead_s <= closed, peak - begin, np.nan)


def _mean_at(values: NDArray[np.float32], rows: Ints, at: Floats) -> Floats:
    """Trailing mean of five minutes at times (r, m): exact where a bin ends, a line between."""
    position = at / BIN_S - 1.0
    bin_number = np.floor(position).astype(np.int64)
    share = position - bin_number
    column = rows[:, None]
    before = values[column, bin_number % BINS_MAX].astype(np.float64)
    after = values[column, (bin_number + 1) % BINS_MAX].astype(np.float64)
    return np.where(share > 0.0, before + (after - before) * share, before)
