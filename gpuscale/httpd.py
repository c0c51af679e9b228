"""The HTTP server that both daemons share: /metrics from values that were read before, /healthz, /readyz.

A scrape calls nothing and waits for nobody. The first one of a set of values renders it, in the form
asked for; all others of that set write the same bytes.
"""

import asyncio
import functools
import gzip
import os
import re
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Literal

from aiohttp import web
from prometheus_client import exposition
from prometheus_client.core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from gpuscale import log, webconfig
from gpuscale.clock import SystemClock
from gpuscale.config import split_listen
from gpuscale.errors import ConfigError, ListenError
from gpuscale.runtime import every
from gpuscale.settings import WebSettings
from gpuscale.webconfig import WebConfig
from gpuscale.webguard import Guard

GZIP_LEVEL = 1
"""Most of the size for little of the time."""

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
Form = Literal["text", "text_gzip", "openmetrics", "openmetrics_gzip"]
"""Forms of a page, by the names of its properties."""
SHUTDOWN_S = 2.0
"""Open requests get this long at the end."""
SCRAPE_WRITE_S = 10.0
"""A scraper that takes longer to read its page is cut off: Prometheus itself gives up after as long."""
CONNECTIONS_MAX = 512
"""Beyond it the oldest connection is closed: those that never ask for anything must not fill memory."""
HANDSHAKE_S = 10.0
"""Time for a TLS handshake."""
BACKLOG = 128
"""Connections that wait to be accepted; scrapers come a few at a time."""
RELOAD_S = 5.0
"""The web config and the files it names are looked at this often."""

_log = log.get("http")


class _Fixed(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = tuple(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


class Exposition:
    """One set of families in every form a scraper may ask for; each is made when first asked for, and kept.

    Values are read once a second and scraped a few times a minute: most sets are never rendered.
    """

    def __init__(
        self,
        families: Iterable[Metric],
        extra_text: Callable[[], bytes] = bytes,
        extra_openmetrics: Callable[[], bytes] = bytes,
    ) -> None:
        """`extra_*` give whole families in that format, put in front of the end. See `render`."""
        self._families = families
        self._extra_text = extra_text
        self._extra_openmetrics = extra_openmetrics
        self._one_at_a_time = threading.Lock()

    @functools.cached_property
    def _fixed(self) -> _Fixed:
        return _Fixed(self._families)

    @functools.cached_property
    def text(self) -> bytes:
        """The text format, version 0.0.4."""
        return exposition.generate_latest(self._fixed) + self._extra_text()

    @functools.cached_property
    def openmetrics(self) -> bytes:
        """OpenMetrics 1.0.0."""
        body = openmetrics.generate_latest(self._fixed)  # type: ignore[no-untyped-call]
        end = b"# EOF\n"
        assert body.endswith(end)
        return bytes(body[: -len(end)]) + self._extra_openmetrics() + end

    @functools.cached_property
    def text_gzip(self) -> bytes:
        """`text`, compressed."""
        return gzip.compress(self.text, GZIP_LEVEL, mtime=0)

    @functools.cached_property
    def openmetrics_gzip(self) -> bytes:
        """`openmetrics`, compressed."""
        return gzip.compress(self.openmetrics, GZIP_LEVEL, mtime=0)

    async def body(self, form: Form) -> bytes:
        """The bytes of one form; where they must be made, in a thread, once for all who ask."""
        if form in self.__dict__:  # made before
            return bytes(self.__dict__[form])
        return await asyncio.to_thread(self._make, form)

    def _make(self, form: Form) -> bytes:
        with self._one_at_a_time:
            made: bytes = getattr(self, form)
            return made


def render(
    families: Iterable[Metric],
    *,
    extra_text: Callable[[], bytes] = bytes,
    extra_openmetrics: Callable[[], bytes] = bytes,
) -> Exposition:
    """Families to be rendered by prometheus-client; an iterator is gone through when somebody asks."""
    return Exposition(families, extra_text, extra_openmetrics)


def _accepts(header: str, wanted: str) -> bool:
    """Whether an Accept or Accept-Encoding header names `wanted` with a weight above 0 (RFC 9110 §12.4.2)."""
    for part in header.split(","):
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        if name == wanted:
            return not any(re.fullmatch(r"q=0(\.0{0,3})?", p) for p in parameters)
    return False


async def metrics_response(request: web.Request, page: Exposition) -> web.Response:
    """The form of `page` that the request's Accept and Accept-Encoding ask for."""
    om = _accepts(request.headers.get("Accept", ""), "application/openmetrics-text")
    zipped = _accepts(request.headers.get("Accept-Encoding", ""), "gzip")
    forms: dict[tuple[bool, bool], Form] = {
        (False, False): "text",
        (False, True): "text_gzip",
        (True, False): "openmetrics",
        (True, True): "openmetrics_gzip",
    }
    headers = {
        "Content-Type": OPENMETRICS_TYPE if om else TEXT_TYPE,
        "Vary": "Accept, Accept-Encoding",
    }
    if zipped:
        headers["Content-Encoding"] = "gzip"
    return web.Response(body=await page.body(forms[om, zipped]), headers=headers)


def application(
    *,
    page: Callable[[], Exposition],
    ready: Callable[[], str | None],
    scrapes_max: int = WebSettings().max_scrapes_in_flight,
) -> web.Application:
    """An application with /metrics, /healthz and /readyz.

    `page` gives the present exposition; `ready` gives None when ready, else the reason why not.
    /healthz answers as long as the event loop turns, and depends on nothing else: a hung driver or
    an unreachable Prometheus must never get the process killed.
    """
    scrapes = 0

    async def metrics(request: web.Request) -> web.StreamResponse:
        nonlocal scrapes
        if scrapes >= scrapes_max:
            return web.Response(status=503, text=f"{scrapes} scrapes are being answered already\n")
        scrapes += 1
        try:
            response = await metrics_response(request, page())
            await _write(request, response)
        finally:
            scrapes -= 1
        return response

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        reason = ready()
        return (
            web.Response(text="ok\n")
            if reason is None
            else web.Response(status=503, text=reason + "\n")
        )

    app = web.Application(client_max_size=64 * 1024)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    return app


async def _write(request: web.Request, response: web.Response) -> None:
    """Write the whole answer now, or cut off who does not take it."""
    try:
        async with asyncio.timeout(SCRAPE_WRITE_S):
            await response.prepare(request)
            await response.write_eof()
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()


class HttpServer:
    """An application listening on one address, by the web config of the moment."""

    def __init__(self, runner: web.AppRunner, listening: socket.socket, path: str | None) -> None:
        """`listening` is bound; `path` is the web config's, None for plain HTTP. See `start`."""
        self._runner = runner
        self._listening = listening
        self._path = path
        self._guard: Guard | None = None
        self._config: WebConfig | None = None
        self._server: asyncio.Server | None = None
        self._fault: str | None = None
        name = listening.getsockname()
        self.address: tuple[str, int] = (name[0], name[1])

    @classmethod
    async def start(
        cls, app: web.Application, listen: str, config_file: str | None = None
    ) -> "HttpServer":
        """Listen on HOST:PORT. Raises ListenError naming the address and the cure, ConfigError.

        With a `config_file` somebody must run `keep_config`.
        """
        config = None if config_file is None else webconfig.read(config_file)
        guard = None
        if config is not None:
            guard = Guard(config, SystemClock())
            app.middlewares.append(guard.middleware)
            app.on_response_prepare.append(guard.add_headers)
        listening = await _bind(listen)
        runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=SHUTDOWN_S
        )
        await runner.setup()
        server = cls(runner, listening, config_file)
        server._guard = guard
        await server._serve(config)
        return server

    async def reload(self) -> None:
        """Adopt the web config where it or a file it names has changed; a faulty one is logged and not adopted."""
        if self._path is None:
            return
        try:
            config = await asyncio.to_thread(webconfig.read, self._path)
        except ConfigError as error:
            if self._fault != str(error):
                _log.error("web config not adopted, the one of before stays", reason=str(error))
            self._fault = str(error)
            return
        self._fault = None
        assert self._config is not None
        assert self._guard is not None
        if config.content != self._config.content:
            self._guard.adopt(config)
            await self._serve(config)
            _log.info("web config adopted", path=self._path)

    async def _serve(self, config: WebConfig | None) -> None:
        """Accept connections by `config`; those that are open go on as they began.

        Each configuration accepts on a duplicate of the one listening socket, so that nobody who
        connects meanwhile is turned away.
        """
        before, self._config = self._server, config
        context = None if config is None else config.context
        self._server = await asyncio.get_running_loop().create_server(
            self._protocol,
            sock=self._listening.dup(),
            ssl=context,
            ssl_handshake_timeout=None if context is None else HANDSHAKE_S,
        )
        if before is not None:
            before.close()

    def _protocol(self) -> asyncio.Protocol:
        server = self._runner.server
        assert server is not None
        asyncio.get_running_loop().call_soon(self._close_surplus)
        return server()

    def _close_surplus(self) -> None:
        assert self._runner.server is not None
        oldest_first = self._runner.server.connections
        for connection in oldest_first[:-CONNECTIONS_MAX]:
            connection.force_close()

    async def keep_config(self) -> None:
        """Reload for ever, every RELOAD_S; a task for a daemon to own."""
        await every(SystemClock(), RELOAD_S, self.reload)

    async def close(self) -> None:
        """Stop listening, let open requests finish within SHUTDOWN_S."""
        if self._server is not None:
            self._server.close()
        self._listening.close()
        await self._runner.cleanup()


async def _bind(listen: str) -> socket.socket:
    """A listening socket on HOST:PORT. Raises ListenError."""
    host, port = split_listen(listen)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, _, _, _, address = found[0]
        listening = socket.create_server(
            (str(address[0]), port),
            family=family,
            backlog=BACKLOG,
            dualstack_ipv6=family == socket.AF_INET6
            and host == "::"
            and socket.has_dualstack_ipv6(),
        )
    except OSError as error:
        # What Python adds to the system's words is the address, which stands here already.
        why = (
            error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        )
        raise ListenError(
            f"cannot listen on {host}:{port} ({why}): "
            "stop what holds the port, or choose another address (--listen, or `listen` in the settings)"
        ) from error
    listening.setblocking(False)
    return listening
