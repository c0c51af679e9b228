"""Reading who runs on a GPU: no sample twice, none from before our time, and no utilization where there is none."""

import dataclasses

import pytest

from gpuscale.errors import DriverError, NotSupported
from gpuscale.exporter.collectors.processes import ProcessCollector
from gpuscale.exporter.device import ComputeProcess, ProcessUtilization
from gpuscale.exporter.sample import ProcessReading, Reading
from tests.fakes.gpu import FakeDevice, identity

RUNNING = (ComputeProcess(pid=1, used_memory_bytes=1 << 30),)


def sample(at_us: int) -> ProcessUtilization:
    return ProcessUtilization(pid=1, sm_ratio=0.5, memory_ratio=0.1, timestamp_us=at_us)


@dataclasses.dataclass
class Busy(FakeDevice):
    """A device whose driver has a buffer of samples, and gives all of it whatever it is asked."""

    buffer: tuple[ProcessUtilization, ...] = ()
    asked: list[int] = dataclasses.field(default_factory=list)
    list_fails: DriverError | None = None
    samples_fail: DriverError | None = None

    def compute_processes(self) -> tuple[ComputeProcess, ...]:
        if self.list_fails is not None:
            raise self.list_fails
        return RUNNING

    def process_utilization(self, since_us: int) -> tuple[ProcessUtilization, ...]:
        self.asked.append(since_us)
        if self.samples_fail is not None:
            raise self.samples_fail
        return self.buffer


def read(device: Busy, state: dict[str, float]) -> Reading:
    return ProcessCollector().read(device, state, 5.0)


def test_promise_7_samples_from_before_the_first_reading_and_those_that_were_seen_do_not_count() -> (
    None
):
    device, state = Busy(identity(0), buffer=(sample(1_000), sample(2_000))), dict[str, float]()
    assert read(device, state).processes == ProcessReading(processes=RUNNING, utilization=None)
    assert read(device, state).processes == ProcessReading(processes=RUNNING, utilization=())
    device.buffer = (*device.buffer, sample(3_000))
    assert read(device, state).processes == ProcessReading(
        processes=RUNNING, utilization=(sample(3_000),)
    )
    assert device.asked == [0, 2_000, 2_000]


def test_promise_44_where_nothing_runs_the_reading_is_empty_and_no_error() -> None:
    device, state = Busy(identity(0)), dict[str, float]()
    read(device, state)
    assert read(device, state).processes == ProcessReading(processes=RUNNING, utilization=())


def test_promise_10_with_mig_there_are_processes_and_no_utilization() -> None:
    device = Busy(identity(0), samples_fail=NotSupported("no", code=3))
    assert read(device, {}).processes == ProcessReading(processes=RUNNING, utilization=None)


def test_a_card_that_gives_no_processes_gives_no_reading() -> None:
    device = Busy(identity(0), list_fails=NotSupported("no", code=3))
    assert read(device, {}).processes is None


def test_a_failure_of_the_driver_is_a_failure_of_the_collector() -> None:
    device = Busy(identity(0), list_fails=DriverError("broken", code=999))
    with pytest.raises(DriverError, match="broken"):
        read(device, {})


def test_who_runs_is_known_although_what_they_use_cannot_be_read() -> None:
    device = Busy(identity(0), samples_fail=DriverError("broken", code=999))
    reading = read(device, {})
    assert reading.processes == ProcessReading(processes=RUNNING, utilization=None)
    assert [str(error) for error in reading.errors] == ["broken"]
