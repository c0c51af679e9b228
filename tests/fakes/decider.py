"""A decider that is told everything and thinks little: 70 % of the last known demand, no more."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gpuscale.controller.domain import (
    QUANTILES,
    Bools,
    Decision,
    FleetForecast,
    FleetObservation,
    Floats,
    Hold,
    Inputs,
)

UNKNOWN = Inputs(
    demand=None,
    backlog=None,
    coverage=None,
    age_s=None,
    asked=None,
    ready=None,
    starting=None,
    pending=None,
    capacity=None,
    lead_s=0.0,
    min_replicas=0,
    max_replicas=1,
    risk=0.5,
    headroom=0.0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """The arrays of a decision; asked for one workload, it holds and gives no reasons."""

    now: float
    keys: tuple[str, ...]
    desired: Floats
    held: Bools
    forecast: FleetForecast

    def of(self, index: int) -> Decision | Hold:
        desired = self.desired[index]
        return Hold(
            key=self.keys[index],
            now=self.now,
            reason="The stand-in explains nothing.",
            answer=None if np.isnan(desired) else int(desired),
            inputs=UNKNOWN,
        )


@dataclass(slots=True, kw_only=True)
class Memory:
    """Everything the decider was shown, in order."""

    keys: tuple[str, ...]
    observations: list[FleetObservation] = field(default_factory=list)
    backfills: dict[str, tuple[Floats, Floats, float]] = field(default_factory=dict)


class ReactiveDecider:
    """Keeps the memories that it made, for tests that ask what it was shown."""

    def __init__(self) -> None:
        self.memories: list[Memory] = []

    def initial_memory(self, keys: tuple[str, ...], tick_s: float) -> Memory:
        assert tick_s > 0
        self.memories.append(Memory(keys=keys))
        return self.memories[-1]

    def backfill(
        self, memory: Memory, key: str, times: Floats, demand: Floats, step_s: float
    ) -> Memory:
        memory.backfills[key] = (times, demand, step_s)
        return memory

    def decide(self, observation: FleetObservation, memory: Memory) -> tuple[Decided, Memory]:
        memory.observations.append(observation)
        n = len(observation.keys)
        desired = np.ceil(observation.demand / (0.7 * observation.capacity))
        unknown = np.full((n, len(QUANTILES)), np.nan)
        forecast = FleetForecast(
            levels=QUANTILES,
            quantiles=unknown,
            level=observation.demand,
            coverage=unknown,
        )
        held = np.isnan(desired)
        decided = Decided(
            now=observation.now,
            keys=observation.keys,
            desired=desired,
            held=held,
            forecast=forecast,
        )
        return decided, memory

    def seen(self, row: int = 0) -> Sequence[float]:
        """The demand that one workload showed, tick by tick."""
        return [float(o.demand[row]) for o in self.memories[-1].observations]
