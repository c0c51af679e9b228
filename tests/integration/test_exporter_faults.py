"""A fault of each class of the driver's functions: the page answers all the same, and the other GPU is read on.

On the real pynvml over the C library: a call of GPU 0 that hangs, then one that answers Unknown
Error. Meanwhile the page is scraped over HTTP, GPU 1 misses no two periods, and when the fault ends
both are well again without anybody's doing.
"""

import asyncio
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import aiohttp
import pytest

from gpuscale.exporter.daemon import Exporter
from gpuscale.exporter.nvml import NvmlDriver
from tests.fakes.exporter import exporting, settings_of, until
from tests.fakes.nvml_library import EVERY, LIBRARY_MARKS, STATE_VARIABLE, FakeNvml, preload

pytestmark = LIBRARY_MARKS

PERIOD_S = 0.2
FAULT_S = 1.0
"""Five periods, and three times the deadline of a call."""
UNKNOWN = 999
USUAL_S_MAX = 0.05
"""Half of all scrapes: ten times the budget, for machines on which other tests run."""
WORST_S_MAX = 0.5
"""Not one waits for the fault."""

FUNCTIONS = {
    "utilization": "nvmlDeviceGetSamples",
    "memory": "nvmlDeviceGetMemoryInfo_v2",
    "power": "nvmlDeviceGetPowerUsage",
    "energy": "nvmlDeviceGetTotalEnergyConsumption",
    "temperature": "nvmlDeviceGetTemperature",
    "clocks": "nvmlDeviceGetClockInfo",
    "throttling": "nvmlDeviceGetCurrentClocksEventReasons",
    "pcie": "nvmlDeviceGetPcieReplayCounter",
    "nvlink, pcie bytes, ecc": "nvmlDeviceGetFieldValues",
    "ecc mode": "nvmlDeviceGetEccMode",
    "row remapping": "nvmlDeviceGetRemappedRows",
    "encoders": "nvmlDeviceGetEncoderUtilization",
    "fans": "nvmlDeviceGetNumFans",
    "mig": "nvmlDeviceGetMigMode",
    "hardware counters": "nvmlGpmSampleGet",
}
"""One function of each class of values that is read of a GPU."""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNvml]:
    preload()
    machine = FakeNvml(tmp_path / "nvml.state", count=2)
    monkeypatch.setenv(STATE_VARIABLE, str(machine.state))
    yield machine
    machine.heal()


def ups(exporter: Exporter) -> list[bool]:
    return [] if exporter.sample is None else [device.up for device in exporter.sample.devices]


async def endure(exporter: Exporter, seconds: float) -> tuple[list[float], list[float]]:
    """Seconds that each scrape took, and wall times at which GPU 1 was read, over some time."""
    took: list[float] = []
    reads: list[float] = []
    host, port = exporter.address
    until_s = time.monotonic() + seconds
    async with aiohttp.ClientSession() as http:
        while time.monotonic() < until_s:
            begun = time.monotonic()
            async with http.get(f"http://{host}:{port}/metrics") as response:
                assert response.status == 200
                await response.read()
            took.append(time.monotonic() - begun)
            assert exporter.sample is not None
            at = exporter.sample.devices[1].read_at
            assert at is not None
            if not reads or at != reads[-1]:
                reads.append(at)
            await asyncio.sleep(PERIOD_S / 10)
    return took, reads


def assert_unmoved(took: list[float], reads: list[float]) -> None:
    assert median(took) <= USUAL_S_MAX, f"scrapes took {took}"
    assert max(took) <= WORST_S_MAX, f"a scrape waited for the fault: {took}"
    gaps = [later - earlier for earlier, later in itertools.pairwise(reads)]
    assert len(reads) >= 2, "GPU 1 is not read any more"
    assert max(gaps) < 3 * PERIOD_S, f"GPU 1 missed two periods: {gaps}"


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
async def test_a_fault_of_one_gpu_delays_no_scrape_and_no_other_gpu_and_passes(
    machine: FakeNvml, function: str
) -> None:
    periods = {"fast_s": PERIOD_S, "medium_s": PERIOD_S, "slow_s": PERIOD_S}
    async with exporting(NvmlDriver(), settings_of(periods=periods)) as exporter:
        await until(lambda: ups(exporter) == [True, True])
        machine.fail(function, device=0, hang=True)
        await until(lambda: ups(exporter) == [False, True])
        assert_unmoved(*await endure(exporter, FAULT_S))
        assert ups(exporter) == [False, True]
        machine.heal()
        await until(lambda: ups(exporter) == [True, True])
        machine.fail(function, UNKNOWN, device=0)
        assert_unmoved(*await endure(exporter, FAULT_S))
        machine.heal()
        await until(lambda: ups(exporter) == [True, True])


async def test_events_that_hang_or_fail_cost_no_gpu_a_reading(machine: FakeNvml) -> None:
    periods = {"fast_s": PERIOD_S, "medium_s": PERIOD_S, "slow_s": PERIOD_S}
    async with exporting(NvmlDriver(), settings_of(periods=periods)) as exporter:
        await until(lambda: ups(exporter) == [True, True])
        for fault in ({"hang": True}, {"code": UNKNOWN}):
            machine.fail("nvmlEventSetWait_v2", device=EVERY, **fault)
            assert_unmoved(*await endure(exporter, FAULT_S))
            assert ups(exporter) == [True, True]
            machine.heal()
