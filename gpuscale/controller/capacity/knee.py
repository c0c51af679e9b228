"""The knee of throughput against latency, from blocks of load that were carried well or badly.

Over a block a replica ends x requests a second with c of them inside, so that each spends r = c / x
seconds there (Little's law). The block is *good* where r is within the latency objective, and *bad*
where it is not, or where more waits than runs. Bins of x count both; the knee is the x that
separates them with the least weight on the wrong side (a decision stump, which is isotonic
regression under absolute loss).

Bins are of x and not of c because at a constant load c scatters and x hardly does: sorted by c,
scatter looks like a curve that has gone flat, and an idle server like a saturated one.
"""

import numpy as np

from gpuscale.controller.domain import Bools, Floats, Ints
from gpuscale.controller.history import aligned

BINS = 32
"""Of throughput, from 0 to twice the most at first: near the most each is 3 to 6 % wide."""
WEIGHT_MAX = 40.0
"""Blocks that one bin remembers: twenty minutes at one load, after which old ones fade."""
GOOD_MIN = 3.0
"""Good blocks in a bin before its load counts as carried."""
BAD_MIN = 4.0
"""Bad blocks that make a knee: two minutes."""
BAD_SHARE_MIN = 0.6
"""Share of bad blocks above a knee; scatter alone stays far below."""
BAND = 1.08
"""The knee is the mean load of the bad blocks up to this many times the separating one: a server
that cannot do more stays there, above and below by scatter."""
TAIL = 0.15
"""Share of the bad blocks, those of the lowest loads, that the knee leaves out: scatter reaches down."""
SLOWDOWN = 3.0
"""Without a latency objective, a load is carried well while requests take at most this many times
what they take at low load: a batching server then runs at two thirds of its most."""
SEEN_MIN = 8.0
"""Requests found inside before a bin tells how long one takes."""
CEILING = 4.0
"""A throughput this many times beyond all others is not believed at once …"""
CEILING_BLOCKS = 3
"""… but when it has come so often in a row."""
DOUBLINGS_MAX = 64
"""Of the range, at once: from the smallest rate to the largest."""
STEADY = 0.5
"""A bad block in which fewer were inside at some time than this share of the mean was a queue that
came or went: part of its time the server had less to do than it could."""
BROKEN = 0.5
"""Bad below this share of what was carried well is a server in trouble, not a smaller one …"""
BROKEN_BLOCKS = 60
"""… until it has lasted half an hour: then it is another server, and learning begins anew."""


class Knee:
    """Bins and knees of n workloads."""

    def __init__(self, n: int) -> None:
        self._top = np.full(n, np.nan)
        """Upper end of the last bin."""
        self._good = np.zeros((n, BINS))
        self._bad = np.zeros((n, BINS))
        self._x = np.zeros((n, BINS))
        """Sum of throughput over the blocks of a bin; `_c` of requests inside, `_x_bad` of bad ones."""
        self._c = np.zeros((n, BINS))
        self._x_bad = np.zeros((n, BINS))
        self._beyond = np.zeros(n)
        self._broken = np.zeros(n)
        self.value = np.full(n, np.nan)
        """(n,) units/s at the knee, NaN where there is none."""
        self.carried = np.full(n, np.nan)
        """(n,) the highest load that was carried well often enough; NaN before there is one."""
        self.weight = np.zeros(n)
        """(n,) bad blocks behind the knee."""

    def align(self, source: Ints) -> None:
        """Follow a new order of workloads, as `history.aligned`."""
        for name, fill in _FILLS.items():
            setattr(self, name, aligned(getattr(self, name), source, fill))

    def reset(self, rows: Ints) -> None:
        """Forget these workloads' past."""
        for name, fill in _FILLS.items():
            getattr(self, name)[rows] = fill

    def add(
        self,
        rows: Ints,
        x: Floats,
        c: Floats,
        *,
        least: Floats,
        objective_s: Floats,
        queueing: Bools,
    ) -> Ints:
        """Enter one block of these rows: units/s and requests inside, of one replica; both finite.

        `least`: the fewest inside at any time of the block.
        `objective_s`: seconds a request may spend, NaN for SLOWDOWN times its own at low load.
        `queueing`: more waits than runs. Gives the rows whose server is another one.
        """
        believed = (x > 0) & self._believed(rows, x)
        rows, x, c = rows[believed], x[believed], c[believed]
        objective_s, queueing, least = objective_s[believed], queueing[believed], least[believed]
        if not len(rows):
            return rows
        self._widen(rows, x)
        limit = np.where(np.isnan(objective_s), SLOWDOWN * self._base_s(rows), objective_s)
        with np.errstate(invalid="ignore"):
            bad = queueing | (c / x > limit)
            broken = bad & (x < BROKEN * np.fmax(self.carried[rows], self.value[rows]))
            passing = bad & (least < STEADY * c)
        self._broken[rows] = np.where(broken, self._broken[rows] + 1.0, 0.0)
        another = rows[self._broken[rows] >= BROKEN_BLOCKS]
        kept = ~(broken | passing)
        self._count(rows[kept], x[kept], c[kept], bad[kept])
        self._decide(rows[kept])
        return another

    def _believed(self, rows: Ints, x: Floats) -> Bools:
        with np.errstate(invalid="ignore"):
            beyond = x > CEILING * self._top[rows]
        self._beyond[rows] = np.where(beyond, self._beyond[rows] + 1.0, 0.0)
        believed: Bools = ~beyond | (self._beyond[rows] >= CEILING_BLOCKS)
        return believed

    def _widen(self, rows: Ints, x: Floats) -> None:
        """Double the range where x is beyond it: pairs of bins become one."""
        self._top[rows] = np.where(np.isnan(self._top[rows]), 2.0 * x, self._top[rows])
        for _ in range(DOUBLINGS_MAX):
            over = rows[x >= self._top[rows]]
            if not len(over):
                return
            for name in ("_good", "_bad", "_x", "_c", "_x_bad"):
                bins = getattr(self, name)
                merged = np.zeros((len(over), BINS))
                merged[:, : BINS // 2] = bins[over].reshape(len(over), BINS // 2, 2).sum(axis=2)
                bins[over] = merged
            self._top[over] *= 2.0

    def _base_s(self, rows: Ints) -> Floats:
        """(m,) seconds that a request takes at low load: the least of any bin that tells; NaN if none does."""
        inside, ended = self._c[rows], self._x[rows]
        told = (self._good[rows] + self._bad[rows] >= GOOD_MIN) & (inside >= SEEN_MIN)
        seconds = np.where(told, inside / np.where(told, ended, 1.0), np.inf)
        least = seconds.min(axis=1)
        return np.where(np.isfinite(least), least, np.nan)

    def _count(self, rows: Ints, x: Floats, c: Floats, bad: Bools) -> None:
        at = np.minimum((x / self._top[rows] * BINS).astype(np.int64), BINS - 1)
        weight = self._good[rows, at] + self._bad[rows, at]
        fade = np.minimum(1.0, (WEIGHT_MAX - 1.0) / np.maximum(weight, 1e-9))
        for bins, amount in (
            (self._good, np.where(bad, 0.0, 1.0)),
            (self._bad, np.where(bad, 1.0, 0.0)),
            (self._x, x),
            (self._c, c),
            (self._x_bad, np.where(bad, x, 0.0)),
        ):
            bins[rows, at] = bins[rows, at] * fade + amount

    def _decide(self, rows: Ints) -> None:
        """Knee and carried load of these rows, from their bins."""
        good, bad = self._good[rows], self._bad[rows]
        # cost[k]: weight on the wrong side where bins below k are to be good, and those from k bad.
        cost = np.zeros((len(rows), BINS + 1))
        np.cumsum(bad, axis=1, out=cost[:, 1:])
        cost[:, :-1] += np.cumsum(good[:, ::-1], axis=1)[:, ::-1]
        # Of equal ones the last: between the carried and the uncarried, nothing is known.
        k = BINS - np.argmin(cost[:, ::-1], axis=1)
        above = np.arange(BINS)[None, :] >= k[:, None]
        bad_above, good_above = (np.where(above, side, 0.0).sum(axis=1) for side in (bad, good))
        sure = (bad_above >= BAD_MIN) & (bad_above >= BAD_SHARE_MIN * (bad_above + good_above))
        heavy = np.cumsum(np.where(above, bad, 0.0), axis=1) > (TAIL * bad_above)[:, None]
        first = np.where(heavy.any(axis=1), np.argmax(heavy, axis=1), BINS - 1)
        above &= np.arange(BINS)[None, :] >= first[:, None]
        edge = (first + 1.0) * self._top[rows] / BINS * BAND
        lower = np.arange(BINS)[None, :] * (self._top[rows] / BINS)[:, None]
        band = np.where(above & (lower < edge[:, None]), bad, 0.0)
        weight = band.sum(axis=1)
        mean = np.where(band > 0, self._x_bad[rows], 0.0).sum(axis=1) / np.maximum(weight, 1e-9)
        self.value[rows] = np.where(sure & (weight > 0), mean, np.nan)
        self.weight[rows] = np.where(sure, bad_above, 0.0)
        often = (good >= GOOD_MIN) & (good >= bad)
        top = BINS - 1 - np.argmax(often[:, ::-1], axis=1)
        picked = np.arange(len(rows))
        total = good[picked, top] + bad[picked, top]
        load = self._x[rows][picked, top] / np.maximum(total, 1e-9)
        self.carried[rows] = np.where(often.any(axis=1), load, np.nan)


_FILLS: dict[str, float] = {
    "_top": np.nan,
    "_good": 0.0,
    "_bad": 0.0,
    "_x": 0.0,
    "_c": 0.0,
    "_x_bad": 0.0,
    "_beyond": 0.0,
    "_broken": 0.0,
    "value": np.nan,
    "carried": np.nan,
    "weight": 0.0,
}
"""The arrays, and what stands in them before anything is known."""
