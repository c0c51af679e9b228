"""Boards by their data sheets; what is not there (reserved memory, idle power) is as drivers of 2024 show it."""

from dataclasses import dataclass, replace

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A MIG instance by its profile."""

    profile: str
    memory_bytes: int
    slices: int
    """Compute slices of the board's seven."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What a board is, and which quantities its driver gives."""

    product: str
    memory_total_bytes: int
    memory_reserved_bytes: int
    power_limit_watts: float
    power_idle_watts: float
    clock_hertz: float
    """Of the SMs under load."""
    memory_clock_hertz: float
    memory_sensor: bool = False
    """Boards with HBM have a memory temperature, those with GDDR6 do not."""
    profile: bool = False
    """Hardware counters (GPM): Hopper and later."""
    nvlink_bytes_per_s: float = 0.0
    """Of all links, in one direction; 0 for a board without NVLink."""
    ecc: bool = True
    row_remapping: bool = True
    energy: bool = True
    fans: int = 0
    unified: bool = False
    """Whether it uses the machine's memory."""
    server: bool = True
    """Whether the driver gives what boards for servers give: power limit, replays, errors."""
    mig: tuple[Slice, ...] = ()
    """How it is divided; empty where MIG is off."""


_A100 = Card(
    product="NVIDIA A100-SXM4-80GB",
    memory_total_bytes=81_920 * MIB,
    memory_reserved_bytes=593 * MIB,
    power_limit_watts=400.0,
    power_idle_watts=62.0,
    clock_hertz=1.41e9,
    memory_clock_hertz=1.593e9,
    memory_sensor=True,
    nvlink_bytes_per_s=300e9,
)
_H100 = Card(
    product="NVIDIA H100 80GB HBM3",
    memory_total_bytes=81_559 * MIB,
    memory_reserved_bytes=551 * MIB,
    power_limit_watts=700.0,
    power_idle_watts=72.0,
    clock_hertz=1.98e9,
    memory_clock_hertz=2.619e9,
    memory_sensor=True,
    profile=True,
    nvlink_bytes_per_s=450e9,
)

CARDS: dict[str, Card] = {
    "a100": _A100,
    "a100-mig": replace(
        _A100,
        mig=(
            Slice(profile="3g.40gb", memory_bytes=40_192 * MIB, slices=3),
            Slice(profile="2g.20gb", memory_bytes=19_968 * MIB, slices=2),
            Slice(profile="1g.10gb", memory_bytes=9_728 * MIB, slices=1),
            Slice(profile="1g.10gb", memory_bytes=9_728 * MIB, slices=1),
        ),
    ),
    "h100": _H100,
    "h100-mig": replace(
        _H100, mig=(Slice(profile="1g.10gb", memory_bytes=9_984 * MIB, slices=1),) * 7
    ),
    "h200": replace(
        _H100,
        product="NVIDIA H200",
        memory_total_bytes=143_771 * MIB,
        memory_reserved_bytes=602 * MIB,
        power_idle_watts=78.0,
        memory_clock_hertz=3.201e9,
    ),
    "l4": Card(
        product="NVIDIA L4",
        memory_total_bytes=23_034 * MIB,
        memory_reserved_bytes=478 * MIB,
        power_limit_watts=72.0,
        power_idle_watts=16.0,
        clock_hertz=2.04e9,
        memory_clock_hertz=6.251e9,
    ),
    "t4": Card(
        product="Tesla T4",
        memory_total_bytes=15_360 * MIB,
        memory_reserved_bytes=444 * MIB,
        power_limit_watts=70.0,
        power_idle_watts=10.0,
        clock_hertz=1.59e9,
        memory_clock_hertz=5.001e9,
        row_remapping=False,
    ),
    "geforce": Card(
        product="NVIDIA GeForce RTX 4090",
        memory_total_bytes=24_564 * MIB,
        memory_reserved_bytes=457 * MIB,
        power_limit_watts=450.0,
        power_idle_watts=14.0,
        clock_hertz=2.52e9,
        memory_clock_hertz=10.501e9,
        ecc=False,
        row_remapping=False,
        fans=2,
    ),
    "jetson": Card(
        product="Orin (nvgpu)",
        memory_total_bytes=62_840 * MIB,
        memory_reserved_bytes=0,
        power_limit_watts=60.0,
        power_idle_watts=5.0,
        clock_hertz=1.3e9,
        memory_clock_hertz=3.2e9,
        ecc=False,
        row_remapping=False,
        energy=False,
        unified=True,
        server=False,
    ),
}
