"""One invented GPU as collectors read it. Loads, errors, processes and faults are set from outside, at any moment."""

import contextlib
import queue
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from gpuscale.errors import DeviceLost, DriverError, NotSupported
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
    XidEvent,
)
from gpuscale.exporter.simulated.board import HOT, Board, Load
from gpuscale.exporter.simulated.cards import MIB, Card, Slice
from gpuscale.exporter.simulated.processes import Processes
from gpuscale.workload import normal

Quantity = Literal[
    "utilization",
    "memory",
    "power",
    "power_limit",
    "energy",
    "temperature_gpu",
    "temperature_memory",
    "clock",
    "codec",
    "fans",
    "throttle",
    "pcie",
    "pcie_replays",
    "nvlink",
    "ecc",
    "row_remapping",
    "profile",
    "mig",
    "processes",
]
"""What a fault can be set on."""

# Round figures of inference on such boards; nothing depends on them but how a dashboard looks.
_COPY_PER_BUSY = 0.45
_MEMORY_OF_IDLE_SHARE = 0.008
_MEMORY_OF_SERVER_SHARE = 0.90
_AMBIENT_CELSIUS = 30.0
_RISE_CELSIUS = 38.0
_MEMORY_RISE_CELSIUS = 52.0
_MIG_CAPABLE = ("NVIDIA A100", "NVIDIA H100", "NVIDIA H200")
_MIG_NAMESPACE = uuid.UUID("6f1b6f0e-6c2f-5d0a-9a57-0d9a3f6f5a12")
_OCCUPANCY_PER_BUSY = 0.35
_TENSOR_PER_BUSY = 0.3
_CLOCK_IDLE_SHARE = 0.2
_NVLINK_PER_BUSY = 0.1
_PCIE_BYTES_PER_S = 2e9


class SimulatedDevice:
    """One invented GPU. Safe to read in one thread while faults are set in another."""

    def __init__(
        self,
        card: Card,
        identity: Identity,
        *,
        seed: int,
        now: Callable[[], float],
        origin_s: float,
        announced: "queue.SimpleQueue[XidEvent]",
    ) -> None:
        self._card = card
        self._identity = identity
        self._seed = seed
        self._now = now
        self._lock = threading.Lock()
        self._board = Board(card, identity.index, seed, origin_s)
        self._memory: Load | None = None
        self._refused: dict[Quantity, DriverError] = {}
        self._running = threading.Event()
        self._running.set()
        self._lost: DeviceLost | None = None
        self._divided = 0
        self._profiled: dict[int | None, tuple[float, float]] = {}
        self._mig = card.mig
        self.ecc: dict[tuple[Severity, Persistence], int] = {
            ("corrected", "volatile"): 0,
            ("uncorrected", "volatile"): 0,
            ("corrected", "aggregate"): 3,
            ("uncorrected", "aggregate"): 0,
        }
        """What `ecc_errors` gives; to be changed from outside."""
        self.rows = RowRemapping(correctable=0, uncorrectable=0, pending=False, failed=False)
        """What `row_remapping` gives; to be replaced from outside."""
        self.processes = Processes(now)
        """Who runs on it; to be filled from outside."""
        self._announced = announced

    @property
    def identity(self) -> Identity:
        """Who this is."""
        return self._identity

    def utilization(self) -> Utilization:
        """Mean since the last call, as the driver's sample buffer would give it."""
        with self._reading("utilization"):
            self._require(not self._mig, "utilization of a GPU that is divided")
            if self._board.share is None:
                raise NotSupported(f"GPU {self._identity.index}: no utilization at this moment")
            covered_s = self._board.known_s
            busy = self._board.busy_s / covered_s if covered_s > 0 else self._board.share
            self._board.busy_s = self._board.known_s = 0.0
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
                share = _MEMORY_OF_SERVER_SHARE if self._board.served else _MEMORY_OF_IDLE_SHARE
        total, reserved = self._card.memory_total_bytes, self._card.memory_reserved_bytes
        used = int((total - reserved) * min(1.0, max(0.0, share))) // MIB * MIB
        return MemoryBytes(
            total=total,
            used=used,
            free=total - reserved - used,
            reserved=None if self._card.unified else reserved,
            unified=self._card.unified,
        )

    def power_watts(self) -> float:
        """Between idle and a little under the limit, with the ripple of a real board."""
        with self._reading("power"):
            watts = self._board.watts(self._board.share or 0.0)
            ripple = 1.0 + 0.01 * normal(self._seed, int(self._board.at_s * 10))
        return min(self._card.power_limit_watts, max(0.0, watts * ripple))

    def power_limit_watts(self) -> float:
        """The card's."""
        with self._reading("power_limit"):
            self._require(self._card.server, "power limit")
            return self._card.power_limit_watts

    def energy_joules(self) -> float:
        """The integral of power since the driver was made."""
        with self._reading("energy"):
            self._require(self._card.energy, "energy counter")
            return self._board.energy_j

    def temperature_celsius(self, sensor: Sensor) -> float:
        """Follows the load with a lag."""
        self._require(sensor == "gpu" or self._card.memory_sensor, "memory sensor")
        with self._reading("temperature_gpu" if sensor == "gpu" else "temperature_memory"):
            rise = _RISE_CELSIUS if sensor == "gpu" else _MEMORY_RISE_CELSIUS
            return float(round(_AMBIENT_CELSIUS + rise * self._board.heat))

    def clock_hertz(self, domain: ClockDomain) -> float:
        """Low while nothing runs."""
        with self._reading("clock"):
            if domain == "memory":
                return self._card.memory_clock_hertz
            return self._card.clock_hertz * (1.0 if self._board.share else _CLOCK_IDLE_SHARE)

    def codec_utilization(self, codec: Codec) -> float:
        """Servers of language models neither encode nor decode video."""
        with self._reading("codec"):
            return 0.0

    def fan_speed_ratios(self) -> tuple[float, ...]:
        """Follow the temperature."""
        with self._reading("fans"):
            self._require(self._card.fans > 0, "fan")
            return (round(0.3 + 0.5 * self._board.heat, 2),) * self._card.fans

    def throttle(self) -> Throttle:
        """The driver holds the clocks down when the die is hot."""
        with self._reading("throttle"):
            hot = self._board.heat >= HOT
            return Throttle(
                active=frozenset({"sw_thermal"} if hot else ()),
                counted_s={"sw_power_cap": 0.0, "sw_thermal": self._board.hot_s},
            )

    def pcie_bytes(self) -> Traffic:
        """In proportion to the work; only boards with hardware counters count it."""
        with self._reading("pcie"):
            self._require(self._card.profile, "PCIe byte counter")
            count = int(self._board.work_s * _PCIE_BYTES_PER_S)
            return Traffic(sent=count // 4, received=count)

    def pcie_replays(self) -> int:
        """None on a healthy link."""
        with self._reading("pcie_replays"):
            self._require(self._card.server, "PCIe replay counter")
            return 0

    def nvlink_bytes(self) -> Traffic:
        """In proportion to the work, the same in both directions."""
        with self._reading("nvlink"):
            self._require(self._card.nvlink_bytes_per_s > 0, "NVLink")
            count = int(self._board.work_s * self._card.nvlink_bytes_per_s * _NVLINK_PER_BUSY)
            return Traffic(sent=count, received=count)

    def ecc_errors(self) -> Mapping[tuple[Severity, Persistence], int]:
        """Whatever `ecc` says."""
        with self._reading("ecc"):
            self._require(self._card.ecc, "ECC")
            return dict(self.ecc)

    def row_remapping(self) -> RowRemapping:
        """Whatever `rows` says."""
        with self._reading("row_remapping"):
            self._require(self._card.row_remapping and not self._mig, "row remapping")
            return self.rows

    def error_counts(self) -> Mapping[str, int]:
        """None on a healthy board."""
        with self._reading("ecc"):
            return {}

    def is_licensed(self) -> bool:
        """No board here is a vGPU."""
        raise NotSupported(f"GPU {self._identity.index}: no licence is needed", code=3)

    def profile(self, instance: MigInstance | None = None) -> Profile | None:
        """Of the load since the last call; every instance follows the load of its GPU."""
        with self._reading("profile"):
            self._require(self._card.profile, "hardware counters before Hopper")
            key = None if instance is None else instance.gpu_instance_id
            before, self._profiled[key] = (
                self._profiled.get(key),
                (self._board.at_s, self._board.work_s),
            )
            if before is None or self._board.at_s <= before[0]:
                return None
            busy = min(1.0, (self._board.work_s - before[1]) / (self._board.at_s - before[0]))
        whole = instance is None
        return Profile(
            graphics_active=busy,
            sm_active=busy * 0.8,
            sm_occupancy=busy * _OCCUPANCY_PER_BUSY,
            tensor_active=busy * _TENSOR_PER_BUSY,
            dram_active=busy * _COPY_PER_BUSY,
            fp16_active=busy * 0.1,
            fp32_active=busy * 0.05,
            fp64_active=0.0,
            pcie_sent_bytes_per_s=busy * _PCIE_BYTES_PER_S / 4 if whole else None,
            pcie_received_bytes_per_s=busy * _PCIE_BYTES_PER_S if whole else None,
        )

    def mig_instances(self) -> tuple[MigInstance, ...]:
        """As the card is divided, or as `divide` said."""
        with self._reading("mig"):
            if not self._mig and not self._card.product.startswith(_MIG_CAPABLE):
                raise NotSupported(f"GPU {self._identity.index}: no MIG", code=3)
            return tuple(self._instance(place, part) for place, part in enumerate(self._mig))

    def mig_memory_bytes(self, instance: MigInstance) -> MemoryBytes:
        """The same share of each instance as of the whole."""
        whole = self.memory_bytes()
        with self._reading("mig"):
            for place, part in enumerate(self._mig):
                if self._instance(place, part) == instance:
                    used = part.memory_bytes * whole.used // whole.total
                    return MemoryBytes(
                        total=part.memory_bytes,
                        used=used,
                        free=part.memory_bytes - used,
                        reserved=0,
                    )
        raise DriverError(f"GPU {self._identity.index}: there is no MIG instance {instance.uuid}")

    def compute_processes(self) -> tuple[ComputeProcess, ...]:
        """Whatever `processes` holds."""
        with self._reading("processes"):
            return self.processes.running()

    def process_utilization(self, since_us: int) -> tuple[ProcessUtilization, ...]:
        """One sample a second of each process."""
        with self._reading("processes"):
            self._require(not self._mig, "process utilization with MIG")
            return self.processes.samples(since_us)

    def _instance(self, place: int, part: Slice) -> MigInstance:
        # The driver numbers GPU instances as it cuts them, with holes.
        name = uuid.uuid5(_MIG_NAMESPACE, f"{self._identity.uuid}/{place}/{self._divided}")
        return MigInstance(
            uuid=f"MIG-{name}",
            parent_uuid=self._identity.uuid,
            gpu_instance_id=place + 1 if part.slices > 1 else place + 7,
            compute_instance_id=0,
            profile=part.profile,
        )

    def _require(self, given: bool, what: str) -> None:
        if not given:
            raise NotSupported(
                f"GPU {self._identity.index}: the {self._card.product} gives no {what}", code=3
            )

    @contextlib.contextmanager
    def _reading(self, quantity: Quantity) -> Iterator[None]:
        """Meet the faults, bring the state up to now, and keep it still while values are taken."""
        self._running.wait()
        refusal = self._lost or self._refused.get(quantity)
        if refusal is not None:
            # A fresh one each time: an exception that is raised again keeps every old traceback.
            raise type(refusal)(str(refusal), code=refusal.code)
        with self._lock:
            self._board.advance(self._now())
            yield

    # ----- from outside

    @property
    def is_lost(self) -> bool:
        """Whether `lose` holds."""
        return self._lost is not None

    def follow(self, busy: Load, memory_used: Load | None = None) -> None:
        """Take the load from the caller from now on: shares of time, and of the usable memory."""
        with self._lock:
            self._board.advance(self._now())
            self._board.busy, self._memory = busy, memory_used

    def divide(self, *parts: Slice) -> None:
        """Configure MIG anew: other instances with other uuids, or none."""
        with self._lock:
            self._mig = parts
            self._divided += 1
            self._profiled.clear()

    def raise_xid(self, xid: int) -> None:
        """Let the driver announce an error."""
        self._announced.put(XidEvent(uuid=self._identity.uuid, xid=xid))

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
