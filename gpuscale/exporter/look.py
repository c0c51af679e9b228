"""What is known of one GPU at one moment, as it was read: taken apart and put together when somebody asks."""

from collections.abc import Iterator
from dataclasses import dataclass

from gpuscale.exporter.device import Identity, MigInstance
from gpuscale.exporter.plausible import checked
from gpuscale.exporter.sample import (
    Collector,
    DeviceSample,
    ProcessReading,
    Reading,
    Sample,
    Tier,
    Unsupported,
    instance_values_of,
    value_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """The last good reading of one collector, and when it was begun."""

    reading: Reading
    wall: float
    monotonic: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A `Glance` at what a thread said last: takes nothing apart until it is asked to."""

    identity: Identity
    reason: str | None
    """Why the GPU is not up; None while it is."""
    reads: tuple[tuple[Collector, Read, bool], ...]
    """What each collector read last, and whether that is within its staleness bound."""
    xids: tuple[Sample, ...] = ()
    xids_unsupported: tuple[Unsupported, ...] = ()

    def _current(self) -> Iterator[Reading]:
        return (read.reading for _, read, current in self.reads if current)

    @property
    def mig(self) -> tuple[MigInstance, ...]:
        """The MIG instances that it is divided into."""
        readings = (read.reading.mig for _, read, _ in self.reads)
        return next((mig for mig in readings if mig is not None), ())

    @property
    def _looked(self) -> Read | None:
        """The last look at processes, if it is not too old."""
        for _, read, current in self.reads:
            if current and read.reading.processes is not None:
                return read
        return None

    @property
    def processes(self) -> ProcessReading | None:
        """None where nobody looks, or the last look is too old."""
        return None if (read := self._looked) is None else read.reading.processes

    @property
    def processes_at(self) -> float | None:
        """Wall time of that look."""
        return None if (read := self._looked) is None else read.wall

    def value(self, family: str) -> float | None:
        """Of the whole GPU, a series without further labels; None where it is absent."""
        return value_of((s for reading in self._current() for s in reading.samples), family)

    def instance_values(self, family: str) -> dict[str, float]:
        """Of each MIG instance, by its uuid."""
        if not self.mig:
            return {}
        return instance_values_of(
            (s for reading in self._current() for s in reading.samples), family
        )

    def sample(self) -> DeviceSample:
        """All of it, less what contradicts itself."""
        samples, compatible = checked(
            [sample for reading in self._current() for sample in reading.samples],
            [sample for reading in self._current() for sample in reading.compatible],
        )
        given = {sample.family for sample in samples}
        fast = [read.wall for collector, read, _ in self.reads if collector.tier is Tier.FAST]
        lacks = (lack for _, read, _ in self.reads for lack in read.reading.unsupported)
        return DeviceSample(
            identity=self.identity,
            up=self.reason is None,
            reason=self.reason,
            read_at=max(fast, default=None),
            samples=(*samples, *self.xids),
            compatible=compatible,
            unsupported=(
                *(lack for lack in lacks if lack.family not in given),
                *self.xids_unsupported,
            ),
            mig=self.mig,
            processes=self.processes,
            processes_at=self.processes_at,
        )
