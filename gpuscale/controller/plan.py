"""From units per second to replicas, under the parameters of one candidate policy.

A candidate reads one signal (recent demand, or a quantile of the demand expected until a new
replica could serve) and a target utilization:

    replicas = ceil(signal / (capacity × min(target, 1 - headroom)))

so that more demand never gives fewer replicas. Everything is elementwise over workloads ×
candidates, and pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuscale.controller.domain import Floats, Ints

ROUNDING = 1e-6
"""Replicas' worth of work that is not rounded up: the dust of single precision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One parameter set of the plan."""

    name: str
    signal: str
    """Name of the signal it reads (`bank.SIGNALS`)."""
    target: float
    """Share of a replica's capacity that it plans to use, 0–1."""


def replicas(signal: Floats, target: Floats, capacity: Floats, headroom: Floats) -> Floats:
    """Replicas that carry `signal` (n, k) units/s at `target` (k,), for `capacity` and `headroom` (n,).

    NaN where the signal or the capacity is unknown.
    """
    usable = capacity[:, None] * np.minimum(target, 1.0 - headroom[:, None])
    return np.ceil(signal / usable - ROUNDING)


def columns(candidates: Sequence[Candidate], signals: Sequence[str]) -> tuple[Ints, Floats]:
    """(index of each candidate's signal (k,), its target (k,))."""
    index = {name: i for i, name in enumerate(signals)}
    picks = np.array([index[c.signal] for c in candidates], dtype=np.int64)
    return picks, np.array([c.target for c in candidates], dtype=np.float64)
