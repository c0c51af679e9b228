"""What the exporter's rooms hand each other: values read from one device, and the node's snapshot of them.

Absence is the absence of a `Sample`: a value that is unknown, unsupported or out of range is not
there. Nothing here does input or output, or reads a clock.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol

from gpuscale.errors import DriverError
from gpuscale.exporter.device import (
    ComputeProcess,
    Device,
    DriverVersions,
    Identity,
    MigInstance,
    ProcessUtilization,
)
from gpuscale.exporter.usage import AttributionState, Usage


class Tier(StrEnum):
    """How often a collector is due (the periods are settings)."""

    FAST = "fast"
    MEDIUM = "medium"
    SLOW = "slow"
    PROCESSES = "processes"
    """Who runs on the GPU: the slowest calls of all, so only where somebody needs the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One series: its family in the catalog, the labels beyond those that say of what, its value.

    Of a whole GPU the labels `gpu` and `uuid` say so; of a MIG instance `uuid`, `parent_uuid` and
    `profile`.
    """

    family: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()
    mig: MigInstance | None = None
    """The MIG instance that it is of; None for the whole GPU."""


Absence = Literal["not_supported", "no_permission", "driver_too_old", "no_true_value"]
"""Why a value is absent for good: the board (or its mode, such as MIG) has none, the process may not read it, this
driver has no such call, or what the driver says cannot be true."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsupported:
    """A family that a device does not give, and why."""

    family: str
    reason: Absence


class Collector(Protocol):
    """One file in collectors/: reads a few values of a device. Stateless but for what `state` holds."""

    @property
    def name(self) -> str:
        """Label `collector` of its own metrics."""
        ...

    @property
    def tier(self) -> Tier:
        """How often it is due."""
        ...

    @property
    def families(self) -> tuple[str, ...]:
        """Families it can give; what a device does not support is announced from this list."""
        ...

    def read(self, device: Device, state: dict[str, float], elapsed_s: float | None) -> "Reading":
        """Read the device once.

        `state` belongs to this collector and device and lives as long as the device does (running
        totals of counters). `elapsed_s` is the time since the last good read, None at the first.
        Raises DeviceLost, DriverRestartRequired or DriverError; NotSupported is handled inside, by
        naming the family in `Reading.unsupported`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one collector read of one device."""

    samples: tuple[Sample, ...]
    unsupported: tuple[Unsupported, ...] = ()
    """Families that this device does not give."""
    errors: tuple[DriverError, ...] = ()
    """Failures of single values beside which others could be read; to be counted, not fatal."""
    mig: tuple[MigInstance, ...] | None = None
    """The MIG instances that are there; None from a collector that does not look for them."""
    processes: "ProcessReading | None" = None
    """None from a collector that does not look for them."""
    compatible: tuple[Sample, ...] = ()
    """Values that only the compatible series show, under dcgm-exporter's names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReading:
    """Who runs on a GPU, and what they used since the reading before."""

    processes: tuple[ComputeProcess, ...]
    utilization: tuple[ProcessUtilization, ...] | None
    """Empty while nothing ran; None where the device does not tell (MIG, old drivers)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """All that is known of one GPU at the moment of a snapshot."""

    identity: Identity
    up: bool
    reason: str | None
    """Why it is not up; None while it is."""
    read_at: float | None
    """Wall time of the last good fast read; None before the first."""
    samples: tuple[Sample, ...]
    """Empty of every value that is older than the staleness bound."""
    unsupported: tuple[Unsupported, ...] = ()
    compatible: tuple[Sample, ...] = ()
    """The same for values that only the compatible series show, under dcgm-exporter's names."""
    mig: tuple[MigInstance, ...] = ()
    """The MIG instances that it is divided into."""
    processes: ProcessReading | None = None
    """None where nobody looks, or the last look is too old."""
    processes_at: float | None = None
    """Wall time of that look: a reading that was seen is not counted again."""

    def value(self, family: str) -> float | None:
        """Of the whole GPU, a series without further labels; None where it is absent."""
        return value_of(self.samples, family)

    def instance_values(self, family: str) -> dict[str, float]:
        """Of each MIG instance, by its uuid."""
        return instance_values_of(self.samples, family)

    def sample(self) -> "DeviceSample":
        """Itself: it is assembled already."""
        return self


class Glance(Protocol):
    """What is known of one GPU at one moment, assembled to a DeviceSample only when somebody asks.

    Values are read once a second and scraped a few times a minute: who holds what is looked at each
    time, and needs little of it.
    """

    @property
    def identity(self) -> Identity:
        """Which GPU."""
        ...

    @property
    def mig(self) -> tuple[MigInstance, ...]:
        """The MIG instances that it is divided into."""
        ...

    @property
    def processes(self) -> ProcessReading | None:
        """None where nobody looks, or the last look is too old."""
        ...

    @property
    def processes_at(self) -> float | None:
        """Wall time of that look."""
        ...

    def value(self, family: str) -> float | None:
        """Of the whole GPU, a series without further labels; None where it is absent."""
        ...

    def instance_values(self, family: str) -> dict[str, float]:
        """Of each MIG instance, by its uuid."""
        ...

    def sample(self) -> DeviceSample:
        """All of it."""
        ...


def value_of(samples: Iterable[Sample], family: str) -> float | None:
    """The value of the whole GPU's series of this family that has no further label."""
    for sample in samples:
        if sample.family == family and sample.mig is None and not sample.labels:
            return sample.value
    return None


def instance_values_of(samples: Iterable[Sample], family: str) -> dict[str, float]:
    """The values of the MIG instances' series of this family, by the instances' uuids."""
    return {s.mig.uuid: s.value for s in samples if s.family == family and s.mig is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverState:
    """Whether NVML answers; `reason` says why not, one sentence."""

    up: bool
    reason: str | None = None
    versions: DriverVersions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorStats:
    """Cost and failures of one collector since the start."""

    name: str
    duration_s: float | None
    errors: tuple[tuple[str, int], ...]
    """(what NVML answered, how often)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSample:
    """The immutable snapshot that a scrape and /api/v1/sample are rendered from."""

    sequence: int
    at: float
    node: str
    driver: DriverState
    devices: tuple[DeviceSample, ...]
    attribution: AttributionState | None
    """None when attribution is off."""
    collectors: tuple[CollectorStats, ...]
    cycles: int
    usage: Usage | None = None
    """Whose the GPUs are, beyond the allocations; None where nobody looks."""
