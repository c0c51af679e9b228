"""A signal source that says what a test wants it to say."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpuscale.controller.domain import Floats, SignalReading, SignalTarget


@dataclass
class FakeSignal:
    """Readings by key; `failure` stands in the way of all, `failures` of single ones."""

    demand: dict[str, float | None] = field(default_factory=dict)
    waiting: float | None = 0.0
    pods: int = 2
    failure: Exception | None = None
    failures: dict[str, Exception] = field(default_factory=dict)
    past: dict[str, tuple[Floats, Floats]] = field(default_factory=dict)
    past_failure: Exception | None = None
    past_failures: dict[str, Exception] = field(default_factory=dict)
    """Raised where any of these keys is asked for."""
    past_s: float = 0.0
    """What every question for the past takes, of real time."""
    asked: list[tuple[str, ...]] = field(default_factory=list)
    """Keys of every question for the past."""
    closed: bool = False

    async def read(
        self, targets: Sequence[SignalTarget], now: float
    ) -> Mapping[str, SignalReading | Exception]:
        return {t.key: self._one(t, now) for t in targets}

    def _one(self, target: SignalTarget, now: float) -> SignalReading | Exception:
        failure = self.failures.get(target.key, self.failure)
        if failure is not None:
            return failure
        arrivals = self.demand.get(target.key)
        return SignalReading(
            key=target.key,
            at=now,
            arrivals=arrivals,
            running=1.0,
            waiting=self.waiting,
            pods_answered=self.pods,
            pods_expected=self.pods,
            reason=None if arrivals is not None else "the pods expose no counter of requests",
        )

    async def history(
        self, targets: Sequence[SignalTarget], start: float, end: float, step_s: float
    ) -> Mapping[str, tuple[Floats, Floats]]:
        self.asked.append(tuple(t.key for t in targets))
        if self.past_failure is not None:
            raise self.past_failure
        for t in targets:
            if t.key in self.past_failures:
                raise self.past_failures[t.key]
        await asyncio.sleep(self.past_s)
        empty = (np.empty(0), np.empty(0))
        return {t.key: self.past.get(t.key, empty) for t in targets}

    async def close(self) -> None:
        self.closed = True
