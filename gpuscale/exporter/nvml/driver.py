"""The session with the driver: opened, enumerated and closed; a GPU that is still there keeps its `Device`."""

from pathlib import Path
from typing import Any

from gpuscale.clock import Clock, SystemClock
from gpuscale.errors import (
    DeviceLost,
    DriverError,
    DriverMissing,
    DriverRestartRequired,
    NotSupported,
)
from gpuscale.exporter.device import Device, DriverVersions, Identity, XidEvents
from gpuscale.exporter.nvml.call import call, optional
from gpuscale.exporter.nvml.check import text
from gpuscale.exporter.nvml.device import NvmlDevice
from gpuscale.exporter.nvml.events import NvmlXidEvents
from gpuscale.exporter.nvml.loading import preload

DEVICES_MAX = 64
"""No node carries more physical GPUs than the NVML limit that vendors build to; beyond it is garbage."""


class NvmlDriver:
    """The node's driver through libnvidia-ml.so.1. One thread at a time, but for the XID events."""

    def __init__(self, clock: Clock | None = None, *, root: Path | None = None) -> None:
        """`root`: where the driver's own file system is seen; None where the loader finds the library."""
        self._clock = SystemClock() if clock is None else clock
        self._root = root
        self._opened = False
        self._devices: dict[str, NvmlDevice] = {}
        self._lost: tuple[tuple[int, str], ...] = ()

    def open(self) -> DriverVersions:
        """Start a session; a session that is open is ended first, so that handles are renewed.

        Besides what the Protocol says, raises DriverError where NVML fails for a reason of its own
        (Unknown Error, out of memory): whether that is final is for the caller to judge.
        """
        self.close()
        if self._root is not None:
            preload(self._root)
        try:
            call("nvmlInit")
        except (NotSupported, DeviceLost) as error:
            # A permission, a library that is too old, no GPU: all of these may change outside.
            raise DriverMissing(str(error), code=error.code) from error
        self._opened = True
        return DriverVersions(
            driver=_version("nvmlSystemGetDriverVersion"),
            nvml=_version("nvmlSystemGetNVMLVersion"),
            cuda=_cuda_version(),
        )

    def devices(self) -> tuple[Device, ...]:
        """Enumerate the physical GPUs; a GPU that is still there keeps its `Device`."""
        found: dict[str, NvmlDevice] = {}
        lost: list[tuple[int, str]] = []
        count = min(int(call("nvmlDeviceGetCount")), DEVICES_MAX)
        for index in range(count):
            try:
                handle = call("nvmlDeviceGetHandleByIndex", index, subject=f"GPU {index}")
                identity = _identity(handle, index)
            except (DriverMissing, DriverRestartRequired):
                raise
            except DriverError as error:
                lost.append((index, str(error)))
                continue
            device = self._devices.get(identity.uuid)
            if device is None:
                device = NvmlDevice(handle, identity, self._clock)
            else:
                device.rebind(handle, identity)
            found[identity.uuid] = device
        self._devices = found
        self._lost = tuple(lost)
        return tuple(found.values())

    def lost(self) -> tuple[tuple[int, str], ...]:
        """(index, reason) of GPUs that the last `devices()` could not open."""
        return self._lost

    def xid_events(self) -> XidEvents:
        """Subscribe to the errors of the GPUs of the last `devices()`."""
        return NvmlXidEvents([device.handle for device in self._devices.values()])

    def close(self) -> None:
        """End the session; idempotent, and silent where the driver is gone already."""
        if not self._opened:
            return
        self._opened = False
        for device in self._devices.values():
            device.release()
        try:
            call("nvmlShutdown")
        except DriverError:
            # There is no session either way; the library stays mapped until the process ends.
            return


def _identity(handle: Any, index: int) -> Identity:
    """Who is behind `handle`. Only the UUID is indispensable: without it nothing can be joined."""
    subject = f"GPU {index}"
    uuid = text(call("nvmlDeviceGetUUID", handle, subject=subject))
    if not uuid:
        raise DriverError(f"{subject}: nvmlDeviceGetUUID gave an empty name")
    name = optional("nvmlDeviceGetName", handle, subject=subject)
    pci = optional("nvmlDeviceGetPciInfo", handle, subject=subject)
    minor = optional("nvmlDeviceGetMinorNumber", handle, subject=subject)
    return Identity(
        index=index,
        uuid=uuid,
        product="" if name is None else text(name),
        pci_bus_id="" if pci is None else text(pci.busId),
        minor=None if minor is None or not 0 <= minor < 1 << 20 else int(minor),
    )


def _version(function: str) -> str | None:
    value = optional(function)
    return text(value) or None if value is not None else None


def _cuda_version() -> str | None:
    """12.4 for 12040. The second version of this call would load libcuda, and with it a context."""
    value = optional("nvmlSystemGetCudaDriverVersion")
    if value is None or not 1000 <= value < 1_000_000:
        return None
    return f"{value // 1000}.{value % 1000 // 10}"
