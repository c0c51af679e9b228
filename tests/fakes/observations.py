"""Observations for stories about decisions: calm and complete unless a story says otherwise."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpuscale.controller.decide import Decided, Memory, decide
from gpuscale.controller.domain import FleetObservation, FleetPolicy, Floats
from gpuscale.settings import Policy

TICK_S = 15.0
START_S = 1_700_000_100.0
"""A whole bin of five minutes; nothing else about it matters."""


def grid(first: int, stop: int, step_s: float) -> Floats:
    """first, first + 1, … below stop, times a step."""
    out: Floats = np.arange(first, stop, dtype=np.float64) * step_s
    return out


def column(value: float | Sequence[float] | Floats, n: int) -> Floats:
    """One number for all, or one for each."""
    out: Floats = np.array(np.broadcast_to(np.asarray(value, dtype=np.float64), (n,)))
    return out


def observation(
    keys: tuple[str, ...],
    now: float,
    demand: float | Sequence[float] | Floats,
    *,
    policy: Policy | Sequence[Policy] | None = None,
    paused: bool = False,
    tick_s: float = TICK_S,
    **columns: float | Sequence[float] | Floats,
) -> FleetObservation:
    """All workloads fresh, complete, with 3 replicas ready that carry 10 units/s and start in 180 s."""
    n = len(keys)
    policies = [policy or Policy()] * n if not isinstance(policy, Sequence) else list(policy)
    values: dict[str, Any] = {
        "backlog": 0.0,
        "coverage": 1.0,
        "age_s": 5.0,
        "asked": 3.0,
        "ready": 3.0,
        "starting": 0.0,
        "pending": 0.0,
        "capacity": 10.0,
        "lead_s": 180.0,
    } | columns
    return FleetObservation(
        now=now,
        tick_s=tick_s,
        keys=keys,
        policy=FleetPolicy.of(policies),
        demand=column(demand, n),
        paused=np.full(n, paused),
        **{name: column(value, n) for name, value in values.items()},
    )


def run(
    memory: Memory, seen: FleetObservation, ticks: int, demand: Sequence[float] | None = None
) -> tuple[list[Decided], Memory]:
    """The same observation tick after tick (with `demand` per tick for all, if given).

    What was answered is asked for and ready at the next tick, as if replicas started at once.
    """
    out = []
    for tick in range(ticks):
        value = seen.demand if demand is None else column(demand[tick], len(seen.keys))
        decided, memory = decide(
            replace(seen, now=seen.now + tick * seen.tick_s, demand=value), memory
        )
        out.append(decided)
        standing = np.where(np.isnan(decided.desired), seen.asked, decided.desired)
        seen = replace(seen, asked=standing, ready=standing)
    return out, memory
