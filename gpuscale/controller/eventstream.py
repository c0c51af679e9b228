"""Server-sent events: the page is told of each tick as it ends, so that it needs no polling to be live.

An event carries the tick's number and nothing else: what changed is asked of the API, where
caching, paging and authentication are. Follows the HTML standard, §9.2 Server-sent events.
"""

import asyncio

from aiohttp import web

STREAMS_MAX = 256
"""Open streams; beyond it the answer is 503, and the page polls."""
HEARTBEAT_S = 15.0
"""A comment is sent after this long without a tick, so that neither side takes the other for dead."""
RETRY_MS = 2_000
"""A browser that lost the stream comes back after this long."""
WRITE_S = 10.0
"""Who does not take an event within this time is cut off."""


class Ticks:
    """The number of the last tick, for whoever waits for the next one."""

    def __init__(self) -> None:
        self.number = 0
        self.closed = False
        self._next = asyncio.Event()

    def announce(self, number: int) -> None:
        """A tick has ended; numbers grow."""
        self.number = number
        self._wake()

    def close(self) -> None:
        """Nothing more will come: open streams end."""
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        waiting, self._next = self._next, asyncio.Event()
        waiting.set()

    async def after(self, number: int) -> int:
        """The number of a tick later than `number`, as soon as there is one; the same one once closed."""
        while self.number <= number and not self.closed:
            await self._next.wait()
        return self.number


class EventStream:
    """GET /api/v1/events over `ticks`."""

    def __init__(self, ticks: Ticks, *, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._ticks = ticks
        self._heartbeat_s = heartbeat_s
        self.streams = 0

    def attach(self, app: web.Application) -> None:
        """Add the route, and end its streams when the application shuts down."""
        app.router.add_get("/api/v1/events", self._answer)
        app.on_shutdown.append(self._close)

    async def _close(self, _: web.Application) -> None:
        self._ticks.close()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if self.streams >= STREAMS_MAX:
            return web.json_response(
                {"error": f"{self.streams} pages are being told already: poll /api/v1/status"},
                status=503,
            )
        self.streams += 1
        try:
            return await self._stream(request)
        finally:
            self.streams -= 1

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-store",
                # nginx would hold events back until its buffer is full.
                "X-Accel-Buffering": "no",
            }
        )
        await response.prepare(request)
        told = self._ticks.number
        text = f"retry: {RETRY_MS}\nevent: tick\ndata: {told}\n\n"
        while True:
            try:
                async with asyncio.timeout(WRITE_S):
                    await response.write(text.encode())
            except (TimeoutError, ConnectionError):
                if request.transport is not None:
                    request.transport.abort()
                return response
            if self._ticks.closed:
                return response
            try:
                async with asyncio.timeout(self._heartbeat_s):
                    told = await self._ticks.after(told)
            except TimeoutError:
                text = ": still here\n\n"
                continue
            if self._ticks.closed:
                return response
            text = f"event: tick\ndata: {told}\n\n"
