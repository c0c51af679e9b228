"""What users of other GPU exporters reported, and what this one promises in its place: from the driver to the page.

Here, on the real pynvml: absurd and blank utilization, blank counters, a value that the driver
cannot tell, memory that does not add up, "memory utilization" read as occupancy, counters declared
as gauges, an XID that is repeated, MIG whose utilization reads 0, the name and memory of a MIG
slice, a ghost of an idle GPU, hardware counters that stand at 0 under load, consumer cards, Jetson
and GB10, WSL, a GPU off the bus beside others, an error that ends the loop of an exporter in
Python, utilization that saturates at one request.

Elsewhere, by topic: device values copied to every pod and shared GPUs counted twice
(test_golden_fleets, test_exporter_prometheus), broken pages from quotes in names
(property/test_exposition), process samples that are stale or NOT_FOUND, and instances behind sparse
indices (test_nvml_telemetry), a driver that appears late, a hang, a version mismatch, shutdown
while a call hangs (test_exporter_driver, e2e/test_exporter_process), attribution of pods
(test_exporter_kubelet, unit/exporter/test_attribution).
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpuscale import catalog
from gpuscale.exporter import xids
from gpuscale.exporter.daemon import Exporter
from gpuscale.exporter.nvml import NvmlDriver
from tests.fakes.exporter import exporting, until
from tests.fakes.node import page
from tests.fakes.nvml_library import LIBRARY_MARKS, STATE_VARIABLE, FakeNvml, preload

pytestmark = LIBRARY_MARKS

Rows = dict[str, list[tuple[dict[str, str], float]]]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNvml]:
    preload()
    machine = FakeNvml(tmp_path / "nvml.state", count=2)
    monkeypatch.setenv(STATE_VARIABLE, str(machine.state))
    yield machine
    machine.heal()


def rows(exporter: Exporter) -> Rows:
    """(labels, value) by the name of the series, as a scraper reads the page now."""
    found: Rows = {}
    for family in text_string_to_metric_families(page(exporter.sample).text.decode()):
        for sample in family.samples:
            name = sample.name
            if name.startswith("DCGM_"):
                name = name.removesuffix("_total")
            found.setdefault(name, []).append((sample.labels, sample.value))
    return found


async def page_when(holds: Callable[[Rows], bool], exporter: Exporter) -> Rows:
    """The page once something holds on it."""
    await until(lambda: exporter.sample is not None and holds(rows(exporter)))
    return rows(exporter)


def of_gpu(found: Rows, name: str, gpu: str = "0") -> list[float]:
    return [value for labels, value in found.get(name, ()) if labels.get("gpu") == gpu]


async def settled(exporter: Exporter) -> Rows:
    """The page after two fast reads of everything."""
    return await page_when(lambda r: r["gpuscale_exporter_cycles_total"][0][1] >= 4, exporter)


@pytest.mark.parametrize("blank", [4294967295, 200_000, 0x7FFFFFF0, 101])
async def test_an_absurd_utilization_is_absent_and_never_published(
    machine: FakeNvml, blank: int
) -> None:
    machine.samples(0, [(1, blank)], [(1, blank)])
    machine.device(0, utilization=blank, memory_utilization=blank)
    async with exporting(NvmlDriver()) as exporter:
        found = await settled(exporter)
        assert of_gpu(found, "gpuscale_gpu_utilization_ratio") == []
        assert of_gpu(found, "DCGM_FI_DEV_GPU_UTIL") == []
        assert len(of_gpu(found, "gpuscale_gpu_utilization_ratio", "1")) == 1


async def test_a_value_that_the_driver_cannot_tell_is_announced_with_the_reason(
    machine: FakeNvml,
) -> None:
    machine.fail("nvmlDeviceGetPowerUsage", 3, device=0)
    machine.fail("nvmlDeviceGetEncoderUtilization", 4, device=0)
    machine.fail("nvmlDeviceGetClockInfo", 13, device=0)
    machine.device(0, pcie_replays=0xFFFFFFFF)
    async with exporting(NvmlDriver()) as exporter:
        found = await settled(exporter)
        reasons = {
            labels["metric"]: labels["reason"]
            for labels, _ in found["gpuscale_gpu_unsupported_info"]
            if labels["gpu"] == "0"
        }
        assert reasons["gpuscale_gpu_power_watts"] == "not_supported"
        assert reasons["gpuscale_gpu_encoder_utilization_ratio"] == "no_permission"
        assert reasons["gpuscale_gpu_clock_hertz"] == "driver_too_old"
        assert reasons["gpuscale_gpu_pcie_replays_total"] == "no_true_value"
        assert not any(of_gpu(found, name) for name in reasons)


async def test_used_free_and_reserved_memory_add_up_to_all_of_it(machine: FakeNvml) -> None:
    machine.device(0, memory_used=30 << 30)
    async with exporting(NvmlDriver()) as exporter:
        found = await settled(exporter)
        parts = [
            of_gpu(found, f"gpuscale_gpu_memory_{part}_bytes")[0]
            for part in ("used", "free", "reserved")
        ]
        assert sum(parts) == of_gpu(found, "gpuscale_gpu_memory_total_bytes")[0]


def test_activity_of_the_memory_cannot_be_mistaken_for_its_occupancy() -> None:
    for name in ("ratio", "busy_seconds_total"):
        stem = "utilization_ratio" if name == "ratio" else name
        family = catalog.FAMILIES[f"gpuscale_gpu_memory_copy_{stem}"]
        assert "read or written" in family.help


def test_what_only_grows_is_a_counter_and_what_can_fall_is_a_gauge() -> None:
    for family in catalog.EXPORTER:
        assert (family.kind == "counter") == family.name.endswith("_total"), family.name


async def test_the_utilization_of_a_gpu_with_mig_is_absent_and_its_instances_have_their_own(
    machine: FakeNvml,
) -> None:
    machine.device(0, mig_mode=1)
    machine.fail("nvmlDeviceGetSamples", 3, device=0)
    machine.fail("nvmlDeviceGetUtilizationRates", 3, device=0)
    machine.mig(0, 3, "MIG-a", gpu_instance=7, memory_total=11_000 << 20, name="H100 MIG 1g.11gb")
    machine.mig(0, 5, "MIG-b", gpu_instance=9, memory_total=12_000 << 20, name="H100 MIG 1g.12gb")
    machine.gpm(0, 2, 44.0, gpu_instance=7)
    async with exporting(NvmlDriver()) as exporter:
        found = await page_when(lambda r: "gpuscale_mig_sm_active_ratio" in r, exporter)
        assert of_gpu(found, "gpuscale_gpu_utilization_ratio") == []
        assert of_gpu(found, "DCGM_FI_DEV_GPU_UTIL") == []
        active = {row["uuid"]: value for row, value in found["gpuscale_mig_sm_active_ratio"]}
        assert active == {"MIG-a": 0.44, "MIG-b": 0.0}
        held = {row["profile"]: value for row, value in found["gpuscale_mig_memory_total_bytes"]}
        assert held == {"1g.11gb": 11_000 << 20, "1g.12gb": 12_000 << 20}


async def test_mig_that_is_configured_anew_is_seen_at_the_next_read_and_leaves_no_ghost(
    machine: FakeNvml,
) -> None:
    machine.device(0, mig_mode=1)
    machine.mig(0, 0, "MIG-old", gpu_instance=7)
    async with exporting(NvmlDriver()) as exporter:
        await page_when(lambda r: "gpuscale_mig_info" in r, exporter)
        machine.without_mig(0)
        machine.mig(0, 2, "MIG-new", gpu_instance=1, name="H100 MIG 4g.40gb")
        found = await page_when(
            lambda r: [row["uuid"] for row, _ in r.get("gpuscale_mig_info", ())] == ["MIG-new"],
            exporter,
        )
        for name, series in found.items():
            assert not any(row.get("uuid") == "MIG-old" for row, _ in series), name
        machine.device(0, mig_mode=0)
        await page_when(lambda r: not any(name.startswith("gpuscale_mig_") for name in r), exporter)
        assert of_gpu(rows(exporter), "gpuscale_gpu_up") == [1.0]


async def test_a_gpu_that_falls_idle_reads_0_and_not_what_it_did_last(machine: FakeNvml) -> None:
    machine.device(0, utilization=90)
    async with exporting(NvmlDriver()) as exporter:
        name = "gpuscale_gpu_utilization_ratio"
        await page_when(lambda r: of_gpu(r, name) == [pytest.approx(0.9)], exporter)
        machine.device(0, utilization=0)
        await page_when(lambda r: of_gpu(r, name) == [0.0], exporter)


async def test_hardware_counters_at_zero_under_load_are_suspect_and_not_published(
    machine: FakeNvml,
) -> None:
    machine.device(0, utilization=100)
    async with exporting(NvmlDriver()) as exporter:
        suspect = "gpuscale_gpu_profile_suspect"
        found = await page_when(lambda r: of_gpu(r, suspect) == [1.0], exporter)
        assert of_gpu(found, "gpuscale_gpu_sm_active_ratio") == []
        assert of_gpu(found, "DCGM_FI_PROF_GR_ENGINE_ACTIVE") == []
        machine.gpm(0, 2, 35.0)
        found = await page_when(lambda r: of_gpu(r, suspect) == [0.0], exporter)
        assert of_gpu(found, "gpuscale_gpu_sm_active_ratio") == [0.35]


async def test_one_request_saturates_utilization_and_not_what_to_scale_on(
    machine: FakeNvml,
) -> None:
    machine.device(0, utilization=100)
    for number, value in {1: 100.0, 2: 22.0, 3: 6.0, 10: 31.0}.items():
        machine.gpm(0, number, value)
    async with exporting(NvmlDriver()) as exporter:
        found = await page_when(lambda r: "gpuscale_gpu_sm_active_ratio" in r, exporter)
        assert of_gpu(found, "gpuscale_gpu_sm_active_ratio") == [0.22]
        assert of_gpu(found, "gpuscale_gpu_sm_occupancy_ratio") == [0.06]
        assert of_gpu(found, "gpuscale_gpu_dram_active_ratio") == [0.31]


async def test_the_same_xid_again_raises_its_counter(machine: FakeNvml) -> None:
    async with exporting(NvmlDriver()) as exporter:
        await settled(exporter)
        for count in (1.0, 2.0):
            machine.xid(0, 31)
            await page_when(lambda r, c=count: of_gpu(r, xids.COUNT) == [c], exporter)  # type: ignore[misc]
        ((row, value),) = rows(exporter)["DCGM_FI_DEV_XID_ERRORS"]
        assert (row["err_code"], value) == ("31", 31.0)


async def test_a_gpu_off_the_bus_costs_its_own_series_alone(machine: FakeNvml) -> None:
    async with exporting(NvmlDriver()) as exporter:
        await settled(exporter)
        machine.device(0, lost=1)
        found = await page_when(lambda r: of_gpu(r, "gpuscale_gpu_up") == [0.0], exporter)
        assert of_gpu(found, "gpuscale_gpu_power_watts") == []
        assert found["gpuscale_gpus_detected"][0][1] == 2
        assert of_gpu(found, "gpuscale_gpu_up", "1") == [1.0]
        assert of_gpu(found, "gpuscale_gpu_power_watts", "1") == [72.0]


async def test_no_error_of_the_driver_ends_the_reading(machine: FakeNvml) -> None:
    """One error ended the loop of an exporter in Python, and its page stood still."""
    async with exporting(NvmlDriver()) as exporter:
        await settled(exporter)
        for code in (3, 4, 6, 7, 10, 17, 20, 999):
            machine.fail("*", code, device=0)
            time.sleep(0.01)
        cycles = rows(exporter)["gpuscale_exporter_cycles_total"][0][1]
        machine.heal()
        machine.device(0, power_mw=123_000)
        found = await page_when(
            lambda r: of_gpu(r, "gpuscale_gpu_power_watts") == [123.0], exporter
        )
        assert found["gpuscale_exporter_cycles_total"][0][1] > cycles


async def test_a_consumer_card_has_what_it_has(machine: FakeNvml) -> None:
    machine.device(0, name="NVIDIA GeForce RTX 4090", gpm_supported=0, ecc_mode=-1, fans=2)
    machine.device(0, fan_speed=30, mig_capable=0)
    for function in ("nvmlDeviceGetRemappedRows", "nvmlDeviceGetPcieReplayCounter"):
        machine.fail(function, 3, device=0)
    async with exporting(NvmlDriver()) as exporter:
        found = await settled(exporter)
        assert of_gpu(found, "gpuscale_gpu_fan_speed_ratio") == [0.3, 0.3]
        assert len(of_gpu(found, "gpuscale_gpu_utilization_ratio")) == 1
        assert of_gpu(found, "DCGM_FI_PROF_DRAM_ACTIVE") == []
        assert of_gpu(found, "gpuscale_gpu_up") == [1.0]


async def test_under_wsl_what_the_host_keeps_for_itself_is_absent_and_the_rest_is_there(
    machine: FakeNvml,
) -> None:
    for function in (
        "nvmlDeviceGetMinorNumber",
        "nvmlDeviceGetSamples",
        "nvmlDeviceGetTotalEnergyConsumption",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetEccMode",
        "nvmlDeviceRegisterEvents",
    ):
        machine.fail(function, 3, device=0)
    machine.device(0, utilization=60, power_mw=100_000)
    async with exporting(NvmlDriver()) as exporter:
        found = await page_when(
            lambda r: any(v > 0 for v in of_gpu(r, "gpuscale_gpu_energy_joules_total")), exporter
        )
        ((info, _),) = [r for r in found["gpuscale_gpu_info"] if r[0]["gpu"] == "0"]
        assert info["device"] == ""
        assert of_gpu(found, "gpuscale_gpu_utilization_ratio") == [pytest.approx(0.6)]
        (source,) = [r for r, _ in found["gpuscale_gpu_utilization_source_info"] if r["gpu"] == "0"]
        assert source["source"] == "instant"
        lacking = {
            row["metric"] for row, _ in found["gpuscale_gpu_unsupported_info"] if row["gpu"] == "0"
        }
        assert {xids.COUNT, "gpuscale_gpu_nvlink_bytes_total"} <= lacking
        assert "gpuscale_gpu_energy_joules_total" not in lacking, "integrated from power instead"
