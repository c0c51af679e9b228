"""Collectors: what they name, what they leave out, and counters that are integrals."""

import dataclasses
from collections import Counter
from typing import Literal

import pytest

from gpuscale import catalog
from gpuscale.errors import DeviceLost, DriverError, NotSupported
from gpuscale.exporter.collectors import COLLECTORS
from gpuscale.exporter.collectors.memory import MemoryCollector
from gpuscale.exporter.collectors.thermal import TemperatureCollector
from gpuscale.exporter.collectors.utilization import (
    BUSY_RATIO,
    BUSY_SECONDS,
    COPY_RATIO,
    COPY_SECONDS,
    INSTANT_COVERS_S_MAX,
    SOURCE,
    UtilizationCollector,
)
from gpuscale.exporter.device import MemoryBytes, Utilization
from gpuscale.exporter.sample import Reading
from tests.fakes.gpu import FakeDevice, identity, instance


@dataclasses.dataclass
class Scripted(FakeDevice):
    """A device whose next answers a test writes down."""

    seen: Utilization | Exception | None = None
    memory: MemoryBytes | None = None
    temperatures: dict[str, float | Exception] = dataclasses.field(default_factory=dict)

    def utilization(self) -> Utilization:
        if isinstance(self.seen, Exception):
            raise self.seen
        return self.seen or super().utilization()

    def memory_bytes(self) -> MemoryBytes:
        return self.memory or super().memory_bytes()

    def temperature_celsius(self, sensor: Literal["gpu", "memory"]) -> float:
        value = self.temperatures[sensor]
        if isinstance(value, Exception):
            raise value
        return value


def samples(busy: float, covered_s: float) -> Utilization:
    return Utilization(
        busy=busy,
        memory_copy=busy / 2,
        source="samples",
        busy_covered_s=covered_s,
        memory_copy_covered_s=covered_s,
    )


def instant(busy: float) -> Utilization:
    return Utilization(busy=busy, memory_copy=None, source="instant")


def value(reading: Reading, family: str) -> float:
    (found,) = [s.value for s in reading.samples if s.family == family]
    return found


def lacking(reading: Reading) -> set[str]:
    return {lack.family for lack in reading.unsupported}


class Story:
    """One device read by the utilization collector, as the sampler would."""

    def __init__(self) -> None:
        self.device = Scripted(identity(0))
        self.state: dict[str, float] = {}
        self.since_good_s: float | None = None

    def read(self, after_s: float, seen: Utilization | Exception) -> Reading | None:
        """Read `after_s` seconds after the last try; None when that failed."""
        if self.since_good_s is not None:
            self.since_good_s += after_s
        self.device.seen = seen
        try:
            reading = UtilizationCollector().read(self.device, self.state, self.since_good_s)
        except DriverError:
            return None
        self.since_good_s = 0.0
        return reading

    def busy_s(self) -> float:
        return self.state.get(BUSY_SECONDS, 0.0)


def test_every_family_is_in_the_catalog_and_has_one_collector_but_for_what_is_integrated() -> None:
    families = Counter(family for collector in COLLECTORS for family in collector.families)
    twice = {family for family, count in families.items() if count > 1}
    assert twice == {"gpuscale_gpu_energy_joules_total", "gpuscale_gpu_pcie_bytes_total"}, (
        "integrated where the driver counts none"
    )
    assert families.keys() <= catalog.FAMILIES.keys()
    assert len({collector.name for collector in COLLECTORS}) == len(COLLECTORS)


def test_every_family_comes_with_the_labels_of_the_catalog() -> None:
    device = Scripted(identity(0), temperatures={"gpu": 50.0, "memory": 60.0})
    device.mig = (instance(device.identity.uuid),)
    seen = set()
    for collector in COLLECTORS:
        for sample in collector.read(device, {}, None).samples:
            own = tuple(name for name, _ in sample.labels)
            of = ("gpu", "uuid") if sample.mig is None else ("uuid", "parent_uuid", "profile")
            assert catalog.FAMILIES[sample.family].labels == (*of, *own)
            assert sample.family in collector.families
            seen.add(sample.family)
    assert seen == {family for collector in COLLECTORS for family in collector.families}


def test_the_first_read_gives_the_ratio_and_a_counter_at_zero() -> None:
    reading = Story().read(0.0, samples(0.8, 1.0))
    assert reading is not None
    assert value(reading, BUSY_RATIO) == 0.8
    assert value(reading, BUSY_SECONDS) == 0.0
    assert value(reading, COPY_RATIO) == 0.4
    assert value(reading, COPY_SECONDS) == 0.0


def test_busy_seconds_are_the_integral_whatever_the_period() -> None:
    story = Story()
    story.read(0.0, samples(0.0, 1.0))
    for period_s, busy in ((1.0, 1.0), (0.5, 0.4), (7.0, 0.1), (1.0, 0.0)):
        story.read(period_s, samples(busy, period_s))
    assert story.busy_s() == pytest.approx(1.0 + 0.2 + 0.7)


def test_samples_that_cover_a_failed_read_leave_no_hole() -> None:
    story = Story()
    story.read(0.0, samples(0.5, 1.0))
    assert story.read(1.0, DriverError("busy", code=19)) is None
    story.read(1.0, samples(0.5, 2.0))
    assert story.busy_s() == pytest.approx(0.5 * 2.0)


def test_time_that_the_samples_do_not_cover_adds_nothing() -> None:
    story = Story()
    story.read(0.0, samples(1.0, 1.0))
    story.read(120.0, samples(1.0, 20.0))
    assert story.busy_s() == pytest.approx(20.0)
    story.read(1.0, samples(1.0, 1.0))
    assert story.busy_s() == pytest.approx(21.0)


def test_an_instant_value_does_not_speak_for_a_read_that_failed() -> None:
    story = Story()
    story.read(0.0, instant(1.0))
    story.read(1.0, instant(1.0))
    assert story.read(5.0, DriverError("time-out", code=10)) is None
    assert story.read(5.0, DriverError("time-out", code=10)) is None
    story.read(1.0, instant(1.0))
    assert story.busy_s() == pytest.approx(2.0)
    story.read(1.0, instant(1.0))
    assert story.busy_s() == pytest.approx(3.0)


def test_an_instant_value_does_not_speak_for_an_hour() -> None:
    story = Story()
    story.read(0.0, instant(1.0))
    story.read(3600.0, instant(1.0))
    assert story.busy_s() == pytest.approx(INSTANT_COVERS_S_MAX)


def test_samples_a_little_younger_than_the_read_lose_no_time() -> None:
    """The newest sample is 0 to 0.17 s old: what one read does not see, the next does."""
    story = Story()
    story.read(0.0, samples(1.0, 1.0))
    for covered_s in (0.83, 1.17, 0.9, 1.1, 0.83, 1.17):
        story.read(1.0, samples(1.0, covered_s))
    assert story.busy_s() == pytest.approx(6.0)


def test_no_answer_of_the_driver_makes_more_than_one_busy_second_a_second() -> None:
    story = Story()
    story.read(0.0, samples(1.0, 1.0))
    for covered_s in (3600.0, 1.0, 50.0, 0.0, 2.0):
        story.read(1.0, samples(1.0, covered_s))
    assert story.busy_s() <= 5.0


def test_half_a_utilization_is_half_absent() -> None:
    reading = Story().read(0.0, instant(0.5))
    assert reading is not None
    assert {s.family for s in reading.samples} == {BUSY_RATIO, BUSY_SECONDS, SOURCE}
    assert lacking(reading) == {COPY_RATIO, COPY_SECONDS}


NOT_ANNOUNCED = {
    "power": {"gpuscale_gpu_energy_joules_total"},
    "profile": {"gpuscale_gpu_pcie_bytes_total"},
    "mig": set(next(c for c in COLLECTORS if c.name == "mig").families),
}
"""A stand-in leaves the announcement to the collector it stands in for; a board without MIG lacks nothing."""


def test_what_a_device_does_not_support_is_named_and_absent() -> None:
    device = Scripted(identity(0), temperatures={s: NotSupported("no") for s in ("gpu", "memory")})
    device.fails = device.seen = NotSupported("no such thing", code=3)
    for collector in COLLECTORS:
        reading = collector.read(device, {}, 1.0)
        assert reading.samples == ()
        silent = NOT_ANNOUNCED.get(collector.name, set())
        assert lacking(reading) == set(collector.families) - silent


def test_a_lost_device_is_for_the_caller_to_judge() -> None:
    device = Scripted(identity(0), temperatures={s: DeviceLost("gone") for s in ("gpu", "memory")})
    device.fails = device.seen = DeviceLost("gone", code=15)
    for collector in COLLECTORS:
        with pytest.raises(DeviceLost):
            collector.read(device, {}, 1.0)


def test_reserved_memory_is_absent_where_the_driver_counts_it_as_used() -> None:
    device = Scripted(identity(0), memory=MemoryBytes(total=100, used=60, free=40, reserved=None))
    reading = MemoryCollector().read(device, {}, 1.0)
    assert len(reading.samples) == 4
    assert lacking(reading) == {"gpuscale_gpu_memory_reserved_bytes"}


def test_a_sensor_that_fails_does_not_hide_the_other() -> None:
    device = Scripted(
        identity(0), temperatures={"gpu": 55.0, "memory": DriverError("time-out", code=10)}
    )
    reading = TemperatureCollector().read(device, {}, 1.0)
    assert [(s.value, s.labels) for s in reading.samples] == [(55.0, (("sensor", "gpu"),))]
    assert [error.code for error in reading.errors] == [10]


def test_a_board_without_a_memory_sensor_still_has_temperatures() -> None:
    device = Scripted(identity(0), temperatures={"gpu": 40.0, "memory": NotSupported("none")})
    reading = TemperatureCollector().read(device, {}, 1.0)
    assert len(reading.samples) == 1
    assert reading.unsupported == ()


def test_when_every_sensor_fails_the_read_has_failed() -> None:
    device = Scripted(
        identity(0),
        temperatures={"gpu": DriverError("time-out", code=10), "memory": NotSupported("none")},
    )
    with pytest.raises(DriverError) as raised:
        TemperatureCollector().read(device, {}, 1.0)
    assert raised.value.code == 10
