"""Pods' pages read directly: fleets that behave, and pages made to hurt whoever reads them."""

import asyncio
import gzip
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache

import pytest
from aiohttp import web

from gpuscale.clock import SystemClock
from gpuscale.controller.domain import SignalReading, SignalTarget
from gpuscale.controller.signals.scrape import ScrapeSignal
from gpuscale.errors import SourceError, SourceMalformed, SourceRefused, SourceUnreachable
from gpuscale.settings import ScrapeSettings
from tests.fakes.inference import Fleet
from tests.fakes.pods import Kind, demand_of
from tests.fakes.prometheus import free_port

TIMEOUT_S = 1.0
BYTES_MAX = 256 * 1024


class ShiftedClock(SystemClock):
    """The system's clock, put forward by a test instead of waiting."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def wall(self) -> float:
        return super().wall() + self.ahead_s


class Scene:
    """A scraper with limits that a test can reach, and time that can be put forward."""

    def __init__(self) -> None:
        self.clock = ShiftedClock()
        self.settings = ScrapeSettings(timeout_s=TIMEOUT_S, bytes_max=BYTES_MAX, concurrency_max=8)
        self.signal = ScrapeSignal(self.settings, self.clock)

    async def read(self, *targets: SignalTarget) -> list[SignalReading | Exception]:
        outcomes = await self.signal.read(targets, self.clock.wall())
        return [outcomes[target.key] for target in targets]

    async def reading(self, target: SignalTarget) -> SignalReading:
        (outcome,) = await self.read(target)
        assert isinstance(outcome, SignalReading), outcome
        return outcome


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    scene = Scene()
    yield scene
    await scene.signal.close()


@asynccontextmanager
async def fleet(scene: Scene, kind: Kind = "vllm", pods: int = 3) -> AsyncIterator[Fleet]:
    fleet = Fleet(
        kind, pods=pods, demand=demand_of("constant:30"), service_s=0.2, clock=scene.clock.wall
    )
    await fleet.start()
    try:
        yield fleet
    finally:
        await fleet.close()


def target(
    *endpoints: str, expected: int | None = None, key: str = "ai/chat", server: Kind = "vllm"
) -> SignalTarget:
    namespace, _, name = key.partition("/")
    return SignalTarget(
        key=key,
        namespace=namespace,
        name=name,
        server=server,
        selector="",
        endpoints=endpoints,
        pods_expected=expected,
    )


@pytest.mark.parametrize("kind", ["vllm", "triton"])
async def test_demand_is_read_from_the_pods_themselves(scene: Scene, kind: Kind) -> None:
    async with fleet(scene, kind) as pods:
        all_pods = target(*pods.addresses, expected=3, server=kind)
        assert (await scene.reading(all_pods)).arrivals is None
        scene.clock.ahead_s += 15
        reading = await scene.reading(all_pods)
        assert reading.arrivals == pytest.approx(30, rel=0.1)
        assert (reading.pods_answered, reading.pods_expected, reading.reason) == (3, 3, None)
        assert reading.running is not None
        assert reading.running == pytest.approx(30 * 0.2, rel=0.5)
        assert scene.clock.wall() - reading.at < 5


async def test_a_silent_pod_lowers_coverage_and_not_demand(scene: Scene) -> None:
    async with fleet(scene) as pods:
        all_pods = target(*pods.addresses, expected=3)
        await scene.read(all_pods)
        for fault, said in (
            ("error", "answered 500"),
            ("hang", "did not answer within"),
            ("empty", "shows none of vllm's metrics"),
        ):
            pods.pods[1].fault = fault  # type: ignore[assignment]
            scene.clock.ahead_s += 15
            reading = await scene.reading(all_pods)
            assert reading.arrivals == pytest.approx(30, rel=0.1)
            assert (reading.pods_answered, reading.pods_expected) == (2, 3)
            assert reading.reason is not None
            assert said in reading.reason
            assert pods.addresses[1] in reading.reason


async def test_a_restarted_pod_makes_no_burst(scene: Scene) -> None:
    async with fleet(scene) as pods:
        all_pods = target(*pods.addresses, expected=3)
        await scene.read(all_pods)
        scene.clock.ahead_s += 15
        await scene.read(all_pods)
        pods.pods[0].restart(scene.clock.wall())
        scene.clock.ahead_s += 15
        assert (await scene.reading(all_pods)).arrivals == pytest.approx(30, rel=0.1)


async def test_no_pod_is_no_error_at_zero_replicas_and_one_where_none_is_known(
    scene: Scene,
) -> None:
    asleep, unknown = target(expected=0), target(key="ai/unknown")
    zero, nobody = await scene.read(asleep, unknown)
    assert isinstance(zero, SignalReading)
    assert zero.arrivals is None
    assert (zero.pods_answered, zero.pods_expected) == (0, 0)
    assert "no pod is ready" in (zero.reason or "")
    assert isinstance(nobody, SourceUnreachable)
    assert "endpoints" in str(nobody)


async def test_when_every_pod_fails_the_error_names_one_and_the_cure(scene: Scene) -> None:
    gone = f"http://127.0.0.1:{free_port()}/metrics"
    outcomes = await scene.read(
        target(gone, expected=1), target("http://[::1", expected=1, key="ai/typo")
    )
    assert isinstance(outcomes[0], SourceUnreachable)
    assert gone in str(outcomes[0])
    assert "NetworkPolicy" in str(outcomes[0])
    assert isinstance(outcomes[1], SourceError)


# ---------------------------------------------------------------- hostile pages

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
LARGE_BYTES = 8 * 2**20
GZIP = {"Content-Encoding": "gzip"}
WANTED = b"vllm:num_requests_running 1\nvllm:request_success_total 5\n"


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"x" * 65536)


async def drip(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"x")
        await asyncio.sleep(0.05)


@cache
def large(kind: str) -> bytes:
    """Made before it is served: pods and scraper share one loop here, and must not wait for it."""
    if kind == "bomb":
        return gzip.compress(b"\0" * 64 * 2**20, 1)
    if kind == "line ends":
        return b"\n" * LARGE_BYTES
    return b"".join(b'vllm:num_requests_running{i="%d"} 1\n' % i for i in range(1_000_000))


async def bomb(request: web.Request) -> web.StreamResponse:
    return web.Response(body=large("bomb"), headers=GZIP)


async def broken_gzip(request: web.Request) -> web.StreamResponse:
    return web.Response(body=gzip.compress(WANTED * 100)[:-20], headers=GZIP)


async def no_gzip(request: web.Request) -> web.StreamResponse:
    return web.Response(body=WANTED, headers=GZIP)


async def brotli(request: web.Request) -> web.StreamResponse:
    return web.Response(body=WANTED, headers={"Content-Encoding": "br"})


async def many_series(request: web.Request) -> web.StreamResponse:
    return web.Response(body=large("series"))


async def many_small_series(request: web.Request) -> web.StreamResponse:
    lines = (b'vllm:num_requests_waiting{a="%x"} 1\n' % i for i in range(6_500))
    return web.Response(body=b"".join(lines) + WANTED * 4)


async def line_ends(request: web.Request) -> web.StreamResponse:
    return web.Response(body=large("line ends"))


async def garbage(request: web.Request) -> web.StreamResponse:
    return web.Response(body=bytes(range(256)) * 500)


async def one_line(request: web.Request) -> web.StreamResponse:
    return web.Response(body=b'vllm:num_requests_running{a="' + b'\\"' * 100_000)


async def redirect(request: web.Request) -> web.StreamResponse:
    return web.Response(status=302, headers={"Location": "http://169.254.169.254/"})


async def headers(request: web.Request) -> web.StreamResponse:
    return web.Response(body=WANTED, headers={f"X-{i}": "x" * 8000 for i in range(200)})


HOSTILE: dict[str, tuple[Handler, type[SourceError]]] = {
    "endless": (endless, SourceMalformed),
    "drip": (drip, SourceUnreachable),
    "bomb": (bomb, SourceMalformed),
    "broken gzip": (broken_gzip, SourceMalformed),
    "no gzip": (no_gzip, SourceMalformed),
    "brotli": (brotli, SourceMalformed),
    "a million series": (many_series, SourceMalformed),
    "garbage": (garbage, SourceMalformed),
    "one endless line": (one_line, SourceMalformed),
    "redirect": (redirect, SourceRefused),
    "headers": (headers, SourceUnreachable),
}


@asynccontextmanager
async def page(handler: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/metrics", handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/metrics"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("kind", HOSTILE)
async def test_a_hostile_page_silences_its_own_pod_only(scene: Scene, kind: str) -> None:
    handler, wanted = HOSTILE[kind]
    for each in ("bomb", "series"):
        large(each)
    async with fleet(scene, pods=1) as pods, page(handler) as address:
        both = target(pods.addresses[0], address, expected=2)
        alone = target(address, expected=1, key="ai/alone")
        await scene.read(both)
        scene.clock.ahead_s += 15
        began = time.monotonic()
        reading, error = await scene.read(both, alone)
        assert time.monotonic() - began < TIMEOUT_S + 1.5
        assert isinstance(reading, SignalReading)
        assert reading.arrivals == pytest.approx(60, rel=0.1)
        assert (reading.pods_answered, reading.pods_expected) == (1, 2)
        assert type(error) is wanted, error
        assert address in str(error)


HEAVY: dict[str, Handler] = {
    "line ends": line_ends,
    "a million series": many_series,
    "bomb": bomb,
}


@pytest.mark.parametrize("kind", HEAVY)
async def test_a_page_as_large_as_allowed_keeps_nobody_from_the_event_loop(kind: str) -> None:
    """KEDA's calls and the probes are answered on it. Two seconds, where it was split at once."""
    for each in ("line ends", "bomb", "series"):
        large(each)
    settings = ScrapeSettings(timeout_s=20.0, bytes_max=LARGE_BYTES)
    signal = ScrapeSignal(settings, SystemClock(), deadline_s=30.0)
    lags: list[float] = []

    async def watch() -> None:
        while True:
            begun = time.monotonic()
            await asyncio.sleep(0.005)
            lags.append(time.monotonic() - begun)

    async with page(HEAVY[kind]) as address:
        watching = asyncio.ensure_future(watch())
        (outcome,) = (await signal.read([target(address)], time.time())).values()
        watching.cancel()
    await signal.close()

    assert isinstance(outcome, SourceMalformed)
    assert max(lags) < 0.5


async def test_a_page_within_the_limits_is_read_as_gzip_too(scene: Scene) -> None:
    async def zipped(request: web.Request) -> web.StreamResponse:
        return web.Response(body=gzip.compress(WANTED), headers=GZIP)

    async with page(zipped) as address, page(many_small_series) as many:
        assert (await scene.reading(target(address, expected=1))).running == 1
        assert (await scene.reading(target(many, expected=1))).waiting == 6_500


async def test_a_fleet_that_hangs_costs_one_deadline_and_starves_nobody(scene: Scene) -> None:
    """Forty pods that hang, read eight at a time, take five time-outs: two fit into a tick here."""

    async def hang(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(3600)
        return web.Response()

    quick = ScrapeSettings(timeout_s=0.5, concurrency_max=8)
    scene.signal = ScrapeSignal(quick, scene.clock, deadline_s=1.0)
    async with fleet(scene, pods=2) as pods, page(hang) as stuck:
        dead = target(*(f"{stuck}?pod={i}" for i in range(40)), expected=40, key="ai/dead")
        alive = target(*pods.addresses, expected=2)
        answers = []
        for _ in range(5):
            scene.clock.ahead_s += 15
            began = time.monotonic()
            silent, answered = await scene.read(dead, alive)
            assert time.monotonic() - began < 2.5
            assert isinstance(silent, SourceUnreachable)
            answers.append(answered.pods_answered if isinstance(answered, SignalReading) else 0)
        # Whoever waits in vain comes before those that hung, and whoever answered comes first.
        assert answers[-2:] == [2, 2]


async def test_what_is_remembered_goes_with_the_workload(scene: Scene) -> None:
    async with fleet(scene) as pods:
        all_pods = target(*pods.addresses, expected=3)
        await scene.read(all_pods)
        await scene.read()
        scene.clock.ahead_s += 15
        assert (await scene.reading(all_pods)).arrivals is None
        assert dict(await scene.signal.history([all_pods], 0, 100, 1)) == {}
