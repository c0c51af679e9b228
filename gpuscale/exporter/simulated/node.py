"""The invented node: `simulated:h100x8` and its like."""

import queue
import re
import uuid
from collections.abc import Callable

from gpuscale.errors import ConfigError, DriverMissing
from gpuscale.exporter.device import Device, DriverVersions, Identity, XidEvent, XidEvents
from gpuscale.exporter.simulated.board import Load
from gpuscale.exporter.simulated.cards import CARDS, Card
from gpuscale.exporter.simulated.device import SimulatedDevice

DEVICES_MAX = 64
"""As many as the real door enumerates."""
_SPEC = re.compile(r"^(?:simulated:)?([a-z0-9-]+)x([0-9]{1,2})$")
_NAMESPACE = uuid.UUID("6f1b6f0e-6c2f-5d0a-9a57-0d9a3f6f5a11")


class SimulatedXidEvents:
    """What the devices of one node announce."""

    unsupported: tuple[str, ...] = ()

    def __init__(self, announced: "queue.SimpleQueue[XidEvent]") -> None:
        self._announced = announced

    def wait(self, timeout_s: float) -> XidEvent | None:
        """The next event; None when none came in time."""
        try:
            return self._announced.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def close(self) -> None:
        """Nothing to give back."""


class SimulatedDriver:
    """The invented node. Loads and faults may be set from any thread while others read."""

    def __init__(self, card: Card, count: int, now: Callable[[], float], seed: int = 0) -> None:
        origin_s = now()
        self._announced: queue.SimpleQueue[XidEvent] = queue.SimpleQueue()
        self._all = tuple(
            SimulatedDevice(
                card,
                _identity(card, index, seed),
                seed=seed * 1_000 + index,
                now=now,
                origin_s=origin_s,
                announced=self._announced,
            )
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

    def xid_events(self) -> XidEvents:
        """What `raise_xid` of a device said from here on."""
        return SimulatedXidEvents(self._announced)

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
    kind = f"{card.product} MIG" if card.mig else card.product
    number = uuid.uuid5(_NAMESPACE, f"{kind}/{seed}/{index}")
    return Identity(
        index=index,
        uuid=f"GPU-{number}",
        product=card.product,
        pci_bus_id=f"00000000:{index + 1:02X}:00.0",
        minor=index,
    )
