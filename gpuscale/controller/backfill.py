"""The past of workloads that have just appeared: from the signal source, else from the journal.

A workload's past is entered before it is first decided for, where that takes no longer than
DEADLINE_S: nobody else waits for it longer. What is late or fails is asked for again: at every tick
while attempts bring the past of somebody or there is nothing to decide for either, else after
pauses that double. Until it comes, a workload that is decided for goes by what the journal knows.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

import numpy as np

from gpuscale import log
from gpuscale.controller import decide
from gpuscale.controller.domain import Floats, Past, Signal, SignalTarget
from gpuscale.errors import SourceError, SourceUnreachable

BATCH = 8
"""Workloads whose past is asked for together: a range query over two weeks each is the heaviest
question that Prometheus is asked here, and what is late with one is lost with its batch."""
DEADLINE_S = 20.0
"""Time for all of the past at one tick, so that the answers of the last one do not become stale
meanwhile. What is late is asked for at the next, after a decision."""
PAUSE_S = (60.0, 3600.0)
"""First and longest pause after attempts that brought nothing, once there are good readings: each
may cost a tick its DEADLINE_S, and a Prometheus that is overloaded is not helped by more."""
POINTS_MIN = 2
"""Fewer known points than this are no past."""

FromJournal = Callable[[str, float, float, float], Awaitable[tuple[Floats, Floats]]]
"""The journal's demand: (key, start, end, step_s) -> (times, values)."""

_log = log.get("backfill")


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
        self._by_journal: set[str] = set()
        """Workloads that go by the journal's past until the source gives its own."""
        self._asked: set[str] = set()
        self._pause_s = 0.0
        self._due_at = -math.inf
        self.entered: tuple[Past, ...] = ()
        """What the last attempt entered."""
        self.problem: str | None = None
        """Why the source gave no past, or not all, at the last attempt; None when nobody waits for one."""

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
        self.entered = ()
        self._done &= keys
        self._by_journal &= keys
        self._asked &= keys
        waiting = [t for t in targets if t.key not in self._done]
        if not waiting:
            self.problem = None
            return memory
        if now < self._due_at and all(t.key in self._asked for t in waiting):
            return memory
        past = await self._ask(waiting, now)
        self._asked |= keys
        found = {key: _past(key, series, self._step_s) for key, series in past.items()}
        self._done |= found.keys()
        for key in (t.key for t in waiting if t.key not in past):
            if self.problem is None:  # the source keeps nothing of it
                self._done.add(key)
            elif key not in seen or key in self._by_journal:
                continue
            self._by_journal.add(key)
            series = await self._journal(key, now - self._keep_s, now, self._journal_step_s)
            if _tells(series):
                found[key] = _past(key, series, self._journal_step_s)
        self._pause(now, nothing=not past and not self._by_journal.isdisjoint(keys - self._done))
        if found:
            self.entered = tuple(found.values())
            memory = await asyncio.to_thread(_put, memory, self.entered)
            _log.info("past entered", workloads=len(found), waiting=len(keys - self._done))
        return memory

    def begin_anew(self) -> None:
        """Enter the past of every workload once more."""
        for known in (self._done, self._by_journal, self._asked):
            known.clear()
        self._pause(-math.inf, nothing=False)

    def _pause(self, now: float, *, nothing: bool) -> None:
        """Say when those who still wait are asked for again: at the next tick, or longer after nothing came."""
        first, longest = PAUSE_S
        self._pause_s = min(longest, max(first, 2.0 * self._pause_s)) if nothing else 0.0
        self._due_at = now + self._pause_s

    async def _ask(
        self, waiting: Sequence[SignalTarget], now: float
    ) -> Mapping[str, tuple[Floats, Floats]]:
        """What the source keeps, by key; without those of which it keeps nothing."""
        past: dict[str, tuple[Floats, Floats]] = {}
        self.problem = None
        if self._span_s <= 0:
            return past
        start = now - self._span_s
        try:
            async with asyncio.timeout(DEADLINE_S):
                for i in range(0, len(waiting), BATCH):
                    batch = waiting[i : i + BATCH]
                    try:
                        got = await self._signal.history(batch, start, now, self._step_s)
                    except SourceUnreachable:
                        raise
                    except SourceError as error:  # of these; the next may be answered
                        self.problem = str(error)
                        continue
                    past |= {key: series for key, series in got.items() if _tells(series)}
        except SourceUnreachable as error:
            self.problem = str(error)
        except TimeoutError:
            self.problem = (
                f"the past of {len(waiting) - len(past)} workloads did not arrive within "
                f"{DEADLINE_S:.0f} s: it is asked for again; if it lasts, shorten "
                "prometheus.backfill_s or widen prometheus.backfill_step_s"
            )
        return past


def _past(key: str, series: tuple[Floats, Floats], step_s: float) -> Past:
    times, demand = series
    return Past(key=key, times=times, demand=demand, step_s=step_s)


def _put(memory: decide.Memory, pasts: Sequence[Past]) -> decide.Memory:
    """Enter pasts; what was answered and observed meanwhile stands."""
    for past in pasts:
        memory = decide.backfill(memory, past.key, past.times, past.demand, past.step_s)
    return memory


def _tells(series: tuple[Floats, Floats]) -> bool:
    """Whether a series says anything."""
    return int(np.isfinite(series[1]).sum()) >= POINTS_MIN
