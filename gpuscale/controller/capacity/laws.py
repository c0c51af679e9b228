"""Two laws that bound a replica's throughput before it has ever been saturated.

Utilization law, U = x · S (Denning and Buzen, 1978): where the GPUs' busy seconds per request S are
the same at low and at high load, there can be no more than 1 / S. A batching server breaks the law,
since its GPU is busy with a single request too, and is told by that: its S falls as load grows.

KV cache: throughput grows with the tokens in flight, so at KV_FULL of the cache there is
x · KV_FULL / KV, from the regression of x on KV through the origin.
"""

import numpy as np

from gpuscale.controller.domain import Floats, Ints
from gpuscale.controller.history import aligned

SPLIT = 0.5
RANGE = (0.1, 0.98)
TOLERANCE = 0.15
BLOCKS = 6.0
"""The utilization law is believed where S, over BLOCKS blocks below and above SPLIT each, agrees
within TOLERANCE; utilizations outside RANGE are noise, or full."""
KV_FULL = 0.95
"""Share of the cache at which servers begin to preempt."""
KV_FROM = 0.3
"""Below it, what stays in the cache between requests weighs as much as requests."""
MEMORY = 40.0
"""Blocks after which old ones fade."""


class Laws:
    """Evidence of n workloads for both laws."""

    def __init__(self, n: int) -> None:
        self._weights = np.zeros((n, 2))
        self._busy = np.zeros((n, 2))
        """Busy seconds per request at low and at high load, mean over the blocks."""
        self._kv = np.zeros((n, 3))
        """Sums of x · KV and KV², and their weight."""

    def align(self, source: Ints) -> None:
        """Follow a new order of workloads, as `history.aligned`."""
        for name in ("_weights", "_busy", "_kv"):
            setattr(self, name, aligned(getattr(self, name), source, 0.0))

    def reset(self, rows: Ints) -> None:
        """Forget these workloads' past."""
        for values in (self._weights, self._busy, self._kv):
            values[rows] = 0.0

    def add(self, rows: Ints, x: Floats, busy: Floats, kv: Floats) -> None:
        """Enter one block of these rows: units/s of one replica, shares 0-1; NaN where unknown."""
        with np.errstate(invalid="ignore"):
            told = (x > 0) & (busy >= RANGE[0]) & (busy <= RANGE[1])
            full = (x > 0) & (kv >= KV_FROM)
        at, side = rows[told], (busy[told] >= SPLIT).astype(np.int64)
        weight = np.minimum(self._weights[at, side] + 1.0, MEMORY)
        self._weights[at, side] = weight
        self._busy[at, side] += (busy[told] / x[told] - self._busy[at, side]) / weight
        at = rows[full]
        fade = (MEMORY - 1.0) / MEMORY
        sums = np.column_stack([x[full] * kv[full], kv[full] ** 2, np.ones(len(at))])
        self._kv[at] = self._kv[at] * fade + sums

    @property
    def utilization(self) -> Floats:
        """(n,) units/s by the utilization law, NaN where it is not seen to hold."""
        low, high = self._busy[:, 0], self._busy[:, 1]
        enough = (self._weights >= BLOCKS).all(axis=1)
        holds = enough & (np.abs(high - low) <= TOLERANCE * low)
        return np.where(holds, 1.0 / np.where(holds, high, 1.0), np.nan)

    @property
    def kv(self) -> Floats:
        """(n,) units/s that fill the KV cache, NaN where too little is known."""
        enough = self._kv[:, 2] >= BLOCKS
        slope = self._kv[:, 0] / np.where(enough, self._kv[:, 1], 1.0)
        return np.where(enough, KV_FULL * slope, np.nan)
