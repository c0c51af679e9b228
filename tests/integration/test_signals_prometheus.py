"""Signals read back from a real Prometheus that scrapes fleets of fake vLLM and Triton pods."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from gpuscale.controller.domain import SignalReading, SignalTarget
from gpuscale.controller.signals.prometheus import PrometheusSignal
from gpuscale.errors import SourceMalformed, SourceUnreachable
from gpuscale.settings import PrometheusSettings, Server
from tests import tools
from tests.fakes.inference import Fleet
from tests.fakes.pods import demand_of
from tests.fakes.prometheus import RealPrometheus

pytestmark = [
    pytest.mark.prometheus,
    tools.requires("prometheus"),
    # One server and two fleets for all stories: each would wait for its first scrapes anew.
    pytest.mark.asyncio(loop_scope="module"),
]

WINDOW_S = 5.0
RATE = 30.0
"""Requests per second of each fleet."""


def target(name: str, server: Server, expected: int | None) -> SignalTarget:
    return SignalTarget(
        key=f"ai/{name}",
        namespace="ai",
        name=name,
        server=server,
        selector=f'namespace="ai",pod=~"{name}-.+"',
        endpoints=(),
        pods_expected=expected,
    )


CHAT = target("chat", "vllm", 3)
VISION = target("vision", "triton", 2)


class Scene:
    """A Prometheus, two fleets that it scrapes, and the signal source under test."""

    def __init__(self, directory: Path) -> None:
        self.chat = Fleet(
            "vllm", pods=3, demand=demand_of(f"constant:{RATE}"), service_s=0.2, name="chat"
        )
        # One pod carries 8 / 1.0 = 8 requests/s and gets 15: its queue grows.
        self.vision = Fleet(
            "triton", pods=2, demand=demand_of(f"constant:{RATE}"), service_s=1.0, name="vision"
        )
        self.prometheus = RealPrometheus(directory)
        settings = PrometheusSettings(
            url=self.prometheus.url, rate_window_s=WINDOW_S, timeout_s=3.0, backfill_s=0
        )
        self.signal = PrometheusSignal(settings, tick_s=5.0)

    async def start(self) -> None:
        for fleet in (self.chat, self.vision):
            await fleet.start()
        jobs = {
            fleet.pods[0].name.partition("-")[0]: [
                (pod.name, page) for pod, page in zip(fleet.pods, fleet.addresses, strict=True)
            ]
            for fleet in (self.chat, self.vision)
        }
        # The same pods again by another job, as a ServiceMonitor beside a PodMonitor does.
        jobs["chat-again"] = jobs["chat"]
        self.prometheus.scrape(jobs, namespace="ai")
        await self.prometheus.start()

    async def close(self) -> None:
        await self.signal.close()
        await self.prometheus.stop()
        for fleet in (self.chat, self.vision):
            await fleet.close()

    async def read(self, *targets: SignalTarget) -> Sequence[SignalReading | Exception]:
        outcomes = await self.signal.read(targets, time.time())
        return [outcomes[each.key] for each in targets]

    async def until(
        self,
        target: SignalTarget,
        good: Callable[[SignalReading], bool],
        patience_s: float = 25.0,
    ) -> SignalReading:
        """Read every half second until the reading is `good`."""
        end = time.monotonic() + patience_s
        while True:
            (outcome,) = await self.read(target)
            if isinstance(outcome, SignalReading) and good(outcome):
                return outcome
            assert time.monotonic() < end, outcome
            await asyncio.sleep(0.5)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    scene = Scene(tmp_path_factory.mktemp("prometheus"))
    try:
        await scene.start()
        yield scene
    finally:
        await scene.close()


@pytest.fixture(autouse=True)
def well(scene: Scene) -> None:
    for pod in (*scene.chat.pods, *scene.vision.pods):
        pod.fault = "none"


def settled(reading: SignalReading) -> bool:
    return reading.pods_answered == reading.pods_expected and near(reading.arrivals, RATE, 0.1)


def near(value: float | None, wanted: float, within: float) -> bool:
    return value is not None and abs(value - wanted) <= within * wanted


async def test_demand_of_two_servers_is_read_back_in_one_tick(scene: Scene) -> None:
    """What was sent is what is read: from counters alone, while a queue grows, and with doubled jobs."""
    await scene.until(CHAT, settled)
    await scene.until(VISION, settled)
    chat, vision = await scene.read(CHAT, VISION)
    assert isinstance(chat, SignalReading)
    assert isinstance(vision, SignalReading)
    assert near(chat.arrivals, RATE, 0.15)
    assert (chat.pods_answered, chat.pods_expected, chat.reason) == (3, 3, None)
    assert near(chat.running, RATE * 0.2, 0.5)
    assert chat.waiting == 0
    assert chat.kv_fraction is not None
    assert 0 < chat.kv_fraction < 1
    assert time.time() - chat.at < 3
    # Triton serves 16 of 30 per second: completions alone would show half of the demand.
    assert near(vision.arrivals, RATE, 0.15)
    assert vision.waiting is not None
    assert vision.waiting > 20
    assert vision.running is not None
    assert vision.queue_seconds is not None
    assert vision.queue_seconds > 0


async def test_a_silent_pod_lowers_coverage_and_not_demand(scene: Scene) -> None:
    await scene.until(CHAT, settled)
    scene.chat.pods[1].fault = "error"
    reading = await scene.until(
        CHAT, lambda r: r.pods_answered == 2 and near(r.arrivals, RATE, 0.1)
    )
    assert reading.pods_expected == 3


async def test_a_restarted_engine_and_a_nan_pod_do_not_make_demand(scene: Scene) -> None:
    await scene.until(CHAT, settled)
    await scene.until(VISION, settled)
    scene.vision.pods[0].restart(time.time())
    scene.chat.pods[0].fault = "nan"
    for _ in range(int(WINDOW_S) * 2):
        await asyncio.sleep(0.5)
        for outcome in await scene.read(CHAT, VISION):
            assert isinstance(outcome, SignalReading)
            assert outcome.arrivals is not None
            assert 0 <= outcome.arrivals < RATE * 1.2, outcome


async def test_prometheus_stopped_is_unreachable_by_address_and_recovers(scene: Scene) -> None:
    await scene.until(CHAT, lambda r: r.arrivals is not None)
    await scene.prometheus.stop()
    outcomes = await scene.read(CHAT, VISION)
    assert all(isinstance(outcome, SourceUnreachable) for outcome in outcomes)
    assert scene.prometheus.url in str(outcomes[0])
    assert "prometheus.url" in str(outcomes[0])
    with pytest.raises(SourceUnreachable):
        await scene.signal.history([CHAT], time.time() - 60, time.time(), 1.0)
    await scene.prometheus.start()
    await scene.until(CHAT, settled)


async def test_history_is_a_regular_grid_with_gaps(scene: Scene) -> None:
    await scene.until(CHAT, settled)
    await asyncio.sleep(2)
    end = time.time()
    # Longer than one range query may be: the answer is put together from several.
    start = end - 25_000
    past = await scene.signal.history([CHAT, VISION], start, end, 1.0)
    times, demand = past[CHAT.key]
    assert len(times) == len(demand)
    assert start <= times[0] < start + 1
    assert end - 1 < times[-1] <= end
    assert np.all(np.diff(times) == 1.0)
    assert np.isnan(demand[:-60]).all()
    assert near(float(np.nanmedian(demand[-3:])), RATE, 0.15)


async def test_no_such_series_is_missing_and_a_wrong_server_is_loud(scene: Scene) -> None:
    await scene.until(CHAT, lambda r: r.arrivals is not None)
    ghost, wrong, empty, broken = (
        target("ghost", "vllm", 2),
        target("vision", "vllm", 2),
        target("asleep", "triton", 0),
        SignalTarget(
            key="ai/broken",
            namespace="ai",
            name="broken",
            server="vllm",
            selector='namespace="ai",pod=~"("',
            endpoints=(),
            pods_expected=1,
        ),
    )
    seen, nothing, misnamed, refused, chat = await scene.read(ghost, empty, wrong, broken, CHAT)
    assert isinstance(seen, SignalReading)
    assert seen.arrivals is None
    assert seen.at == -math.inf
    assert "no series matches" in (seen.reason or "")
    assert isinstance(nothing, SignalReading)
    assert nothing.arrivals is None
    assert "no pod is ready" in (nothing.reason or "")
    assert isinstance(misnamed, SourceMalformed)
    assert "vllm:request_success_total" in str(misnamed)
    # One workload's broken selector is its own trouble, though it stood in the same query.
    assert "400" in str(refused)
    assert isinstance(chat, SignalReading)
    assert chat.arrivals is not None
