"""The tape of replays in the journal's file: segments that begin with a memory and go on by ticks.

A segment begins with what the tick before it left, so a tick that could not be written ends its
segment, and the next segment begins after it. The first one of a process begins with nothing.
"""

import math

from gpuscale.controller.decide import Memory
from gpuscale.controller.domain import FleetDecision
from gpuscale.controller.records import Records
from gpuscale.controller.replay import Entry, Header, Tape, packed
from gpuscale.controller.state import size

SEGMENT_S = 4 * 3600.0
"""A segment is this long: a decision is replayed from its segment's beginning, so four hours of ticks
are the most that one question costs, and a memory six times a day is what the disk pays for it."""

SEGMENT_SHARE = 0.25
"""Of all bytes for replays. A segment beyond it is closed, so that the oldest can go."""

STATE_BYTES_MAX = 128 * 2**20
"""Of a memory: about 2,500 workloads. A larger one would cost its tick seconds, and memory twice."""

REST_S = 600.0
"""After a failure to write, a new segment is tried this much later: each costs a whole memory."""


class Reel:
    """Writes the tape, called by one thread at a time."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._segment: int | None = None
        self._first = True
        self._tape = Tape()
        self._begun = self._due_at = -math.inf
        self._count = self._bytes = 0

    def keep(
        self, records: Records, entry: Entry, decided: FleetDecision, memory: Memory
    ) -> str | None:
        """Write one tick; `memory` is what it left. Why nothing can be kept, None where it was.

        Raises sqlite3.Error where the file cannot be written; the segment has ended then.
        """
        at = entry.observation.now
        header = Header(tick_s=entry.observation.tick_s)
        segment, first = self._segment, self._first
        # Until all is written nothing is: an error leaves this so.
        self._segment, self._first = None, False
        if segment is None and first:
            segment = self._begin(records, at, header, None)
        if segment is not None:
            frame = self._tape.frame(entry, decided)
            records.add_tick(segment, self._count, at, frame)
            self._count += 1
            self._bytes += len(frame.body)
        full = self._bytes >= SEGMENT_SHARE * self._bytes_max or at - self._begun >= SEGMENT_S
        # A clock that was set back ends the segment too: its times would not be in order.
        if segment is not None and not full and entry.set_back is None:
            self._segment = segment
            return None
        if segment is None and at < self._due_at:
            return None
        self._due_at = at + REST_S
        if size(memory) > STATE_BYTES_MAX:
            return (
                f"the memory of {len(memory.keys)} workloads is more than {STATE_BYTES_MAX >> 20} MiB, "
                "which would cost a tick its seconds: set journal.replay_bytes_max to 0"
            )
        self._segment = self._begin(records, at, header, packed(memory))
        return None

    def _begin(self, records: Records, at: float, header: Header, memory: bytes | None) -> int:
        self._tape, self._begun, self._count = Tape(), at, 0
        self._bytes = len(memory or b"")
        return records.open_segment(at, header, memory)
