"""Regressions of what demand did until the horizon on what was looked at before, learned online.

Per workload and memory the sums of a weighted ridge regression are kept: X'X and X'y of looks and
of the rise that came, both in the workload's own scale, halved every so often. Their solution is
shrunk towards "nothing changes". New pairs are collected and folded into the sums every FOLD_S by
the clock, whatever row a workload is in; solutions come into use READY_S later, so that there is
time to solve ten thousand of them a part at a time.

Pure functions, and sums that are advanced in place.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuscale.controller.domain import Bools, Floats, Ints
from gpuscale.controller.forecast.looks import LOOKS, NEAR
from gpuscale.controller.history import aligned


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """One regression: what it looks at, how long it remembers, how sure it must be."""

    name: str
    looks: int
    """The first so many of LOOKS."""
    half_life_s: float
    ridge: float
    """In minutes of evidence by which it is shrunk."""
    warm_min: float
    """Minutes of evidence before it is asked."""


MEMORIES: tuple[Memory, ...] = (
    Memory(name="near", looks=len(NEAR), half_life_s=86_400.0, ridge=10.0, warm_min=0.0),
    Memory(name="quick", looks=len(LOOKS), half_life_s=43_200.0, ridge=1.0, warm_min=180.0),
    Memory(name="steady", looks=len(LOOKS), half_life_s=259_200.0, ridge=1.0, warm_min=180.0),
)
FOLD_S = 1800.0
READY_S = 600.0
RISE_MAX = 4.0
"""No rise counts for more, in scales, nor is more forecast."""

_K = len(LOOKS)


class Regressions:
    """Sums and solutions of all workloads, advanced in place."""

    def __init__(self, n: int, step_s: float) -> None:
        self.step_s = step_s
        self.fold = max(2, round(FOLD_S / step_s))
        """Steps from one folding to the next."""
        self.ready = min(self.fold - 1, max(1, round(READY_S / step_s)))
        """Steps from a folding to the use of its solutions."""
        single = np.float32
        self.fresh: NDArray[np.float32] = np.zeros((n, _K, _K + 1), dtype=single)
        """X'X and X'y since the last folding, side by side."""
        self.sums: NDArray[np.float32] = np.zeros((n, len(MEMORIES), _K, _K + 1), dtype=single)
        self.coming: NDArray[np.float32] = np.zeros((n, len(MEMORIES), _K), dtype=single)
        self.used: NDArray[np.float32] = np.zeros((n, len(MEMORIES), _K), dtype=single)
        """Solutions; zeros forecast that nothing changes."""
        self.heard_min: Floats = np.zeros(n)
        """Minutes of evidence, not discounted."""
        self.solved = 0
        """Rows whose coming solution stands."""

    def hear(self, rows: Ints, looked: Floats, rise: Floats, weight: Ints) -> None:
        """Pairs that became known: `looked` (r, LOOKS), `rise` (r,) in scales, `weight` (r,) in steps."""
        both = paired(looked, rise).astype(np.float32)
        minutes = weight * self.step_s / 60.0
        weighted = both[:, :-1] * minutes.astype(np.float32)[:, None]
        self.fresh[rows] += weighted[:, :, None] * both[:, None, :]
        self.heard_min[rows] += minutes

    def advance(self, step: int) -> None:
        """What the clock asks for at this step: fold, solve a part, take into use."""
        since = step % self.fold
        if since == 0:
            self.sums *= decays(self.fold * self.step_s).astype(np.float32)[:, None, None]
            self.sums += self.fresh[:, None]
            self.fresh[:] = 0.0
            self.solved = 0
        n = len(self.heard_min)
        upto = min(n, -(-n * (since + 1) // self.ready))
        if since < self.ready and upto > self.solved:
            part = slice(self.solved, upto)
            self.coming[part] = solutions(self.sums[part])
            self.solved = upto
        if since == self.ready:
            self.used[:] = self.coming

    def rises(self, looked: Floats) -> Floats:
        """(n, memories) in scales; NaN where a regression is not warm yet."""
        return answers(self.used, looked, self.heard_min)

    def align(self, source: Ints) -> None:
        """Put rows into a new order; -1 is a new workload."""
        for name in ("fresh", "sums", "coming", "used", "heard_min"):
            setattr(self, name, aligned(getattr(self, name), source, 0.0))
        # Who moved may have been passed over: solve again from the first.
        self.solved = 0


def paired(looked: Floats, rise: Floats) -> Floats:
    """(r, LOOKS + 1) looks and the rise that came, bounded."""
    bounded = np.clip(rise, -RISE_MAX, RISE_MAX)
    return np.concatenate([looked, bounded[:, None]], axis=1)


def decays(seconds: float) -> Floats:
    """(memories,) what sums weigh so much later."""
    return np.array([0.5 ** (seconds / memory.half_life_s) for memory in MEMORIES])


def solutions(sums: NDArray[np.float32]) -> Floats:
    """(r, memories, LOOKS) of sums (r, memories, LOOKS, LOOKS + 1)."""
    out = np.zeros(sums.shape[:3])
    for m, memory in enumerate(MEMORIES):
        k = memory.looks
        gram = sums[:, m, :k, :k].astype(np.float64) + memory.ridge * np.eye(k)
        moment = sums[:, m, :k, -1:].astype(np.float64)
        out[:, m, :k] = np.linalg.solve(gram, moment)[:, :, 0]
    return out


def answers(used: Floats | NDArray[np.float32], looked: Floats, heard_min: Floats) -> Floats:
    """(r, memories) rises in scales, NaN where not warm."""
    found = np.einsum("rmk,rk->rm", used, looked)
    warm: Bools = heard_min[:, None] >= np.array([memory.warm_min for memory in MEMORIES])
    return np.where(warm, np.clip(found, -RISE_MAX, RISE_MAX), np.nan)


def lived(
    regressions: Regressions,
    row: int,
    *,
    steps: Ints,
    looked: Floats,
    rise: Floats,
    horizon: int,
) -> Floats:
    """Leave one row as if it had lived through these steps; gives its answers (t, memories) then.

    `steps` (t,) consecutive numbers; `looked` (t, LOOKS) and `rise` (t,) in scales, NaN where it is
    not to be learned. A rise is heard `horizon` steps after its looks.
    """
    fold, ready, step_s = regressions.fold, regressions.ready, regressions.step_s
    good = np.flatnonzero(~np.isnan(rise))
    both = paired(looked[good], rise[good])
    heard = steps[good] + horizon
    end = int(steps[-1])
    good, both, heard = good[heard <= end], both[heard <= end], heard[heard <= end]
    first = int(steps[0]) // fold
    # A pair that is heard at step s enters the folding of the next multiple of `fold`, s itself included.
    folds = end // fold - first + 1
    places = np.searchsorted(heard, (first + np.arange(folds)) * fold, side="right")
    sums = np.zeros((folds, len(MEMORIES), _K, _K + 1), dtype=np.float32)
    decay = decays(fold * step_s).astype(np.float32)[:, None, None]
    kept, begin = np.zeros(sums.shape[1:], dtype=np.float32), 0
    for number, place in enumerate(places.tolist()):
        kept = kept * decay + _sum(both[begin:place], step_s)
        sums[number], begin = kept, place
    solved = np.concatenate([np.zeros((1, len(MEMORIES), _K)), solutions(sums)])
    at = np.maximum(0, (steps - ready) // fold - first + 1)
    minutes = np.searchsorted(heard, steps, side="right").astype(np.float64) * (step_s / 60.0)
    regressions.fresh[row] = _sum(both[begin:], step_s)
    regressions.sums[row] = kept
    regressions.coming[row] = solved[-1]
    regressions.used[row] = solved[at[-1]]
    regressions.heard_min[row] = minutes[-1]
    return answers(solved[at], looked, minutes)


def _sum(both: Floats, step_s: float) -> NDArray[np.float32]:
    """X'X and X'y side by side, (LOOKS, LOOKS + 1)."""
    return (both[:, :-1].T @ both * (step_s / 60.0)).astype(np.float32)
