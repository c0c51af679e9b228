"""One physical GPU behind its NVML handle: which call gives which quantity, and what to ask where it is missing."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from gpuscale.clock import Clock
from gpuscale.errors import (
    DeviceLost,
    DriverError,
    DriverMissing,
    DriverRestartRequired,
    NotSupported,
)
from gpuscale.exporter import nvmlreturn
from gpuscale.exporter.device import (
    ClockDomain,
    Codec,
    ComputeProcess,
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
)
from gpuscale.exporter.nvml import fields, processes
from gpuscale.exporter.nvml.call import Handle, pynvml
from gpuscale.exporter.nvml.check import (
    CLOCK_MEGAHERTZ_MAX,
    COUNT_32_MAX,
    ENERGY_JOULES_MAX,
    FAN_PERCENT_MAX,
    MEMORY_BYTES_MAX,
    PERCENT_MAX,
    POWER_WATTS_MAX,
    TEMPERATURE_CELSIUS_MAX,
    in_range,
    share,
)
from gpuscale.exporter.nvml.gpm import Gpm
from gpuscale.exporter.nvml.mig import MigView
from gpuscale.exporter.nvml.samples import SampleReader
from gpuscale.exporter.samplebuffer import SampleBuffer

FANS_MAX = 16
"""Fans of a board that are read; cards have up to four."""

_SENSOR_GPU = 0
_CLOCKS: Mapping[ClockDomain, int] = {"graphics": 0, "sm": 1, "memory": 2, "video": 3}
_UNIFIED = re.compile(r"\b(GB10|Orin|Xavier|Thor|Tegra|Jetson)\b|nvgpu", re.IGNORECASE)
"""Products whose GPU uses the machine's memory, and whose driver answers NOT_SUPPORTED to memory."""
_MEMINFO = Path("/proc/meminfo")

_Kind = Literal["gpu", "memory"]
_SAMPLES: Mapping[_Kind, int] = {"gpu": 1, "memory": 2}
"""nvmlSamplingType_t: utilization of the GPU, and of its memory's interface."""


class NvmlDevice:
    """One physical GPU. Not to be read by two threads at a time."""

    def __init__(self, raw: Any, identity: Identity, clock: Clock) -> None:
        self._handle = Handle(raw, identity)
        self._memory_v2 = True
        self._buffers: Mapping[_Kind, tuple[SampleReader, SampleBuffer]] = {
            kind: (SampleReader(self._handle, code), SampleBuffer())
            for kind, code in _SAMPLES.items()
        }
        self._gpm = Gpm(self._handle, clock)
        self._mig = MigView(self._handle)

    @property
    def identity(self) -> Identity:
        """Who this is."""
        return self._handle.identity

    @property
    def handle(self) -> Handle:
        """For what is asked of several GPUs at once."""
        return self._handle

    def rebind(self, raw: Any, identity: Identity) -> None:
        """The same GPU after a new enumeration: its place in the sample buffer is kept."""
        self._handle.rebind(raw, identity)
        for reader, _ in self._buffers.values():
            reader.forget()

    def release(self) -> None:
        """Give back what the driver lent for this session."""
        self._gpm.close()

    # ----- utilization

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
            rates = self._handle.ask("nvmlDeviceGetUtilizationRates")
        except NotSupported:
            if busy is None and copy is None:
                raise
            rates = None
        instant_busy = None if rates is None else share(rates.gpu)
        instant_copy = None if rates is None else share(rates.memory)
        if busy is None and copy is None and instant_busy is None and instant_copy is None:
            raise self._handle.refuse("utilization is not a share of 0 to 100 %")
        return Utilization(
            busy=instant_busy if busy is None else busy,
            memory_copy=instant_copy if copy is None else copy,
            source="instant" if busy is None else "samples",
            busy_covered_s=busy_s,
            memory_copy_covered_s=copy_s,
        )

    def codec_utilization(self, codec: Codec) -> float:
        """Share of the driver's window (⅙ to 1 s)."""
        function = {
            "encoder": "nvmlDeviceGetEncoderUtilization",
            "decoder": "nvmlDeviceGetDecoderUtilization",
        }[codec]
        value = share(self._handle.ask(function)[0])
        if value is None:
            raise self._handle.refuse(f"{codec} utilization is not a share of 0 to 100 %")
        return value

    def profile(self, instance: MigInstance | None = None) -> Profile | None:
        """By GPM; compute instances of one GPU instance share its counters."""
        return self._gpm.profile(None if instance is None else instance.gpu_instance_id)

    # ----- memory

    def memory_bytes(self) -> MemoryBytes:
        """Version 2 tells reserved from used (driver 510 and later); version 1 counts it as used."""
        if self._memory_v2:
            try:
                info = self._handle.ask("nvmlDeviceGetMemoryInfo", pynvml().nvmlMemory_v2)
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
        try:
            return self._checked_memory(self._handle.ask("nvmlDeviceGetMemoryInfo"), reserved=None)
        except NotSupported as error:
            if error.code == nvmlreturn.NOT_SUPPORTED and _UNIFIED.search(self.identity.product):
                return self._machine_memory(error)
            raise

    def _checked_memory(self, info: Any, *, reserved: int | None) -> MemoryBytes:
        what = f"{self._handle.subject}: memory in bytes"
        total, used, free = int(info.total), int(info.used), int(info.free)
        in_range(what, total, 1, MEMORY_BYTES_MAX)
        # No part is larger than the whole, and the parts do not add up to more than it.
        for part in (used, free, reserved or 0):
            in_range(what, part, 0, total)
        in_range(what, used + free + (reserved or 0), 0, total)
        return MemoryBytes(total=total, used=used, free=free, reserved=reserved)

    def _machine_memory(self, refusal: NotSupported) -> MemoryBytes:
        """What the kernel says of the memory that CPU and GPU share; the page cache counts as free."""
        try:
            text = _MEMINFO.read_text(encoding="ascii", errors="replace")
        except OSError:
            raise refusal from None
        found = {
            name: int(kib) * 1024
            for name, kib in re.findall(r"^(MemTotal|MemAvailable):\s+(\d+) kB", text, re.MULTILINE)
        }
        total, free = found.get("MemTotal"), found.get("MemAvailable")
        if not total or free is None or not 0 <= free <= total:
            raise refusal
        return MemoryBytes(total=total, used=total - free, free=free, reserved=None, unified=True)

    # ----- power, temperatures, clocks, fans

    def power_watts(self) -> float:
        """Mean of the last second on Ampere and later, instant before."""
        milliwatts = self._handle.ask("nvmlDeviceGetPowerUsage")
        return in_range(f"{self._subject}: power in W", milliwatts / 1000, 0, POWER_WATTS_MAX)

    def power_limit_watts(self) -> float:
        """The lowest of all limits that are in force."""
        milliwatts = self._handle.ask("nvmlDeviceGetEnforcedPowerLimit")
        # A limit of 0 would forbid the board to run: it means that there is none to tell.
        return in_range(
            f"{self._subject}: power limit in W", milliwatts / 1000, 0.001, POWER_WATTS_MAX
        )

    def energy_joules(self) -> float:
        """Since the driver was loaded; starts over with a reload or a reset of the GPU."""
        millijoules = self._handle.ask("nvmlDeviceGetTotalEnergyConsumption")
        return in_range(f"{self._subject}: energy in J", millijoules / 1000, 0, ENERGY_JOULES_MAX)

    def temperature_celsius(self, sensor: Sensor) -> float:
        """Of the die, or of the memory (boards with HBM and some with GDDR)."""
        what = f"{self._subject}: {sensor} temperature in °C"
        if sensor == "gpu":
            return in_range(what, self._gpu_temperature(), 0, TEMPERATURE_CELSIUS_MAX)
        (value,) = self._handle.ask("nvmlDeviceGetFieldValues", [fields.MEMORY_TEMPERATURE])
        if value.nvmlReturn != nvmlreturn.SUCCESS:
            raise nvmlreturn.as_error(what, int(value.nvmlReturn))
        # Some drivers declare a double and fill the integer, so the declared type is not asked.
        # Boards without the sensor answer 0 and success; no running memory is at 0 °C.
        return in_range(what, float(value.value.uiVal), 1, TEMPERATURE_CELSIUS_MAX)

    def clock_hertz(self, domain: ClockDomain) -> float:
        """As NVML gives it: the memory clock is the one of its data sheet, not twice or half of it."""
        megahertz = self._handle.ask("nvmlDeviceGetClockInfo", _CLOCKS[domain])
        what = f"{self._subject}: {domain} clock in MHz"
        return in_range(what, float(megahertz), 0, CLOCK_MEGAHERTZ_MAX) * 1e6

    def fan_speed_ratios(self) -> tuple[float, ...]:
        """What is asked of each fan, as a share of its full speed; a fan that is blocked tells the same."""
        count = int(self._handle.ask("nvmlDeviceGetNumFans"))
        if not 1 <= count <= FANS_MAX:
            raise self._handle.refuse(f"{count} fans")
        speeds: list[float] = []
        for fan in range(count):
            speed = share(self._handle.ask("nvmlDeviceGetFanSpeed_v2", fan), FAN_PERCENT_MAX)
            if speed is None:
                raise self._handle.refuse(f"the speed of fan {fan} is no share")
            speeds.append(speed)
        return tuple(speeds)

    def throttle(self) -> Throttle:
        """Reasons in force and what the driver counted of them."""
        return fields.throttle(self._handle, fields.throttle_bits(self._handle))

    # ----- links and faults

    def pcie_bytes(self) -> Traffic:
        """By field values; the call that measures the throughput would block for 20 ms per direction."""
        return fields.pcie_bytes(self._handle)

    def pcie_replays(self) -> int:
        """Packets sent again, since the driver was loaded."""
        count = int(self._handle.ask("nvmlDeviceGetPcieReplayCounter"))
        return int(in_range(f"{self._subject}: PCIe replays", count, 0, COUNT_32_MAX))

    def nvlink_bytes(self) -> Traffic:
        """Payload over all links."""
        return fields.nvlink_bytes(self._handle)

    def ecc_errors(self) -> Mapping[tuple[Severity, Persistence], int]:
        """Of all memories of the board."""
        return fields.ecc_errors(self._handle)

    def row_remapping(self) -> RowRemapping:
        """Over the life of the board."""
        return fields.row_remapping(self._handle)

    def error_counts(self) -> Mapping[str, int]:
        """Retired pages and errors of NVLink."""
        return fields.error_counts(self._handle)

    def is_licensed(self) -> bool:
        """Of the features that a vGPU can be licensed for, any one will do."""
        answer = self._handle.ask("nvmlDeviceGetGridLicensableFeatures")
        count = min(int(answer.licensableFeaturesCount), len(answer.gridLicensableFeatures))
        if not answer.isGridLicenseSupported or count == 0:
            raise self._handle.lack("no licence is needed")
        return any(int(f.featureState) == 1 for f in answer.gridLicensableFeatures[:count])

    # ----- MIG and processes

    def mig_instances(self) -> tuple[MigInstance, ...]:
        """Enumerate anew; the counters of instances that are no more are given back."""
        instances = self._mig.enumerate()
        self._gpm.keep(instance.gpu_instance_id for instance in instances)
        return instances

    def mig_memory_bytes(self, instance: MigInstance) -> MemoryBytes:
        """Of one instance."""
        if self._memory_v2:
            try:
                info = self._mig.ask(instance, "nvmlDeviceGetMemoryInfo", pynvml().nvmlMemory_v2)
            except NotSupported:
                pass
            else:
                return self._checked_memory(info, reserved=int(info.reserved))
        return self._checked_memory(
            self._mig.ask(instance, "nvmlDeviceGetMemoryInfo"), reserved=None
        )

    def compute_processes(self) -> tuple[ComputeProcess, ...]:
        """Now; a slow call."""
        return processes.compute_processes(self._handle)

    def process_utilization(self, since_us: int) -> tuple[ProcessUtilization, ...]:
        """Samples younger than `since_us`."""
        return processes.process_utilization(self._handle, since_us)

    # ----- inside

    @property
    def _subject(self) -> str:
        return self._handle.subject

    def _gpu_temperature(self) -> float:
        try:
            return float(self._handle.ask("nvmlDeviceGetTemperature", _SENSOR_GPU))
        except NotSupported as error:
            if error.code != nvmlreturn.FUNCTION_NOT_FOUND:
                raise
        # The older spelling is announced to go away with CUDA 14.
        return float(self._handle.ask("nvmlDeviceGetTemperatureV", _SENSOR_GPU))

    def _buffered(self, kind: _Kind) -> tuple[float, float] | None:
        """(mean share, seconds it is the mean of) since the last call; None without new samples."""
        reader, buffer = self._buffers[kind]
        try:
            points = reader.read(buffer.seen_us)
        except (DeviceLost, DriverRestartRequired, DriverMissing):
            raise
        except DriverError:
            points = []
        return buffer.take(
            [(at_us, number / 100) for at_us, number in points if 0 <= number <= PERCENT_MAX]
        )
