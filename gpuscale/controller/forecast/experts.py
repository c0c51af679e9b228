"""Simple experts for the coming demand, as rises above the present level, and their blend.

That form keeps the season what it is worth: a correction on top of the current level, never a level
of its own, so that a workload that grew fivefold is forecast at its new size the same hour.

    last           nothing: the level stays
    mean5, mean15  demand goes back to what it was on average
    day-rise, days-scaled, week-rise
                   what yesterday, the last seven days, or this day last week added: all of it,
                   where a regression is careful
    near           a regression on the last hour (`regression`)
    quick, steady  regressions on the last hour and past days, of which one forgets within a day,
                   the other within a week

Functions here are pure and work on rows: workloads at one time when they run live, times of one
workload when the past is learned.
"""

import numpy as np

from gpuscale.controller.domain import Floats
from gpuscale.controller.forecast import regression
from gpuscale.controller.forecast.looks import LOOKS

PLAIN: tuple[str, ...] = ("mean5", "mean15", "day-rise", "days-scaled", "week-rise")
"""Looks that are taken as they are."""
EXPERTS: tuple[str, ...] = ("last", *PLAIN, *(m.name for m in regression.MEMORIES))

LOSS_SCALE = 0.1
"""An expert whose loss is a tenth above the best one's weighs 1/e of it."""
PRIOR_EXCESS = 0.4
"""Before there is experience, every expert but the last value is taken to have lost so much more."""
PRIOR_MIN = 20.0
"""Minutes of experience that halve the prior's weight: chance rules the first of them."""


def rises(looked: Floats, scale: Floats, regressed: Floats, *, peak: bool) -> Floats:
    """Rises of all experts, shape (r, len(EXPERTS)); NaN where an expert knows nothing.

    `looked` (r, LOOKS) and `regressed` (r, memories) in units of `scale` (r,). A peak includes the
    very next moment, so that its rise is never below zero: what falls, peaks now.
    """
    columns = [LOOKS.index(name) for name in PLAIN]
    own = np.concatenate([np.zeros((len(looked), 1)), looked[:, columns], regressed], axis=1)
    rise: Floats = own * scale[:, None]
    return np.maximum(rise, 0.0) if peak else rise


def combined(rise: Floats, loss: Floats, heard_min: Floats) -> Floats:
    """The experts' rises (r, e) weighted by their recent losses (r, e): one rise per row (r,).

    Weights fall exponentially with the excess over the least loss; an expert without a rise or
    without a loss has none. `heard_min` (r,): minutes of experience. Where nobody is left, the level
    stays.
    """
    usable = ~np.isnan(rise) & ~np.isnan(loss)
    prior = PRIOR_EXCESS * loss[:, :1] * (PRIOR_MIN / (PRIOR_MIN + heard_min))[:, None]
    cost = np.where(usable, loss, np.inf)
    cost[:, 1:] += np.where(np.isnan(prior), 0.0, prior)
    least = cost.min(axis=1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        excess = np.where(usable, (cost - least) / np.maximum(least, 1e-12), np.inf)
    weight = np.exp(-np.minimum(excess, 700.0 * LOSS_SCALE) / LOSS_SCALE) * usable
    total = weight.sum(axis=1)
    mixed = (weight * np.where(usable, rise, 0.0)).sum(axis=1)
    return np.where(total > 0, mixed / np.maximum(total, 1e-300), 0.0)
