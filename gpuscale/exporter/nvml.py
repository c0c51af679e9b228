"""The one door to pynvml: the real driver behind `sample.Driver` and `sample.Device`.

pynvml is imported when a session is opened, so that a node without a GPU pays nothing for it. Every
call may block in the driver for milliseconds or for ever: call from a thread that may be given up.
What NVML answers leaves this room only as a checked value or as one of the errors in errors.py.
"""

import math
from types import ModuleType
from typing import Any, Literal

from gpuscale.errors import (
    DeviceLost,
    DriverError,
    DriverMissing,
    DriverRestartRequired,
    NotSupported,
    foreign,
)
from gpuscale.exporter import nvmlreturn
from gpuscale.exporter.sample import (
    Device,
    DriverVersions,
    Identity,
    MemoryBytes,
    Utilization,
)
from gpuscale.exporter.samplebuffer import SampleBuffer

DEVICES_MAX = 64
"""No node carries more physical GPUs than the NVML limit that vendors build to; beyond it is garbage."""
TEXT_MAX = 128
"""Characters of a name that become a label value; NVML's own buffers are 96 at most."""

MEMORY_BYTES_MAX = 1 << 45
"""32 TiB: a hundred times the largest board; the driver's blank values lie far above."""
POWER_WATTS_MAX = 20_000.0
"""Several times the largest board or module; the blank value 0xffffffff is 4,294,967 W."""
ENERGY_JOULES_MAX = 1e13
"""A board of 10 kW for thirty years."""
TEMPERATURE_CELSIUS_MAX = 200.0
"""Above this DCGM, too, drops a reading: no silicon reports it."""

_FIELD_MEMORY_TEMPERATURE = 82
_SENSOR_GPU = 0

_Kind = Literal["gpu", "memory"]


def _pynvml() -> ModuleType:
    """The vendor's module, loaded at the first need."""
    try:
        import pynvml  # noqa: PLC0415 - a node without a GPU never pays for it
    except ImportError as error:
        raise DriverMissing(
            f"the Python package nvidia-ml-py cannot be imported ({foreign(error)}): "
            "install it (pip install nvidia-ml-py)"
        ) from error
    module: ModuleType = pynvml
    return module


def _call(function: str, *arguments: Any, subject: str = "NVML") -> Any:
    """Call pynvml's `function`; whatever it raises is raised again as an error of our tree."""
    nvml = _pynvml()
    what = f"{subject}: {function}"
    try:
        return getattr(nvml, function)(*arguments)
    except nvml.NVMLError as error:
        raise nvmlreturn.as_error(what, int(error.value)) from error
    except nvml.NVMLLibraryMismatchError as error:
        # Raised in place of "function not found" when only a newer spelling is missing.
        raise NotSupported(
            f"{what} is not in this driver's library", code=nvmlreturn.FUNCTION_NOT_FOUND
        ) from error
    except AttributeError as error:
        raise NotSupported(
            f"{what} is not in this version of nvidia-ml-py: upgrade it",
            code=nvmlreturn.FUNCTION_NOT_FOUND,
        ) from error
    except UnicodeDecodeError as error:
        raise DriverError(f"{what} gave text that is not UTF-8") from error


def _text(value: object) -> str:
    """A name as a label value: printable, stripped, bounded."""
    raw = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return "".join(c for c in raw if c.isprintable()).strip()[:TEXT_MAX]


def _in_range(what: str, value: float, low: float, high: float) -> float:
    """`value` where it can be true; NotSupported where it is a sentinel, a blank or absurd."""
    if not math.isfinite(value) or not low <= value <= high:
        raise NotSupported(f"{what} gave {value!r}, which is no value between {low:g} and {high:g}")
    return value


class NvmlDevice:
    """One physical GPU behind its NVML handle. Not to be read by two threads at a time."""

    def __init__(self, handle: Any, identity: Identity) -> None:
        self._handle = handle
        self._identity = identity
        self._memory_v2 = True
        self._buffers: dict[_Kind, SampleBuffer] = {"gpu": SampleBuffer(), "memory": SampleBuffer()}

    @property
    def identity(self) -> Identity:
        """Who this is."""
        return self._identity

    def rebind(self, handle: Any, identity: Identity) -> None:
        """The same GPU after a new enumeration: its place in the sample buffer is kept."""
        self._handle = handle
        self._identity = identity

    def utilization(self) -> Utilization:
        """Time-weighted means since the last call, else the driver's instant values.

        The ring buffer (nvmlDeviceGetSamples) is exact at any period of ours; a device that has
        none (a MIG parent, old drivers), or no new sample, gives its last window of ⅙ to 1 s.
        """
        busy, busy_s = self._buffered("gpu") or (None, None)
        copy, copy_s = self._buffered("memory") or (None, None)
        if busy is not None and copy is not None:
            return Utilization(
                busy=busy,
                memory_copy=copy,
                source="samples",
                busy_covered_s=busy_s,
                memory_copy_covered_s=copy_s,
            )
        try:
            rates = self._ask("nvmlDeviceGetUtilizationRates")
        except NotSupported:
            if busy is None and copy is None:
                raise
            rates = None
        instant_busy = None if rates is None else _percent(rates.gpu)
        instant_copy = None if rates is None else _percent(rates.memory)
        if busy is None and copy is None and instant_busy is None and instant_copy is None:
            raise NotSupported(f"{self._subject}: utilization is not a share of 0 to 100 %")
        return Utilization(
            busy=instant_busy if busy is None else busy,
            memory_copy=instant_copy if copy is None else copy,
            source="instant" if busy is None else "samples",
            busy_covered_s=busy_s,
            memory_copy_covered_s=copy_s,
        )

    def memory_bytes(self) -> MemoryBytes:
        """Version 2 tells reserved from used (driver 510 and later); version 1 counts it as used."""
        if self._memory_v2:
            try:
                info = self._ask("nvmlDeviceGetMemoryInfo", _pynvml().nvmlMemory_v2)
            except NotSupported as error:
                # Neither can appear while this library is loaded: do not ask again.
                if error.code in (
                    nvmlreturn.FUNCTION_NOT_FOUND,
                    nvmlreturn.ARGUMENT_VERSION_MISMATCH,
                ):
                    self._memory_v2 = False
            except DriverError as error:
                if error.code != nvmlreturn.INVALID_ARGUMENT:
                    raise
            else:
                return self._checked_memory(info, reserved=int(info.reserved))
        return self._checked_memory(self._ask("nvmlDeviceGetMemoryInfo"), reserved=None)

    def power_watts(self) -> float:
        """Mean of the last second on Ampere and later, instant before."""
        milliwatts = self._ask("nvmlDeviceGetPowerUsage")
        return _in_range(f"{self._subject}: power in W", milliwatts / 1000, 0, POWER_WATTS_MAX)

    def power_limit_watts(self) -> float:
        """The lowest of all limits that are in force."""
        milliwatts = self._ask("nvmlDeviceGetEnforcedPowerLimit")
        # A limit of 0 would forbid the board to run: it means that there is none to tell.
        return _in_range(
            f"{self._subject}: power limit in W", milliwatts / 1000, 0.001, POWER_WATTS_MAX
        )

    def energy_joules(self) -> float:
        """Since the driver was loaded; starts over with a reload or a reset of the GPU."""
        millijoules = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        return _in_range(f"{self._subject}: energy in J", millijoules / 1000, 0, ENERGY_JOULES_MAX)

    def temperature_celsius(self, sensor: Literal["gpu", "memory"]) -> float:
        """Of the die, or of the memory (boards with HBM and some with GDDR)."""
        what = f"{self._subject}: {sensor} temperature in °C"
        if sensor == "gpu":
            return _in_range(what, self._gpu_temperature(), 0, TEMPERATURE_CELSIUS_MAX)
        value = self._ask("nvmlDeviceGetFieldValues", [_FIELD_MEMORY_TEMPERATURE])[0]
        if value.nvmlReturn != 0:
            raise nvmlreturn.as_error(what, int(value.nvmlReturn))
        # Some drivers declare a double and fill the integer, so the declared type is not asked.
        # Boards without the sensor answer 0 and success; no running memory is at 0 °C.
        return _in_range(what, float(value.value.uiVal), 1, TEMPERATURE_CELSIUS_MAX)

    @property
    def _subject(self) -> str:
        return f"GPU {self._identity.index} ({self._identity.uuid})"

    def _ask(self, function: str, *arguments: Any) -> Any:
        try:
            return _call(function, self._handle, *arguments, subject=self._subject)
        except DriverError as error:
            # Our arguments are constants that the driver knows, so what is invalid is the handle,
            # unless the call is one of those that newer drivers taught new arguments.
            if error.code == nvmlreturn.INVALID_ARGUMENT and not arguments:
                raise DeviceLost(str(error), code=error.code) from error
            raise

    def _gpu_temperature(self) -> float:
        try:
            return float(self._ask("nvmlDeviceGetTemperature", _SENSOR_GPU))
        except NotSupported as error:
            if error.code != nvmlreturn.FUNCTION_NOT_FOUND:
                raise
        # The older spelling is announced to go away with CUDA 14.
        return float(self._ask("nvmlDeviceGetTemperatureV", _SENSOR_GPU))

    def _checked_memory(self, info: Any, *, reserved: int | None) -> MemoryBytes:
        what = f"{self._subject}: memory in bytes"
        total, used, free = int(info.total), int(info.used), int(info.free)
        _in_range(what, total, 1, MEMORY_BYTES_MAX)
        # No part is larger than the whole, and the parts do not add up to more than it.
        for part in (used, free, reserved or 0):
            _in_range(what, part, 0, total)
        _in_range(what, used + free + (reserved or 0), 0, total)
        return MemoryBytes(total=total, used=used, free=free, reserved=reserved)

    def _buffered(self, kind: _Kind) -> tuple[float, float] | None:
        """(mean share, seconds it is the mean of) since the last call; None without new samples."""
        nvml = _pynvml()
        code = {
            "gpu": nvml.NVML_GPU_UTILIZATION_SAMPLES,
            "memory": nvml.NVML_MEMORY_UTILIZATION_SAMPLES,
        }[kind]
        buffer = self._buffers[kind]
        try:
            value_type, raw = self._ask("nvmlDeviceGetSamples", code, buffer.seen_us)
        except (DeviceLost, DriverRestartRequired, DriverMissing):
            raise
        except DriverError:
            raw, value_type = (), 0
        return buffer.take(
            [
                (int(sample.timeStamp), share)
                for sample in raw
                if (share := _percent(_typed(sample.sampleValue, value_type))) is not None
            ]
        )


def _percent(value: float | None) -> float | None:
    """A share (0–1) of a percentage; None where it is no percentage."""
    if value is None or not math.isfinite(value) or not 0 <= value <= 100:
        return None
    return value / 100


def _typed(value: Any, value_type: int) -> float | None:
    """The member of the vendor's union that `value_type` (nvmlValueType_t) names."""
    members = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    return float(getattr(value, members[value_type])) if 0 <= value_type < len(members) else None


class NvmlDriver:
    """The node's driver through libnvidia-ml.so.1. One thread at a time."""

    def __init__(self) -> None:
        self._opened = False
        self._devices: dict[str, NvmlDevice] = {}
        self._lost: tuple[tuple[int, str], ...] = ()

    def open(self) -> DriverVersions:
        """Start a session; a session that is open is ended first, so that handles are renewed.

        Besides what the Protocol says, raises DriverError where NVML fails for a reason of its own
        (Unknown Error, out of memory): whether that is final is for the caller to judge.
        """
        self.close()
        try:
            _call("nvmlInit")
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
        count = min(int(_call("nvmlDeviceGetCount")), DEVICES_MAX)
        for index in range(count):
            try:
                handle = _call("nvmlDeviceGetHandleByIndex", index, subject=f"GPU {index}")
                identity = _identity(handle, index)
            except (DriverMissing, DriverRestartRequired):
                raise
            except DriverError as error:
                lost.append((index, str(error)))
                continue
            device = self._devices.get(identity.uuid)
            if device is None:
                device = NvmlDevice(handle, identity)
            else:
                device.rebind(handle, identity)
            found[identity.uuid] = device
        self._devices = found
        self._lost = tuple(lost)
        return tuple(found.values())

    def lost(self) -> tuple[tuple[int, str], ...]:
        """(index, reason) of GPUs that the last `devices()` could not open."""
        return self._lost

    def close(self) -> None:
        """End the session; idempotent, and silent where the driver is gone already."""
        if not self._opened:
            return
        self._opened = False
        try:
            _call("nvmlShutdown")
        except DriverError:
            # There is no session either way; the library stays mapped until the process ends.
            return


def _identity(handle: Any, index: int) -> Identity:
    """Who is behind `handle`. Only the UUID is indispensable: without it nothing can be joined."""
    subject = f"GPU {index}"
    uuid = _text(_call("nvmlDeviceGetUUID", handle, subject=subject))
    if not uuid:
        raise DriverError(f"{subject}: nvmlDeviceGetUUID gave an empty name")
    name = _optional("nvmlDeviceGetName", handle, subject=subject)
    pci = _optional("nvmlDeviceGetPciInfo", handle, subject=subject)
    minor = _optional("nvmlDeviceGetMinorNumber", handle, subject=subject)
    return Identity(
        index=index,
        uuid=uuid,
        product="" if name is None else _text(name),
        pci_bus_id="" if pci is None else _text(pci.busId),
        minor=None if minor is None or not 0 <= minor < 1 << 20 else int(minor),
    )


def _optional(function: str, *arguments: Any, subject: str = "NVML") -> Any | None:
    """What `function` gives, None where this driver or device does not give it."""
    try:
        return _call(function, *arguments, subject=subject)
    except (DeviceLost, DriverMissing, DriverRestartRequired):
        raise
    except DriverError:
        return None


def _version(function: str) -> str | None:
    value = _optional(function)
    return _text(value) or None if value is not None else None


def _cuda_version() -> str | None:
    """12.4 for 12040. The second version of this call would load libcuda, and with it a context."""
    value = _optional("nvmlSystemGetCudaDriverVersion")
    if value is None or not 1000 <= value < 1_000_000:
        return None
    return f"{value // 1000}.{value % 1000 // 10}"
