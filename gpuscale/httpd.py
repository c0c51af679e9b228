"""The HTTP server that both daemons share: /metrics from cached bytes, /healthz, /readyz.

A scrape writes bytes that were rendered when the values were read: it calls nothing, waits for
nothing and costs the same for one scraper or twenty.
"""

import gzip
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import exposition
from prometheus_client.core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from gpuscale.config import split_listen
from gpuscale.errors import ListenError

GZIP_LEVEL = 1
"""Rendered once per collection: most of the size for little of the time."""

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
SHUTDOWN_S = 2.0
"""Open requests get this long at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposition:
    """One rendered set of families in every form a scraper may ask for."""

    text: bytes
    text_gzip: bytes
    openmetrics: bytes
    openmetrics_gzip: bytes


class _Fixed(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = tuple(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def render(
    families: Iterable[Metric], *, extra_text: bytes = b"", extra_openmetrics: bytes = b""
) -> Exposition:
    """Render families by prometheus-client; `extra_*` are whole families in that format, put in front of the end."""
    fixed = _Fixed(families)
    text = exposition.generate_latest(fixed) + extra_text
    body = openmetrics.generate_latest(fixed)  # type: ignore[no-untyped-call]
    end = b"# EOF\n"
    assert body.endswith(end)
    om = body[: -len(end)] + extra_openmetrics + end
    return Exposition(
        text=text,
        text_gzip=gzip.compress(text, GZIP_LEVEL, mtime=0),
        openmetrics=om,
        openmetrics_gzip=gzip.compress(om, GZIP_LEVEL, mtime=0),
    )


def _accepts(header: str, wanted: str) -> bool:
    """Whether an Accept or Accept-Encoding header names `wanted` with a weight above 0 (RFC 9110 §12.4.2)."""
    for part in header.split(","):
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        if name == wanted:
            return not any(re.fullmatch(r"q=0(\.0{0,3})?", p) for p in parameters)
    return False


def metrics_response(request: web.Request, page: Exposition) -> web.Response:
    """The form of `page` that the request's Accept and Accept-Encoding ask for."""
    om = _accepts(request.headers.get("Accept", ""), "application/openmetrics-text")
    zipped = _accepts(request.headers.get("Accept-Encoding", ""), "gzip")
    body = {
        (False, False): page.text,
        (False, True): page.text_gzip,
        (True, False): page.openmetrics,
        (True, True): page.openmetrics_gzip,
    }[om, zipped]
    headers = {
        "Content-Type": OPENMETRICS_TYPE if om else TEXT_TYPE,
        "Vary": "Accept, Accept-Encoding",
    }
    if zipped:
        headers["Content-Encoding"] = "gzip"
    return web.Response(body=body, headers=headers)


def application(
    *, page: Callable[[], Exposition], ready: Callable[[], str | None]
) -> web.Application:
    """An application with /metrics, /healthz and /readyz.

    `page` gives the present exposition; `ready` gives None when ready, else the reason why not.
    /healthz answers as long as the event loop turns, and depends on nothing else: a hung driver or
    an unreachable Prometheus must never get the process killed.
    """

    async def metrics(request: web.Request) -> web.Response:
        return metrics_response(request, page())

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


class HttpServer:
    """An application listening on one address."""

    def __init__(self, runner: web.AppRunner, address: tuple[str, int]) -> None:
        self._runner = runner
        self.address = address

    @classmethod
    async def start(cls, app: web.Application, listen: str) -> "HttpServer":
        """Listen on HOST:PORT. Raises ListenError naming the address and the cure."""
        host, port = split_listen(listen)
        runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=SHUTDOWN_S
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            await runner.cleanup()
            raise ListenError(
                f"cannot listen on {host}:{port} ({error.strerror or error}): "
                "stop what holds the port, or set another address with `listen`"
            ) from error
        bound = runner.addresses[0]
        return cls(runner, (bound[0], bound[1]))

    async def close(self) -> None:
        """Stop listening, let open requests finish within SHUTDOWN_S."""
        await self._runner.cleanup()
