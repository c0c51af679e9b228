"""From a blend that moves all the time to asks that move when it is worth it.

The blend of many candidates is not a whole number and never rests. Rounding it would move a replica
with every breath of demand; a dead band wide enough to stop that would leave a workload at twice
what it needs when that is one replica. What tells a change from noise soonest is how much it has
added up to (CUSUM; Page, "Continuous Inspection Schemes", 1954): the ask moves when the replica
time by which the blend lies above or below it exceeds what a change is worth. So one replica too
many goes after a minute or so, ten of them at the next tick, and half of one never.

More blend never asks for less: both sums are monotone in it.
"""

import numpy as np

from gpuscale.controller.domain import Floats, Ints
from gpuscale.controller.history import aligned

UP_DRIFT = 0.6
DOWN_DRIFT = 0.4
"""Replicas of difference that add nothing up. They sum to one, so that at every blend there is an
ask that rests; a little more upwards, as the candidates have rounded up already."""
UP_S = 10.0
DOWN_S = 30.0
"""Replica seconds that a change is worth, for a single replica: less than a tick upwards, where
waiting is dear; as long as a removed replica goes on draining downwards."""
PER_REPLICA = 0.1
"""Share by which that grows with each replica that is asked for: noise grows with what it is part of,
and a replica more or less matters less among many."""


class Follower:
    """What is asked for, advanced in place. Arrays of shape (n,)."""

    def __init__(self, n: int, tick_s: float) -> None:
        self.tick_s = tick_s
        self.asked: Floats = np.full(n, np.nan)
        self.above: Floats = np.zeros(n)
        self.below: Floats = np.zeros(n)
        """Replica seconds by which the blend lay above and below what is asked for."""

    def advance(self, blend: Floats) -> Floats:
        """The whole replicas to ask for (n,), for a `blend` (n,); NaN where that is NaN."""
        known = ~np.isnan(blend)
        first = np.isnan(self.asked)
        whole = np.floor(blend + 0.5)
        asked = np.where(first, whole, self.asked)
        above, below = self._sums(blend, asked)
        worth = 1.0 + PER_REPLICA * asked
        up = (blend > asked) & (above > UP_S * worth)
        down = (whole < asked) & (below > DOWN_S * worth)
        moved = np.where(up, np.maximum(whole, asked + 1.0), np.where(down, whole, asked))
        changed = up | down | first
        self.above = np.where(known, np.where(changed, 0.0, above), self.above)
        self.below = np.where(known, np.where(changed, 0.0, below), self.below)
        self.asked = np.where(known, moved, self.asked)
        return np.where(known, moved, np.nan)

    def _sums(self, blend: Floats, asked: Floats) -> tuple[Floats, Floats]:
        above = np.maximum(0.0, self.above + (blend - asked - UP_DRIFT) * self.tick_s)
        below = np.maximum(0.0, self.below + (asked - blend - DOWN_DRIFT) * self.tick_s)
        return above, below

    def start(self, row: int, asked: float) -> None:
        """Let one workload go on from `asked` replicas."""
        self.asked[row] = asked
        self.above[row] = self.below[row] = 0.0

    def align(self, source: Ints) -> None:
        """Put rows into a new order; -1 is a new workload."""
        self.asked = aligned(self.asked, source, np.nan)
        self.above = aligned(self.above, source, 0.0)
        self.below = aligned(self.below, source, 0.0)
