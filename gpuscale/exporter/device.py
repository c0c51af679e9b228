"""What a driver and a GPU are asked, and the quantities they answer with: the Protocols behind every driver.

Values are checked for range behind these Protocols: what comes out of them is true as far as can be
told, None where this device does not give it, or an error of errors.py. Nothing here does input or
output, or reads a clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

Sensor = Literal["gpu", "memory"]
ClockDomain = Literal["graphics", "sm", "memory", "video"]
Codec = Literal["encoder", "decoder"]
Severity = Literal["corrected", "uncorrected"]
Persistence = Literal["volatile", "aggregate"]
"""volatile: since the driver was loaded; aggregate: over the life of the board."""
ThrottleReason = Literal[
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "thermal",
    "sw_thermal",
    "hw_thermal",
    "hw_power_brake",
    "board_limit",
    "low_utilization",
    "reliability",
]
"""Why clocks are lower than they could be; what an administrator or the idle state chose is no throttling."""


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
class MigInstance:
    """One MIG device: a compute instance within a GPU instance. Constant until MIG is configured anew."""

    uuid: str
    """`MIG-…`, as the kubelet names it."""
    parent_uuid: str
    """Of the physical GPU."""
    gpu_instance_id: int
    compute_instance_id: int
    profile: str
    """`1g.10gb`, or `1c.3g.40gb` for a compute instance that is a part of its GPU instance."""


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
    unified: bool = False
    """Whether the GPU has no memory of its own, and this is the whole machine's (Jetson, GB10)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What the hardware counters saw between two samples (GPM, Hopper and later): shares of 0–1, bytes/s.

    None is a quantity that this device or instance does not give.
    """

    graphics_active: float | None = None
    sm_active: float | None = None
    sm_occupancy: float | None = None
    tensor_active: float | None = None
    dram_active: float | None = None
    fp64_active: float | None = None
    fp32_active: float | None = None
    fp16_active: float | None = None
    pcie_sent_bytes_per_s: float | None = None
    pcie_received_bytes_per_s: float | None = None
    nvlink_sent_bytes_per_s: float | None = None
    nvlink_received_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes on a link since the driver was loaded, as seen from the GPU; None where it has no counter."""

    sent: int | None
    received: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle:
    """Why the clocks are held down."""

    active: frozenset[ThrottleReason] | None
    """At this moment; None where the device does not tell."""
    counted_s: Mapping[ThrottleReason, float]
    """Seconds that the driver itself counted since it was loaded, for the reasons that it counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRemapping:
    """Rows of memory replaced by spares, over the life of the board (Ampere and later)."""

    correctable: int
    uncorrectable: int
    pending: bool
    """Whether a reset is needed for a replacement to take effect."""
    failed: bool
    """Whether there was no spare left: the board is to be replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeProcess:
    """A process with a compute context on a GPU or a MIG instance. Pids are the host's."""

    pid: int
    used_memory_bytes: int | None
    """None where the driver does not tell (WSL, missing permission)."""
    gpu_instance_id: int | None = None
    """Of the MIG instance it runs in; None on a GPU without MIG."""
    compute_instance_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUtilization:
    """One sample of the driver's buffer of what a process used."""

    pid: int
    sm_ratio: float
    """Share (0–1) of the time of the sample in which a kernel of the process ran."""
    memory_ratio: float
    timestamp_us: int
    """Wall time of the sample as the driver stamps it; hand the newest back as `since_us`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class XidEvent:
    """A critical error that the driver announced."""

    uuid: str
    """Of the physical GPU; empty where the driver names none that is known."""
    xid: int
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None


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

    def temperature_celsius(self, sensor: Sensor) -> float:
        """Now."""
        ...

    def clock_hertz(self, domain: ClockDomain) -> float:
        """Now."""
        ...

    def codec_utilization(self, codec: Codec) -> float:
        """Share (0–1) of the driver's last window."""
        ...

    def fan_speed_ratios(self) -> tuple[float, ...]:
        """Of each fan, as a share of its full speed (above 1 where it can exceed it)."""
        ...

    def throttle(self) -> Throttle:
        """Reasons in force and what the driver counted of them."""
        ...

    def pcie_bytes(self) -> Traffic:
        """Over PCIe, without the call that blocks for 20 ms."""
        ...

    def pcie_replays(self) -> int:
        """Packets sent again, since the driver was loaded."""
        ...

    def nvlink_bytes(self) -> Traffic:
        """Over all NVLinks, payload."""
        ...

    def ecc_errors(self) -> Mapping[tuple[Severity, Persistence], int]:
        """Counts of those that this device gives; at least one."""
        ...

    def row_remapping(self) -> RowRemapping:
        """Over the life of the board."""
        ...

    def error_counts(self) -> Mapping[str, int]:
        """Retired pages and errors of NVLink that this device gives, by dcgm-exporter's field."""
        ...

    def is_licensed(self) -> bool:
        """Whether a vGPU has its licence. NotSupported where none is needed."""
        ...

    def profile(self, instance: MigInstance | None = None) -> Profile | None:
        """Of the whole GPU, or of one MIG instance, since the last call; None for the first one."""
        ...

    def mig_instances(self) -> tuple[MigInstance, ...]:
        """Enumerate anew; empty where MIG is off, NotSupported where there is none on this board."""
        ...

    def mig_memory_bytes(self, instance: MigInstance) -> MemoryBytes:
        """Of one instance of the last `mig_instances()`; DriverError where it is gone."""
        ...

    def compute_processes(self) -> tuple[ComputeProcess, ...]:
        """Now. A slow call (milliseconds). Of all MIG instances together where MIG is on."""
        ...

    def process_utilization(self, since_us: int) -> tuple[ProcessUtilization, ...]:
        """Samples younger than `since_us`; empty while nothing runs. NotSupported with MIG."""
        ...


class XidEvents(Protocol):
    """A subscription to the driver's error events. To be waited on by one thread."""

    @property
    def unsupported(self) -> tuple[str, ...]:
        """Uuids of the GPUs whose events cannot be had."""
        ...

    def wait(self, timeout_s: float) -> XidEvent | None:
        """The next event; None when none came in time. Raises DriverError where the session is gone."""
        ...

    def close(self) -> None:
        """End the subscription; idempotent. Not while another thread waits."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverVersions:
    """Version strings; None where the driver does not tell."""

    driver: str | None
    nvml: str | None
    cuda: str | None


class Driver(Protocol):
    """The node's driver: a session that is opened, enumerated and closed. Calls may block."""

    def open(self) -> DriverVersions:
        """Start a session. Raises DriverMissing or DriverRestartRequired."""
        ...

    def devices(self) -> tuple[Device, ...]:
        """Enumerate the physical GPUs. A GPU that cannot be opened is left out and named by `lost`."""
        ...

    def lost(self) -> tuple[tuple[int, str], ...]:
        """(index, reason) of GPUs that the last `devices()` could not open."""
        ...

    def xid_events(self) -> XidEvents:
        """Subscribe to the errors of the GPUs of the last `devices()`. Raises NotSupported, DriverError."""
        ...

    def close(self) -> None:
        """End the session; idempotent."""
        ...
