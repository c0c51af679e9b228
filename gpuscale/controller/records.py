"""The records of the journal: two tables in one SQLite file, read and written by one thread at a time.

`demand` holds one row per workload and minute, which is the history that a restarted controller
forecasts from when no Prometheus keeps one. `decision` holds an outcome whole, with every number
that entered it: what was decided at a time T is the last row at or before T.
"""

import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import msgspec
import numpy as np

from gpuscale.controller import explain
from gpuscale.controller.capacity import Capacity
from gpuscale.controller.domain import Decision, Floats, Hold
from gpuscale.controller.leadtime import LeadTime
from gpuscale.controller.replay import Frame, Header
from gpuscale.errors import InputError

SCHEMA_VERSION = 1
"""PRAGMA user_version; a file of another version is not touched."""
DEMAND_STEP_S = 60.0
"""Demand is kept as means over this: a two-week season needs no finer grid, and a start reads little."""
BUSY_TIMEOUT_S = 2.0
"""Wait for another process that holds the file (`gpuscale explain` never does for long)."""
DECISIONS_READ_MAX = 1_000
"""Most decisions given by one question."""
POINTS_READ_MAX = 200_000
"""Most points of history given by one question: 60 days at a step of 26 s."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS workload (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS demand (
    id INTEGER NOT NULL, at INTEGER NOT NULL, value REAL NOT NULL, PRIMARY KEY (id, at)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS demand_at ON demand (at);
CREATE TABLE IF NOT EXISTS decision (
    id INTEGER NOT NULL, at REAL NOT NULL, held INTEGER NOT NULL, outcome BLOB NOT NULL,
    PRIMARY KEY (id, at)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS decision_at ON decision (at);
CREATE TABLE IF NOT EXISTS origin (
    id INTEGER NOT NULL, at REAL NOT NULL, body BLOB NOT NULL, PRIMARY KEY (id, at)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS segment (
    id INTEGER PRIMARY KEY, begun REAL NOT NULL, last REAL NOT NULL, bytes INTEGER NOT NULL,
    header BLOB NOT NULL, memory BLOB
);
CREATE TABLE IF NOT EXISTS tick (
    segment INTEGER NOT NULL, number INTEGER NOT NULL, at REAL NOT NULL, body BLOB NOT NULL,
    fingerprint BLOB NOT NULL, PRIMARY KEY (segment, number)
) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandRow:
    """Mean demand of one workload over the DEMAND_STEP_S that start at `at`."""

    key: str
    at: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a workload's capacity and start time came from, from `at` until its next origin."""

    key: str
    at: float
    capacity: Capacity
    lead: LeadTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of ticks that can be decided again."""

    number: int
    begun: float
    last: float
    """Time of its newest tick."""
    header: Header


class Records:
    """The tables in one SQLite database, used by one thread at a time. Methods raise sqlite3.Error."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection
        self._ids: dict[str, int] = {}

    @classmethod
    def open(cls, path: str | Path | None) -> "Records":
        """Open for writing, and make what is missing; None is memory.

        Raises sqlite3.Error for a file that cannot be used, InputError for one of another version.
        """
        db = sqlite3.connect(
            ":memory:" if path is None else str(path),
            timeout=BUSY_TIMEOUT_S,
            check_same_thread=False,  # one thread at a time, but not always the one that opened it
        )
        try:
            _check_version(db, path, allowed=(0, SCHEMA_VERSION))
            db.execute("PRAGMA journal_mode = WAL")
            # A crash may lose the last ticks, never the file; an fsync per tick would wear it.
            db.execute("PRAGMA synchronous = NORMAL")
            db.executescript(_SCHEMA)
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            db.commit()
        except BaseException:
            db.close()
            raise
        return cls(db)

    @classmethod
    def read(cls, path: str | Path) -> "Records":
        """Open an existing file for reading, beside a controller that writes it. Raises InputError."""
        file = Path(path)
        if not file.is_file():
            raise InputError(f"{file}: no such journal: name the file of the key journal.path")
        try:
            db = sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True)
        except sqlite3.Error as error:
            raise _unreadable(file, error) from error
        try:
            _check_version(db, file, allowed=(SCHEMA_VERSION,))
        except sqlite3.Error as error:
            db.close()
            raise _unreadable(file, error) from error
        except InputError:
            db.close()
            raise
        return cls(db)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def write(
        self,
        demand: Iterable[DemandRow],
        outcomes: Iterable[Decision | Hold],
        origins: Iterable[Origin] = (),
    ) -> None:
        """Add rows in one transaction; a second value for one time replaces the first."""
        with self._db:
            self._db.executemany(
                "INSERT OR REPLACE INTO origin (id, at, body) VALUES (?, ?, ?)",
                [(self._id(o.key), o.at, msgspec.json.encode(o)) for o in origins],
            )
            self._db.executemany(
                "INSERT OR REPLACE INTO demand (id, at, value) VALUES (?, ?, ?)",
                [(self._id(row.key), row.at, row.value) for row in demand],
            )
            self._db.executemany(
                "INSERT OR REPLACE INTO decision (id, at, held, outcome) VALUES (?, ?, ?, ?)",
                [(self._id(o.key), o.now, isinstance(o, Hold), pack(o)) for o in outcomes],
            )

    def prune(self, before: float, *, demand_rows_max: int, decision_rows_max: int) -> None:
        """Delete what is older than `before`, and the oldest beyond the row bounds."""
        with self._db:
            for table, rows_max in (("demand", demand_rows_max), ("decision", decision_rows_max)):
                self._db.execute(f"DELETE FROM {table} WHERE at < ?", (before,))  # noqa: S608 - a constant
                # The time of the first row that is one too many; equal times go together.
                cut = self._db.execute(
                    f"SELECT at FROM {table} ORDER BY at DESC LIMIT 1 OFFSET ?",  # noqa: S608
                    (rows_max,),
                ).fetchone()
                if cut is not None:
                    self._db.execute(f"DELETE FROM {table} WHERE at <= ?", cut)  # noqa: S608
            # The newest of a workload holds until there is another, however old it is.
            self._db.execute(
                "DELETE FROM origin WHERE at < ?1 AND at < "
                "(SELECT MAX(newer.at) FROM origin AS newer WHERE newer.id = origin.id AND newer.at <= ?1)",
                (before,),
            )

    def demand(self, key: str, start: float, end: float, step_s: float) -> tuple[Floats, Floats]:
        """(times, means) on the grid start + step_s, start + 2 step_s … ≤ end; NaN where missing.

        A time is the end of its interval, as in FleetObservation. Empty where nothing is known.
        """
        count = min(POINTS_READ_MAX, int((end - start) // step_s))
        rows = self._db.execute(
            "SELECT at, value FROM demand JOIN workload USING (id) "
            "WHERE key = ? AND at >= ? AND at < ? ORDER BY at",
            (key, start - DEMAND_STEP_S, end),
        ).fetchall()
        if count < 1 or not rows:
            return np.empty(0), np.empty(0)
        times = start + step_s * np.arange(1, count + 1, dtype=np.float64)
        ends = np.array([row[0] for row in rows], dtype=np.float64) + DEMAND_STEP_S
        values = np.array([row[1] for row in rows], dtype=np.float64)
        if step_s >= DEMAND_STEP_S:
            cell = np.ceil((ends - start) / step_s).astype(np.int64) - 1
            inside = (cell >= 0) & (cell < count)
            sums = np.bincount(cell[inside], weights=values[inside], minlength=count)
            hits = np.bincount(cell[inside], minlength=count)
            means = np.full(count, np.nan)
            np.divide(sums, hits, out=means, where=hits > 0)
            return times, means
        at = np.minimum(np.searchsorted(ends, times - 1e-6), len(ends) - 1)
        fits = (times <= ends[at] + 1e-6) & (times > ends[at] - DEMAND_STEP_S)
        return times, np.where(fits, values[at], np.nan)

    def decision(self, key: str, at: float) -> Decision | Hold | None:
        """The last outcome at or before `at`; None where there is none."""
        row = self._db.execute(
            "SELECT held, outcome FROM decision JOIN workload USING (id) "
            "WHERE key = ? AND at <= ? ORDER BY at DESC LIMIT 1",
            (key, at),
        ).fetchone()
        return None if row is None else unpack(bool(row[0]), row[1])

    def origin(self, key: str, at: float) -> Origin | None:
        """Where capacity and start time came from at a time; None in a journal that does not say."""
        if not self._has("origin"):
            return None
        row = self._db.execute(
            "SELECT body FROM origin JOIN workload USING (id) "
            "WHERE key = ? AND at <= ? ORDER BY at DESC LIMIT 1",
            (key, at),
        ).fetchone()
        if row is None:
            return None
        try:
            return msgspec.json.decode(row[0], type=Origin)
        except msgspec.DecodeError as error:
            raise sqlite3.DataError(f"damaged record ({error})") from error

    def decisions(
        self, key: str, start: float, end: float, *, limit: int = 100
    ) -> tuple[Decision | Hold, ...]:
        """Outcomes written in [start, end], oldest first, the last `limit` of them."""
        rows = self._db.execute(
            "SELECT held, outcome FROM decision JOIN workload USING (id) "
            "WHERE key = ? AND at >= ? AND at <= ? ORDER BY at DESC LIMIT ?",
            (key, start, end, max(0, min(limit, DECISIONS_READ_MAX))),
        ).fetchall()
        return tuple(unpack(bool(held), raw) for held, raw in reversed(rows))

    # ------------------------------------------------------------ the tape of replays

    def open_segment(self, at: float, header: Header, memory: bytes | None) -> int:
        """Begin a segment with this memory; its number."""
        with self._db:
            row = self._db.execute(
                "INSERT INTO segment (begun, last, bytes, header, memory) VALUES (?, ?, ?, ?, ?)",
                (at, at, len(memory or b""), msgspec.json.encode(header), memory),
            )
        return int(row.lastrowid or 0)

    def add_tick(self, segment: int, number: int, at: float, frame: Frame) -> None:
        """Append a tick to a segment."""
        with self._db:
            self._db.execute(
                "INSERT INTO tick (segment, number, at, body, fingerprint) VALUES (?, ?, ?, ?, ?)",
                (segment, number, at, frame.body, frame.fingerprint),
            )
            self._db.execute(
                "UPDATE segment SET last = MAX(last, ?), bytes = bytes + ? WHERE id = ?",
                (at, len(frame.body) + len(frame.fingerprint), segment),
            )

    def prune_segments(self, before: float, bytes_max: int) -> None:
        """Delete segments that ended before, and the oldest beyond the bytes; never the newest."""
        rows = self._db.execute("SELECT id, last, bytes FROM segment ORDER BY id DESC").fetchall()
        total = 0
        with self._db:
            for place, (number, last, size) in enumerate(rows):
                total += size
                if place and (last < before or total > bytes_max):
                    self._db.execute("DELETE FROM tick WHERE segment = ?", (number,))
                    self._db.execute("DELETE FROM segment WHERE id = ?", (number,))

    def segments(self, start: float, end: float) -> tuple[Segment, ...]:
        """Segments with ticks in [start, end], oldest first; none in a journal that keeps none."""
        if not self._has("segment"):
            return ()
        rows = self._db.execute(
            "SELECT id, begun, last, header FROM segment "
            "WHERE begun <= ? AND last >= ? AND id IN (SELECT segment FROM tick) ORDER BY id",
            (end, start),
        )
        return tuple(
            Segment(number=number, begun=begun, last=last, header=_header(raw))
            for number, begun, last, raw in rows
        )

    def memory(self, segment: int) -> bytes | None:
        """What a segment began with; None for nothing."""
        row = self._db.execute("SELECT memory FROM segment WHERE id = ?", (segment,)).fetchone()
        return None if row is None or row[0] is None else bytes(row[0])

    def frames(self, segment: int, end: float) -> Iterator[Frame]:
        """A segment's ticks in order, up to `end`."""
        rows = self._db.execute(
            "SELECT body, fingerprint FROM tick WHERE segment = ?1 AND number <= "
            "(SELECT MAX(number) FROM tick WHERE segment = ?1 AND at <= ?2) ORDER BY number",
            (segment, end),
        )
        for body, fingerprint in rows:
            yield Frame(body=body, fingerprint=fingerprint)

    def packed(self, at: float) -> tuple[tuple[str, bytes], ...]:
        """(key, outcome as it was packed) of every outcome that was written at this very time."""
        rows = self._db.execute(
            "SELECT key, outcome FROM decision JOIN workload USING (id) WHERE at = ?", (at,)
        )
        return tuple((str(key), bytes(raw)) for key, raw in rows)

    def keys(self) -> tuple[str, ...]:
        """Every workload that has a decision, by name."""
        rows = self._db.execute(
            "SELECT key FROM workload WHERE id IN (SELECT DISTINCT id FROM decision) ORDER BY key"
        )
        return tuple(str(row[0]) for row in rows)

    def close(self) -> None:
        """Close the database; what was written stays."""
        self._db.close()

    def _has(self, table: str) -> bool:
        """False in a file of a version before there was such a table."""
        named = "SELECT 1 FROM sqlite_master WHERE name = ?"
        return self._db.execute(named, (table,)).fetchone() is not None

    def _id(self, key: str) -> int:
        known = self._ids.get(key)
        if known is not None:
            return known
        self._db.execute("INSERT OR IGNORE INTO workload (key) VALUES (?)", (key,))
        number = int(
            self._db.execute("SELECT id FROM workload WHERE key = ?", (key,)).fetchone()[0]
        )
        self._ids[key] = number
        return number


def _check_version(
    db: sqlite3.Connection, path: str | Path | None, *, allowed: tuple[int, ...]
) -> None:
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version not in allowed:
        raise InputError(
            f"{path}: a journal of version {version}, and this gpuscale keeps version "
            f"{SCHEMA_VERSION}: name another file in journal.path"
        )


def _header(raw: bytes) -> Header:
    try:
        return msgspec.json.decode(raw, type=Header)
    except msgspec.DecodeError as error:
        raise sqlite3.DataError(f"damaged segment ({error})") from error


def _unreadable(file: Path, error: sqlite3.Error) -> InputError:
    return InputError(
        f"{file}: not a readable journal ({error}): name the file of the key journal.path"
    )


def pack(outcome: Decision | Hold) -> bytes:
    """Compressed JSON of an outcome; `unpack` gives an equal one back."""
    return zlib.compress(msgspec.json.encode(outcome), 6)


def unpack(held: bool, raw: bytes) -> Decision | Hold:
    """The outcome that `pack` wrote. Raises sqlite3.DataError where it is damaged, or of another version."""
    kind: type[Decision | Hold] = Hold if held else Decision
    try:
        return msgspec.json.decode(zlib.decompress(raw), type=kind)
    except (zlib.error, msgspec.DecodeError, RecursionError) as error:
        raise sqlite3.DataError(f"damaged record ({error})") from error


def told(outcome: Decision | Hold, origin: Origin | None) -> dict[str, Any]:
    """The outcome for people and machines, with where its capacity and start time came from."""
    if origin is None:
        return explain.as_dict(outcome)
    return explain.as_dict(outcome, capacity=origin.capacity, lead=origin.lead)
