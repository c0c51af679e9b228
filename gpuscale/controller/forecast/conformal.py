"""From a point to quantiles, by the errors that such points had: conformal prediction, online.

A score is (outcome - point) / scale. The quantile at level q is point + scale × (the q-quantile of
scores that are like the present): those of the last two hours, and those of the same half hours of
the last seven days, because a morning ramp is uncertain in another way than a night. Scores are
signed, so that intervals are as lopsided as errors are. The scale is half the point and half the
workload's typical level: errors of a busy hour grow with it, errors of a ramp that starts from
almost nothing do not shrink with it.

The level itself is adapted (adaptive conformal inference, Gibbs & Candès 2021): after each outcome
above the quantile it moves up by STEP × q, after each below, down by STEP × (1 - q), so that the
long-run coverage is q whatever demand does.

Pure functions on rows, as in `experts`.
"""

import numpy as np
from numpy.typing import NDArray

from gpuscale.controller.domain import Bools, Floats, Ints
from gpuscale.controller.history import BINS_PER_DAY

SCORE_DAYS = 7
SCORE_BINS = (SCORE_DAYS + 1) * BINS_PER_DAY
RECENT_BINS = 24
AROUND_BINS = 6
"""Bins before and after the same time of past days."""
SAMPLES_MIN = 20
"""With fewer scores than this, prior ones stand in for those that are missing."""
PRIOR_SPREAD = 0.25
"""Width of the prior scores: what quantiles spread before there is any experience."""
RESCALE_MAX = 2.0
SCALE_MIN = 1e-9
STEP = 0.02
LEVEL_MAX = 0.999
LEVEL_SLIP = 0.25
"""How far a level may be adapted below what it should be."""


def samples(
    errors: NDArray[np.float32],
    scales: NDArray[np.float32],
    *,
    rows: Ints,
    bin_number: Ints,
    scale: Floats,
    unripe: int = 0,
) -> Floats:
    """Scores like the present, shape (r, m), NaN where there is none.

    `errors`, `scales` (n, bins): rings of outcome - point, and of the scale then, by the bin in
    which the forecast was made; `rows` (r,) the row of them; `bin_number` (r,) the bin of the
    present, whose own scores are left out, as are those of the `unripe` bins before it (a past that
    is learned at once knows them too early); `scale` (r,) of the present. An error is carried over
    to the present scale by a factor of at most RESCALE_MAX: a jump to ninety times the level says
    that jumps happen, not that the next one goes ninety times higher still.
    """
    recent = np.arange(1, RECENT_BINS + 1) + unripe
    around = np.arange(-AROUND_BINS, AROUND_BINS + 1)
    days = np.arange(1, SCORE_DAYS + 1)[:, None] * BINS_PER_DAY
    back = np.concatenate([recent, (days + around).ravel()])
    column = (bin_number[:, None] - back) % errors.shape[1]
    error = errors[rows[:, None], column].astype(np.float64)
    then = np.maximum(scales[rows[:, None], column].astype(np.float64), SCALE_MIN)
    now = np.maximum(scale, SCALE_MIN)[:, None]
    found: Floats = error * np.clip(now / then, 1.0 / RESCALE_MAX, RESCALE_MAX) / now
    return found


def score_quantiles(found: Floats, levels: Floats) -> Floats:
    """Quantiles of the scores of each row: `found` (r, m), `levels` (r, k), result (r, k), ascending in the level."""
    r = len(found)
    prior = np.broadcast_to(_prior(), (r, SAMPLES_MIN)).copy()
    known = np.count_nonzero(~np.isnan(found), axis=1)
    prior[np.arange(SAMPLES_MIN) >= (SAMPLES_MIN - known)[:, None]] = np.nan
    ordered = np.sort(np.concatenate([found, prior], axis=1), axis=1)
    count = known + np.count_nonzero(~np.isnan(prior), axis=1)
    # The (m + 1) q-th smallest of m, the finite-sample correction of conformal prediction.
    rank = np.clip(levels * (count[:, None] + 1) - 1.0, 0.0, count[:, None] - 1.0)
    low = np.floor(rank).astype(np.int64)
    high = np.minimum(low + 1, count[:, None] - 1)
    at = np.arange(r)[:, None]
    below, above = ordered[at, low], ordered[at, high]
    return np.maximum.accumulate(below + (above - below) * (rank - low), axis=1)


def _prior() -> Floats:
    """Scores before experience, in the order in which real ones replace them: from the middle out."""
    spread = np.linspace(-0.5, 1.0, SAMPLES_MIN) * PRIOR_SPREAD
    order: Floats = spread[np.argsort(-np.abs(np.arange(SAMPLES_MIN) - (SAMPLES_MIN - 1) / 2))]
    return order


def adapted(slip: Floats, levels: Floats, hit: Bools) -> Floats:
    """The levels' slips (r, k) after outcomes: `hit` (r, k) where at or below the quantile."""
    moved: Floats = np.clip(slip + STEP * (levels - hit), -LEVEL_SLIP, LEVEL_SLIP)
    return moved


def in_use(levels: Floats, slip: Floats) -> Floats:
    """The levels (n, k) that are read off the scores."""
    return np.clip(levels + slip, 0.01, LEVEL_MAX)
