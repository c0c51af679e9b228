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
from gpuscale.controller.fleet import DRAIN_S, DROP_S, LATE_S

ROUNDING = 1e-6
"""Replicas' worth of work that is not rounded up: the dust of single precision."""


WAIT_S = LATE_S
"""A backlog that is served within this long is not waited for."""
AHEAD = 0.5
"""Share of the coming start time for which a shortage is taken to go on: replicas that start
already end it sooner. Between 0 and 1 it was measured to make little difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One parameter set of the plan."""

    name: str
    signal: str
    """Name of the signal it reads (`bank.SIGNALS`)."""
    target: float
    """Share of a replica's capacity that it plans to use, 0–1."""
    floor: str | None = None
    """Name of a signal that is served at `floor_target` at least."""
    floor_target: float = 1.0


def replicas(signal: Floats, target: Floats, capacity: Floats, headroom: Floats) -> Floats:
    """Replicas that carry `signal` (n, k) units/s at `target` (k,), for `capacity` and `headroom` (n,).

    NaN where the signal or the capacity is unknown.
    """
    usable = capacity[:, None] * np.minimum(target, 1.0 - headroom[:, None])
    return np.ceil(signal / usable - ROUNDING)


def draining(
    *,
    backlog: Floats,
    level: Floats,
    ready: Floats,
    capacity: Floats,
    lead_s: Floats,
    price: Floats,
) -> Floats:
    """Replicas that carry the present demand and work off the backlog; 0 where none is needed.

    While a backlog stands, *all* that arrives is late, at `price` times the replica time that it
    needs; m replicas on top of a demand of d replicas take W / m to work off W replica seconds,
    and cost their start, that time and their drain. price × d × W / m + m × (lead + drain) is
    least at

        m = sqrt(price × d × W / (lead + drain))

    W is what will wait once new replicas serve: the backlog, and the shortage of the ready ones
    until then (clients give up beyond `DROP_S` of work), less what does not wait too long.
    All arguments broadcast against each other. An unknown backlog or level is none, and replicas of
    which nobody knows whether they are ready are taken to be enough for the demand.

    It is a total, to be compared with the plan and never added to it: replicas that start already
    for this backlog are not asked for a second time, however long the episode lasts.
    """
    demand = _known_or(level / capacity, 0.0)
    running = _known_or(ready, demand)
    waiting = _known_or(backlog / capacity, 0.0)
    short = np.maximum(demand - running, 0.0) * (AHEAD * lead_s)
    work = np.minimum(waiting + short, DROP_S * np.maximum(running, 1.0)) - WAIT_S * demand
    extra = np.sqrt(price * demand / (lead_s + DRAIN_S) * np.maximum(work, 0.0))
    return np.where(work > 0, np.ceil(demand + extra - ROUNDING), 0.0)


def _known_or(values: Floats, other: Floats | float) -> Floats:
    return np.where(np.isnan(values), other, values)


def columns(candidates: Sequence[Candidate], signals: Sequence[str]) -> tuple[Ints, Floats]:
    """(index of each candidate's signal (k,), its target (k,))."""
    index = {name: i for i, name in enumerate(signals)}
    picks = np.array([index[c.signal] for c in candidates], dtype=np.int64)
    return picks, np.array([c.target for c in candidates], dtype=np.float64)


def floors(candidates: Sequence[Candidate], signals: Sequence[str]) -> tuple[Ints, Ints, Floats]:
    """(columns of the candidates that have a floor, index of its signal, its target)."""
    index = {name: i for i, name in enumerate(signals)}
    found = [(i, index[c.floor], c.floor_target) for i, c in enumerate(candidates) if c.floor]
    at, picks, targets = zip(*found, strict=True) if found else ((), (), ())
    return (
        np.array(at, dtype=np.int64),
        np.array(picks, dtype=np.int64),
        np.array(targets, dtype=np.float64),
    )
