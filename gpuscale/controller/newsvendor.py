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

Three kinds of samples are judged here:

- how far demand rose within a start time, in the last two hours and around this time of the last
  seven days, added to the present mean of five minutes;
- the minutes of the last hour as they were, for demand that swings about a mean;
- what followed the times of the last week that were most like the present (analogs; Lorenz,
  "Atmospheric Predictability as Revealed by Naturally Occurring Analogues", 1969): a low within a
  busy half hour is followed by other things than a lull, and neither by what comes at night.

Pure functions; a row is a workload now, or a minute of one workload's past.
"""

import numpy as np
from numpy.typing import NDArray

from gpuscale.controller.domain import Bools, Floats, Ints
from gpuscale.controller.history import BIN_S, BINS_MAX, BINS_PER_DAY, DAY_S

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

NEIGHBOURS = 64
"""Past times that are taken as like the present, of a week's 2,016: fewer are chance, more are no
longer like it. Where fewer are known, nothing is like the present."""
LIKE_MAX = 2.0
"""Twice or half as much is no longer like it, however near it is beside the others."""
HALF_HOUR_BINS = 6

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


def likes(
    values: NDArray[np.float32],
    rows: Ints,
    *,
    now: Floats,
    level: Floats,
    half_hour: Floats,
    lead_s: Floats,
) -> Floats:
    """The highest five minutes within `lead_s` after the times most like now: (r, NEIGHBOURS).

    Alike are times whose mean of five minutes and whose mean of half an hour lie close to `level`
    and `half_hour` (r,), as points in a plane; `values`, `rows`, `now`, `lead_s` as for `rises`.
    NaN throughout where too little is known. Nothing of the bin that `now` lies in, or later, is read.
    """
    out = np.full((len(rows), NEIGHBOURS), np.nan)
    ahead = np.ceil(np.minimum(lead_s, LEAD_S_MAX) / BIN_S).astype(np.int64)
    # Start times differ little: a pass for each number of bins that they take, 144 at most.
    for bins in np.unique(ahead):
        at = np.flatnonzero(ahead == bins)
        out[at] = _likes(
            values,
            rows[at],
            now=now[at],
            level=level[at, None].astype(np.float32),
            half_hour=half_hour[at, None].astype(np.float32),
            ahead=max(1, int(bins)),
        )
    return out


def _likes(
    values: NDArray[np.float32],
    rows: Ints,
    *,
    now: Floats,
    level: NDArray[np.float32],
    half_hour: NDArray[np.float32],
    ahead: int,
) -> Floats:
    count = DAYS * BINS_PER_DAY
    closed = (now // BIN_S).astype(np.int64)
    back = np.arange(1, count + HALF_HOUR_BINS)
    # Newest first; float32 as kept, since there are thousands of them a row.
    path = values[rows[:, None], (closed[:, None] - back) % BINS_MAX]
    half = np.zeros((len(rows), count), dtype=np.float32)
    for earlier in range(HALF_HOUR_BINS):
        half += path[:, earlier : earlier + count]
    half /= HALF_HOUR_BINS
    then, half, peak = path[:, ahead:count], half[:, ahead:], _highest(path, ahead)
    peak = peak[:, : count - ahead]
    away = (then - level) ** 2 + (half - half_hour) ** 2
    # Comparisons with what is unknown are false: a hole is like nothing.
    like = _like(then, level) & _like(half, half_hour) & ~np.isnan(peak)
    away = np.where(like, away, np.inf)
    nearest = np.argpartition(away, NEIGHBOURS, axis=1)[:, :NEIGHBOURS]
    enough = like.sum(axis=1) >= NEIGHBOURS
    found = np.take_along_axis(peak, nearest, axis=1).astype(np.float64)
    return np.where(enough[:, None], found, np.nan)


def _like(then: NDArray[np.float32], now: NDArray[np.float32]) -> Bools:
    return (then <= LIKE_MAX * now) & (now <= LIKE_MAX * then)


def _highest(path: NDArray[np.float32], span: int) -> NDArray[np.float32]:
    """Maximum of every `span` neighbours, NaN where one of them is; shorter by span - 1."""
    highest, size = path, 1
    while 2 * size <= span:
        highest = np.maximum(highest[:, :-size], highest[:, size:])
        size *= 2
    rest = span - size
    return np.maximum(highest[:, :-rest], highest[:, rest:]) if rest else highest


def _mean_at(values: NDArray[np.float32], rows: Ints, at: Floats) -> Floats:
    """Trailing mean of five minutes at times (r, m): exact where a bin ends, a line between."""
    position = at / BIN_S - 1.0
    bin_number = np.floor(position).astype(np.int64)
    share = position - bin_number
    column = rows[:, None]
    before = values[column, bin_number % BINS_MAX].astype(np.float64)
    after = values[column, (bin_number + 1) % BINS_MAX].astype(np.float64)
    return np.where(share > 0.0, before + (after - before) * share, before)
