"""`gpuscale explain`: a decision of one workload, asked of a running controller or read from its journal."""

import asyncio
import math
import sqlite3
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec

from gpuscale.controller import explain
from gpuscale.controller.records import Records
from gpuscale.errors import InputError, SourceMalformed, SourceRefused, SourceUnreachable, foreign

TIMEOUT_S = 10.0
"""The controller answers from memory; beyond this it is not there."""
BYTES_MAX = 4 * 2**20
"""An answer has a few hundred kilobytes; more is not from gpuscale."""
TIME_MAX = 32_503_680_000.0
"""The year 3000, in seconds since 1970; a time before 1970 or after it was mistyped."""


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
        try:
            outcome = records.decision(key, at)
            known = "" if outcome is not None else ", ".join(records.keys()[:20]) or "nothing yet"
        except sqlite3.Error as error:
            raise InputError(
                f"{path}: the journal cannot be read ({error}): try again if it is locked; move it "
                "away if it is damaged, and the controller starts another"
            ) from error
        if outcome is None:
            raise InputError(
                f"{path} has no decision on {key} at or before {stamp(at)}: it knows {known}"
            )
    return explain.as_dict(outcome)


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
