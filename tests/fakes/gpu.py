"""A driver behind the Protocols of sample.py whose every call a test can let fail or hang."""

import queue
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuscale.errors import DeviceLost
from gpuscale.exporter.device import (
    ClockDomain,
    Codec,
    ComputeProcess,
    Device,
    DriverVersions,
    Identity,
    MemoryBytes,
    MigInstance,
    Persistence,
    ProcessUtilization,
    Profile,
    RowRemapping,
    Sensor,
    Severity,
    Throttle,
    Traffic,
    Utilization,
    XidEvent,
    XidEvents,
)


def identity(index: int) -> Identity:
    """The GPU number `index` of a node; its uuid says so."""
    return Identity(
        index=index,
        uuid=f"GPU-{index:08d}-aaaa-bbbb-cccc-000000000000",
        product="NVIDIA H100 80GB HBM3",
        pci_bus_id=f"00000000:{index + 16:02X}:00.0",
        minor=index,
    )


def instance(parent_uuid: str, number: int = 0, *, compute: int = 0) -> MigInstance:
    """The GPU instance with this number of a divided GPU."""
    return MigInstance(
        uuid=f"MIG-{number:08d}-{compute:04d}-bbbb-cccc-000000000000",
        parent_uuid=parent_uuid,
        gpu_instance_id=number,
        compute_instance_id=compute,
        profile="1g.10gb",
    )


@dataclass
class FakeDevice:
    """Half busy, at 350 W, with 20 of 80 GiB used, until a test says otherwise."""

    identity: Identity
    fails: Exception | None = None
    """Raised by every call while it is set."""
    hang: threading.Event | None = None
    """Every call waits for this event while it is set."""
    busy: float = 0.5
    mig: tuple[MigInstance, ...] = ()
    processes: tuple[ComputeProcess, ...] = ()
    process_samples: tuple[ProcessUtilization, ...] = ()
    calls: int = 0

    def _called(self) -> None:
        self.calls += 1
        if self.hang is not None:
            self.hang.wait(30)
        if self.fails is not None:
            raise self.fails

    def utilization(self) -> Utilization:
        self._called()
        return Utilization(busy=self.busy, memory_copy=0.25, source="instant")

    def memory_bytes(self) -> MemoryBytes:
        self._called()
        gib = 1 << 30
        return MemoryBytes(total=80 * gib, used=20 * gib, free=59 * gib, reserved=1 * gib)

    def power_watts(self) -> float:
        self._called()
        return 350.0

    def power_limit_watts(self) -> float:
        self._called()
        return 700.0

    def energy_joules(self) -> float:
        self._called()
        return 123_456.0

    def temperature_celsius(self, sensor: Sensor) -> float:
        self._called()
        return 55.0 if sensor == "gpu" else 62.0

    def clock_hertz(self, domain: ClockDomain) -> float:
        self._called()
        return {"graphics": 1.98e9, "sm": 1.98e9, "memory": 2.619e9, "video": 1.6e9}[domain]

    def codec_utilization(self, codec: Codec) -> float:
        self._called()
        return 0.0 if codec == "encoder" else 0.1

    def fan_speed_ratios(self) -> tuple[float, ...]:
        self._called()
        return (0.4,)

    def throttle(self) -> Throttle:
        self._called()
        return Throttle(
            active=frozenset({"hw_slowdown"}),
            counted_s={"sw_power_cap": 12.5, "hw_thermal": 0.0, "sw_thermal": 1.5},
        )

    def pcie_bytes(self) -> Traffic:
        self._called()
        return Traffic(sent=1_000_000, received=4_000_000)

    def pcie_replays(self) -> int:
        self._called()
        return 2

    def nvlink_bytes(self) -> Traffic:
        self._called()
        return Traffic(sent=7_000_000, received=8_000_000)

    def ecc_errors(self) -> Mapping[tuple[Severity, Persistence], int]:
        self._called()
        return {
            ("corrected", "volatile"): 1,
            ("uncorrected", "volatile"): 0,
            ("corrected", "aggregate"): 5,
            ("uncorrected", "aggregate"): 0,
        }

    def row_remapping(self) -> RowRemapping:
        self._called()
        return RowRemapping(correctable=1, uncorrectable=0, pending=False, failed=False)

    def error_counts(self) -> Mapping[str, int]:
        self._called()
        return {"DCGM_FI_DEV_RETIRED_DBE": 3}

    def is_licensed(self) -> bool:
        self._called()
        return True

    def profile(self, instance: MigInstance | None = None) -> Profile | None:
        self._called()
        return Profile(
            graphics_active=0.5,
            sm_active=0.45,
            sm_occupancy=0.2,
            tensor_active=0.15,
            dram_active=0.3,
            pcie_sent_bytes_per_s=1e6,
            pcie_received_bytes_per_s=4e6,
        )

    def mig_instances(self) -> tuple[MigInstance, ...]:
        self._called()
        return self.mig

    def mig_memory_bytes(self, instance: MigInstance) -> MemoryBytes:
        self._called()
        gib = 1 << 30
        return MemoryBytes(total=10 * gib, used=2 * gib, free=8 * gib, reserved=0)

    def compute_processes(self) -> tuple[ComputeProcess, ...]:
        self._called()
        return self.processes

    def process_utilization(self, since_us: int) -> tuple[ProcessUtilization, ...]:
        self._called()
        return tuple(s for s in self.process_samples if s.timestamp_us > since_us)


@dataclass
class FakeDriver:
    """Holds what the next session and enumeration will find."""

    gpus: list[FakeDevice] = field(default_factory=list)
    open_fails: Exception | None = None
    devices_fail: Exception | None = None
    unopened: tuple[tuple[int, str], ...] = ()
    hang: threading.Event | None = None
    """open() waits for this event while it is set."""
    xids: "queue.SimpleQueue[XidEvent | Exception]" = field(default_factory=queue.SimpleQueue)
    """What the driver announces."""
    opened: int = 0
    closed: int = 0

    @classmethod
    def of(cls, count: int) -> "FakeDriver":
        """A driver with `count` healthy GPUs."""
        return cls(gpus=[FakeDevice(identity(index)) for index in range(count)])

    def open(self) -> DriverVersions:
        self.opened += 1
        if self.hang is not None:
            self.hang.wait(30)
        if self.open_fails is not None:
            raise self.open_fails
        return DriverVersions(driver="550.90.07", nvml="12.550.90.07", cuda="12.4")

    def devices(self) -> tuple[Device, ...]:
        if self.devices_fail is not None:
            raise self.devices_fail
        return tuple(self.gpus)

    def lost(self) -> tuple[tuple[int, str], ...]:
        return self.unopened

    def xid_events(self) -> XidEvents:
        return FakeXidEvents(self.xids)

    def close(self) -> None:
        self.closed += 1


class FakeXidEvents:
    """What a test puts into the queue: an event, or an error that the wait raises."""

    unsupported: tuple[str, ...] = ()

    def __init__(self, announced: "queue.SimpleQueue[XidEvent | Exception]") -> None:
        self._announced = announced

    def wait(self, timeout_s: float) -> XidEvent | None:
        try:
            event = self._announced.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if isinstance(event, Exception):
            raise event
        return event

    def close(self) -> None:
        """Nothing to give back."""


def lost(index: int) -> DeviceLost:
    """What NVML says of a GPU that fell off the bus."""
    return DeviceLost(f"GPU {index}: GPU is lost", code=15)
