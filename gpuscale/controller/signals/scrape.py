"""Signals by reading the pods' own metrics pages: what is used where there is no Prometheus.

A page is hostile input. It is read within a time and a size, both as sent and as decompressed,
redirects are not followed, and whatever is wrong with it silences that one pod: the others' sum
is scaled to the pods expected, and the coverage says so. What is large is parsed beside the event
loop, and never kept as text: a thousand pods of the largest pages fit into memory one by one, not
all at once. Demand itself is computed in demand.py.
"""

import asyncio
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import aiohttp

from gpuscale.clock import Clock
from gpuscale.controller.demand import DemandState, update
from gpuscale.controller.domain import Floats, SignalReading, SignalTarget
from gpuscale.controller.podsample import PodSample
from gpuscale.controller.servers import SERVERS
from gpuscale.controller.servers.table import Page, parse, pod_sample, wanted
from gpuscale.errors import (
    SourceError,
    SourceMalformed,
    SourceRefused,
    SourceUnreachable,
    foreign,
)
from gpuscale.settings import ScrapeSettings

DEADLINE_S = 10.0
"""All pages of one tick together, below the default tick: pods not read by then count as silent."""

INFLATE_BYTES = 64 * 1024
"""Decompressed in steps of this much, so that a bomb is noticed at bytes_max and not after it."""

INLINE_BYTES = 64 * 1024
"""A page up to this size is parsed where it is: milliseconds, and a thread costs as much."""

INLINE_SERIES = 1_000
"""The same for the series of all pods of a workload together."""

NEW = 1
"""Rank of an address that has not been read yet."""

ACCEPT = "text/plain;version=0.0.4"

HEADERS = {
    "Accept": ACCEPT,
    # Compressing costs the inference server time on its own event loop; the network is near.
    "Accept-Encoding": "identity",
    "User-Agent": "gpuscale",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """A page that was read: what is wanted of it, and when it came."""

    page: Page
    at: float

    @property
    def series(self) -> int:
        """Of the wanted metrics."""
        return sum(len(each) for each in self.page.values())


class _NotRead(SourceUnreachable):
    """The tick's time was over before this page's turn: it says nothing about the pod."""


class ScrapeSignal:
    """A `Signal` that reads every pod's page at every tick, and keeps what demand.py remembers of them."""

    def __init__(
        self, settings: ScrapeSettings, clock: Clock, *, deadline_s: float = DEADLINE_S
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._deadline_s = deadline_s
        self._session: aiohttp.ClientSession | None = None
        self._states: dict[str, DemandState] = {}
        self._ranks: dict[str, int] = {}
        """Order of reading, by address: 0 answered last time, NEW was not read yet, then failures
        in a row. Pods that hang are read last, and starve nobody."""

    async def read(
        self, targets: Sequence[SignalTarget], now: float
    ) -> Mapping[str, SignalReading | Exception]:
        """A reading per target, or the error of its pods where none of them could be read."""
        names: dict[str, frozenset[str]] = {}
        for target in targets:
            table = SERVERS.get(target.server)
            sought = frozenset() if table is None else frozenset(wanted(table))
            for address in target.endpoints:
                names[address] = names.get(address, sought) | sought
        ranks = {address: self._ranks.get(address, NEW) for address in names}
        ordered = sorted(ranks, key=lambda each: (ranks[each], each))
        pages = await self._pages({address: names[address] for address in ordered})
        for address, page in pages.items():
            if isinstance(page, _Read):
                ranks[address] = 0
            elif not isinstance(page, _NotRead):
                ranks[address] = max(ranks[address], NEW) + 1
        self._ranks = ranks
        states: dict[str, DemandState] = {}
        outcomes: dict[str, SignalReading | Exception] = {}
        for target in targets:
            state = self._states.get(target.key, DemandState())
            own = {address: pages[address] for address in target.endpoints}
            read = [page for page in own.values() if isinstance(page, _Read)]
            if sum(page.series for page in read) > INLINE_SERIES:
                outcome = await asyncio.to_thread(_outcome, target, own, state, now)
            else:
                outcome = _outcome(target, own, state, now)
                # It is quick, and a fleet is large: whoever waits for the loop gets a turn.
                await asyncio.sleep(0)
            states[target.key], outcomes[target.key] = outcome
        self._states = states
        return outcomes

    async def history(
        self, targets: Sequence[SignalTarget], start: float, end: float, step_s: float
    ) -> Mapping[str, tuple[Floats, Floats]]:
        """Nothing: pods keep no past."""
        return {}

    async def close(self) -> None:
        """Release connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _pages(
        self, wanted_of: Mapping[str, frozenset[str]]
    ) -> Mapping[str, _Read | SourceError]:
        """Every page or what is wrong with it, within the deadline; by address, in that order.

        `wanted_of`: the metric names that are wanted of each.
        """
        pages: dict[str, _Read | SourceError] = {
            address: _NotRead(
                f"{address} was not read within {self._deadline_s:g} s of its tick: "
                "raise scrape.concurrency_max, or read through a Prometheus"
            )
            for address in wanted_of
        }
        queue = iter(wanted_of.items())

        async def worker(limit: asyncio.Timeout) -> None:
            for address, names in queue:
                # A cancellation can meet a page's own time-out and be taken for it.
                if limit.expired():
                    return
                # What stands if the deadline cuts this page off: it had its turn.
                pages[address] = self._silent(address)
                pages[address] = await self._page(address, names)

        try:
            async with asyncio.timeout(self._deadline_s) as limit, asyncio.TaskGroup() as group:
                for _ in range(min(self._settings.concurrency_max, len(wanted_of))):
                    group.create_task(worker(limit), name="scrape pods")
        except TimeoutError:
            pass
        return pages

    async def _page(self, address: str, names: frozenset[str]) -> _Read | SourceError:
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                text = await self._get(address)
            at = self._clock.wall()
            return _Read(page=await self._parsed(address, text, names), at=at)
        except SourceError as error:
            return error
        except TimeoutError:
            return self._silent(address)
        except aiohttp.InvalidURL:
            return SourceRefused(f"{address} is no address: write http://HOST:PORT/PATH")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return SourceUnreachable(
                f"{address} cannot be read ({foreign(error) or type(error).__name__}): check that "
                "the pod serves this page and that a NetworkPolicy lets the controller reach it"
            )

    async def _parsed(self, address: str, text: bytes, names: frozenset[str]) -> Page:
        try:
            if len(text) > INLINE_BYTES:
                return await asyncio.to_thread(parse, text, names)
            return parse(text, names)
        except SourceMalformed as error:
            raise SourceMalformed(
                f"{address} has {error}: check metrics_port and metrics_path"
            ) from error

    def _silent(self, address: str) -> SourceUnreachable:
        return SourceUnreachable(
            f"{address} did not answer within {self._settings.timeout_s:g} s: check that the pod "
            "serves this page and that a NetworkPolicy lets the controller reach it"
        )

    async def _get(self, address: str) -> bytes:
        async with self._http().get(address, allow_redirects=False) as response:
            if response.status != 200:
                raise SourceRefused(
                    f"{address} answered {response.status}: check metrics_port and metrics_path"
                )
            return await self._body(address, response)

    async def _body(self, address: str, response: aiohttp.ClientResponse) -> bytes:
        """The body, decompressed, never more of it than bytes_max in memory."""
        encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding not in {"identity", "", "gzip"}:
            raise SourceMalformed(
                f"{address} answered in the encoding {foreign(encoding)!r}, which was not asked "
                "for: serve the page as text"
            )
        inflate = zlib.decompressobj(wbits=31) if encoding == "gzip" else None
        body = bytearray()
        async for chunk in response.content.iter_any():
            if inflate is None:
                body += chunk
            else:
                await self._inflate(address, inflate, chunk, body)
            if len(body) > self._settings.bytes_max:
                raise self._too_large(address)
        if inflate is not None and not inflate.eof:
            raise SourceMalformed(f"{address} broke off within its gzip: part of a page is no page")
        return bytes(body)

    async def _inflate(
        self, address: str, inflate: "zlib._Decompress", chunk: bytes, body: bytearray
    ) -> None:
        try:
            while chunk and not inflate.eof:
                body += inflate.decompress(chunk, INFLATE_BYTES)
                if len(body) > self._settings.bytes_max:
                    raise self._too_large(address)
                chunk = inflate.unconsumed_tail
                await asyncio.sleep(0)
        except zlib.error as error:
            raise SourceMalformed(
                f"{address} sent what is not gzip ({foreign(error)}): serve the page as text"
            ) from error

    def _too_large(self, address: str) -> SourceMalformed:
        return SourceMalformed(
            f"{address} is larger than {self._settings.bytes_max} bytes: "
            "raise scrape.bytes_max if the page is meant to be that large"
        )

    def _http(self) -> aiohttp.ClientSession:
        """The session, made where a loop runs. Proxies of the environment are for other things."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._settings.concurrency_max),
                cookie_jar=aiohttp.DummyCookieJar(),
                # _page has the one time-out: a second one beside it would take cancellations for itself.
                timeout=aiohttp.ClientTimeout(total=None),
                headers=HEADERS,
                auto_decompress=False,
                trust_env=False,
            )
        return self._session


_SAME = (
    "arrivals",
    "running",
    "waiting",
    "in_flight",
    "throughput",
    "latency_s",
    "queue_seconds",
    "prompt_tokens",
    "generation_tokens",
    "kv_fraction",
    "busy",
    "startup_s",
    "models",
)
"""Fields of a demand that a reading has under the same name."""


def _outcome(
    target: SignalTarget,
    pages: Mapping[str, _Read | SourceError],
    state: DemandState,
    now: float,
) -> tuple[DemandState, SignalReading | SourceError]:
    """One target's reading and next state; the first error where every pod of it failed."""
    table = SERVERS.get(target.server)
    if table is None:
        return state, SourceRefused(
            f"{target.key}: the server {target.server} is read by PromQL alone: name a server that "
            "answers it under `prometheus`"
        )
    samples: list[PodSample] = []
    errors: list[SourceError] = []
    for address in target.endpoints:
        page = pages[address]
        if isinstance(page, SourceError):
            errors.append(page)
            continue
        try:
            samples.append(pod_sample(table, page.page, pod=address, at=page.at))
        except SourceMalformed as error:
            errors.append(error)
    # Endpoints without a number beside them are all expected: they were named, or found ready.
    expected = len(target.endpoints) if target.pods_expected is None else target.pods_expected
    if target.pods_expected is None and not target.endpoints:
        return state, SourceUnreachable(
            f"no pod of {target.key} is known: name its metrics pages under `endpoints`, "
            "let the controller read the API server, or name a Prometheus"
        )
    state, demand = update(state, samples, expected=expected, now=now)
    if errors and not samples:
        return state, errors[0]
    reading = SignalReading(
        key=target.key,
        at=demand.at,
        pods_answered=demand.pods_answered,
        pods_expected=expected,
        **{name: getattr(demand, name) for name in _SAME},
        reason=demand.reason or (str(errors[0]) if errors else None),
    )
    return state, reading
