"""The journal: what was observed and decided, enough to explain and to backfill.

An outcome is written whenever it changes and every REPEAT_S otherwise; demand once a minute. The
records live in a thread of their own and never fail the caller: a file that cannot be used is named
in one sentence, and the journal goes on in memory.
"""

import asyncio
import math
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np

from gpuscale import log
from gpuscale.controller.decide import Memory
from gpuscale.controller.domain import Decision, FleetDecision, Floats, Hold
from gpuscale.controller.records import DEMAND_STEP_S, DemandRow, Origin, Records
from gpuscale.controller.reel import Reel
from gpuscale.controller.replay import Entry
from gpuscale.controller.status import FleetStatus
from gpuscale.errors import InputError
from gpuscale.settings import JournalSettings

REPEAT_S = 900.0
"""An unchanged outcome is written again this often, so that its numbers can be looked up later."""
PRUNE_S = 600.0
"""Old rows are deleted this often: many at once are cheaper than few at a time."""
DEMAND_ROWS_MAX = 10_000_000
"""About 250 MB. Beyond it the oldest are deleted: the file must never fill a volume."""
DECISION_ROWS_MAX = 1_000_000
"""About 600 MB at 600 bytes of compressed JSON each."""
MEMORY_DEMAND_ROWS_MAX = 500_000
MEMORY_DECISION_ROWS_MAX = 20_000
"""The same bounds where the journal lives in memory: about 30 MB together."""

DEADLINE_S = 5.0
"""Longest wait for the disk. A volume that hangs must not keep the next decision from being made."""

T = TypeVar("T")
_log = log.get("journal")


def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")


class Journal:
    """The records behind one thread. No method raises for the file: it says so once and goes on in memory."""

    def __init__(self, settings: JournalSettings) -> None:
        self._settings = settings
        self._thread = _thread()
        self._hung: asyncio.Future[Any] | None = None
        """Work that missed its deadline; nothing else is given to the thread until it is done."""
        self._records: Records | None = None
        self._in_memory = settings.path is None
        self._minute: dict[str, tuple[int, float, int]] = {}
        self._last: dict[str, tuple[float, float, bool]] = {}
        self._origins: dict[str, str] = {}
        """The sentences on capacity and start time that were written last, by workload."""
        self._pruned_at = float("-inf")
        self._reel = Reel(settings.replay_bytes_max)
        self._unreplayable: str | None = None
        self.problem: str | None = None
        """Why the file is not used or not written at present, one sentence; None while all is well."""

    async def open(self) -> None:
        """Open the file; where that fails, say so and go on in memory."""
        path = self._settings.path
        try:
            self._records = await self._run(lambda: Records.open(path))
        except (sqlite3.Error, InputError) as error:
            await self._fall_back(
                str(error)
                if isinstance(error, InputError)
                else f"{path}: the journal cannot be used ({error}): make the file writable, or move "
                "it away if it is damaged; decisions are kept in memory until the next start"
            )

    async def record(self, status: FleetStatus) -> None:
        """Write what one tick saw and decided; a failure is said once and costs these rows only."""
        demand = self._demand_rows(status)
        outcomes = self._outcomes(status)
        await self._write(demand, outcomes, self._changed_origins(status, outcomes))
        now = status.observation.now
        if not 0 <= now - self._pruned_at < PRUNE_S:  # below 0: the clock was set back
            self._pruned_at = now
            await self._attempt(
                lambda records: records.prune(
                    now - self._settings.keep_s,
                    demand_rows_max=MEMORY_DEMAND_ROWS_MAX if self._in_memory else DEMAND_ROWS_MAX,
                    decision_rows_max=(
                        MEMORY_DECISION_ROWS_MAX if self._in_memory else DECISION_ROWS_MAX
                    ),
                ),
                None,
            )
            await self._attempt(
                lambda records: records.prune_segments(
                    now - self._settings.keep_s, self._settings.replay_bytes_max
                ),
                None,
            )

    async def remember(self, entry: Entry, decided: FleetDecision, memory: Memory) -> None:
        """Keep what entered a tick, for `gpuscale replay`; `memory` is what the tick left, and must
        not change until this returns."""
        if self._in_memory or not self._settings.replay_bytes_max:
            return
        why = await self._attempt(
            lambda records: self._reel.keep(records, entry, decided, memory), None
        )
        if why is not None and why != self._unreplayable:
            _log.warning("decisions cannot be replayed", reason=why)
        self._unreplayable = why

    async def demand(
        self, key: str, start: float, end: float, step_s: float
    ) -> tuple[Floats, Floats]:
        """As `Records.demand`; empty where the file cannot be read."""
        return await self._attempt(
            lambda records: records.demand(key, start, end, step_s), (np.empty(0), np.empty(0))
        )

    async def decision(self, key: str, at: float) -> Decision | Hold | None:
        """As `Records.decision`; None where the file cannot be read."""
        return await self._attempt(lambda records: records.decision(key, at), None)

    async def origin(self, key: str, at: float) -> Origin | None:
        """As `Records.origin`; None where the file cannot be read."""
        return await self._attempt(lambda records: records.origin(key, at), None)

    async def decisions(
        self, key: str, start: float, end: float, *, limit: int = 100
    ) -> Sequence[Decision | Hold]:
        """As `Records.decisions`; empty where the file cannot be read."""
        return await self._attempt(
            lambda records: records.decisions(key, start, end, limit=limit), ()
        )

    async def close(self) -> None:
        """Write the minute that has begun, and close."""
        rest = [
            DemandRow(key=key, at=minute, value=total / count)
            for key, (minute, total, count) in self._minute.items()
        ]
        self._minute.clear()
        await self._write(rest, [])
        records, self._records = self._records, None
        if records is not None:
            with suppress(sqlite3.OperationalError):  # said already, by the write before
                await self._run(records.close)
        self._thread.shutdown(wait=False)

    # ------------------------------------------------------------ what a tick leaves

    def _demand_rows(self, status: FleetStatus) -> list[DemandRow]:
        """Rows of the minutes that this tick ended; readings of the present one are summed up."""
        seen = status.observation
        # The reading covers the tick before `now`: its middle says which minute it belongs to.
        minute = int((seen.now - seen.tick_s / 2) // DEMAND_STEP_S * DEMAND_STEP_S)
        rows: list[DemandRow] = []
        for key, value in zip(seen.keys, seen.demand.tolist(), strict=True):
            begun = self._minute.get(key)
            if begun is not None and begun[0] != minute:
                rows.append(DemandRow(key=key, at=begun[0], value=begun[1] / begun[2]))
                begun = None
                del self._minute[key]
            if not math.isnan(value):  # a hole is not written
                total, count = (begun[1], begun[2]) if begun is not None else (0.0, 0)
                self._minute[key] = (minute, total + value, count + 1)
        for key in self._minute.keys() - status.index.keys():
            gone, total, count = self._minute.pop(key)
            rows.append(DemandRow(key=key, at=gone, value=total / count))
        return rows

    def _outcomes(self, status: FleetStatus) -> list[Decision | Hold]:
        """The outcomes that changed since they were written, and those that were long ago."""
        now = status.observation.now
        outcomes: list[Decision | Hold] = []
        desired, held = status.decision.desired.tolist(), status.decision.held.tolist()
        for i, key in enumerate(status.observation.keys):
            number = -1.0 if math.isnan(desired[i]) else desired[i]
            last = self._last.get(key)
            same = last is not None and last[1:] == (number, held[i])
            # Below 0: the clock was set back.
            if last is None or not same or not 0 <= now - last[0] < REPEAT_S:
                self._last[key] = (now, number, held[i])
                outcomes.append(status.decision.of(i))
        for key in self._last.keys() - status.index.keys():
            del self._last[key]
        return outcomes

    def _changed_origins(
        self, status: FleetStatus, outcomes: Sequence[Decision | Hold]
    ) -> list[Origin]:
        """Where the numbers of these outcomes came from, where that has changed."""
        found: list[Origin] = []
        for key in (outcome.key for outcome in outcomes):
            i = status.index[key]
            capacity, lead = status.capacities[i], status.leads[i]
            said = f"{capacity.sentence} {lead.sentence}"
            if self._origins.get(key) != said:
                self._origins[key] = said
                at = status.observation.now
                found.append(Origin(key=key, at=at, capacity=capacity, lead=lead))
        for key in self._origins.keys() - status.index.keys():
            del self._origins[key]
        return found

    # ------------------------------------------------------------ the thread, and its failures

    async def _run(self, work: Callable[[], T]) -> T:
        """What `work` gives, by the thread. Raises sqlite3.OperationalError where the disk does not answer."""
        if self._hung is not None and not self._hung.done():
            raise sqlite3.OperationalError("the disk does not answer")
        running = asyncio.get_running_loop().run_in_executor(self._thread, work)
        done, _ = await asyncio.wait([running], timeout=DEADLINE_S)
        if not done:
            self._hung = running
            # Nobody waits for its outcome any more.
            running.add_done_callback(lambda late: late.cancelled() or late.exception())
            raise sqlite3.OperationalError("the disk does not answer")
        return running.result()

    async def _write(
        self,
        demand: list[DemandRow],
        outcomes: list[Decision | Hold],
        origins: Sequence[Origin] = (),
    ) -> None:
        if demand or outcomes:
            await self._attempt(lambda records: records.write(demand, outcomes, origins), None)

    async def _attempt(self, work: Callable[[Records], T], otherwise: T) -> T:
        records = self._records
        if records is None:
            return otherwise
        try:
            result = await self._run(lambda: work(records))
        except sqlite3.OperationalError as error:  # busy, full, read-only: may pass
            self._say(
                f"{self._settings.path or 'the journal in memory'}: the journal cannot be written or "
                f"read ({error}): free the disk or its permissions; these records are lost"
            )
            return otherwise
        except sqlite3.DataError as error:  # one record: the others are as good as ever
            _log.warning("record cannot be read", path=self._settings.path, reason=str(error))
            return otherwise
        except sqlite3.DatabaseError as error:  # damaged: does not pass
            await self._fall_back(
                f"{self._settings.path or 'the journal in memory'}: the journal is damaged ({error}): "
                "move the file away; decisions are kept in memory until the next start"
            )
            return otherwise
        if self.problem is not None and not (self._in_memory and self._settings.path is not None):
            _log.info("journal recovered", path=self._settings.path)
            self.problem = None
        return result

    async def _fall_back(self, sentence: str) -> None:
        self._say(sentence)
        damaged, self._records = self._records, None
        if damaged is not None:
            await self._run(damaged.close)
        if self._hung is not None:  # in opening the file; the thread is lost with it
            self._thread, self._hung = _thread(), None
        self._records = await self._run(lambda: Records.open(None))
        self._in_memory = True

    def _say(self, sentence: str) -> None:
        if sentence != self.problem:
            _log.error("journal failed", reason=sentence)
        self.problem = sentence
