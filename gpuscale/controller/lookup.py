"""`gpuscale explain`: a decision of one workload, asked of a running controller or read from its journal."""

import asyncio
import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec

from gpuscale.controller.decide import Decided
from gpuscale.controller.records import Records, pack, told
from gpuscale.controller.replay import Replayed, replayed
from gpuscale.errors import InputError, SourceMalformed, SourceRefused, SourceUnreachable, foreign

TIMEOUT_S = 10.0
"""The controller answers from memory; beyond this it is not there."""
BYTES_MAX = 4 * 2**20
"""An answer has a few hundred kilobytes; more is not from gpuscale."""
TIME_MAX = 32_503_680_000.0
"""The year 3000, in seconds since 1970; a time before 1970 or after it was mistyped."""

DIFFERING_MAX = 20
"""Ticks named one by one that come out otherwise."""

T = TypeVar("T")


def parse_key(text: str) -> tuple[str, str]:
    """(namespace, name) of NAMESPACE/NAME. Raises InputError."""
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise InputError(f"{text!r} is not NAMESPACE/NAME: write it like inference/llama")
    return namespace, name


def parse_time(text: str | None, now: float) -> float | None:
    """Unix seconds of a time as people write it; None for None. Raises InputError.

    Understood: seconds since 1970; ISO 8601 (UTC unless it says otherwise); how long ago, as -90s,
    -15m, -3h or -2d.
    """
    if text is None:
        return None
    units = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
    try:
        if text.startswith("-") and text[-1:] in units:
            at = now - float(text[1:-1]) * units[text[-1]]
        elif text.replace(".", "", 1).isdigit():
            at = float(text)
        else:
            given = datetime.fromisoformat(text)
            at = (given if given.tzinfo else given.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        at = math.nan
    if not 0 <= at <= TIME_MAX:  # what is not a number neither
        raise InputError(
            f"{text!r} is not a time: write 2026-01-31T12:00:00Z, seconds since 1970, or -15m"
        )
    return at


def from_journal(path: str | Path, key: str, at: float) -> dict[str, Any]:
    """The last decision at or before `at` as `explain.as_dict` gives it. Raises InputError."""
    with Records.read(path) as records:
        outcome = _guarded(path, lambda: records.decision(key, at))
        origin = (
            None if outcome is None else _guarded(path, lambda: records.origin(key, outcome.now))
        )
        known = _guarded(path, lambda: ", ".join(records.keys()[:20]) or "nothing yet")
        if outcome is None:
            raise InputError(
                f"{path} has no decision on {key} at or before {stamp(at)}: it knows {known}"
            )
    return told(outcome, origin)


def from_api(url: str, key: str, at: float | None) -> dict[str, Any]:
    """The decision that a running controller gives, now or at a time. Raises SourceError or InputError."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets without an address, a port that is none
        usable = False
    if not usable:
        raise InputError(f"--url {url!r}: write http://HOST:PORT of the controller's page")
    namespace, name = parse_key(key)
    path = f"/api/v1/workloads/{quote(namespace, safe='')}/{quote(name, safe='')}"
    tail = f"{path}?points=1" if at is None else f"{path}/decision?at={at:.3f}"
    answer = asyncio.run(_get(url.rstrip("/") + tail, url))
    decision = answer.get("decision")
    if not (
        isinstance(decision, dict)
        and isinstance(decision.get("sentences"), list)
        and isinstance(at := decision.get("now"), int | float)
        and 0 <= at <= TIME_MAX
    ):
        raise SourceMalformed(f"{url} is no controller of gpuscale: name the address of its page")
    return decision


def from_replay(path: str | Path, key: str, at: float) -> dict[str, Any]:
    """The decision of the last tick at or before `at`, decided again from what entered it.

    Unlike the journal's own decisions, which are written when they change, it has the numbers of
    that very tick. Raises InputError where there is no such tick, or where it comes out otherwise.
    """
    last: Replayed | None = None
    with Records.read(path) as records:
        for each in _ticks(path, records, -math.inf, at, newest=True):
            last = each
        origin = _guarded(path, lambda: records.origin(key, at))
    if last is None:
        raise InputError(f"{path} has no tick at or before {stamp(at)} that can be replayed")
    if not last.same:
        raise InputError(
            f"the tick of {stamp(last.decided.now)} comes out otherwise than it was decided: "
            "`gpuscale replay` says where that begins"
        )
    if key not in last.decided.keys:
        known = ", ".join(last.decided.keys[:20]) or "nothing"
        raise InputError(f"{key} was not decided for at {stamp(last.decided.now)}, but {known}")
    return told(last.decided.of(last.decided.keys.index(key)), origin)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What replaying a stretch of a journal came to."""

    ticks: int
    decisions: int
    """Decisions of all workloads at all ticks."""
    outcomes: int
    """Of them those that the journal holds in full, compared byte for byte."""
    start: float | None
    end: float | None
    """First and last tick; None where there is none."""
    differing: tuple[float, ...]
    """Ticks that come out otherwise, DIFFERING_MAX of them at most."""
    differing_count: int
    elsewhere: str
    """How what runs here differs from what decided then; empty where it does not."""


def check(path: str | Path, start: float, end: float) -> Check:
    """Decide every tick in [start, end] again, and compare. Raises InputError."""
    ticks = decisions = outcomes = 0
    first: float | None = None
    last: float | None = None
    otherwise: list[float] = []
    equal: set[tuple[float, str]] = set()
    unequal: set[tuple[float, str]] = set()
    with Records.read(path) as records:
        for each in _ticks(path, records, start, end):
            decided = each.decided
            if decided.now < start:
                continue  # only the way to it
            ticks += 1
            decisions += len(decided.keys)
            first, last = decided.now if first is None else first, decided.now
            if not each.same:
                otherwise.append(decided.now)
            written = _guarded(path, partial(records.packed, decided.now))
            outcomes += len(written)
            for key, raw in written:
                (equal if _packed(decided, key) == raw else unequal).add((decided.now, key))
        elsewhere = {segment.header.elsewhere for segment in records.segments(start, end)}
    if first is None:
        raise InputError(
            f"{path} has no tick between {stamp(start)} and {stamp(end)} that can be replayed: "
            "journal.replay_bytes_max says how much is kept"
        )
    # Where a clock was set back a time was decided for twice, and the journal has one of the two.
    differing = sorted({*otherwise, *(at for at, _ in unequal - equal)})
    return Check(
        ticks=ticks,
        decisions=decisions,
        outcomes=outcomes,
        start=first,
        end=last,
        differing=tuple(differing[:DIFFERING_MAX]),
        differing_count=len(differing),
        elsewhere="; ".join(sorted(filter(None, elsewhere))),
    )


def _packed(decided: Decided, key: str) -> bytes | None:
    """An outcome as the journal has it; None for a workload that was not decided for."""
    return pack(decided.of(decided.keys.index(key))) if key in decided.keys else None


def _ticks(
    path: str | Path, records: Records, start: float, end: float, *, newest: bool = False
) -> Iterator[Replayed]:
    """Every tick of the segments that reach into [start, end], up to `end`; or of the newest alone."""
    segments = _guarded(path, lambda: records.segments(start, end))
    for segment in segments[-1:] if newest else segments:
        memory = _guarded(path, partial(records.memory, segment.number))
        frames = records.frames(segment.number, end)
        try:
            yield from replayed(segment.header, memory, frames)
        except sqlite3.Error as error:
            raise _unreadable(path, error) from error
        except InputError as error:
            raise InputError(f"{path}, from {stamp(segment.begun)} on: {error}") from error


def _guarded(path: str | Path, work: Callable[[], T]) -> T:
    try:
        return work()
    except sqlite3.Error as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str | Path, error: sqlite3.Error) -> InputError:
    return InputError(
        f"{path}: the journal cannot be read ({error}): try again if it is locked; move it "
        "away if it is damaged, and the controller starts another"
    )


async def _get(address: str, url: str) -> Mapping[str, Any]:
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(address, allow_redirects=False) as response,
        ):
            raw = await response.content.read(BYTES_MAX)
            status = response.status
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        raise SourceUnreachable(
            f"no controller answers at {url} ({foreign(error) or type(error).__name__}): start it, "
            "correct --url, or read its journal with --journal"
        ) from error
    try:
        body = msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise SourceMalformed(
            f"{url} is no controller of gpuscale: name the address of its page"
        ) from error
    if status != 200:
        raise SourceRefused(f"{url}: {foreign(body.get('error', f'it answered {status}'))}")
    return body


def stamp(at: float) -> str:
    """A time as ISO 8601 in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def as_text(decision: Mapping[str, Any]) -> str:
    """The sentences, under the time at which it was decided."""
    lines = [f"Decided at {stamp(float(decision['now']))}:", *map(str, decision["sentences"])]
    return "\n".join(lines)


def as_verdict(found: Check) -> str:
    """What replaying came to, in sentences."""
    assert found.start is not None
    assert found.end is not None
    stretch = (
        f"{found.ticks:,} ticks from {stamp(found.start)} to {stamp(found.end)} were decided again"
    )
    if not found.differing_count:
        return (
            f"{stretch}: all {found.decisions:,} decisions come out the same, bit for bit, and the "
            f"{found.outcomes:,} of them that the journal holds in full byte for byte."
        )
    times = ", ".join(stamp(at) for at in found.differing)
    more = found.differing_count - len(found.differing)
    lines = [
        f"{stretch}: {found.differing_count:,} {'comes' if found.differing_count == 1 else 'come'} out otherwise, at {times}"
        + (f" and {more:,} more." if more else ".")
    ]
    if found.elsewhere:
        lines.append(f"They were decided by {found.elsewhere}: the last digits may differ by that.")
    return "\n".join(lines)
