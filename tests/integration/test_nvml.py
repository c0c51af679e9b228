"""The real pynvml on a C library: every kind of answer a driver can give, or not give."""

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from gpuscale.errors import (
    DeviceLost,
    DriverError,
    DriverMissing,
    DriverRestartRequired,
    NotSupported,
)
from gpuscale.exporter.device import Device
from gpuscale.exporter.nvml import NvmlDriver
from gpuscale.exporter.nvml.driver import DEVICES_MAX
from tests.fakes.nvml_library import (
    LIBRARY_MARKS,
    STATE_VARIABLE,
    FakeNvml,
    preload,
)

pytestmark = LIBRARY_MARKS

BLANK_32 = 0xFFFFFFFF
BLANK_64 = 0xFFFFFFFFFFFFFFFF
SECOND_US = 1_000_000


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNvml]:
    """A healthy machine with two GPUs, which pynvml in this process sees."""
    preload()
    machine = FakeNvml(tmp_path / "nvml.state", count=2)
    monkeypatch.setenv(STATE_VARIABLE, str(machine.state))
    yield machine
    machine.heal()


@pytest.fixture
def driver(machine: FakeNvml) -> Iterator[NvmlDriver]:
    driver = NvmlDriver()
    driver.open()
    yield driver
    machine.heal()
    driver.close()


@pytest.fixture
def device(driver: NvmlDriver) -> Device:
    return driver.devices()[0]


def elsewhere(machine: FakeNvml, code: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a process of its own on this machine: for libraries that lack functions."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": os.environ["PATH"], **machine.environment},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


# ----- the library itself


def layout(of: str) -> list[int]:
    sizes = (ctypes.c_uint * 32)()
    count = preload()[f"fake_nvml_{of}layout"](sizes, 32)
    return list(sizes[:count])


def test_the_structs_of_the_library_are_those_of_pynvml() -> None:
    assert layout("") == [
        ctypes.sizeof(pynvml.c_nvmlUtilization_t),
        ctypes.sizeof(pynvml.c_nvmlMemory_t),
        ctypes.sizeof(pynvml.c_nvmlMemory_v2_t),
        ctypes.sizeof(pynvml.c_nvmlSample_t),
        ctypes.sizeof(pynvml.c_nvmlTemperature_v1_t),
        ctypes.sizeof(pynvml.c_nvmlFieldValue_t),
        ctypes.sizeof(pynvml.nvmlPciInfo_t),
        pynvml.c_nvmlMemory_v2_t.free.offset,
        pynvml.c_nvmlFieldValue_t.value.offset,
        pynvml.nvmlPciInfo_t.busId.offset,
    ]
    assert layout("telemetry_") == [ctypes.sizeof(pynvml.c_nvmlGridLicensableFeatures_v4_t)]
    assert layout("mig_") == [ctypes.sizeof(pynvml.c_nvmlDeviceAttributes)]
    assert layout("gpm_") == [
        ctypes.sizeof(pynvml.c_nvmlGpmSupport_t),
        ctypes.sizeof(pynvml.c_nvmlGpmMetricsGet_t),
    ]
    assert layout("processes_") == [
        ctypes.sizeof(pynvml.c_nvmlProcessInfo_v3_t),
        ctypes.sizeof(pynvml.c_nvmlProcessUtilizationSample_t),
    ]
    assert layout("events_") == [ctypes.sizeof(pynvml.c_nvmlEventData_t)]


def test_the_version_constants_of_the_library_are_those_of_pynvml(device: Device) -> None:
    """A wrong version word would answer a mismatch, and memory would come without `reserved`."""
    assert device.memory_bytes().reserved is not None
    assert pynvml.nvmlTemperature_v1 == 0x100000C


# ----- a healthy machine


def test_a_healthy_gpu_gives_every_value_in_base_units(machine: FakeNvml, device: Device) -> None:
    gib = 1 << 30
    machine.device(
        0,
        memory_total=80 * gib,
        memory_reserved=1 * gib,
        memory_used=20 * gib,
        power_mw=412_345,
        power_limit_mw=700_000,
        energy_mj=123_456_789,
        temperature=61,
        memory_temperature=77,
    )
    memory = device.memory_bytes()
    assert (memory.total, memory.used, memory.free, memory.reserved) == (
        80 * gib, 20 * gib, 59 * gib, 1 * gib,
    )  # fmt: skip
    assert device.power_watts() == 412.345
    assert device.power_limit_watts() == 700.0
    assert device.energy_joules() == 123_456.789
    assert device.temperature_celsius("gpu") == 61.0
    assert device.temperature_celsius("memory") == 77.0


def test_who_the_gpus_are_and_which_driver_runs_them(machine: FakeNvml) -> None:
    machine.system(driver_version="575.57.08", nvml_version="12.575.57.08", cuda_version=12090)
    machine.device(1, uuid="GPU-abc", name="NVIDIA L4", bus_id="00000000:AF:00.0", minor=7)
    driver = NvmlDriver()
    versions = driver.open()
    assert (versions.driver, versions.nvml, versions.cuda) == ("575.57.08", "12.575.57.08", "12.9")
    who = driver.devices()[1].identity
    assert (who.index, who.uuid, who.product) == (1, "GPU-abc", "NVIDIA L4")
    assert (who.pci_bus_id, who.minor) == ("00000000:AF:00.0", 7)
    driver.close()


def test_versions_that_the_driver_does_not_tell_are_absent(machine: FakeNvml) -> None:
    machine.fail("nvmlSystemGetDriverVersion", 999)
    machine.fail("nvmlSystemGetCudaDriverVersion", 3)
    driver = NvmlDriver()
    versions = driver.open()
    assert versions.driver is None
    assert versions.cuda is None
    assert versions.nvml is not None
    driver.close()


def test_closing_is_idempotent_and_opening_again_works(driver: NvmlDriver) -> None:
    driver.close()
    driver.close()
    with pytest.raises(DriverMissing):
        driver.devices()
    driver.open()
    assert len(driver.devices()) == 2


# ----- errors

READS: dict[str, tuple[str, Callable[[Device], object]]] = {
    "power": ("nvmlDeviceGetPowerUsage", lambda d: d.power_watts()),
    "limit": ("nvmlDeviceGetEnforcedPowerLimit", lambda d: d.power_limit_watts()),
    "energy": ("nvmlDeviceGetTotalEnergyConsumption", lambda d: d.energy_joules()),
    "gpu": ("nvmlDeviceGetTemperature", lambda d: d.temperature_celsius("gpu")),
    "memory sensor": ("nvmlDeviceGetFieldValues", lambda d: d.temperature_celsius("memory")),
    "utilization": ("*", lambda d: d.utilization()),
    "memory": ("*", lambda d: d.memory_bytes()),
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (1, DriverMissing),
        (3, NotSupported),
        (4, NotSupported),
        (10, DriverError),
        (15, DeviceLost),
        (18, DriverRestartRequired),
        (28, DeviceLost),
        (999, DriverError),
    ],
)
def test_an_answer_keeps_its_meaning_through_every_read(
    machine: FakeNvml, device: Device, read: str, code: int, kind: type[DriverError]
) -> None:
    function, call = READS[read]
    machine.fail(function, code, device=0)
    with pytest.raises(DriverError) as raised:
        call(device)
    assert type(raised.value) is kind
    assert raised.value.code == code
    assert "GPU 0" in str(raised.value)
    machine.heal()
    call(device)


def test_only_the_gpu_that_fails_fails(machine: FakeNvml, driver: NvmlDriver) -> None:
    first, second = driver.devices()
    machine.fail("*", 15, device=0)
    with pytest.raises(DeviceLost):
        first.power_watts()
    assert second.power_watts() == 72.0


def test_a_handle_that_is_no_longer_valid_is_a_lost_gpu(machine: FakeNvml, device: Device) -> None:
    machine.fail("nvmlDeviceGetPowerUsage", 2)
    with pytest.raises(DeviceLost):
        device.power_watts()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (4, DriverMissing),
        (9, DriverMissing),
        (18, DriverRestartRequired),
        (20, DriverError),
        (28, DriverMissing),
        (999, DriverError),
    ],
)
def test_why_a_session_cannot_be_opened(
    machine: FakeNvml, code: int, kind: type[DriverError]
) -> None:
    machine.fail("nvmlInitWithFlags", code)
    driver = NvmlDriver()
    with pytest.raises(DriverError) as raised:
        driver.open()
    assert type(raised.value) is kind
    assert raised.value.code == code
    machine.heal()
    assert driver.open().driver is not None
    driver.close()


def test_a_driver_that_is_loaded_later_is_found_in_the_same_process(machine: FakeNvml) -> None:
    machine.unload()
    driver = NvmlDriver()
    with pytest.raises(DriverMissing, match="load the NVIDIA kernel module"):
        driver.open()
    machine.system()
    driver.open()
    assert len(driver.devices()) == 2
    driver.close()


def test_a_gpu_that_cannot_be_opened_is_named_and_the_others_are_there(
    machine: FakeNvml, driver: NvmlDriver
) -> None:
    machine.system(count=4)
    machine.device(1, lost=1)
    machine.fail("nvmlDeviceGetUUID", 999, device=2)
    assert [d.identity.index for d in driver.devices()] == [0, 3]
    (one, why_one), (two, why_two) = driver.lost()
    assert (one, two) == (1, 2)
    assert "GPU_IS_LOST" in why_one
    assert "UNKNOWN" in why_two


def test_a_gpu_is_lost_and_returns_as_itself(machine: FakeNvml, driver: NvmlDriver) -> None:
    before = driver.devices()[1]
    machine.device(1, lost=1)
    with pytest.raises(DeviceLost):
        before.utilization()
    assert len(driver.devices()) == 1
    machine.device(1, lost=None)
    after = driver.devices()[1]
    assert driver.lost() == ()
    assert after.identity == before.identity
    assert after.power_watts() == 72.0


def test_a_gpu_that_stays_keeps_its_place_in_the_buffer(
    machine: FakeNvml, driver: NvmlDriver
) -> None:
    first = driver.devices()[0]
    driver.close()
    driver.open()
    assert driver.devices()[0] is first


def test_a_nameless_gpu_is_still_measured_and_one_without_uuid_is_not(
    machine: FakeNvml, driver: NvmlDriver
) -> None:
    machine.fail("nvmlDeviceGetName", 999, device=0)
    machine.fail("nvmlDeviceGetPciInfo_v3", 3, device=0)
    machine.fail("nvmlDeviceGetMinorNumber", 3, device=0)
    machine.device(1, uuid="")
    (named,) = driver.devices()
    who = named.identity
    assert (who.product, who.pci_bus_id, who.minor) == ("", "", None)
    assert [index for index, _ in driver.lost()] == [1]


def test_hostile_names_become_bounded_printable_labels(
    machine: FakeNvml, driver: NvmlDriver
) -> None:
    machine.device(0, name='Bad "name"\t\x1b[31m' + "x" * 70)
    product = driver.devices()[0].identity.product
    assert product.isprintable()
    assert product.startswith('Bad "name"')


def test_an_absurd_number_of_gpus_is_bounded(machine: FakeNvml, driver: NvmlDriver) -> None:
    machine.system(count=4_000_000_000)
    assert len(driver.devices()) + len(driver.lost()) <= DEVICES_MAX


# ----- blanks and sentinels


@pytest.mark.parametrize(
    ("key", "blank", "read"),
    [
        ("power_mw", BLANK_32, "power"),
        ("power_limit_mw", BLANK_32, "limit"),
        ("power_limit_mw", 0, "limit"),
        ("energy_mj", BLANK_64, "energy"),
        ("energy_mj", 0x7FFFFFFFFFFFFFF0, "energy"),
        ("temperature", 0x7FFFFFF0, "gpu"),
        ("temperature", 255, "gpu"),
        ("memory_temperature", 0, "memory sensor"),
        ("memory_temperature", 0x7FFFFFF0, "memory sensor"),
        ("memory_temperature", 201, "memory sensor"),
        ("memory_temperature_return", 3, "memory sensor"),
        ("memory_total", BLANK_64, "memory"),
        ("memory_total", 0, "memory"),
        ("memory_used", 1 << 50, "memory"),
        ("memory_free", 81559 << 21, "memory"),
    ],
)
def test_a_blank_or_absurd_value_is_not_a_value(
    machine: FakeNvml, device: Device, key: str, blank: int, read: str
) -> None:
    machine.device(0, **{key: blank})
    with pytest.raises(NotSupported):
        READS[read][1](device)


def test_utilization_above_100_per_cent_is_not_a_value(machine: FakeNvml, device: Device) -> None:
    machine.fail("nvmlDeviceGetSamples", 3)
    machine.device(0, utilization=BLANK_32, memory_utilization=30)
    seen = device.utilization()
    assert seen.busy is None
    assert seen.memory_copy == 0.3
    machine.device(0, utilization=101, memory_utilization=BLANK_32)
    with pytest.raises(NotSupported):
        device.utilization()


# ----- memory, version 1 and 2


@pytest.mark.parametrize("code", [2, 3, 13, 25])
def test_without_version_2_reserved_is_unknown_and_counted_as_used(
    machine: FakeNvml, device: Device, code: int
) -> None:
    with_it = device.memory_bytes()
    assert with_it.reserved is not None
    machine.fail("nvmlDeviceGetMemoryInfo_v2", code)
    without = device.memory_bytes()
    assert without.reserved is None
    assert without.used == with_it.used + with_it.reserved
    assert without.free == with_it.free


# ----- the sample buffer


def now_us() -> int:
    return time.time_ns() // 1000


def test_utilization_is_the_mean_of_all_samples_since_the_last_read(
    machine: FakeNvml, device: Device
) -> None:
    start = now_us()
    first = [(start + i * 100_000, 10) for i in range(10)]
    machine.samples(0, first, first)
    device.utilization()
    busy = [(start + 900_000 + i * 100_000, 100 if i <= 3 else 20) for i in range(1, 11)]
    copy = [(at, 40) for at, _ in busy]
    machine.samples(0, first + busy, first + copy)
    seen = device.utilization()
    assert seen.source == "samples"
    assert seen.busy == pytest.approx((3 * 1.0 + 7 * 0.2) / 10)
    assert seen.memory_copy == pytest.approx(0.4)
    assert seen.busy_covered_s == pytest.approx(1.0)


def test_an_unsettled_load_is_weighted_by_how_long_it_lasted(
    machine: FakeNvml, device: Device
) -> None:
    """In real time: the driver's clock runs, the load changes half-way between two reads."""
    machine.device(0, utilization=100, memory_utilization=50, sample_period_us=5000)
    device.utilization()
    began = time.monotonic()
    time.sleep(0.3)
    at_change = time.monotonic() - began
    machine.device(0, utilization=0)
    time.sleep(0.3)
    seen = device.utilization()
    assert seen.busy_covered_s == pytest.approx(time.monotonic() - began, abs=0.05)
    assert seen.busy == pytest.approx(at_change / (seen.busy_covered_s or 1.0), abs=0.1)
    assert seen.memory_copy == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("value_type", range(7))
def test_every_type_of_sample_value_is_read_for_what_it_is(
    machine: FakeNvml, device: Device, value_type: int
) -> None:
    machine.device(0, sample_value_type=value_type)
    points = [(now_us() + i * 1000, 35) for i in range(5)]
    machine.samples(0, points, points)
    assert device.utilization().busy == pytest.approx(0.35)


def test_a_type_of_sample_that_nobody_knows_is_not_guessed(
    machine: FakeNvml, device: Device
) -> None:
    machine.device(0, sample_value_type=99, utilization=12)
    points = [(now_us() + i * 1000, 35) for i in range(5)]
    machine.samples(0, points, points)
    seen = device.utilization()
    assert seen.source == "instant"
    assert seen.busy == 0.12


@pytest.mark.parametrize("code", [2, 3, 6, 13, 999])
def test_without_a_buffer_the_instant_values_are_used_and_say_so(
    machine: FakeNvml, device: Device, code: int
) -> None:
    machine.device(0, utilization=64, memory_utilization=21)
    machine.fail("nvmlDeviceGetSamples", code)
    seen = device.utilization()
    assert (seen.busy, seen.memory_copy, seen.source) == (0.64, 0.21, "instant")
    assert seen.busy_covered_s is None


def test_bad_samples_are_left_out_and_the_good_ones_count(
    machine: FakeNvml, device: Device
) -> None:
    at = now_us()
    points = [(at, 50), (at + 1000, BLANK_32), (at + 2000, 50), (at + 3000, 200), (at + 4000, 50)]
    machine.samples(0, points, points)
    assert device.utilization().busy == pytest.approx(0.5)


# ----- late answers and no answer


def test_a_late_answer_is_an_answer(machine: FakeNvml, device: Device) -> None:
    machine.fail("nvmlDeviceGetPowerUsage", delay_ms=80)
    began = time.monotonic()
    assert device.power_watts() == 72.0
    assert time.monotonic() - began >= 0.08


def test_while_one_gpu_hangs_the_interpreter_and_the_other_gpus_go_on(
    machine: FakeNvml, driver: NvmlDriver
) -> None:
    stuck, well = driver.devices()
    machine.fail("nvmlDeviceGetPowerUsage", device=0, hang=True)
    answered: list[float] = []
    thread = threading.Thread(target=lambda: answered.append(stuck.power_watts()), daemon=True)
    thread.start()
    for _ in range(50):
        assert well.power_watts() == 72.0
        time.sleep(0.001)
    assert answered == []
    machine.heal()
    thread.join(5.0)
    assert answered == [72.0]


# ----- other libraries, each in a process of its own

SAY = """
from gpuscale.errors import DriverError
from gpuscale.exporter.nvml import NvmlDriver
def said(call):
    try:
        return call()
    except DriverError as error:
        return f"{type(error).__name__} {error.code}"
driver = NvmlDriver()
"""


def test_without_any_library_the_driver_is_missing_and_the_cure_is_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SAY + "print(said(driver.open)); driver.open()"],
        env={"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if done.returncode == 0:
        pytest.skip("this machine has an NVIDIA driver: run where there is none")
    assert done.stdout.strip() == "DriverMissing 12"
    assert "runtimeClassName: nvidia" in done.stderr


@pytest.mark.parametrize(
    ("without", "code", "expected"),
    [
        ("nvmlDeviceGetSamples", "print(device.utilization().source)", "instant"),
        ("nvmlDeviceGetMemoryInfo_v2", "print(device.memory_bytes().reserved)", "None"),
        ("nvmlDeviceGetTemperature", "print(device.temperature_celsius('gpu'))", "34.0"),
        ("nvmlDeviceGetFieldValues", "print(said(lambda: device.temperature_celsius('memory')))", "NotSupported 13"),
        ("nvmlDeviceGetTotalEnergyConsumption", "print(said(device.energy_joules))", "NotSupported 13"),
        ("nvmlErrorString", "print(device.power_watts())", "72.0"),
        ("nvmlDeviceGetMinorNumber", "print(device.identity.minor)", "None"),
    ],
)  # fmt: skip
def test_an_older_library_gives_what_it_has(
    tmp_path: Path, without: str, code: str, expected: str
) -> None:
    machine = FakeNvml(tmp_path / "nvml.state", without=frozenset({without}))
    done = elsewhere(machine, SAY + "driver.open(); device = driver.devices()[0]\n" + code)
    assert done.stdout.strip() == expected, done.stderr


def test_a_library_too_old_to_start_is_a_missing_driver(tmp_path: Path) -> None:
    machine = FakeNvml(tmp_path / "nvml.state", without=frozenset({"nvmlInitWithFlags"}))
    done = elsewhere(machine, SAY + "print(said(driver.open))")
    assert done.stdout.strip() == "DriverMissing 13", done.stderr


def test_an_error_that_pynvml_has_no_text_for_needs_no_text_from_the_library(
    tmp_path: Path,
) -> None:
    machine = FakeNvml(tmp_path / "nvml.state", without=frozenset({"nvmlErrorString"}))
    machine.fail("nvmlDeviceGetPowerUsage", 4711)
    code = "driver.open(); print(said(driver.devices()[0].power_watts))"
    done = elsewhere(machine, SAY + code)
    assert done.stdout.strip() == "DriverError 4711", done.stderr


def test_nothing_of_the_vendor_is_imported_before_a_session_is_opened(tmp_path: Path) -> None:
    code = (
        "import sys; print('pynvml' in sys.modules); driver.open(); print('pynvml' in sys.modules)"
    )
    done = elsewhere(FakeNvml(tmp_path / "nvml.state"), SAY + code)
    assert done.stdout.split() == ["False", "True"], done.stderr


def test_an_enumeration_in_the_midst_of_a_read_takes_nothing_from_under_it(
    machine: FakeNvml,
) -> None:
    """It did: a reader found no buffer where it had put one, and the exporter ended."""
    driver = NvmlDriver()
    driver.open()
    device = driver.devices()[0]
    stop = threading.Event()

    def enumerate_for_ever() -> None:
        while not stop.is_set():
            driver.devices()

    other = threading.Thread(target=enumerate_for_ever)
    other.start()
    try:
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            device.utilization()
    finally:
        stop.set()
        other.join()
        driver.close()
