"""The page and the JSON API under /api/v1/: everything can be read here, and nothing can be changed.

Answers are made from the last tick's status in memory, with a bound on every list, and carry the
tick's number as ETag, so that a page that polls costs a comparison while nothing is new. What the
API says of a workload is data for a browser: the page writes it as text, and the content security
policy lets no other script run.
"""

import asyncio
import gzip
import re
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import numpy as np
from aiohttp import web

from gpuscale import __version__
from gpuscale.controller import explain
from gpuscale.controller.assets import StaticFile, load_files, load_plotly, unchanged
from gpuscale.controller.domain import Decision, Hold
from gpuscale.controller.eventstream import EventStream, Ticks
from gpuscale.controller.gpumap import GpuMap, as_dict
from gpuscale.controller.records import Origin, told
from gpuscale.controller.rows import STATES, context, known_sum, late, row, states_of
from gpuscale.controller.status import (
    LEVEL_COLUMNS,
    POINTS_MAX,
    STAGES,
    FleetStatus,
    Ring,
    Tally,
    known,
)

ROWS_DEFAULT = 100
ROWS_MAX = 1_000
"""Workloads in one answer; the rest is reached by `offset`."""
NODES_DEFAULT = 100
NODES_MAX = 1_000
"""Nodes of the map of GPUs in one answer; the rest is reached by `offset`."""
REFUSALS_MAX = 1_000
"""Refusals in one answer."""
SPARK_POINTS = 60
"""Points of the small chart in a row: a quarter of an hour at the default tick."""
QUERY_CHARS_MAX = 253
"""A search is a part of a namespace or a name."""
COMPRESS_FROM_BYTES = 2_048
"""Smaller answers are sent as they are."""

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""On every answer. Charts set styles through the DOM, which the policy allows; markup may not."""

DecisionAt = Callable[[str, float], Awaitable[Decision | Hold | None]]
"""The outcome of a workload at or before a time, from the journal; None where there is none."""

OriginAt = Callable[[str, float], Awaitable[Origin | None]]
"""Where its capacity and start time came from then; None where the journal does not say."""

NO_AUDIT: Mapping[str, Any] = {
    "up": False,
    "reason": "no cluster is connected, so there are no pods to look at",
    "at": None,
    "pods": None,
    "gpu_nodes": None,
    "findings": [],
}
"""What /api/v1/audit answers where nothing can be audited."""


class Page:
    """Routes over what `status`, `ring` and `decision_at` give at the moment of a request."""

    def __init__(
        self,
        *,
        status: Callable[[], FleetStatus | None],
        tally: Callable[[], Tally],
        ready: Callable[[], str | None],
        now: Callable[[], float],
        ring: Ring,
        decision_at: DecisionAt,
        gpus: Callable[[], Awaitable[GpuMap]],
        ticks: Ticks,
        audit: Callable[[], Mapping[str, Any] | None],
        doctor: Callable[[], Awaitable[Mapping[str, Any]]] | None = None,
        origin_at: OriginAt | None = None,
    ) -> None:
        self._status = status
        self._tally = tally
        self._ready = ready
        self._now = now
        self._ring = ring
        self._decision_at = decision_at
        self._origin_at = origin_at
        self._gpus = gpus
        self._audit = audit
        self._doctor = doctor
        self._events = EventStream(ticks)
        # A restarted controller counts its ticks from 1 again: its ETags must differ.
        self._instance = secrets.token_hex(4)
        self._files = load_files()
        self._plotly: StaticFile | None = None
        self._plotly_lock = asyncio.Lock()

    def attach(self, app: web.Application) -> None:
        """Add the page, its files and the API to an application, and the headers to all it answers."""
        app.middlewares.append(_guard)
        app.on_response_prepare.append(_add_headers)
        get = app.router.add_get
        get("/", self._index)
        get("/static/plotly.min.js", self._plotly_js)
        get("/static/{name}", self._static)
        get("/api/v1/status", self._get_status)
        get("/api/v1/workloads", self._get_workloads)
        get("/api/v1/workloads/{namespace}/{name}", self._get_workload)
        get("/api/v1/workloads/{namespace}/{name}/decision", self._get_decision)
        get("/api/v1/refusals", self._get_refusals)
        get("/api/v1/gpus", self._get_gpus)
        get("/api/v1/audit", self._get_audit)
        get("/api/v1/doctor", self._get_doctor)
        self._events.attach(app)

    # ------------------------------------------------------------ the API

    async def _get_status(self, request: web.Request) -> web.Response:
        status, tally = self._status(), self._tally()
        body: dict[str, Any] = {
            "version": __version__,
            "instance": self._instance,
            "now": self._now(),
            "ready": self._ready(),
            "ticks": tally.ticks,
            "step_s": tally.step_s,
            "number": None,
            "at": None,
            "tick_s": None,
            "workloads": 0,
            "states": {},
            "replicas": {},
            "late": 0,
            "modes": {},
            "faults": [],
            "refusals": 0,
        }
        if status is not None:
            seen = status.observation
            counts = np.bincount(states_of(status), minlength=len(STATES)).tolist()
            body |= {
                "number": status.snapshot.number,
                "at": status.snapshot.at,
                "tick_s": seen.tick_s,
                "workloads": len(status.workloads),
                "states": {name: n for name, n in zip(STATES, counts, strict=True) if n},
                "replicas": {stage: known_sum(getattr(seen, stage)) for stage in STAGES}
                | {"desired": known_sum(status.decision.desired)},
                "late": int(np.count_nonzero(late(status))),
                "modes": dict(Counter(w.policy.mode for w in status.workloads)),
                "faults": list(status.faults),
                "refusals": len(status.refusals),
            }
        return await _json(request, body)

    async def _get_workloads(self, request: web.Request) -> web.Response:
        limit = _number(request, "limit", ROWS_DEFAULT, 1, ROWS_MAX)
        offset = _number(request, "offset", 0, 0, 10_000_000)
        wanted = request.query.get("q", "")[:QUERY_CHARS_MAX].lower()
        state = request.query.get("state", "")
        status = self._status()
        tag = self._tag(status)
        if unchanged(request, tag):
            return web.Response(status=304, headers={"ETag": tag})
        rows: list[dict[str, Any]] = []
        total = 0
        if status is not None:
            states = states_of(status).tolist()
            found = [
                (states[i], key, i)
                for i, key in enumerate(status.observation.keys)
                if wanted in key.lower() and (not state or STATES[states[i]] == state)
            ]
            found.sort()
            total = len(found)
            rows = [
                row(status, i, code) | {"spark": self._spark(key)}
                for code, key, i in found[offset : offset + limit]
            ]
        body = {"total": total, "offset": offset, "limit": limit, "items": rows}
        return await _json(request, body, tag)

    async def _get_workload(self, request: web.Request) -> web.Response:
        points = _number(request, "points", POINTS_MAX, 1, POINTS_MAX)
        status, key = self._status(), _key(request)
        tag = self._tag(status)
        found = None if status is None else status.workload(key)
        if status is None or found is None:
            raise _unknown(key, status)
        if unchanged(request, tag):
            return web.Response(status=304, headers={"ETag": tag})
        i, answer = status.index[key], status.snapshot.answers[key]
        body = (
            row(status, i, int(states_of(status)[i]))
            | {"decision": explain.as_dict(found.outcome, capacity=found.capacity, lead=found.lead)}
            | context(found)
            | {"answer": answer.desired, "answer_reason": answer.reason}
            | {"number": status.snapshot.number, "at": status.snapshot.at}
            | {"series": self._series(key, points)}
        )
        return await _json(request, body, tag)

    async def _get_decision(self, request: web.Request) -> web.Response:
        key = _key(request)
        at = _time(request, "at", self._now())
        outcome = await self._decision_at(key, at)
        if outcome is None:
            raise ApiFault(404, f"no decision on {key} at or before {at:g} is in the journal")
        origin = None if self._origin_at is None else await self._origin_at(key, outcome.now)
        return await _json(request, {"at": at, "decision": told(outcome, origin)})

    async def _get_refusals(self, request: web.Request) -> web.Response:
        status = self._status()
        refusals = {} if status is None else status.refusals
        items = [
            {"workload": key, "reason": reason}
            for key, reason in list(refusals.items())[:REFUSALS_MAX]
        ]
        return await _json(request, {"total": len(refusals), "items": items})

    async def _get_audit(self, request: web.Request) -> web.Response:
        return await _json(request, self._audit() or NO_AUDIT)

    async def _get_doctor(self, request: web.Request) -> web.Response:
        if self._doctor is None:
            raise ApiFault(404, "no doctor is on call here: run gpuscale doctor")
        return await _json(request, await self._doctor())

    async def _get_gpus(self, request: web.Request) -> web.Response:
        limit = _number(request, "limit", NODES_DEFAULT, 1, NODES_MAX)
        offset = _number(request, "offset", 0, 0, 10_000_000)
        return await _json(request, as_dict(await self._gpus(), offset=offset, limit=limit))

    # ------------------------------------------------------------ parts of answers

    def _tag(self, status: FleetStatus | None) -> str:
        return f'"{self._instance}-{0 if status is None else status.snapshot.number}"'

    def _spark(self, key: str) -> list[float | None]:
        _, values = self._ring.series(key, points=SPARK_POINTS)
        return [known(v) for v in values["demand"].tolist()]

    def _series(self, key: str, points: int) -> dict[str, Any]:
        at, values = self._ring.series(key, points=points)
        plain = {
            name: [known(v) for v in column.tolist()]
            for name, column in values.items()
            if name not in LEVEL_COLUMNS
        }
        levels = {
            name.removeprefix("q"): [known(v) for v in values[name].tolist()]
            for name in LEVEL_COLUMNS
        }
        return {"at": at.tolist(), **plain, "forecast": levels}

    # ------------------------------------------------------------ the page's files

    async def _index(self, request: web.Request) -> web.Response:
        return self._files["index.html"].answer(request)

    async def _static(self, request: web.Request) -> web.Response:
        file = self._files.get(request.match_info["name"])
        if file is None:
            raise web.HTTPNotFound
        return file.answer(request)

    async def _plotly_js(self, request: web.Request) -> web.Response:
        async with self._plotly_lock:
            if self._plotly is None:
                self._plotly = await asyncio.to_thread(load_plotly)
        if self._plotly is None:
            raise ApiFault(404, "charts need plotly: pip install 'gpuscale[controller]'")
        return self._plotly.answer(request)


class ApiFault(Exception):
    """A request that cannot be answered: its HTTP status and one sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


# ---------------------------------------------------------------- requests and answers


def _key(request: web.Request) -> str:
    return f"{request.match_info['namespace']}/{request.match_info['name']}"


def _unknown(key: str, status: FleetStatus | None) -> ApiFault:
    if status is None:
        return ApiFault(404, "nothing is decided yet: /readyz says what is waited for")
    if key in status.refusals:
        return ApiFault(404, f"{key} is refused: {status.refusals[key]}")
    return ApiFault(404, f"no workload {key}: /api/v1/workloads lists what is known")


def _number(request: web.Request, name: str, default: int, least: int, most: int) -> int:
    raw = request.query.get(name)
    if raw is None:
        return default
    # Leading zeros would carry any number past a look at its first digits.
    if not re.fullmatch(r"[0-9]{1,9}", raw) or not least <= int(raw) <= most:
        raise ApiFault(400, f"{name}: give a whole number from {least} to {most}")
    return int(raw)


def _time(request: web.Request, name: str, default: float) -> float:
    raw = request.query.get(name)
    if raw is None:
        return default
    try:
        value = known(float(raw))
    except ValueError:
        value = None
    if value is None:
        raise ApiFault(400, f"{name}: give seconds since 1970, such as {default:.0f}")
    return value


async def _json(request: web.Request, body: object, tag: str | None = None) -> web.Response:
    headers = {"Cache-Control": "no-cache", "Content-Type": "application/json"}
    if tag is not None:
        headers["ETag"] = tag
    raw = msgspec.json.encode(body)
    zipped = "gzip" in request.headers.get("Accept-Encoding", "")
    if zipped and len(raw) > COMPRESS_FROM_BYTES:
        raw = gzip.compress(raw, 1, mtime=0)
        headers["Content-Encoding"] = "gzip"
        headers["Vary"] = "Accept-Encoding"
    return web.Response(body=raw, headers=headers)


@web.middleware
async def _guard(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Faults as JSON with one sentence; unknown paths below /api/ too."""
    try:
        return await handler(request)
    except ApiFault as fault:
        return web.json_response({"error": str(fault)}, status=fault.status)
    except web.HTTPException as error:
        if not request.path.startswith("/api/"):
            raise
        return web.json_response({"error": error.reason}, status=error.status)


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)
