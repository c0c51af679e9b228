"""The real pynvml on a C library: hardware counters, MIG, processes, XIDs, links, throttling, faults of the memory."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuscale.errors import DeviceLost, DriverError, NotSupported
from gpuscale.exporter.device import Device, Profile
from gpuscale.exporter.nvml import NvmlDriver
from gpuscale.exporter.nvml import device as nvml_device
from tests.fakes.nvml_library import LIBRARY_MARKS, STATE_VARIABLE, FakeNvml, preload

pytestmark = LIBRARY_MARKS

BLANK_32 = 0xFFFFFFFF
BLANK_64 = 0xFFFFFFFFFFFFFFFF
ALL_LINKS = 0xFFFFFFFF
STEP_S = 0.11
"""A little more than the driver's hardware counters need between two samples."""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNvml]:
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


def profiled(device: Device) -> Profile:
    device.profile()
    time.sleep(STEP_S)
    seen = device.profile()
    assert seen is not None
    return seen


# ----- hardware counters (GPM)


def test_hardware_counters_are_shares_and_bytes_per_second(
    machine: FakeNvml, device: Device
) -> None:
    for number, value in {1: 98.0, 2: 41.5, 3: 12.25, 5: 7.5, 10: 33.0, 20: 10.0, 21: 40.0}.items():
        machine.gpm(0, number, value)
    seen = profiled(device)
    assert seen.graphics_active == 0.98
    assert seen.sm_active == 0.415
    assert seen.sm_occupancy == 0.1225
    assert seen.tensor_active == 0.075
    assert seen.dram_active == 0.33
    assert seen.pcie_sent_bytes_per_s == 10 * (1 << 20)
    assert seen.pcie_received_bytes_per_s == 40 * (1 << 20)


def test_a_counter_that_was_not_counted_is_absent_and_the_others_are_there(
    machine: FakeNvml, device: Device
) -> None:
    machine.gpm(0, 2, float("nan"))
    machine.gpm(0, 5, 400.0)
    machine.gpm(0, 20, -1.0)
    machine.gpm(0, 10, 25.0)
    seen = profiled(device)
    assert seen.sm_active is None
    assert seen.tensor_active is None
    assert seen.pcie_sent_bytes_per_s is None
    assert seen.dram_active == 0.25


def test_the_first_read_of_hardware_counters_gives_nothing(device: Device) -> None:
    assert device.profile() is None


def test_two_reads_closer_than_the_counters_are_updated_give_the_same(
    machine: FakeNvml, device: Device
) -> None:
    machine.gpm(0, 2, 50.0)
    seen = profiled(device)
    machine.gpm(0, 2, 90.0)
    assert device.profile() == seen


def test_before_hopper_there_are_no_hardware_counters(machine: FakeNvml, device: Device) -> None:
    machine.device(0, gpm_supported=0)
    with pytest.raises(NotSupported) as raised:
        device.profile()
    assert raised.value.code == 3


def test_every_lent_sample_is_given_back_at_the_end(machine: FakeNvml) -> None:
    lent = preload()["fake_nvml_gpm_lent"]
    before = lent()
    driver = NvmlDriver()
    driver.open()
    machine.device(1, mig_mode=1)
    machine.mig(1, 4, "MIG-a", gpu_instance=7)
    machine.mig(1, 6, "MIG-b", gpu_instance=8)
    whole, divided = driver.devices()
    whole.profile()
    for instance in divided.mig_instances():
        divided.profile(instance)
    assert lent() - before == 6
    machine.without_mig(1)
    machine.mig(1, 0, "MIG-c", gpu_instance=7)
    divided.mig_instances()
    assert lent() - before == 4, "the samples of an instance that is gone are given back at once"
    driver.close()
    assert lent() == before


# ----- MIG


def test_instances_are_found_through_sparse_places(machine: FakeNvml, device: Device) -> None:
    machine.device(0, mig_mode=1)
    machine.mig(0, 2, "MIG-two", gpu_instance=9)
    machine.mig(
        0,
        6,
        "MIG-six",
        gpu_instance=1,
        name="NVIDIA A100-SXM4-80GB MIG 1c.3g.40gb",
        memory_total=40_192 << 20,
        memory_used=1_000 << 20,
    )
    two, six = device.mig_instances()
    assert (two.uuid, two.gpu_instance_id, two.profile) == ("MIG-two", 9, "1g.10gb")
    assert (six.uuid, six.profile) == ("MIG-six", "1c.3g.40gb")
    assert two.parent_uuid == device.identity.uuid
    memory = device.mig_memory_bytes(six)
    assert (memory.total, memory.used) == (40_192 << 20, 1_000 << 20)
    assert memory.used + memory.free + (memory.reserved or 0) == memory.total


def test_a_profile_that_the_name_does_not_say_comes_from_the_attributes(
    machine: FakeNvml, device: Device
) -> None:
    """The same slice is 1g.11gb on one board and 1g.12gb on another: rounding decides, not a table."""
    machine.device(0, mig_mode=1)
    machine.mig(0, 0, "MIG-x", gpu_instance=3, name="NVIDIA H200", memory_total=18_048 << 20)
    (instance,) = device.mig_instances()
    assert instance.profile == "1g.18gb"


def test_hardware_counters_are_those_of_the_instance(machine: FakeNvml, device: Device) -> None:
    machine.device(0, mig_mode=1)
    machine.mig(0, 0, "MIG-a", gpu_instance=7)
    machine.mig(0, 1, "MIG-b", gpu_instance=8)
    machine.gpm(0, 2, 80.0, gpu_instance=7)
    machine.gpm(0, 2, 20.0, gpu_instance=8)
    instances = device.mig_instances()
    for instance in instances:
        device.profile(instance)
    time.sleep(STEP_S)
    seen = [device.profile(instance) for instance in instances]
    assert [None if one is None else one.sm_active for one in seen] == [0.8, 0.2]


def test_mig_that_is_off_is_no_instance_and_a_board_without_it_says_so(
    machine: FakeNvml, device: Device
) -> None:
    assert device.mig_instances() == ()
    machine.device(0, mig_capable=0)
    with pytest.raises(NotSupported):
        device.mig_instances()


def test_an_instance_that_is_taken_away_between_two_calls_is_an_error_of_its_own(
    machine: FakeNvml, device: Device
) -> None:
    machine.device(0, mig_mode=1)
    machine.mig(0, 0, "MIG-a", gpu_instance=7)
    (instance,) = device.mig_instances()
    machine.without_mig(0)
    with pytest.raises(DriverError) as raised:
        device.mig_memory_bytes(instance)
    assert not isinstance(raised.value, DeviceLost)
    assert device.mig_instances() == ()


# ----- processes


def test_processes_come_once_with_the_memory_that_is_told(
    machine: FakeNvml, device: Device
) -> None:
    machine.process(0, 4711, 1 << 30)
    machine.process(0, 4712)
    machine.process(0, 4713, 2 << 30, gpu_instance=7, compute_instance=0)
    machine.process(0, 4714, 3 << 30, mps=True)
    found = {p.pid: p for p in device.compute_processes()}
    assert found.keys() == {4711, 4712, 4713, 4714}
    assert found[4711].used_memory_bytes == 1 << 30
    assert found[4711].gpu_instance_id is None
    assert found[4712].used_memory_bytes is None
    assert (found[4713].gpu_instance_id, found[4713].compute_instance_id) == (7, 0)


def test_an_mps_client_that_is_in_both_lists_is_one_process(
    machine: FakeNvml, device: Device
) -> None:
    machine.process(0, 4711, 1 << 30)
    machine.process(0, 4711, 1 << 30, mps=True)
    assert len(device.compute_processes()) == 1


def test_a_driver_without_the_list_of_mps_clients_still_lists_processes(
    machine: FakeNvml, device: Device
) -> None:
    machine.process(0, 4711)
    machine.fail("nvmlDeviceGetMPSComputeRunningProcesses_v3", 13, device=0)
    assert [p.pid for p in device.compute_processes()] == [4711]


def test_process_samples_that_were_seen_do_not_come_again(
    machine: FakeNvml, device: Device
) -> None:
    machine.process_sample(0, 4711, 1_000_000, 30, 10)
    machine.process_sample(0, 4712, 2_000_000, 50)
    first = device.process_utilization(0)
    assert [(s.pid, s.sm_ratio, s.memory_ratio) for s in first] == [
        (4711, 0.3, 0.1),
        (4712, 0.5, 0.0),
    ]
    assert device.process_utilization(1_000_000) == first[1:]
    assert device.process_utilization(2_000_000) == ()


def test_an_idle_gpu_has_no_process_samples_in_either_of_the_drivers_ways_to_say_so(
    machine: FakeNvml, device: Device
) -> None:
    assert device.process_utilization(0) == ()
    machine.device(0, process_util_empty=1)
    assert device.process_utilization(0) == ()


def test_process_samples_that_cannot_be_are_left_out(machine: FakeNvml, device: Device) -> None:
    machine.process_sample(0, 4711, 1_000_000, 4294967295)
    machine.process_sample(0, 0, 1_000_001, 30)
    machine.process_sample(0, 4712, 1_000_002, 101)
    machine.process_sample(0, 4713, 1_000_003, 100)
    assert [s.pid for s in device.process_utilization(0)] == [4713]


def test_with_mig_there_are_no_process_samples(machine: FakeNvml, device: Device) -> None:
    machine.device(0, mig_mode=1)
    with pytest.raises(NotSupported):
        device.process_utilization(0)


# ----- errors that the driver announces


def test_an_xid_is_announced_with_its_gpu(machine: FakeNvml, driver: NvmlDriver) -> None:
    devices = driver.devices()
    events = driver.xid_events()
    assert events.wait(0.01) is None
    machine.xid(1, 79)
    machine.xid(0, 31)
    machine.xid(0, 31)
    heard = [events.wait(1.0) for _ in range(3)]
    assert [(e.uuid, e.xid) for e in heard if e is not None] == [
        (devices[0].identity.uuid, 31),
        (devices[0].identity.uuid, 31),
        (devices[1].identity.uuid, 79),
    ]
    events.close()
    events.close()
    with pytest.raises(DriverError):
        events.wait(0.01)


def test_a_gpu_that_announces_nothing_does_not_silence_the_others(
    machine: FakeNvml, driver: NvmlDriver
) -> None:
    machine.device(0, events=0)
    devices = driver.devices()
    events = driver.xid_events()
    assert events.unsupported == (devices[0].identity.uuid,)
    machine.xid(1, 48)
    heard = events.wait(1.0)
    assert heard is not None
    assert heard.xid == 48
    events.close()


def test_where_no_gpu_announces_errors_the_subscription_says_so(
    machine: FakeNvml, driver: NvmlDriver
) -> None:
    for index in (0, 1):
        machine.device(index, events=0)
    driver.devices()
    with pytest.raises(NotSupported):
        driver.xid_events()


def test_events_of_a_session_that_ended_are_an_error_and_not_silence(
    machine: FakeNvml, driver: NvmlDriver
) -> None:
    driver.devices()
    events = driver.xid_events()
    driver.close()
    with pytest.raises(DriverError):
        events.wait(0.01)


# ----- links


def test_link_counters_are_bytes_and_no_call_blocks(machine: FakeNvml, device: Device) -> None:
    machine.field(0, 138, 1_000, scope=ALL_LINKS)
    machine.field(0, 139, 2_000, scope=ALL_LINKS)
    machine.field(0, 197, 5_000_000_000)
    machine.field(0, 198, 6_000_000_000)
    machine.device(0, pcie_replays=3)
    nvlink, pcie = device.nvlink_bytes(), device.pcie_bytes()
    assert (nvlink.sent, nvlink.received) == (1_024_000, 2_048_000)
    assert (pcie.sent, pcie.received) == (5_000_000_000, 6_000_000_000)
    assert device.pcie_replays() == 3


def test_nvlink_5_is_the_sum_over_its_links(machine: FakeNvml, device: Device) -> None:
    for number in (138, 139):
        machine.field(0, number, 0, scope=ALL_LINKS, code=3)
    for link in range(18):
        machine.field(0, 202, 10 + link, scope=link)
        machine.field(0, 204, 100, scope=link)
    traffic = device.nvlink_bytes()
    assert (traffic.sent, traffic.received) == (sum(range(10, 28)), 1_800)


def test_a_pcie_counter_of_32_bits_wraps_too_fast_to_be_true(
    machine: FakeNvml, device: Device
) -> None:
    machine.field(0, 197, 5, kind=1)
    machine.field(0, 198, 5, kind=1)
    with pytest.raises(NotSupported):
        device.pcie_bytes()


def test_a_board_without_nvlink_says_so(machine: FakeNvml, device: Device) -> None:
    for number in (138, 139):
        machine.field(0, number, 0, scope=ALL_LINKS, code=3)
    with pytest.raises(NotSupported):
        device.nvlink_bytes()


# ----- clocks, throttling, fans, video engines


def test_clocks_fans_and_video_engines_in_base_units(machine: FakeNvml, device: Device) -> None:
    machine.device(0, clock_sm=1_410, fans=2, fan_speed=43, encoder=12, decoder=100)
    assert device.clock_hertz("sm") == 1.41e9
    assert device.fan_speed_ratios() == (0.43, 0.43)
    assert device.codec_utilization("encoder") == 0.12
    assert device.codec_utilization("decoder") == 1.0


def test_throttling_is_counted_by_the_driver_and_told_of_the_moment(
    machine: FakeNvml, device: Device
) -> None:
    machine.field(0, 74, 2_500_000_000)
    machine.field(0, 269, 1_000_000)
    machine.device(0, reasons=0x1 | 0x2 | 0x8 | 0x40)
    throttle = device.throttle()
    assert sorted(throttle.active or ()) == ["hw_slowdown", "hw_thermal"]
    assert throttle.counted_s["sw_power_cap"] == 2.5
    assert throttle.counted_s["sw_thermal"] == 0.001


def test_reasons_are_asked_by_their_old_name_where_the_driver_is_old(
    machine: FakeNvml, device: Device
) -> None:
    machine.device(0, reasons=0x4)
    machine.fail("nvmlDeviceGetCurrentClocksEventReasons", 13, device=0)
    assert sorted(device.throttle().active or ()) == ["sw_power_cap"]


# ----- faults of the memory


def test_ecc_errors_and_remapped_rows(machine: FakeNvml, device: Device) -> None:
    machine.field(0, 3, 17)
    machine.field(0, 6, 2)
    machine.device(0, rows_correctable=1, rows_uncorrectable=4, rows_pending=1, rows_failed=1)
    errors = device.ecc_errors()
    assert errors["corrected", "volatile"] == 17
    assert errors["uncorrected", "aggregate"] == 2
    rows = device.row_remapping()
    assert (rows.correctable, rows.uncorrectable, rows.pending, rows.failed) == (1, 4, True, True)


def test_ecc_that_is_off_has_no_errors_to_tell(machine: FakeNvml, device: Device) -> None:
    machine.device(0, ecc_mode=0)
    with pytest.raises(NotSupported):
        device.ecc_errors()


@pytest.mark.parametrize(
    ("key", "read"),
    [
        ("clock_sm", lambda d: d.clock_hertz("sm")),
        ("encoder", lambda d: d.codec_utilization("encoder")),
        ("fan_speed", lambda d: d.fan_speed_ratios()),
        ("pcie_replays", lambda d: d.pcie_replays()),
        ("rows_uncorrectable", lambda d: d.row_remapping()),
        ("rows_failed", lambda d: d.row_remapping()),
    ],
)
def test_a_blank_value_is_never_published(
    machine: FakeNvml, device: Device, key: str, read: Callable[[Device], object]
) -> None:
    machine.device(0, fans=1)
    machine.device(0, **{key: BLANK_32})
    with pytest.raises(NotSupported):
        read(device)


@pytest.mark.parametrize("number", [3, 74, 138, 197])
@pytest.mark.parametrize("blank", [0x7FFFFFFFFFFFFFF0, 0x7FFFFFFFFFFFFFF2, BLANK_64])
def test_a_blank_counter_is_left_out(
    machine: FakeNvml, device: Device, number: int, blank: int
) -> None:
    scope = ALL_LINKS if number == 138 else -1
    machine.field(0, number, blank, scope=scope)
    assert ("corrected", "volatile") not in device.ecc_errors() or number != 3
    assert "sw_power_cap" not in device.throttle().counted_s or number != 74
    assert device.nvlink_bytes().sent is None or number != 138
    assert device.pcie_bytes().sent is None or number != 197


# ----- memory that is the machine's


def test_a_gpu_without_memory_of_its_own_tells_the_machines(
    machine: FakeNvml, driver: NvmlDriver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  400 kB\n")
    monkeypatch.setattr(nvml_device, "_MEMINFO", meminfo)
    machine.device(0, name="NVIDIA GB10")
    for function in ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"):
        machine.fail(function, 3)
    unified, discrete = driver.devices()
    memory = unified.memory_bytes()
    assert (memory.total, memory.used, memory.free) == (1_024_000, 614_400, 409_600)
    assert memory.unified
    with pytest.raises(NotSupported):
        discrete.memory_bytes()
