"""The past of workloads that have just appeared: from the signal source, else from the journal.

A workload's past is entered before it is first decided for. While its source gives neither past
nor present (an unreachable Prometheus at start), the past is asked for again at every tick; once
there are good readings, one more attempt is made and then it goes on without.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gpuscale import log
from gpuscale.controller import decide
from gpuscale.controller.domain import Floats, Signal, SignalTarget
from gpuscale.errors import SourceError

BATCH = 50
"""Workloads whose past is asked for together: a range query over two weeks each is the heaviest
question that Prometheus is asked here."""
DEADLINE_S = 120.0
"""Time for all of the past at one tick. What is late is asked for at the next, after a decision."""
POINTS_MIN = 2
"""Fewer known points than this are no past."""

FromJournal = Callable[[str, float, float, float], Awaitable[tuple[Floats, Floats]]]
"""The journal's demand: (key, start, end, step_s) -> (times, values)."""

_log = log.get("backfill")


class _Past(NamedTuple):
    times: Floats
    demand: Floats
    step_s: float


class Backfill:
    """Which workloads still wait for their past, and where it comes from."""

    def __init__(
        self,
        signal: Signal,
        journal: FromJournal,
        *,
        span_s: float,
        step_s: float,
        keep_s: float,
        journal_step_s: float,
    ) -> None:
        self._signal = signal
        self._journal = journal
        self._span_s = span_s
        self._step_s = step_s
        self._keep_s = keep_s
        self._journal_step_s = journal_step_s
        self._done: set[str] = set()
        self.problem: str | None = None
        """Why the source gave no past at the last attempt; None when it did or was not asked."""

    async def enter(
        self,
        memory: decide.Memory,
        targets: Sequence[SignalTarget],
        now: float,
        *,
        seen: Collection[str],
    ) -> decide.Memory:
        """Enter the past of every workload that waits for it; `seen` are those with good readings.

        The memory that goes in is consumed. Never raises for the source.
        """
        keys = {t.key for t in targets}
        self._done &= keys
        waiting = [t for t in targets if t.key not in self._done]
        self.problem = None
        if not waiting:
            return memory
        past = await self._ask(waiting, now)
        found: dict[str, _Past] = {}
        for target in waiting:
            key = target.key
            if key in past:
                found[key] = _Past(*past[key], self._step_s)
            elif self.problem is not None and key not in seen:
                continue  # asked again at the next tick
            else:
                series = await self._journal(key, now - self._keep_s, now, self._journal_step_s)
                if _tells(series):
                    found[key] = _Past(*series, self._journal_step_s)
            self._done.add(key)
        if found:
            memory = await asyncio.to_thread(_put, memory, found)
            _log.info("past entered", workloads=len(found), waiting=len(keys - self._done))
        return memory

    async def _ask(
        self, waiting: Sequence[SignalTarget], now: float
    ) -> Mapping[str, tuple[Floats, Floats]]:
        """What the source keeps, by key; without those of which it keeps nothing."""
        past: dict[str, tuple[Floats, Floats]] = {}
        if self._span_s <= 0:
            return past
        start = now - self._span_s
        try:
            async with asyncio.timeout(DEADLINE_S):
                for i in range(0, len(waiting), BATCH):
                    got = await self._signal.history(
                        waiting[i : i + BATCH], start, now, self._step_s
                    )
                    past |= {
                        key: (times, demand)
                        for key, (times, demand) in got.items()
                        if _tells((times, demand))
                    }
        except TimeoutError:
            self.problem = (
                f"the past did not arrive within {DEADLINE_S:.0f} s: shorten prometheus.backfill_s "
                "or widen prometheus.backfill_step_s"
            )
        except SourceError as error:
            self.problem = str(error)
        return past


def _put(memory: decide.Memory, found: Mapping[str, _Past]) -> decide.Memory:
    """Enter pasts into rows that have nothing of their own yet.

    A workload that was held since the start has a row that counts as begun: it is begun anew.
    """
    keys = memory.keys
    memory = decide.align(memory, tuple(k for k in keys if k not in found))
    memory = decide.align(memory, keys)
    for key, past in found.items():
        memory = decide.backfill(memory, key, past.times, past.demand, past.step_s)
    return memory


def _tells(series: tuple[Floats, Floats]) -> bool:
    """Whether a series says anything."""
    return int(np.isfinite(series[1]).sum()) >= POINTS_MIN
