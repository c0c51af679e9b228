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


WAIT_S = 5.0
"""A backlog that the ready replicas serve within this long is not waited for."""
DRAIN_S = 300.0
"""A backlog is to be gone this long after the replicas asked for it are ready, or within a start
time where that is longer: faster costs more replicas than it saves waiting."""


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


def draining(
    *, backlog: Floats, level: Floats, ready: Floats, capacity: Floats, lead_s: Floats
) -> Floats:
    """(n,) replicas that carry the present demand and work off the backlog; 0 where none is needed.

    All arguments (n,); an unknown backlog is none, unknown `ready` replicas serve nothing. It is a
    total, to be compared with the plan and never added to it: replicas that start already for this
    backlog are not asked for a second time, however long the episode lasts.
    """
    waiting = np.nan_to_num(backlog, nan=0.0) - WAIT_S * np.nan_to_num(ready, nan=0.0) * capacity
    rate = np.maximum(waiting, 0.0) / np.maximum(lead_s, DRAIN_S)
    need = np.ceil((level + rate) / capacity - ROUNDING)
    return np.where(waiting > 0, need, 0.0)


def columns(candidates: Sequence[Candidate], signals: Sequence[str]) -> tuple[Ints, Floats]:
    """(index of each candidate's signal (k,), its target (k,))."""
    index = {name: i for i, name in enumerate(signals)}
    picks = np.array([index[c.signal] for c in candidates], dtype=np.int64)
    return picks, np.array([c.target for c in candidates], dtype=np.float64)
