"""Reads the exporters' snapshots for the map of GPUs: when somebody asks, and no more often than needed.

Nothing is read while nobody looks: a thousand nodes tell some 50 MB each time. An answer is read
within a time and a size; a node that does not answer is on the map with the sentence why.
"""

import asyncio
import socket
import ssl
from collections.abc import Mapping, Sequence

import aiohttp
import msgspec
from yarl import URL

from gpuscale.clock import Clock
from gpuscale.controller import credentials
from gpuscale.controller.gpumap import GpuMap, Node, NodeReport, node_of
from gpuscale.errors import (
    SourceError,
    SourceMalformed,
    SourceRefused,
    SourceUnreachable,
    foreign,
)
from gpuscale.settings import ExportersSettings

CONCURRENCY_MAX = 64
"""Exporters read at the same time."""
ADDRESSES_MAX = 5_000
"""Addresses of all names together: a cluster has at most as many nodes."""
DEADLINE_S = 6.0
"""All exporters together, less than the page waits; those not read by then are said not to be."""
ANSWER_BYTES_MAX = 4 * 2**20
"""Of one snapshot: 16 GPUs with 7 instances each are some 700 kB."""

_DECODER = msgspec.json.Decoder(NodeReport)


class Exporters:
    """The map of GPUs, read again when it is asked for and older than `fresh_s`."""

    def __init__(
        self, settings: ExportersSettings, clock: Clock, *, deadline_s: float = DEADLINE_S
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._deadline_s = deadline_s
        self._read = GpuMap(configured=bool(settings.urls))
        self._read_at: float | None = None
        self._one_at_a_time = asyncio.Lock()

    async def map(self) -> GpuMap:
        """The newest map; never raises for an exporter that fails."""
        if not self._settings.urls:
            return self._read
        async with self._one_at_a_time:
            now = self._clock.monotonic()
            if self._read_at is None or now - self._read_at >= self._settings.fresh_s:
                self._read = await self._pass()
                self._read_at = self._clock.monotonic()
        return self._read

    async def _pass(self) -> GpuMap:
        problems: list[str] = []
        try:
            headers, tls = await asyncio.to_thread(self._credentials)
        except SourceError as error:
            return GpuMap(configured=True, problems=(str(error),))
        addresses: list[tuple[URL, str]] = []
        found = await asyncio.gather(*(self._addresses(url) for url in self._settings.urls))
        for answer in found:
            if isinstance(answer, SourceError):
                problems.append(str(answer))
            else:
                addresses += answer
        if len(addresses) > ADDRESSES_MAX:
            problems.append(
                f"exporters.urls stand for {len(addresses)} addresses, of which {ADDRESSES_MAX} are read"
            )
        nodes = {
            url: Node(
                node=str(url.host), address=str(url), at=None,
                problem=f"{url} was not read within {self._deadline_s:g} s of being asked for",
            )
            for url, _ in addresses[:ADDRESSES_MAX]
        }  # fmt: skip
        queue = iter(addresses[:ADDRESSES_MAX])

        async def worker(session: aiohttp.ClientSession) -> None:
            for url, name in queue:
                nodes[url] = await self._node(session, url, name)

        # A session of its own each time: replaced certificates and passwords count from then on.
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONCURRENCY_MAX, ssl=tls),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),  # _node has the one time-out
            headers={"User-Agent": "gpuscale", "Accept-Encoding": "identity", **headers},
            auto_decompress=False,
            trust_env=False,
        ) as session:
            try:
                async with asyncio.timeout(self._deadline_s), asyncio.TaskGroup() as group:
                    for _ in range(min(CONCURRENCY_MAX, len(nodes))):
                        group.create_task(worker(session), name="read exporters")
            except TimeoutError:
                pass
        ordered = sorted(nodes.values(), key=lambda node: (node.node, node.address))
        return GpuMap(configured=True, nodes=tuple(ordered), problems=tuple(problems))

    async def _addresses(self, url: str) -> Sequence[tuple[URL, str]] | SourceError:
        """(an exporter's base address, the name that its certificate must have), for each address of the host."""
        base = URL(url.rstrip("/"))
        host, port = base.host or "", base.port or 80
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                infos = await asyncio.get_running_loop().getaddrinfo(
                    host, port, type=socket.SOCK_STREAM
                )
        except TimeoutError:
            return SourceUnreachable(
                f"{host} of exporters.urls was not resolved in time: check DNS"
            )
        except (OSError, UnicodeError) as error:
            return SourceUnreachable(
                f"{host} of exporters.urls has no address ({foreign(error)}): name the exporter's "
                "headless Service, and check that an exporter runs"
            )
        found = sorted({str(info[4][0]) for info in infos})
        return [(base.with_host(address).with_user(None), host) for address in found]

    async def _node(self, session: aiohttp.ClientSession, url: URL, name: str) -> Node:
        try:
            async with (
                asyncio.timeout(self._settings.timeout_s),
                session.get(
                    url / "api/v1/sample",
                    headers={"Host": f"{name}:{url.port}"},
                    server_hostname=name if url.scheme == "https" else None,
                    allow_redirects=False,
                ) as response,
            ):
                return node_of(await _report(url, response), str(url))
        except SourceError as error:
            problem = str(error)
        except TimeoutError:
            problem = f"{url} did not answer within {self._settings.timeout_s:g} s: {_CURE}"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            problem = f"{url} cannot be read ({foreign(error) or type(error).__name__}): {_CURE}"
        return Node(node=str(url.host), address=str(url), at=None, problem=problem)

    def _credentials(self) -> tuple[Mapping[str, str], ssl.SSLContext | bool]:
        """(headers, TLS) as the files say now. Raises SourceRefused."""
        settings = self._settings
        headers: Mapping[str, str] = {}
        if settings.username is not None and settings.password_file is not None:
            headers = credentials.basic(
                settings.username, settings.password_file, section="exporters"
            )
        if not any(url.startswith("https:") for url in settings.urls):
            return headers, True
        return headers, credentials.client_context(settings, section="exporters")


_CURE = "check that the exporter runs and that a NetworkPolicy lets the controller reach it"


async def _report(url: URL, response: aiohttp.ClientResponse) -> NodeReport:
    """The snapshot in an answer. Raises SourceError."""
    if response.status == 401:
        raise SourceRefused(
            f"{url} asks for a password: set exporters.username and exporters.password_file"
        )
    if response.status == 503:
        raise SourceRefused(f"{url} has not finished a cycle yet, or is asked by too many")
    if response.status != 200:
        raise SourceRefused(
            f"{url} answered {response.status}: exporters.urls are base addresses of gpuscale's exporter"
        )
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > ANSWER_BYTES_MAX:
            raise SourceMalformed(
                f"{url} answered more than {ANSWER_BYTES_MAX} bytes: is it gpuscale's exporter?"
            )
    try:
        return _DECODER.decode(bytes(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SourceMalformed(
            f"{url} did not answer as an exporter of gpuscale does ({foreign(error)}): upgrade both "
            "to the same version"
        ) from error
