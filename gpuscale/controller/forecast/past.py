"""Learning a workload's past at once, as if its forecasts had been made and scored all along.

The experts and the conformal quantiles are functions of rows; here a row is a minute of the past
instead of a workload. Discounted sums over time become cumulative sums, so that a week of minutes
takes a fraction of a second. Each minute is forecast from what lay before it, and scored by what
came after: no row sees its own outcome or a later one.
"""

from dataclasses import dataclass

import numpy as np

from gpuscale.controller.domain import Floats
from gpuscale.controller.forecast import (
    COVERAGE_MIN,
    KNOWN_MIN,
    MINUTE_S,
    Forecaster,
    conformal,
    gated,
)
from gpuscale.controller.forecast.experts import TREND_SPAN_S, combined, rises
from gpuscale.controller.history import BIN_S, History, resampled

PAST_S_MAX = 7 * 86_400.0
"""A week: with losses that halve every day, what lies before it weighs under a hundredth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Minutes:
    """The demand of the past by minutes, or by steps of another length."""

    end_s: float
    """Unix seconds at which the last step ends."""
    demand: Floats
    """Shape (t,), at most PAST_S_MAX, NaN where unknown."""
    step_s: float = MINUTE_S

    @property
    def times(self) -> Floats:
        """Ends of the steps, shape (t,)."""
        back: Floats = np.arange(len(self.demand) - 1, -1, -1, dtype=np.float64)
        return self.end_s - back * self.step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What was known at the end of each step, shape (t, …)."""

    level: Floats
    quantiles: Floats
    """(t, levels)."""


def minutes(times: Floats, demand: Floats, step_s: float, grid_s: float = MINUTE_S) -> Minutes:
    """The newest steps of `grid_s` of a past (`history.resampled` says how `times`, `demand` and
    `step_s` are meant)."""
    if len(times) == 0:
        return Minutes(end_s=0.0, demand=np.empty(0), step_s=grid_s)
    last = int(times[-1] // grid_s)
    first = max(last - int(PAST_S_MAX // grid_s), int(np.ceil((times[0] - step_s) / grid_s)))
    edges = np.arange(first, last + 1, dtype=np.float64) * grid_s
    if len(edges) < 2:
        return Minutes(end_s=last * grid_s, demand=np.empty(0), step_s=grid_s)
    found = resampled(times, demand, step_s, edges)
    return Minutes(end_s=last * grid_s, demand=found, step_s=grid_s)


def learn(
    forecaster: Forecaster, row: int, seen: Minutes, lead_s: float, history: History
) -> Past | None:
    """Leave the forecaster's row as if it had run through these minutes; None where none is known.

    `history` holds the past already (`History.put`).
    """
    if np.isnan(seen.demand).all():
        return None
    aim = forecaster.aim
    level = _filled(_trailing(seen.demand, max(1, round(MINUTE_S / aim.step_s))))
    every = len(level)
    horizon = int(aim.horizon(np.array([lead_s]))[0])
    span = max(1, round(TREND_SPAN_S / aim.step_s))
    recent = _trailing(seen.demand, span)
    before = np.concatenate([np.full(span, np.nan), recent])[:every]
    rise = rises(
        level=level,
        recent=np.where(np.isnan(recent), level, recent),
        before=np.where(np.isnan(before), level, before),
        values=history.values,
        rows=np.full(every, row),
        now_s=seen.times,
        lead_s=np.full(every, lead_s),
        peak=aim.peak,
    )
    outcome = (_peaks if aim.peak else _ends)(seen.demand, horizon)
    errors = (level[:, None] + rise - outcome[:, None]) ** 2
    losses, sums = _losses(errors, horizon, aim.decay)
    blend = combined(rise, losses)
    blend_errors = ((level + blend - outcome) ** 2)[:, None]
    blend_losses, blend_sums = _losses(blend_errors, horizon, aim.decay)
    losses = np.concatenate([losses, blend_losses], axis=1)
    point = level + gated(blend, losses)
    typical = _discounted(seen.demand[:, None], aim.decay)
    scale = 0.5 * (point + typical[:, 0, 0] / np.maximum(typical[:, 0, 1], 1e-12))
    score = _score_quantiles(
        forecaster, row, seen=seen, errors=outcome - point, scale=scale, horizon=horizon
    )
    quantiles = np.maximum(0.0, point[:, None] + score * scale[:, None])

    forecaster.level[row] = level[-1]
    forecaster.burst[row] = level[-1]
    forecaster.typical[row] = typical[-1, 0]
    forecaster.loss[row] = np.concatenate([sums, blend_sums])
    forecaster.rise[row] = rise[-1]
    forecaster.blend_raw[row] = blend[-1]
    forecaster.blend[row] = point[-1] - level[-1]
    forecaster.score[row] = score[-1]
    hit = np.where(np.isnan(outcome)[:, None], np.nan, outcome[:, None] <= quantiles * (1.0 + 1e-6))
    hits = _discounted(hit, aim.decay)[-1]
    if hits[0, 1] >= COVERAGE_MIN:
        forecaster.hits[row, : len(aim.levels)] = hits[:, 0]
        forecaster.hits[row, -1] = hits[0, 1]
    return Past(level=np.where(np.isnan(seen.demand), np.nan, level), quantiles=quantiles)


def seed(forecaster: Forecaster, row: int, seen: Minutes, now: float) -> float:
    """Fill the ticks just before `now`; gives for how many seconds demand was known without a gap."""
    tick_s, size = forecaster.tick_s, forecaster.recent.size
    # The tick k back ended at now - (k + 1) tick_s.
    ended = now - (np.arange(size) + 1.0) * tick_s
    index = len(seen.demand) - 1 - np.floor((seen.end_s - ended) / seen.step_s).astype(np.int64)
    inside = (index >= 0) & (index < len(seen.demand))
    values = np.where(inside, seen.demand[np.clip(index, 0, len(seen.demand) - 1)], np.nan)
    forecaster.recent.seed(row, values)
    unknown = np.flatnonzero(np.isnan(values))
    return float(size if len(unknown) == 0 else unknown[0]) * tick_s


def _filled(values: Floats) -> Floats:
    """The last known value where one is missing; before the first, the first."""
    known = np.flatnonzero(~np.isnan(values))
    at = np.searchsorted(known, np.arange(len(values)), side="right") - 1
    filled: Floats = values[known[np.maximum(at, 0)]]
    return filled


def _trailing(values: Floats, span: int) -> Floats:
    """Mean of what is known of the last `span`."""
    known = ~np.isnan(values)
    total = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    count = np.concatenate([[0.0], np.cumsum(known)])
    end = np.arange(1, len(values) + 1)
    start = np.maximum(0, end - span)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean: Floats = (total[end] - total[start]) / (count[end] - count[start])
    return mean


def _peaks(values: Floats, horizon: int) -> Floats:
    """Highest of the `horizon` steps that follow; NaN where too few of them are known."""
    coming = np.concatenate([values[1:], np.full(horizon, np.nan)])
    window = np.lib.stride_tricks.sliding_window_view(coming, horizon)[: len(values)]
    known = np.count_nonzero(~np.isnan(window), axis=1)
    highest: Floats = np.fmax.reduce(window, axis=1)
    return np.where(known >= KNOWN_MIN * horizon, highest, np.nan)


def _ends(values: Floats, horizon: int) -> Floats:
    """The step that ends `horizon` steps later; NaN where it is not known."""
    out: Floats = np.concatenate([values[horizon:], np.full(horizon, np.nan)])[: len(values)]
    return out


def _discounted(values: Floats, decay: float) -> Floats:
    """Discounted (sum, weight) of the known up to each step, shape (t, k, 2), for `values` (t, k).

    A sum that decays is a plain sum of growing weights, divided by the last one: over a week they
    grow by 2^7.
    """
    known = ~np.isnan(values)
    growth = decay ** -np.arange(len(values), dtype=np.float64)[:, None]
    both = np.stack([np.where(known, values, 0.0) * growth, known * growth], axis=2)
    sums: Floats = np.cumsum(both, axis=0) / growth[:, :, None]
    return sums


def _losses(errors: Floats, horizon: int, decay: float) -> tuple[Floats, Floats]:
    """(mean losses as known at each step (t, k), sums and weights at the end (k, 2))."""
    sums = _discounted(errors, decay)
    late = np.zeros_like(sums)
    late[horizon:] = sums[:-horizon]
    with np.errstate(invalid="ignore", divide="ignore"):
        mean: Floats = late[:, :, 0] / late[:, :, 1]
    return mean, sums[-1]


def _score_quantiles(
    forecaster: Forecaster,
    row: int,
    *,
    seen: Minutes,
    errors: Floats,
    scale: Floats,
    horizon: int,
) -> Floats:
    """Quantiles of the scores as known at each step (t, levels); the rings keep the newest."""
    bins = (seen.times // BIN_S).astype(np.int64)
    good = ~np.isnan(errors)
    first, last = int(bins[0]), int(bins[-1])
    # Wide enough that looking back from the first bin finds the unknown, not the end.
    width = last - first + 1 + conformal.SCORE_BINS
    by_bin = np.full((2, width), np.nan, dtype=np.float32)
    by_bin[0, bins[good] - first] = errors[good]
    by_bin[1, bins - first] = scale
    ring = np.arange(max(first, last - conformal.SCORE_BINS + 1), last + 1)
    forecaster.errors[row, ring % conformal.SCORE_BINS] = by_bin[0, ring - first]
    forecaster.scales[row, ring % conformal.SCORE_BINS] = by_bin[1, ring - first]
    numbers = np.arange(last - first + 1)
    found = conformal.samples(
        by_bin[:1],
        by_bin[1:],
        rows=np.zeros(len(numbers), dtype=np.int64),
        bin_number=numbers,
        # As known when the bin begins, not as it was when it ended.
        scale=scale[np.searchsorted(bins, numbers + first)],
        unripe=int(np.ceil(horizon * seen.step_s / BIN_S)),
    )
    levels = np.tile(forecaster.aim.levels, (len(numbers), 1))
    return conformal.score_quantiles(found, levels)[bins - first]
