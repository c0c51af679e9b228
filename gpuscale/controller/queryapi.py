"""The query API of Prometheus over HTTP: POST, one time-out, bounded answers, every failure one sentence.

Whatever speaks it (Prometheus, Thanos, Mimir, VictoriaMetrics) and whatever stands between may be
slow, wrong or hostile: an answer is read within a time and a size, and is believed when all of it
is what was asked for.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime

import aiohttp
import msgspec
from yarl import URL

from gpuscale.clock import Clock
from gpuscale.controller import credentials
from gpuscale.errors import SourceMalformed, SourceRefused, SourceUnreachable, foreign
from gpuscale.settings import PrometheusSettings

HISTORY_PATIENCE = 6.0
"""A range query over a week takes longer than an instant one: this many times timeout_s."""

ANSWER_BYTES_MAX = 1024 * 1024
"""Of one answer: the most points of one series are some 300 kB, and a tick's query brings a dozen
samples for each of a dozen workloads. To decode it all the event loop is held up for some 20 ms."""

SKEW_MAX_S = 30.0
"""We ask for the present by our own clock. A server's that is behind answers what was true then, and
nothing else in the answer tells. Below stale_after_s as it is by default, above a slow answer."""


class Series(msgspec.Struct, frozen=True):
    """One series of an answer: its labels and one value, or those on the grid of a range."""

    metric: dict[str, str]
    value: tuple[float, str] | None = None
    values: list[tuple[float, str]] = []


class _Data(msgspec.Struct, frozen=True):
    result: list[Series] = []


class _Answer(msgspec.Struct, frozen=True):
    status: str
    data: _Data | None = None
    error: str = ""
    isPartial: bool = False  # noqa: N815 - VictoriaMetrics' name for an answer with holes


class QueryRefused(SourceRefused):
    """The server understood the request and refuses this query: another one may succeed."""


class QueryApi:
    """POST /api/v1/query and /api/v1/query_range, with everything that can go wrong made a SourceError."""

    def __init__(self, settings: PrometheusSettings, clock: Clock, *, connections_max: int) -> None:
        """`clock` is what the answers' dates are compared with."""
        self._settings = settings
        self._connections_max = connections_max
        self._clock = clock
        self._base = URL(settings.url.rstrip("/"))
        self.shown = str(self._base.with_user(None))
        """The address as it may be shown: without a password."""
        self._session: aiohttp.ClientSession | None = None
        self._files: tuple[tuple[str, int], ...] = ()

    async def instant(self, query: str, at: float) -> Sequence[Series]:
        """The series of an instant query at `at`. Raises SourceError."""
        form = {"query": query, "time": f"{at:.3f}"}
        return await self._post("query", form, self._settings.timeout_s)

    async def range(self, query: str, start: float, end: float, step_s: float) -> Sequence[Series]:
        """The series of a range query; at most POINTS_MAX steps. Raises SourceError."""
        form = {"query": query, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step_s}"}
        return await self._post("query_range", form, self._settings.timeout_s * HISTORY_PATIENCE)

    async def close(self) -> None:
        """Release connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _post(self, path: str, form: Mapping[str, str], timeout_s: float) -> Sequence[Series]:
        # Thanos would leave out what a store did not answer, and say so in a warning only.
        data = {**form, "timeout": f"{round(timeout_s * 1000)}ms", "partial_response": "false"}
        headers, session = self._headers(), await self._http()
        try:
            async with (
                asyncio.timeout(timeout_s),
                session.post(
                    self._base / "api/v1" / path, data=data, headers=headers, allow_redirects=False
                ) as response,
            ):
                self._check_clock(response.headers.get("Date", ""))
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

    def _check_clock(self, date: str) -> None:
        """Compare an answer's date with our clock: a question about another time has an old answer."""
        try:
            said = parsedate_to_datetime(date).replace(tzinfo=UTC).timestamp()
        except (ValueError, OverflowError):  # none, or none that is one: nothing to compare
            return
        ahead_s = said - self._clock.wall()
        if abs(ahead_s) > SKEW_MAX_S:
            side = "ahead of" if ahead_s > 0 else "behind"
            raise SourceMalformed(
                f"the clock of the Prometheus at {self.shown} is {abs(ahead_s):.0f} s {side} this "
                "machine's, so that we would read another time than the present: set both clocks (NTP)"
            )

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

    def _understood(self, status: int, body: bytes) -> Sequence[Series]:
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
            raise QueryRefused(self._refusal(status, foreign(answer.error)))
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
            401: "check prometheus.bearer_token_file, or username and password_file",
            403: "check prometheus.bearer_token_file, or username and password_file, and tenant",
            404: "prometheus.url must be its base address, without /api/v1",
            422: "check the policy's `selector` and the server's query limits",
        }.get(status, "check the server's log")
        return f"the Prometheus at {self.shown} answered {status} ({said or 'no reason'}): {cure}"

    def _headers(self) -> Mapping[str, str]:
        """With the token or password as it stands in its file now: kubelet rotates it."""
        settings = self._settings
        headers = {} if settings.tenant is None else {"X-Scope-OrgID": settings.tenant}
        if settings.bearer_token_file is not None:
            headers |= credentials.bearer(settings.bearer_token_file, section="prometheus")
        elif settings.username is not None and settings.password_file is not None:
            headers |= credentials.basic(
                settings.username, settings.password_file, section="prometheus"
            )
        return headers

    async def _http(self) -> aiohttp.ClientSession:
        """The session; a new one where the files of its TLS were replaced."""
        files = credentials.tls_files(self._settings, section="prometheus")
        if self._session is not None and files == self._files:
            return self._session
        await self.close()
        self._files = files
        context = credentials.client_context(self._settings, section="prometheus")
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._connections_max, ssl=context),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": "identity", "User-Agent": "gpuscale"},
            timeout=aiohttp.ClientTimeout(total=None),  # _post has the one time-out
            auto_decompress=False,
            trust_env=False,
        )
        return self._session
