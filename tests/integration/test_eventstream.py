"""The stream of ticks over real HTTP: who listens is told at once, and nobody is kept at the end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

from gpuscale.controller import eventstream
from gpuscale.controller.eventstream import EventStream, Ticks
from gpuscale.httpd import HttpServer

WAIT_S = 5.0


@asynccontextmanager
async def serving(
    ticks: Ticks, *, heartbeat_s: float = 60.0
) -> AsyncIterator[tuple[str, EventStream]]:
    app = web.Application()
    stream = EventStream(ticks, heartbeat_s=heartbeat_s)
    stream.attach(app)
    server = await HttpServer.start(app, "127.0.0.1:0")
    try:
        yield "http://{}:{}/api/v1/events".format(*server.address), stream
    finally:
        async with asyncio.timeout(WAIT_S):
            await server.close()


async def event(response: aiohttp.ClientResponse) -> list[str]:
    """The lines of the next event or comment."""
    lines: list[str] = []
    async with asyncio.timeout(WAIT_S):
        while line := (await response.content.readline()).decode().rstrip("\n"):
            lines.append(line)
    return lines


async def test_a_page_is_told_the_present_tick_and_each_one_after_it() -> None:
    ticks = Ticks()
    ticks.announce(7)
    async with (
        serving(ticks) as (url, _),
        aiohttp.ClientSession() as session,
        session.get(url) as response,
    ):
        assert response.content_type == "text/event-stream"
        assert await event(response) == ["retry: 2000", "event: tick", "data: 7"]
        ticks.announce(8)
        assert await event(response) == ["event: tick", "data: 8"]


async def test_a_quiet_stream_shows_that_it_lives() -> None:
    async with (
        serving(Ticks(), heartbeat_s=0.02) as (url, _),
        aiohttp.ClientSession() as session,
        session.get(url) as response,
    ):
        await event(response)
        assert await event(response) == [": still here"]


async def test_open_streams_do_not_hold_up_the_end() -> None:
    ticks = Ticks()
    async with aiohttp.ClientSession() as session, serving(ticks) as (url, _):
        responses = [await session.get(url) for _ in range(5)]
        for response in responses:
            await event(response)
    loop = asyncio.get_running_loop()
    began = loop.time()
    for response in responses:
        assert await response.content.read() == b""
    assert loop.time() - began < 1.0


async def test_too_many_pages_are_sent_to_polling() -> None:
    ticks = Ticks()
    async with serving(ticks) as (url, stream), aiohttp.ClientSession() as session:
        stream.streams = eventstream.STREAMS_MAX
        async with session.get(url) as response:
            assert response.status == 503
            assert "poll /api/v1/status" in (await response.json())["error"]


async def test_a_page_that_goes_away_is_forgotten() -> None:
    ticks = Ticks()
    async with serving(ticks, heartbeat_s=0.02) as (url, stream):
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            await event(response)
            assert stream.streams == 1
        async with asyncio.timeout(WAIT_S):
            while stream.streams:
                await asyncio.sleep(0.01)


async def test_a_tick_between_two_waits_is_not_missed() -> None:
    ticks = Ticks()
    ticks.announce(3)
    async with asyncio.timeout(WAIT_S):
        assert await ticks.after(2) == 3
        waiting = asyncio.create_task(ticks.after(3))
        await asyncio.sleep(0)
        ticks.announce(4)
        assert await waiting == 4
