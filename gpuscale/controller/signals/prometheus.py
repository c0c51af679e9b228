"""Signals from any server that speaks the Prometheus query API (Prometheus, Thanos, Mimir, VictoriaMetrics).

One tick asks, for many workloads in one instant query, the expressions of servers/promql.py; each
comes back as one sample marked with its workload and signal. An expression that gives no sample is
a missing value, never zero; zero with full coverage is demand.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import msgspec
import numpy as np
from yarl import URL

from gpuscale import log
from gpuscale.controller.domain import Floats, SignalReading, SignalTarget
from gpuscale.controller.podsample import clean
from gpuscale.controller.servers import SERVERS
from gpuscale.controller.servers.promql import (
    Values,
    Watch,
    any_series,
    as_one,
    gpu_busy,
    questions,
    reading,
)
from gpuscale.errors import (
    SourceError,
    SourceMalformed,
    SourceRefused,
    SourceUnreachable,
    foreign,
)
from gpuscale.settings import PrometheusSettings

QUERY_BYTES_MAX = 12_000
"""Of one query's text: VictoriaMetrics refuses more than 16 KiB, and a proxy may sooner."""

QUERIES_MAX = 4
"""At the same time: Prometheus runs 20 queries at once for everybody (query.max-concurrency)."""

POINTS_MAX = 10_000
"""Of one range query: Prometheus refuses more than 11,000 points per series."""

GRID_MAX = 500_000
"""Points of one workload's past: 60 days at 15 s are 345,600. Beyond it the oldest are left out."""

HISTORY_PATIENCE = 6.0
"""A range query over a week takes longer than an instant one: this many times timeout_s."""

ANSWER_BYTES_MAX = 32 * 1024 * 1024
"""Of one answer; POINTS_MAX points of one series are some 300 kB."""

TOKEN_BYTES_MAX = 64 * 1024
"""A bearer token is a few kB; a larger file is another one."""

EXPLAINED_MAX = 8
"""Extra queries per tick that find out why a workload has no series at all."""

GPU_BUSY_TARGETS_MAX = 256
"""Workloads up to which the exporter's busy seconds are asked for: each such expression looks at every
GPU of the cluster, and it only helps to learn capacity sooner."""

MARK = "gpuscale"
"""Label under which a sample says which workload and signal it is."""

_log = log.get("signals.prometheus")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """All expressions of one workload as one."""

    key: str
    text: str


class PrometheusSignal:
    """A `Signal` from a server that speaks the Prometheus query API."""

    def __init__(self, settings: PrometheusSettings, tick_s: float) -> None:
        self._settings = settings
        self._api = _QueryApi(settings)
        self._deadline_s = max(settings.timeout_s, 0.8 * tick_s)
        """All queries of one tick together."""
        self._watches: dict[str, Watch] = {}

    async def read(
        self, targets: Sequence[SignalTarget], now: float
    ) -> Mapping[str, SignalReading | Exception]:
        """A reading per target, or the error of the query that it was part of."""
        late = SourceUnreachable(
            f"the Prometheus at {self._api.shown} did not answer all queries within "
            f"{self._deadline_s:g} s: raise tick_s, or give Prometheus more CPU"
        )
        found: dict[str, Values | SourceError] = {t.key: late for t in targets}
        batches = iter(self._batches(targets))
        down: list[SourceUnreachable] = []

        async def worker(limit: asyncio.Timeout) -> None:
            for batch in batches:
                # A cancellation can meet a query's own time-out and be taken for it.
                if limit.expired():
                    return
                # One query that found nobody is enough: the rest need not wait for the same.
                answers: Mapping[str, Values | SourceError]
                if down:
                    answers = dict.fromkeys((each.key for each in batch), down[0])
                else:
                    answers = await self._ask(batch, now)
                down.extend(e for e in answers.values() if isinstance(e, SourceUnreachable))
                found.update(answers)

        try:
            async with asyncio.timeout(self._deadline_s) as limit, asyncio.TaskGroup() as group:
                for _ in range(QUERIES_MAX):
                    group.create_task(worker(limit), name="query Prometheus")
        except TimeoutError:
            pass
        watches: dict[str, Watch] = {}
        outcomes: dict[str, SignalReading | Exception] = {}
        for target in targets:
            values = found[target.key]
            watch = self._watches.get(target.key, Watch())
            if isinstance(values, SourceError):
                watches[target.key], outcomes[target.key] = watch, values
            else:
                watch = watch.next(values.numbers, target.pods_expected, now)
                watches[target.key] = watch
                models = frozenset(values.models)
                table = SERVERS.get(target.server)
                outcomes[target.key] = reading(
                    table, target, values.numbers, watch, now, models=models
                )
        self._watches = watches
        return await self._explained(targets, outcomes, now)

    async def history(
        self, targets: Sequence[SignalTarget], start: float, end: float, step_s: float
    ) -> Mapping[str, tuple[Floats, Floats]]:
        """Arrivals on the grid of whole steps within [start, end], NaN where there is none.

        A value at t is the mean over the step before it, or over the rate window where that is
        longer. A target whose queries are refused is left out, with a warning in the log. Raises
        SourceError where the server gives nothing for any target.
        """
        first = max(math.ceil(start / step_s), math.floor(end / step_s) - GRID_MAX + 1)
        times = np.arange(first, math.floor(end / step_s) + 1, dtype=np.float64) * step_s
        slots = asyncio.Semaphore(QUERIES_MAX)
        past: dict[str, tuple[Floats, Floats]] = {}
        refusals: list[SourceError] = []

        async def one(target: SignalTarget) -> None:
            async with slots:
                if refusals and isinstance(refusals[0], SourceUnreachable):
                    return
                try:
                    past[target.key] = times, await self._past(target, times, step_s)
                except SourceError as error:
                    refusals.append(error)
                    _log.warning("past not read", workload=target.key, reason=str(error))

        async with asyncio.TaskGroup() as group:
            for target in targets:
                group.create_task(one(target), name=f"past of {target.key}")
        if refusals and (not past or isinstance(refusals[0], SourceUnreachable)):
            raise refusals[0]
        return past

    async def close(self) -> None:
        """Release connections."""
        await self._api.close()

    def _batches(self, targets: Sequence[SignalTarget]) -> list[list[_Question]]:
        """The targets' questions, as many to a query as fit."""
        batches: list[list[_Question]] = []
        size = 0
        window_s = self._settings.rate_window_s
        for target in targets:
            asked = dict(questions(SERVERS.get(target.server), target, window_s))
            if len(targets) <= GPU_BUSY_TARGETS_MAX and target.server in SERVERS:
                asked["gpu_busy"] = gpu_busy(target.selector, window_s)
            text = as_one(asked, MARK, target.key)
            size += len(text) + 4
            if not batches or size > QUERY_BYTES_MAX:
                batches.append([])
                size = len(text)
            batches[-1].append(_Question(key=target.key, text=text))
        return batches

    async def _ask(
        self, batch: Sequence[_Question], now: float
    ) -> Mapping[str, Values | SourceError]:
        """What is known of each workload of a batch; one bad selector spoils its own answer only."""
        try:
            series = await self._api.instant(" or ".join(each.text for each in batch), now)
        except _QueryRefused as error:
            if len(batch) == 1:
                return {batch[0].key: error}
            half = len(batch) // 2
            return {**await self._ask(batch[:half], now), **await self._ask(batch[half:], now)}
        except SourceError as error:
            return dict.fromkeys((each.key for each in batch), error)
        values = {each.key: Values() for each in batch}
        for one in series:
            signal, _, key = one.metric.get(MARK, "").partition("/")
            if key in values and one.value is not None:
                values[key].take(signal, _number(one.value[1]), one.metric)
        return {**values}

    async def _explained(
        self,
        targets: Sequence[SignalTarget],
        outcomes: dict[str, SignalReading | Exception],
        now: float,
    ) -> Mapping[str, SignalReading | Exception]:
        """The outcomes, with the likely cause where a workload has pods and no series."""
        explained = 0
        for target in targets:
            outcome = outcomes[target.key]
            silent = (
                isinstance(outcome, SignalReading)
                and not outcome.pods_answered
                and target.server in SERVERS
            )
            if not silent or target.pods_expected == 0 or explained >= EXPLAINED_MAX:
                continue
            explained += 1
            try:
                series = await self._api.instant(any_series(target.selector), now)
            except SourceError as error:
                outcomes[target.key] = error
                continue
            if series:
                table = SERVERS[target.server]
                outcomes[target.key] = SourceMalformed(
                    f"{self._api.shown} has series of {{{target.selector}}}, and none of them is "
                    f"{target.server}'s (looked for {table.sought}): set the policy's `server` to what "
                    "runs there, and check that its metrics page is scraped"
                )
        return outcomes

    async def _past(self, target: SignalTarget, times: Floats, step_s: float) -> Floats:
        window_s = max(self._settings.rate_window_s, step_s)
        query = questions(SERVERS.get(target.server), target, window_s)["arrivals"]
        demand = np.full(len(times), np.nan)
        for begin in range(0, len(times), POINTS_MAX):
            part = times[begin : begin + POINTS_MAX]
            series = await self._api.range(query, float(part[0]), float(part[-1]), step_s)
            for at, value in series[0].values if series else ():
                index = round((at - float(times[0])) / step_s)
                known = clean(_number(value))
                if 0 <= index < len(times) and known is not None:
                    demand[index] = known
        return demand


def _number(text: str) -> float:
    """A sample's value; NaN where it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


# ---------------------------------------------------------------- the query API


class _Series(msgspec.Struct, frozen=True):
    metric: dict[str, str]
    value: tuple[float, str] | None = None
    values: list[tuple[float, str]] = []


class _Data(msgspec.Struct, frozen=True):
    result: list[_Series] = []


class _Answer(msgspec.Struct, frozen=True):
    status: str
    data: _Data | None = None
    error: str = ""
    isPartial: bool = False  # noqa: N815 - VictoriaMetrics' name for an answer with holes


class _QueryRefused(SourceRefused):
    """The server understood the request and refuses this query: another one may succeed."""


class _QueryApi:
    """POST /api/v1/query and /api/v1/query_range, with everything that can go wrong made a SourceError."""

    def __init__(self, settings: PrometheusSettings) -> None:
        self._settings = settings
        self._base = URL(settings.url.rstrip("/"))
        self.shown = str(self._base.with_user(None))
        """The address as it may be shown: without a password."""
        self._session: aiohttp.ClientSession | None = None

    async def instant(self, query: str, at: float) -> Sequence[_Series]:
        """The series of an instant query at `at`. Raises SourceError."""
        form = {"query": query, "time": f"{at:.3f}"}
        return await self._post("query", form, self._settings.timeout_s)

    async def range(self, query: str, start: float, end: float, step_s: float) -> Sequence[_Series]:
        """The series of a range query; at most POINTS_MAX steps. Raises SourceError."""
        form = {"query": query, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step_s}"}
        return await self._post("query_range", form, self._settings.timeout_s * HISTORY_PATIENCE)

    async def close(self) -> None:
        """Release connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _post(
        self, path: str, form: Mapping[str, str], timeout_s: float
    ) -> Sequence[_Series]:
        # Thanos would leave out what a store did not answer, and say so in a warning only.
        data = {**form, "timeout": f"{round(timeout_s * 1000)}ms", "partial_response": "false"}
        headers = self._headers()
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._http().post(
                    self._base / "api/v1" / path, data=data, headers=headers, allow_redirects=False
                ) as response,
            ):
                body = await self._body(response)
                return self._understood(response.status, body)
        except TimeoutError as error:
            raise SourceUnreachable(
                f"the Prometheus at {self.shown} did not answer within {timeout_s:g} s: check "
                "prometheus.url and that the server is not overloaded, or raise prometheus.timeout_s"
            ) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise SourceUnreachable(
                f"the Prometheus at {self.shown} cannot be reached ({foreign(error)}): check "
                "prometheus.url, that the server runs and that a NetworkPolicy lets us reach it"
            ) from error

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > ANSWER_BYTES_MAX:
                raise SourceMalformed(
                    f"the Prometheus at {self.shown} answered more than {ANSWER_BYTES_MAX} bytes "
                    "to one query: check that prometheus.url is a query API"
                )
        return bytes(body)

    def _understood(self, status: int, body: bytes) -> Sequence[_Series]:
        try:
            answer = msgspec.json.decode(body, type=_Answer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if status != 200:
                raise SourceRefused(
                    self._refusal(status, foreign(body[:512].decode("utf-8", "replace")))
                ) from error
            raise SourceMalformed(
                f"{self.shown} does not speak the Prometheus query API ({foreign(error)}): "
                "prometheus.url must be its base address, without /api/v1"
            ) from error
        if status in {400, 422}:
            raise _QueryRefused(self._refusal(status, foreign(answer.error)))
        if status != 200 or answer.status != "success" or answer.data is None:
            raise SourceRefused(self._refusal(status, foreign(answer.error)))
        if answer.isPartial:
            raise SourceRefused(
                f"{self.shown} gave a partial answer, in which pods may be missing: "
                "check that all of its storage nodes run"
            )
        return answer.data.result

    def _refusal(self, status: int, said: str) -> str:
        cure = {
            400: "check the policy's `selector`",
            401: "check prometheus.bearer_token_file",
            403: "check prometheus.bearer_token_file",
            404: "prometheus.url must be its base address, without /api/v1",
            422: "check the policy's `selector` and the server's query limits",
        }.get(status, "check the server's log")
        return f"the Prometheus at {self.shown} answered {status} ({said or 'no reason'}): {cure}"

    def _headers(self) -> Mapping[str, str]:
        """With the token as it stands in its file now: kubelet rotates it."""
        path = self._settings.bearer_token_file
        if path is None:
            return {}
        try:
            with Path(path).open("rb") as file:
                token = file.read(TOKEN_BYTES_MAX).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SourceRefused(
                f"the token in {path} cannot be read ({foreign(error)}): "
                "set prometheus.bearer_token_file to a file that this process may read"
            ) from error
        return {"Authorization": f"Bearer {token}"}

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=2 * QUERIES_MAX),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"Accept-Encoding": "identity", "User-Agent": "gpuscale"},
                timeout=aiohttp.ClientTimeout(total=None),  # _post has the one time-out
                auto_decompress=False,
                trust_env=False,
            )
        return self._session
