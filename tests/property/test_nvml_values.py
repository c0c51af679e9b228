"""Whatever the driver answers, a value that is published is finite and possible, or it is absent."""

import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscale.errors import DriverError
from gpuscale.exporter.collectors import COLLECTORS
from gpuscale.exporter.nvml import NvmlDriver, check
from gpuscale.exporter.sample import Reading
from tests.fakes.nvml_library import LIBRARY_MARKS, STATE_VARIABLE, FakeNvml, exported, preload

pytestmark = LIBRARY_MARKS

LIMITS = {
    "gpuscale_gpu_memory_total_bytes": check.MEMORY_BYTES_MAX,
    "gpuscale_gpu_memory_used_bytes": check.MEMORY_BYTES_MAX,
    "gpuscale_gpu_memory_free_bytes": check.MEMORY_BYTES_MAX,
    "gpuscale_gpu_memory_reserved_bytes": check.MEMORY_BYTES_MAX,
    "gpuscale_gpu_power_watts": check.POWER_WATTS_MAX,
    "gpuscale_gpu_power_limit_watts": check.POWER_WATTS_MAX,
    "gpuscale_gpu_energy_joules_total": check.ENERGY_JOULES_MAX,
    "gpuscale_gpu_temperature_celsius": check.TEMPERATURE_CELSIUS_MAX,
    "gpuscale_gpu_clock_hertz": check.CLOCK_MEGAHERTZ_MAX * 1e6,
    "gpuscale_gpu_fan_speed_ratio": check.FAN_PERCENT_MAX / 100,
    "gpuscale_gpu_throttle_seconds_total": check.SECONDS_MAX,
    "gpuscale_gpu_pcie_bytes_total": check.COUNT_MAX,
    "gpuscale_gpu_pcie_replays_total": check.COUNT_32_MAX,
    "gpuscale_gpu_nvlink_bytes_total": check.COUNT_MAX,
    "gpuscale_gpu_ecc_errors_total": check.COUNT_MAX,
    "gpuscale_gpu_remapped_rows_total": check.ROWS_MAX,
}
"""The largest value that may be published: of what is not here, 1, or the time that has passed. The
smallest is 0 for all of them."""

KEYS = (
    "memory_total",
    "memory_reserved",
    "memory_used",
    "memory_free",
    "power_mw",
    "power_limit_mw",
    "energy_mj",
    "temperature",
    "memory_temperature",
    "memory_temperature_return",
    "utilization",
    "memory_utilization",
    "sample_value_type",
    "clock_sm",
    "fans",
    "fan_speed",
    "encoder",
    "decoder",
    "reasons",
    "pcie_replays",
    "ecc_mode",
    "rows_uncorrectable",
    "rows_failed",
    "gpm_supported",
    "mig_mode",
)
FIELDS = (3, 6, 74, 79, 138, 139, 197, 198, 202, 270)

numbers = st.one_of(
    st.integers(0, 200),
    st.sampled_from([0x7FFFFFF0, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFF0, 0xFFFFFFFFFFFFFFFF]),
    st.integers(0, 2**64 - 1),
)
values = st.dictionaries(st.sampled_from(KEYS), numbers, max_size=8)
times = st.one_of(st.integers(1, 10_000_000), st.integers(0, 2**64 - 1))
samples = st.lists(st.tuples(times, numbers), min_size=1, max_size=20)
device_functions = sorted(f for f in exported() if f.startswith("nvmlDevice"))
codes = st.one_of(st.sampled_from([1, 2, 3, 6, 13, 15, 18, 25, 999]), st.integers(1, 2000))
faults = st.dictionaries(st.sampled_from(device_functions), codes, max_size=6)
fields = st.dictionaries(
    st.sampled_from(FIELDS), st.tuples(numbers, st.integers(0, 7), codes | st.just(0)), max_size=4
)
elapsed = st.one_of(st.none(), st.floats(0, 2.0))
"""Short, so that what the samples claim to cover is often more than has passed."""


@pytest.fixture(scope="module", autouse=True)
def machine() -> Iterator[FakeNvml]:
    preload()
    with tempfile.TemporaryDirectory() as folder:
        machine = FakeNvml(Path(folder) / "nvml.state")
        before = os.environ.get(STATE_VARIABLE)
        os.environ[STATE_VARIABLE] = str(machine.state)
        yield machine
        if before is None:
            del os.environ[STATE_VARIABLE]
        else:
            os.environ[STATE_VARIABLE] = before


def possible(reading: Reading, families: tuple[str, ...], passed_s: float) -> None:
    lacking = {lack.family for lack in reading.unsupported}
    assert lacking <= set(families)
    for sample in reading.samples:
        assert sample.family in families
        assert sample.family not in lacking
        assert math.isfinite(sample.value)
        most = LIMITS.get(sample.family, 1.0)
        if sample.family.endswith("busy_seconds_total"):
            most = passed_s * (1 + 1e-9)
        assert 0 <= sample.value <= most, sample


@given(
    told=st.lists(
        st.tuples(values, st.none() | st.tuples(samples, samples), faults, elapsed, fields),
        min_size=1,
        max_size=4,
    )
)
def test_only_possible_values_are_published_and_counters_never_fall(
    machine: FakeNvml,
    told: list[
        tuple[
            dict[str, int],
            tuple[list[tuple[int, int]], list[tuple[int, int]]] | None,
            dict[str, int],
            float | None,
            dict[int, tuple[int, int, int]],
        ]
    ],
) -> None:
    """A device is read a few times while the driver says and refuses what it likes."""
    driver = NvmlDriver()
    machine.heal()
    driver.open()
    states: dict[str, dict[str, float]] = {collector.name: {} for collector in COLLECTORS}
    totals: dict[str, float] = {}
    passed_s = 0.0
    try:
        (device,) = driver.devices()
        for said, buffers, failing, elapsed_s, numbered in told:
            machine.heal()
            for number, (number_value, kind, code) in numbered.items():
                machine.field(0, number, number_value, kind=kind, code=code)
            machine.device(0, **dict.fromkeys((*KEYS, "samples", "memory_samples")))
            machine.device(0, **said)
            if buffers is not None:
                machine.samples(0, *buffers)
            for function, code in failing.items():
                machine.fail(function, code, device=0)
            passed_s += elapsed_s or 0.0
            for collector in COLLECTORS:
                try:
                    reading = collector.read(device, states[collector.name], elapsed_s)
                except DriverError:
                    continue  # absent, and counted by whoever called
                possible(reading, collector.families, passed_s)
                for sample in reading.samples:
                    if sample.family.endswith("busy_seconds_total"):
                        assert sample.value >= totals.get(sample.family, 0.0)
                        totals[sample.family] = sample.value
    finally:
        machine.heal()
        driver.close()
