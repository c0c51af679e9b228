"""What candidate policies look at: recent demand, its forecast, and what is worth standing by for.

Every tick gives the same columns (`BASES`) for all workloads, in units/s:

    recent, burst       mean of the last minute, of the last half minute
    mean3, mean5, mean10  mean of the last three, five and ten minutes, in which noise is averaged out
    q50 … q99           quantiles of the peak until a replica could serve (`forecast`)
    rise-N              mean of five minutes, and the rise within a start time that is worth standing
                        by for when lateness is priced at N per cent of what `risk` says
    hour-N              likewise, from the minutes of the last hour
    like-N              likewise, from what followed the times of the last week most like now
                        (`newsvendor` says how)

Lateness is priced at several shares because it does not last as long as what causes it: replicas
come a start time later, and how much is late until then depends on the workload. Which share fits
is for the bank to find out.

The newsvendor's columns are computed for a part of the workloads at every tick: rises and likes once
in five minutes, as history has bins of five minutes, hours once a minute.
"""

import numpy as np
from numpy.typing import NDArray

from gpuscale.controller import newsvendor
from gpuscale.controller.domain import QUANTILES, Bools, FleetForecast, Floats, Ints
from gpuscale.controller.forecast import Forecaster
from gpuscale.controller.forecast.past import Minutes, Past
from gpuscale.controller.history import BIN_S, History, aligned

MINUTE_S = 60.0
HOUR_MIN = 60
"""Minutes of a workload that are kept."""
MEANS_MIN = (3, 5, 10)
SHARES = (0.1, 0.3, 1.0)
"""Of the price of lateness; finer ones choose the same samples most of the time."""
LIKE_SHARES = (0.3, 1.0)
HALF_HOUR_MIN = 30
MEAN5 = MEANS_MIN.index(5)

BASES: tuple[str, ...] = (
    "recent",
    "burst",
    *(f"mean{minutes}" for minutes in MEANS_MIN),
    *(f"q{level * 100:.0f}" for level in QUANTILES),
    *(f"rise-{share * 100:.0f}" for share in SHARES),
    *(f"hour-{share * 100:.0f}" for share in SHARES),
    *(f"like-{share * 100:.0f}" for share in LIKE_SHARES),
)

_LIKE_AT = [SHARES.index(share) for share in LIKE_SHARES]

ROWS_MIN = 64
"""Workloads that are worth a turn of their own: a few cost as much as one."""
PAST_STEP_MIN = 5
"""Rises and likes of the past are computed this often, as live ones are."""
LIKE_PAST_MIN = 4 * 1440
"""Minutes of a past whose likes are computed: the bank learns from the last three days."""


class Outlook:
    """The columns of all workloads, advanced in place."""

    def __init__(self, n: int, tick_s: float) -> None:
        self.tick_s = tick_s
        self.minute = -1
        self.minutes: NDArray[np.float32] = np.full((n, HOUR_MIN), np.nan, dtype=np.float32)
        """Ring of the last hour: minute m lies in column m % HOUR_MIN."""
        self.rise: Floats = np.zeros((n, len(SHARES)))
        """(n, shares) above the mean of five minutes; 0 until it is known."""
        self.hour: Floats = np.full((n, len(SHARES)), np.nan)
        self.like: Floats = np.full((n, len(LIKE_SHARES)), np.nan)

    def advance(
        self,
        now: float,
        *,
        forecaster: Forecaster,
        forecast: FleetForecast,
        history: History,
        lead_s: Floats,
        risk: Floats,
        seen: Bools,
    ) -> Floats:
        """The columns as of now (n, len(BASES)); NaN where nothing was `seen` in this tick."""
        n = len(seen)
        self._enter(now, np.where(seen, forecaster.level, np.nan))
        tick = int(now // self.tick_s)
        price = (risk / (1.0 - risk))[:, None] * np.array(SHARES)
        means = np.stack([forecaster.recent.mean(m * MINUTE_S) for m in MEANS_MIN], axis=1)
        rows = _turn(n, tick, BIN_S / self.tick_s)
        if len(rows):
            samples = newsvendor.rises(history.values, rows, np.full(len(rows), now), lead_s[rows])
            self.rise[rows] = _margin(samples, means[rows, MEAN5], price[rows])
            alike = newsvendor.likes(
                history.values,
                rows,
                now=np.full(len(rows), now),
                level=means[rows, MEAN5],
                half_hour=self._half_hour(rows),
                lead_s=lead_s[rows],
            )
            self.like[rows] = newsvendor.best_levels(alike, price[rows][:, _LIKE_AT])
        rows = _turn(n, tick, MINUTE_S / self.tick_s)
        if len(rows):
            kept = self.minutes[rows].astype(np.float64)
            self.hour[rows] = newsvendor.best_levels(kept, price[rows])
        bases = _columns(
            level=forecaster.level,
            burst=forecaster.burst,
            means=means,
            quantiles=forecast.quantiles,
            rise=self.rise,
            hour=self.hour,
            like=self.like,
        )
        return np.where(seen[:, None], bases, np.nan)

    def _enter(self, now: float, level: Floats) -> None:
        """Write the minute's mean; minutes that were skipped are unknown."""
        minute = int(now // MINUTE_S)
        if minute <= self.minute:
            return
        skipped = min(minute - self.minute - 1, HOUR_MIN) if self.minute >= 0 else 0
        self.minutes[:, (minute - 1 - np.arange(skipped)) % HOUR_MIN] = np.nan
        self.minutes[:, minute % HOUR_MIN] = level
        self.minute = minute

    def _half_hour(self, rows: Ints) -> Floats:
        """Mean of what is known of the last half hour; NaN where nothing is."""
        part = self.minutes[rows][:, (self.minute - np.arange(HALF_HOUR_MIN)) % HOUR_MIN]
        known = ~np.isnan(part)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean: Floats = np.where(known, part, 0.0).sum(axis=1, dtype=np.float64) / known.sum(
                axis=1
            )
        return mean

    def learn(
        self,
        row: int,
        now: float,
        *,
        seen: Minutes,
        past: Past,
        history: History,
        lead_s: float,
        risk: float,
    ) -> Floats:
        """The columns of every minute of a past (t, len(BASES)), NaN where unknown; the row's own
        state is what they came to. `history` holds the past already."""
        every = len(seen.demand)
        price = risk / (1.0 - risk) * np.array(SHARES)
        means = np.stack([trailing(seen.demand, m) for m in MEANS_MIN], axis=1)
        mean = means[:, MEAN5]
        at = np.arange(every - 1, -1, -PAST_STEP_MIN)[::-1]
        samples = newsvendor.rises(
            history.values, np.full(len(at), row), seen.times[at], np.full(len(at), lead_s)
        )
        margin = _margin(samples, mean[at], np.broadcast_to(price, (len(at), len(price))))
        # Each stands until the next; nothing stands before the first.
        last = np.searchsorted(at, np.arange(every), side="right") - 1
        rise = np.where(last[:, None] >= 0, margin[np.maximum(last, 0)], 0.0)
        padded = np.concatenate([np.full(HOUR_MIN - 1, np.nan), seen.demand])
        hours = np.lib.stride_tricks.sliding_window_view(padded, HOUR_MIN)
        hour = newsvendor.best_levels(hours, np.broadcast_to(price, (every, len(price))))
        like = self._past_likes(row, seen, history=history, lead_s=lead_s, price=price, mean=mean)
        self.rise[row], self.hour[row], self.like[row] = rise[-1], hour[-1], like[-1]
        self._seed(row, now, seen)
        bases = _columns(
            level=past.level,
            burst=past.level,
            means=means,
            quantiles=past.quantiles,
            rise=rise,
            hour=hour,
            like=like,
        )
        return np.where(np.isnan(past.level)[:, None], np.nan, bases)

    def _past_likes(
        self,
        row: int,
        seen: Minutes,
        *,
        history: History,
        lead_s: float,
        price: Floats,
        mean: Floats,
    ) -> Floats:
        """Of every minute of a past (t, shares); NaN before the newest LIKE_PAST_MIN of them."""
        every = len(seen.demand)
        # Where a bin ends, as live ones are; each stands until the next.
        at = np.flatnonzero(seen.times % BIN_S == 0.0)
        at = at[at >= every - LIKE_PAST_MIN]
        if len(at) == 0:
            return np.full((every, len(LIKE_SHARES)), np.nan)
        alike = newsvendor.likes(
            history.values,
            np.full(len(at), row),
            now=seen.times[at],
            level=mean[at],
            half_hour=trailing(seen.demand, HALF_HOUR_MIN)[at],
            lead_s=np.full(len(at), lead_s),
        )
        levels = newsvendor.best_levels(
            alike, np.broadcast_to(price[_LIKE_AT], (len(at), len(LIKE_SHARES)))
        )
        last = np.searchsorted(at, np.arange(every), side="right") - 1
        return np.where(last[:, None] >= 0, levels[np.maximum(last, 0)], np.nan)

    def _seed(self, row: int, now: float, seen: Minutes) -> None:
        """Fill the hour before now; what was observed here stands."""
        minute = int(now // MINUTE_S)
        ended = np.rint(seen.times / MINUTE_S).astype(np.int64)
        fits = (ended > minute - HOUR_MIN) & (ended <= minute)
        column = ended[fits] % HOUR_MIN
        own = self.minutes[row, column]
        self.minutes[row, column] = np.where(np.isnan(own), seen.demand[fits], own)

    def align(self, source: Ints) -> None:
        """Put rows into a new order; -1 is a new workload."""
        self.minutes = aligned(self.minutes, source, np.nan)
        self.rise = aligned(self.rise, source, 0.0)
        self.hour = aligned(self.hour, source, np.nan)
        self.like = aligned(self.like, source, np.nan)


def trailing(values: Floats, span: int) -> Floats:
    """Mean of what is known of the last `span` values, NaN where nothing is."""
    known = ~np.isnan(values)
    total = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    count = np.concatenate([[0.0], np.cumsum(known)])
    end = np.arange(1, len(values) + 1)
    start = np.maximum(0, end - span)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean: Floats = (total[end] - total[start]) / (count[end] - count[start])
    return mean


def _margin(samples: Floats, mean: Floats, price: Floats) -> Floats:
    """What is worth standing by for above `mean` (r,), shape (r, k); 0 where it is unknown."""
    levels = newsvendor.best_levels(mean[:, None] + samples, price)
    return np.nan_to_num(np.maximum(levels - mean[:, None], 0.0), nan=0.0)


def _columns(
    *,
    level: Floats,
    burst: Floats,
    means: Floats,
    quantiles: Floats,
    rise: Floats,
    hour: Floats,
    like: Floats,
) -> Floats:
    """In the order of BASES. An hour or a likeness that is unknown counts as the present."""
    mean = means[:, MEAN5, None]
    return np.concatenate(
        [
            level[:, None],
            burst[:, None],
            means,
            quantiles,
            mean + rise,
            np.where(np.isnan(hour), level[:, None], hour),
            np.where(np.isnan(like), level[:, None], like),
        ],
        axis=1,
    )


def _turn(n: int, tick: int, ticks: float) -> Ints:
    """The workloads whose turn it is: all of them once in so many `ticks`, ROWS_MIN at least at once."""
    turns = max(1, round(ticks))
    groups = max(1, min(turns, n // ROWS_MIN))
    turn = tick % turns
    return np.arange(turn if turn < groups else n, n, groups, dtype=np.int64)
