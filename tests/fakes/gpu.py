"""A driver behind the Protocols of sample.py whose every call a test can let fail or hang."""

import threading
from dataclasses import dataclass, field
from typing import Literal

from gpuscale.errors import DeviceLost
from gpuscale.exporter.sample import (
    Device,
    DriverVersions,
    Identity,
    MemoryBytes,
    Utilization,
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


@dataclass
class FakeDevice:
    """Half busy, at 350 W, with 20 of 80 GiB used, until a test says otherwise."""

    identity: Identity
    fails: Exception | None = None
    """Raised by every call while it is set."""
    hang: threading.Event | None = None
    """Every call waits for this event while it is set."""
    busy: float = 0.5
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

    def temperature_celsius(self, sensor: Literal["gpu", "memory"]) -> float:
        self._called()
        return 55.0 if sensor == "gpu" else 62.0


@dataclass
class FakeDriver:
    """Holds what the next session and enumeration will find."""

    gpus: list[FakeDevice] = field(default_factory=list)
    open_fails: Exception | None = None
    devices_fail: Exception | None = None
    unopened: tuple[tuple[int, str], ...] = ()
    hang: threading.Event | None = None
    """open() waits for this event while it is set."""
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

    def close(self) -> None:
        self.closed += 1


def lost(index: int) -> DeviceLost:
    """What NVML says of a GPU that fell off the bus."""
    return DeviceLost(f"GPU {index}: GPU is lost", code=15)
