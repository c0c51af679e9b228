"""What the driver does to the exporter: a hang, a loss, an absence, a return. Each costs its own GPU alone."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from gpuscale import runtime
from gpuscale.clock import SystemClock
from gpuscale.errors import DriverError, DriverMissing, DriverRestartRequired
from gpuscale.exporter import sampler
from gpuscale.exporter.daemon import Exporter
from gpuscale.exporter.device import Device
from gpuscale.exporter.sample import DeviceSample, NodeSample, Reading, Sample, Tier
from tests.fakes.exporter import exporting, settings_of, until
from tests.fakes.gpu import FakeDevice, FakeDriver, identity, lost
from tests.fakes.node import values


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """What a hung call waits for; set at the end, so that no thread outlives its test."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture(autouse=True)
def quick_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "BACKOFF_MIN_S", 0.05)
    monkeypatch.setattr(sampler, "BACKOFF_MAX_S", 0.2)


def node(exporter: Exporter) -> NodeSample:
    assert exporter.sample is not None
    return exporter.sample


def gpu(exporter: Exporter, index: int) -> DeviceSample:
    return next(d for d in node(exporter).devices if d.identity.index == index)


def ups(exporter: Exporter) -> list[bool]:
    return [] if exporter.sample is None else [device.up for device in exporter.sample.devices]


def busy_s(exporter: Exporter) -> float:
    """The busy seconds counted of GPU 1."""
    return values(gpu(exporter, 1), "gpuscale_gpu_busy_seconds_total")[0]


async def test_a_hung_gpu_is_named_and_goes_down_alone(release: threading.Event) -> None:
    driver = FakeDriver.of(3)
    with capture_logs() as logs:
        async with exporting(driver) as exporter:
            await until(lambda: ups(exporter) == [True] * 3)
            driver.gpus[1].hang = release
            await until(lambda: ups(exporter) == [True, False, True])
            assert gpu(exporter, 1).reason == "utilization has not returned within 0.3 s"
            assert values(gpu(exporter, 1), "gpuscale_gpu_power_watts") == [350.0]

            await until(lambda: not gpu(exporter, 1).samples)
            before = driver.gpus[0].calls
            assert values(gpu(exporter, 0), "gpuscale_gpu_power_watts") == [350.0]
            assert node(exporter).driver.up
            await until(lambda: driver.gpus[0].calls > before + 20)

            driver.gpus[1].hang = None
            release.set()
            await until(lambda: ups(exporter) == [True] * 3)
            assert values(gpu(exporter, 1), "gpuscale_gpu_power_watts") == [350.0]
    hung = [entry for entry in logs if entry["event"] == "call hangs"]
    assert [(entry["gpu"], entry["call"]) for entry in hung] == [(1, "utilization")]
    assert [e["gpu"] for e in logs if e["event"] == "late call returned"] == [1]


async def test_it_stops_at_once_while_a_call_hangs(release: threading.Event) -> None:
    driver = FakeDriver.of(2)
    async with exporting(driver) as exporter:
        await until(lambda: ups(exporter) == [True, True])
        driver.gpus[0].hang = release
        await until(lambda: ups(exporter) == [False, True])
    assert driver.closed == 0, "a driver in which a call hangs is left to the end of the process"


async def test_it_closes_the_driver_when_it_stops() -> None:
    driver = FakeDriver.of(2)
    async with exporting(driver) as exporter:
        await until(lambda: ups(exporter) == [True, True])
    assert driver.closed == 1


async def test_a_lost_gpu_is_down_without_values_and_back_with_its_counters() -> None:
    driver = FakeDriver.of(2)
    async with exporting(driver) as exporter:
        await until(lambda: ups(exporter) == [True, True])
        await until(lambda: busy_s(exporter) > 0.2)
        counted = busy_s(exporter)
        driver.gpus[1].fails = lost(1)
        await until(lambda: ups(exporter) == [True, False])
        assert gpu(exporter, 1).reason == "GPU 1: GPU is lost"
        assert not gpu(exporter, 1).samples
        await until(lambda: driver.opened >= 3)
        assert ups(exporter) == [True, False], "looking for it does not hide that it is lost"

        driver.gpus[1].fails = None
        await until(lambda: ups(exporter) == [True, True])
        await until(lambda: bool(gpu(exporter, 1).samples))
        assert busy_s(exporter) >= counted


async def test_looking_for_a_lost_gpu_neither_waits_for_a_hung_one_nor_stops_the_rest(
    release: threading.Event,
) -> None:
    driver = FakeDriver.of(3)
    async with exporting(driver) as exporter:
        await until(lambda: ups(exporter) == [True] * 3)
        driver.gpus[1].hang = release
        await until(lambda: ups(exporter) == [True, False, True])
        driver.gpus[2].fails = lost(2)
        await until(lambda: ups(exporter) == [True, False, False])
        await until(lambda: not gpu(exporter, 1).samples)
        before = driver.gpus[0].calls
        await until(lambda: driver.gpus[0].calls > before + 100)
        assert driver.closed == 0

        driver.gpus[1].hang = driver.gpus[2].fails = None
        release.set()
        await until(lambda: ups(exporter) == [True] * 3)
        assert driver.closed > 0, "now that no call hangs, a new session is opened for the lost one"


async def test_a_gpu_that_the_driver_counts_and_cannot_open_is_down() -> None:
    driver = FakeDriver.of(2)
    async with exporting(driver) as exporter:
        await until(lambda: ups(exporter) == [True, True])
        gone = driver.gpus.pop()
        driver.unopened = ((1, "GPU is lost"),)
        await until(lambda: ups(exporter) == [True, False])
        assert gpu(exporter, 1).identity == gone.identity
        assert gpu(exporter, 1).reason == "GPU is lost"


async def test_a_gpu_that_could_never_be_opened_is_down_under_its_number() -> None:
    driver = FakeDriver.of(1)
    driver.unopened = ((1, "insufficient external power"),)
    async with exporting(driver) as exporter:
        await until(lambda: ups(exporter) == [True, False])
        assert gpu(exporter, 1).identity.uuid == ""


async def test_a_gpu_that_is_taken_out_takes_its_series_along() -> None:
    driver = FakeDriver.of(2)
    async with exporting(driver) as exporter:
        await until(lambda: ups(exporter) == [True, True])
        driver.gpus.pop()
        await until(lambda: ups(exporter) == [True])


async def test_a_gpu_that_is_put_in_later_is_seen() -> None:
    driver = FakeDriver.of(1)
    async with exporting(driver) as exporter:
        await until(lambda: ups(exporter) == [True])
        driver.gpus.append(FakeDevice(identity(1)))
        await until(lambda: ups(exporter) == [True, True])


async def test_a_driver_that_is_installed_later_is_opened() -> None:
    driver = FakeDriver.of(1)
    driver.open_fails = DriverMissing("no libnvidia-ml.so.1: install the driver")
    async with exporting(driver) as exporter:
        await until(lambda: exporter.sample is not None)
        assert not node(exporter).driver.up
        assert node(exporter).driver.reason == "no libnvidia-ml.so.1: install the driver"
        assert not node(exporter).devices
        await until(lambda: driver.opened >= sampler.FAILED_OPENS_MAX + 2)
        driver.open_fails = None
        await until(lambda: ups(exporter) == [True])
        assert node(exporter).driver.up


async def test_a_driver_that_is_unloaded_takes_every_gpu_along_until_it_is_back() -> None:
    driver = FakeDriver.of(2)
    async with exporting(driver) as exporter:
        await until(lambda: ups(exporter) == [True, True])
        driver.devices_fail = DriverMissing("driver not loaded", code=9)
        await until(lambda: not node(exporter).driver.up)
        await until(lambda: not node(exporter).devices)
        driver.devices_fail = None
        await until(lambda: ups(exporter) == [True, True])


async def test_promise_29_a_driver_that_is_released_is_closed_until_it_is_wanted_back() -> None:
    driver = FakeDriver.of(2)
    async with exporting(driver) as exporter:
        await until(lambda: ups(exporter) == [True, True])
        counted = busy_s(exporter)
        exporter.release_driver()
        await until(lambda: driver.closed == 1 and ups(exporter) == [])
        state = node(exporter).driver
        assert (state.up, state.reason) == (False, sampler.RELEASED)
        opened, reads = driver.opened, driver.gpus[0].calls
        await asyncio.sleep(0.5)
        assert (driver.opened, driver.gpus[0].calls) == (opened, reads), "nothing touches it"
        exporter.take_driver()
        await until(lambda: ups(exporter) == [True, True])
        await until(lambda: bool(gpu(exporter, 1).samples))
        assert busy_s(exporter) >= counted


async def test_promise_29_a_driver_is_released_as_soon_as_a_call_that_hangs_has_returned(
    release: threading.Event,
) -> None:
    driver = FakeDriver.of(2)
    async with exporting(driver) as exporter:
        await until(lambda: ups(exporter) == [True, True])
        driver.gpus[0].hang = release
        await until(lambda: ups(exporter) == [False, True])
        exporter.release_driver()
        await until(lambda: "has not returned" in (node(exporter).driver.reason or ""))
        assert driver.closed == 0, "it would be closed under a call"
        driver.gpus[0].hang = None
        release.set()
        await until(lambda: driver.closed == 1)
        await until(lambda: node(exporter).driver.reason == sampler.RELEASED)


async def test_a_driver_that_does_not_open_is_named(release: threading.Event) -> None:
    driver = FakeDriver.of(1)
    driver.hang = release
    async with exporting(driver) as exporter:
        await until(lambda: exporter.sample is not None)
        assert node(exporter).driver.reason == "opening the driver has not returned within 0.3 s"


async def test_one_failing_gpu_is_down_and_the_rest_go_on() -> None:
    driver = FakeDriver.of(2)
    async with exporting(driver) as exporter:
        await until(lambda: ups(exporter) == [True, True])
        driver.gpus[0].fails = DriverError("Unknown Error", code=999)
        await until(lambda: ups(exporter) == [False, True])
        await until(lambda: not gpu(exporter, 0).samples)
        errors = {stats.name: dict(stats.errors) for stats in node(exporter).collectors}
        assert errors["power"]["driver_error_999"] > sampler.FAILED_ROUNDS_MAX
        assert driver.opened == 1


async def ended_with(driver: FakeDriver, then: Exception | None = None) -> str:
    """The reason for which the exporter ends; every GPU fails with `then` after a healthy start."""

    async def story() -> None:
        async with exporting(driver) as exporter:
            if then is not None:
                await until(lambda: bool(ups(exporter)) and all(ups(exporter)))
            for device in driver.gpus:
                device.fails = then
            await until(lambda: False, within_s=10)

    with pytest.raises(BaseExceptionGroup) as caught:
        await story()
    ended = runtime.first(caught.value)
    assert isinstance(ended, DriverRestartRequired)
    return str(ended)


async def test_what_only_a_restart_cures_ends_the_exporter() -> None:
    error = DriverRestartRequired("library and kernel module differ: restart", code=18)
    assert "kernel module differ" in await ended_with(FakeDriver.of(2), error)


async def test_when_everything_fails_for_long_the_exporter_ends() -> None:
    reason = await ended_with(FakeDriver.of(2), DriverError("Unknown Error", code=999))
    assert "every NVML read of every GPU has failed 10 times" in reason
    assert "Unknown Error" in reason


async def test_a_driver_that_cannot_be_opened_for_long_ends_the_exporter() -> None:
    driver = FakeDriver.of(1)
    driver.open_fails = DriverError("Unknown Error", code=999)
    assert "could not be opened 6 times in a row (Unknown Error)" in await ended_with(driver)
    assert driver.opened == sampler.FAILED_OPENS_MAX


async def test_a_programming_error_in_a_thread_is_not_swallowed() -> None:
    driver = FakeDriver.of(1)
    driver.gpus[0].fails = ZeroDivisionError("a bug")

    async def story() -> None:
        async with exporting(driver):
            await until(lambda: False, within_s=10)

    with pytest.raises(BaseExceptionGroup) as caught:
        await story()
    assert caught.group_contains(ZeroDivisionError)


async def test_slow_values_are_not_stale_between_their_readings() -> None:
    periods = {"fast_s": 0.05, "medium_s": 0.05, "slow_s": 1.5}
    driver = FakeDriver.of(1)
    async with exporting(driver, settings_of(periods=periods, stale_after_s=0.2)) as exporter:
        await until(lambda: exporter.sample is not None and exporter.sample.cycles > 15)
        assert values(gpu(exporter, 0), "gpuscale_gpu_power_limit_watts") == [700.0]


async def test_a_value_that_fails_beside_good_ones_is_counted() -> None:
    """A collector that read something is not failing, and what it could not read is still told."""
    driver = FakeDriver.of(1)

    class Partly:
        name = "partly"
        tier = Tier.FAST
        families = ("gpuscale_gpu_power_watts",)

        def read(self, device: Device, state: dict[str, float], elapsed_s: float | None) -> Reading:
            return Reading(
                samples=(Sample(family="gpuscale_gpu_power_watts", value=1.0),),
                errors=(DriverError("not permitted", code=4),),
            )

    reading = sampler.Sampler(driver, (Partly(),), settings=settings_of(), clock=SystemClock())
    reading.start()
    try:
        await until(lambda: bool((seen := reading.observe()) and seen.collectors()[0].errors))
        observed = reading.observe()
        assert observed is not None
        assert observed.devices[0].sample().up
        assert observed.devices[0].sample().samples
    finally:
        reading.stop(1.0)
