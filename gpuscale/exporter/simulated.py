"""A driver without hardware: `simulated:h100x8` and its like, behind the same Protocols as NVML.

Each device follows a load: a shape of workload.py, or whatever the caller says (the demo's
simulated pods). Utilization, power, energy, memory and temperatures follow from it as on a board:
power rises from idle to a share of its limit, energy is its integral, temperature lags. The same
seed, load and times of reading give the same values. Faults are set from outside, at any moment.
"""

import contextlib
import math
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from gpuscale.errors import ConfigError, DeviceLost, DriverError, DriverMissing, NotSupported
from gpuscale.exporter.sample import (
    Device,
    DriverVersions,
    Identity,
    MemoryBytes,
    Utilization,
)
from gpuscale.workload import Clipped, Noise, RepeatedRamp, Shape, normal

DEVICES_MAX = 64
"""As many as the real door enumerates."""
STEPS_MAX = 240
"""Steps of integration between two reads at most; after a longer sleep the steps are coarser."""
STEP_S = 0.25

Quantity = Literal[
    "utilization",
    "memory",
    "power",
    "power_limit",
    "energy",
    "temperature_gpu",
    "temperature_memory",
]
"""What a fault can be set on."""

Load = Callable[[int], float | None]
"""Share (0–1) of a device by its index, as of now; None where nobody can tell."""

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A board by its data sheet; reserved memory and idle power as drivers of the 535–550 series show."""

    product: str
    memory_total_bytes: int
    memory_reserved_bytes: int
    power_limit_watts: float
    power_idle_watts: float
    memory_sensor: bool
    """Boards with HBM have a memory temperature, those with GDDR6 do not."""


CARDS: dict[str, Card] = {
    "a100": Card(
        product="NVIDIA A100-SXM4-80GB",
        memory_total_bytes=81_920 * MIB,
        memory_reserved_bytes=593 * MIB,
        power_limit_watts=400.0,
        power_idle_watts=62.0,
        memory_sensor=True,
    ),
    "h100": Card(
        product="NVIDIA H100 80GB HBM3",
        memory_total_bytes=81_559 * MIB,
        memory_reserved_bytes=551 * MIB,
        power_limit_watts=700.0,
        power_idle_watts=72.0,
        memory_sensor=True,
    ),
    "h200": Card(
        product="NVIDIA H200",
        memory_total_bytes=143_771 * MIB,
        memory_reserved_bytes=602 * MIB,
        power_limit_watts=700.0,
        power_idle_watts=78.0,
        memory_sensor=True,
    ),
    "l4": Card(
        product="NVIDIA L4",
        memory_total_bytes=23_034 * MIB,
        memory_reserved_bytes=478 * MIB,
        power_limit_watts=72.0,
        power_idle_watts=16.0,
        memory_sensor=False,
    ),
    "t4": Card(
        product="Tesla T4",
        memory_total_bytes=15_360 * MIB,
        memory_reserved_bytes=444 * MIB,
        power_limit_watts=70.0,
        power_idle_watts=10.0,
        memory_sensor=False,
    ),
}

# Round figures of inference on such boards; nothing depends on them but how a dashboard looks.
_POWER_AT_FULL_SHARE = 0.88
_COPY_PER_BUSY = 0.45
_MEMORY_OF_IDLE_SHARE = 0.008
_MEMORY_OF_SERVER_SHARE = 0.90
_AMBIENT_CELSIUS = 30.0
_RISE_CELSIUS = 38.0
_MEMORY_RISE_CELSIUS = 52.0
_THERMAL_LAG_S = 25.0

_SPEC = re.compile(r"^(?:simulated:)?([a-z0-9-]+)x([0-9]{1,2})$")
_NAMESPACE = uuid.UUID("6f1b6f0e-6c2f-5d0a-9a57-0d9a3f6f5a11")


class SimulatedDevice:
    """One invented GPU. Safe to read in one thread while faults are set in another."""

    def __init__(
        self, card: Card, identity: Identity, seed: int, now: Callable[[], float], origin_s: float
    ) -> None:
        self._card = card
        self._identity = identity
        self._seed = seed
        self._now = now
        self._origin_s = origin_s
        self._lock = threading.Lock()
        self._shape: Shape = _everyday(identity.index, seed)
        self._busy: Load | None = None
        self._memory: Load | None = None
        self._refused: dict[Quantity, DriverError] = {}
        self._running = threading.Event()
        self._running.set()
        self._lost: DeviceLost | None = None
        self._at_s = origin_s
        self._share: float | None = self._level(origin_s)
        self._energy_j = 0.0
        self._heat = 0.0
        self._served = False
        self._read_s: float | None = None
        self._busy_s = 0.0
        self._known_s = 0.0

    @property
    def identity(self) -> Identity:
        """Who this is."""
        return self._identity

    def utilization(self) -> Utilization:
        """Mean since the last call, as the driver's sample buffer would give it."""
        with self._reading("utilization"):
            if self._share is None:
                raise NotSupported(f"GPU {self._identity.index}: no utilization at this moment")
            covered_s = self._known_s
            busy = self._busy_s / covered_s if covered_s > 0 else self._share
            self._busy_s = self._known_s = 0.0
        busy = min(1.0, busy)
        return Utilization(
            busy=busy,
            memory_copy=busy * _COPY_PER_BUSY,
            source="samples",
            busy_covered_s=covered_s,
            memory_copy_covered_s=covered_s,
        )

    def memory_bytes(self) -> MemoryBytes:
        """What a server holds: nearly all from its first request on, as vLLM does, or as it was told."""
        with self._reading("memory"):
            share = self._memory(self._identity.index) if self._memory is not None else None
            if share is None:
                share = _MEMORY_OF_SERVER_SHARE if self._served else _MEMORY_OF_IDLE_SHARE
        total, reserved = self._card.memory_total_bytes, self._card.memory_reserved_bytes
        used = int((total - reserved) * min(1.0, max(0.0, share))) // MIB * MIB
        return MemoryBytes(total=total, used=used, free=total - reserved - used, reserved=reserved)

    def power_watts(self) -> float:
        """Between idle and a little under the limit, with the ripple of a real board."""
        with self._reading("power"):
            watts = self._power(self._share or 0.0)
            ripple = 1.0 + 0.01 * normal(self._seed, int(self._at_s * 10))
        return min(self._card.power_limit_watts, max(0.0, watts * ripple))

    def power_limit_watts(self) -> float:
        """The card's."""
        with self._reading("power_limit"):
            return self._card.power_limit_watts

    def energy_joules(self) -> float:
        """The integral of power since the driver was made."""
        with self._reading("energy"):
            return self._energy_j

    def temperature_celsius(self, sensor: Literal["gpu", "memory"]) -> float:
        """Follows the load with a lag."""
        if sensor == "memory" and not self._card.memory_sensor:
            raise NotSupported(
                f"GPU {self._identity.index}: the {self._card.product} has no sensor"
            )
        with self._reading("temperature_gpu" if sensor == "gpu" else "temperature_memory"):
            rise = _RISE_CELSIUS if sensor == "gpu" else _MEMORY_RISE_CELSIUS
            return float(round(_AMBIENT_CELSIUS + rise * self._heat))

    @contextlib.contextmanager
    def _reading(self, quantity: Quantity) -> Iterator[None]:
        """Meet the faults, bring the state up to now, and keep it still while values are taken."""
        self._running.wait()
        refusal = self._lost or self._refused.get(quantity)
        if refusal is not None:
            # A fresh one each time: an exception that is raised again keeps every old traceback.
            raise type(refusal)(str(refusal), code=refusal.code)
        with self._lock:
            self._advance(self._now())
            yield

    def _advance(self, to_s: float) -> None:
        """Integrate from the last read to `to_s`; a clock that stands or steps back adds nothing."""
        elapsed_s = to_s - self._at_s
        if elapsed_s <= 0:
            return
        steps = min(STEPS_MAX, max(1, math.ceil(elapsed_s / STEP_S)))
        step_s = elapsed_s / steps
        start_s = self._at_s
        for step in range(steps):
            share = self._level(start_s + (step + 0.5) * step_s)
            self._share = share
            if share is not None:
                self._busy_s += share * step_s
                self._known_s += step_s
                self._served = self._served or share > 0
            self._energy_j += self._power(share or 0.0) * step_s
            decay = math.exp(-step_s / _THERMAL_LAG_S)
            self._heat = self._heat * decay + (share or 0.0) * (1.0 - decay)
        self._at_s = to_s

    def _level(self, at_s: float) -> float | None:
        if self._busy is not None:
            share = self._busy(self._identity.index)
        else:
            share = self._shape.at(at_s - self._origin_s)
        return None if share is None else min(1.0, max(0.0, share))

    def _power(self, share: float) -> float:
        idle = self._card.power_idle_watts
        return idle + (self._card.power_limit_watts * _POWER_AT_FULL_SHARE - idle) * share

    # ----- from outside

    @property
    def is_lost(self) -> bool:
        """Whether `lose` holds."""
        return self._lost is not None

    def follow(self, busy: Load, memory_used: Load | None = None) -> None:
        """Take the load from the caller from now on: shares of time, and of the usable memory."""
        with self._lock:
            self._advance(self._now())
            self._busy, self._memory = busy, memory_used

    def follow_shape(self, shape: Shape) -> None:
        """Take the busy share from `shape`, whose origin is the moment the driver was made."""
        with self._lock:
            self._advance(self._now())
            self._busy, self._memory, self._shape = None, None, shape

    def lose(self) -> None:
        """Fall off the bus: every read raises DeviceLost, and no enumeration finds it."""
        subject = f"GPU {self._identity.index} ({self._identity.uuid})"
        self._lost = DeviceLost(f"{subject} is lost (simulated)", code=15)

    def hang(self) -> None:
        """Let every read block until `recover`."""
        self._running.clear()

    def refuse(self, quantity: Quantity, error: DriverError | None = None) -> None:
        """Let one quantity raise `error`, by default NotSupported."""
        reason = f"GPU {self._identity.index}: no {quantity} (simulated)"
        self._refused[quantity] = NotSupported(reason, code=3) if error is None else error

    def recover(self) -> None:
        """End every fault; reads that hang go on."""
        self._lost = None
        self._refused.clear()
        self._running.set()


class SimulatedDriver:
    """The invented node. Loads and faults may be set from any thread while others read."""

    def __init__(self, card: Card, count: int, now: Callable[[], float], seed: int = 0) -> None:
        origin_s = now()
        self._all = tuple(
            SimulatedDevice(card, _identity(card, index, seed), seed * 1_000 + index, now, origin_s)
            for index in range(count)
        )
        self._missing: str | None = None
        self._lost: tuple[tuple[int, str], ...] = ()

    def open(self) -> DriverVersions:
        """Start a session; raises DriverMissing while `disappear` holds."""
        self._require_presence()
        return DriverVersions(driver="550.90.07", nvml="12.550.90.07", cuda="12.4")

    def devices(self) -> tuple[Device, ...]:
        """All devices that are not lost."""
        self._require_presence()
        lost = [d.identity.index for d in self._all if d.is_lost]
        self._lost = tuple((index, f"GPU {index} is lost (simulated)") for index in lost)
        return tuple(d for d in self._all if d.identity.index not in lost)

    def lost(self) -> tuple[tuple[int, str], ...]:
        """(index, reason) of the lost ones, as of the last `devices()`."""
        return self._lost

    def close(self) -> None:
        """End the session: there is nothing to give back."""

    # ----- from outside

    def device(self, index: int) -> SimulatedDevice:
        """The device with this index, lost or not: to give it a load or a fault."""
        return self._all[index]

    def follow(self, busy: Load, memory_used: Load | None = None) -> None:
        """Let every device take its load from the caller, who is asked with the device's index."""
        for device in self._all:
            device.follow(busy, memory_used)

    def disappear(self, reason: str = "the simulated driver is not loaded") -> None:
        """Let `open` and `devices` raise DriverMissing until `reappear`."""
        self._missing = reason

    def reappear(self) -> None:
        """End `disappear`."""
        self._missing = None

    def _require_presence(self) -> None:
        if self._missing is not None:
            raise DriverMissing(self._missing, code=9)


def driver(spec: str, now: Callable[[], float], *, seed: int = 0) -> SimulatedDriver:
    """The driver for `simulated:CARDxN` (the prefix may be left out), e.g. `simulated:h100x8`.

    `now` gives seconds on any clock that does not stand still; `seed` tells nodes of one demo apart
    (UUIDs and load). Raises ConfigError, naming the cards there are, where `spec` cannot be used.
    """
    found = _SPEC.match(spec)
    if found is None:
        raise ConfigError(
            f"nvml: {spec!r} is not of the form simulated:CARDxN: try simulated:h100x8"
        )
    card = CARDS.get(found[1])
    if card is None:
        known = ", ".join(sorted(CARDS))
        raise ConfigError(f"nvml: {spec!r} names no card that can be simulated: use one of {known}")
    count = int(found[2])
    if not 1 <= count <= DEVICES_MAX:
        raise ConfigError(f"nvml: {spec!r} asks for {count} GPUs: use 1 to {DEVICES_MAX}")
    return SimulatedDriver(card, count, now, seed)


def _identity(card: Card, index: int, seed: int) -> Identity:
    """The same card, seed and index give the same GPU for ever."""
    number = uuid.uuid5(_NAMESPACE, f"{card.product}/{seed}/{index}")
    return Identity(
        index=index,
        uuid=f"GPU-{number}",
        product=card.product,
        pci_bus_id=f"00000000:{index + 1:02X}:00.0",
        minor=index,
    )


def _everyday(index: int, seed: int) -> Shape:
    """What a device does when nobody tells it: a quarter of an hour of rise, plateau and rest."""
    period_s = 900.0
    rhythm = RepeatedRamp(
        period_s=period_s,
        rise_s=240.0,
        hold_s=180.0,
        fall_s=240.0,
        low=0.04,
        high=0.93,
        # The golden ratio spreads any number of devices evenly over the period.
        offset_s=-period_s * ((index * 0.618034) % 1.0),
    )
    return Clipped(of=Noise(of=rhythm, seed=seed, ratio=0.06))
