"""The bank of candidate policies."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuscale.controller.domain import Floats, Ints
from gpuscale.controller.history import aligned
from gpuscale.controller.plan import Candidate, columns, replicas

SIGNALS: tuple[str, ...] = ("recent",)
CANDIDATES: tuple[Candidate, ...] = (Candidate(name="reactive@0.75", signal="recent", target=0.75),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What the bank says at one tick."""

    planned: Floats
    """(n,) replicas; NaN where there is nothing to plan from."""
    candidate: Ints
    """(n,) index of the candidate in use."""
    costs: Floats
    """(n, k) discounted virtual costs; NaN until there are some."""


class Bank:
    """Candidates of all workloads, advanced in place."""

    def __init__(self, n: int, tick_s: float, candidates: Sequence[Candidate] = CANDIDATES) -> None:
        self.candidates = tuple(candidates)
        self._picks, self._target = columns(self.candidates, SIGNALS)
        self._held: Floats = np.full((n, 20), np.nan)
        self._tick = 0

    def advance(self, signals: Floats, capacity: Floats, headroom: Floats) -> Choice:
        """One tick."""
        self._held[:, self._tick % 20] = signals[:, 0]
        self._tick += 1
        level = np.fmax.reduce(self._held, axis=1, initial=np.nan)
        want = replicas(level[:, None][:, self._picks], self._target, capacity, headroom)
        n = len(want)
        return Choice(
            planned=want[:, 0],
            candidate=np.zeros(n, dtype=np.int64),
            costs=np.full((n, len(self.candidates)), np.nan),
        )

    def align(self, source: Ints) -> None:
        """Put rows into a new order; -1 is a new workload."""
        self._held = aligned(self._held, source, np.nan)
