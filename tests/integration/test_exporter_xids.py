"""Errors that the driver announces: counted per code, never sticky, never lost by an interruption of the session."""

import pytest

from gpuscale.errors import DriverError
from gpuscale.exporter import xids
from gpuscale.exporter.daemon import Exporter
from gpuscale.exporter.device import XidEvent
from tests.fakes.exporter import exporting, until
from tests.fakes.gpu import FakeDriver, identity, lost

UUID = identity(0).uuid


def counted(exporter: Exporter, index: int = 0) -> dict[str, float]:
    """Count by code."""
    if exporter.sample is None:
        return {}
    return {
        dict(sample.labels)["xid"]: sample.value
        for sample in exporter.sample.devices[index].samples
        if sample.family == xids.COUNT
    }


async def test_the_same_xid_again_is_counted_again_and_each_code_for_itself() -> None:
    driver = FakeDriver.of(2)
    async with exporting(driver) as exporter:
        for xid in (31, 31, 94, 31):
            driver.xids.put(XidEvent(uuid=UUID, xid=xid))
        await until(lambda: counted(exporter) == {"31": 3.0, "94": 1.0})
        assert counted(exporter, 1) == {}
        sample = exporter.sample
        assert sample is not None
        times = [s.value for s in sample.devices[0].samples if s.family == xids.LAST]
        assert len(times) == 2
        assert all(abs(sample.at - at) < 10 for at in times)


async def test_before_the_first_xid_there_is_no_series() -> None:
    async with exporting(FakeDriver.of(1)) as exporter:
        await until(lambda: exporter.sample is not None)
        assert counted(exporter) == {}


async def test_a_gpu_that_fell_off_the_bus_still_shows_the_xid_that_said_so() -> None:
    driver = FakeDriver.of(2)
    async with exporting(driver) as exporter:
        await until(lambda: exporter.sample is not None)
        driver.xids.put(XidEvent(uuid=UUID, xid=79))
        await until(lambda: counted(exporter) == {"79": 1.0})
        driver.gpus[0].fails = lost(0)
        driver.unopened = ((0, "GPU 0 is lost"),)
        gone = driver.gpus.pop(0)
        await until(lambda: exporter.sample is not None and not exporter.sample.devices[0].up)
        assert counted(exporter) == {"79": 1.0}
        gone.fails, driver.unopened = None, ()
        driver.gpus.insert(0, gone)


async def test_after_an_interruption_errors_are_listened_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(xids, "RETRY_S", 0.01)
    driver = FakeDriver.of(1)
    async with exporting(driver) as exporter:
        driver.xids.put(DriverError("NVML: nvmlEventSetWait_v2 answered unknown", code=999))
        driver.xids.put(XidEvent(uuid=UUID, xid=48))
        await until(lambda: counted(exporter) == {"48": 1.0})


async def test_a_gpu_that_names_ever_new_codes_makes_no_more_series_than_the_limit() -> None:
    driver = FakeDriver.of(1)
    async with exporting(driver) as exporter:
        for xid in range(1, 2 * xids.CODES_MAX + 1):
            driver.xids.put(XidEvent(uuid=UUID, xid=xid))
        await until(lambda: counted(exporter).get(xids.OTHER) == xids.CODES_MAX)
        assert len(counted(exporter)) == xids.CODES_MAX + 1


async def test_an_event_without_a_gpu_is_the_only_gpus_or_nobodys() -> None:
    driver = FakeDriver.of(1)
    async with exporting(driver) as exporter:
        driver.xids.put(XidEvent(uuid="", xid=62))
        await until(lambda: counted(exporter) == {"62": 1.0})
