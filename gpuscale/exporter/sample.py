"""What the exporter's rooms hand each other: values read from one device, and the node's snapshot of them.

Absence is the absence of a `Sample`: a value that is unknown, unsupported or out of range is not
there. Nothing here does input or output, or reads a clock.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol

from gpuscale.errors import DriverError


class Tier(StrEnum):
    """How often a collector is due (the periods are settings)."""

    FAST = "fast"
    MEDIUM = "medium"
    SLOW = "slow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a physical GPU is; constant as long as it is there."""

    index: int
    uuid: str
    product: str
    pci_bus_id: str
    minor: int | None
    """Number N of /dev/nvidiaN; None where the platform has none (WSL)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilization:
    """Shares (0–1) of the time since the last read; None where the device does not give it."""

    busy: float | None
    memory_copy: float | None
    source: Literal["samples", "instant"]
    """Of `busy`. samples: time-weighted mean of the driver's ring buffer; instant: its last window."""
    busy_covered_s: float | None = None
    """Seconds, of the driver's own clock, that `busy` is the mean of; None for an instant value."""
    memory_copy_covered_s: float | None = None
    """The same for `memory_copy`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBytes:
    """Device memory; `reserved` is None where the driver cannot tell it from used."""

    total: int
    used: int
    free: int
    reserved: int | None


class Device(Protocol):
    """One physical GPU as collectors read it. Every method may block in the driver.

    Each raises NotSupported where this device does not give the value, DeviceLost where the device
    is gone, DriverRestartRequired where only a new process helps, DriverError otherwise. Values are
    checked for range here: a sentinel or an absurd number is NotSupported.
    """

    @property
    def identity(self) -> Identity:
        """Who this is (read once, at enumeration)."""
        ...

    def utilization(self) -> Utilization:
        """Since the last call on this device."""
        ...

    def memory_bytes(self) -> MemoryBytes:
        """Now."""
        ...

    def power_watts(self) -> float:
        """Now, as the driver averages it."""
        ...

    def power_limit_watts(self) -> float:
        """Enforced limit."""
        ...

    def energy_joules(self) -> float:
        """Since the driver was loaded."""
        ...

    def temperature_celsius(self, sensor: Literal["gpu", "memory"]) -> float:
        """Now."""
        ...


class Driver(Protocol):
    """The node's driver: a session that is opened, enumerated and closed. Calls may block."""

    def open(self) -> "DriverVersions":
        """Start a session. Raises DriverMissing or DriverRestartRequired."""
        ...

    def devices(self) -> tuple[Device, ...]:
        """Enumerate the physical GPUs. A GPU that cannot be opened is left out and named by `lost`."""
        ...

    def lost(self) -> tuple[tuple[int, str], ...]:
        """(index, reason) of GPUs that the last `devices()` could not open."""
        ...

    def close(self) -> None:
        """End the session; idempotent."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverVersions:
    """Version strings; None where the driver does not tell."""

    driver: str | None
    nvml: str | None
    cuda: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One series of a device: its family in the catalog, the labels beyond gpu and uuid, its value."""

    family: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()


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
    unsupported: tuple[str, ...] = ()
    """Families that this device does not give."""
    errors: tuple[DriverError, ...] = ()
    """Failures of single values beside which others could be read; to be counted, not fatal."""


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
    unsupported: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverState:
    """Whether NVML answers; `reason` says why not, one sentence."""

    up: bool
    reason: str | None = None
    versions: DriverVersions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A container that holds a GPU, or a share of it."""

    uuid: str
    namespace: str
    pod: str
    container: str
    resource: str
    replica: str
    """Number of the share (time-slicing, MPS); empty for a whole GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributionState:
    """What the kubelet said last."""

    up: bool
    reason: str | None
    at: float | None
    """Wall time of its last answer; None before the first."""
    allocations: tuple[Allocation, ...]
    """Of the last answer, dropped when it is older than the staleness bound."""
    unmatched: int


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
