"""What can be true: bounds of every quantity, and the vendor's union of types. Beyond a bound is a sentinel or garbage.

Blank values of NVML and DCGM (0xffffffff, 0x7ffffff0…, 1.4e14 and the like) lie far above each.
"""

import math
from typing import Any

from gpuscale.errors import NotSupported

TEXT_MAX = 128
"""Characters of a name that become a label value; NVML's own buffers are 96 at most."""
MEMORY_BYTES_MAX = 1 << 45
"""32 TiB: a hundred times the largest board."""
POWER_WATTS_MAX = 20_000.0
"""Several times the largest board or module; the blank value 0xffffffff is 4,294,967 W."""
ENERGY_JOULES_MAX = 1e13
"""A board of 10 kW for thirty years."""
TEMPERATURE_CELSIUS_MAX = 200.0
"""Above this DCGM, too, drops a reading: no silicon reports it."""
CLOCK_MEGAHERTZ_MAX = 100_000.0
"""Memory clocks are given for double data rate and reach 14 GHz."""
FAN_PERCENT_MAX = 1_000.0
"""A fan may exceed what its full speed is declared as; NVML says so."""
PERCENT_MAX = 100.0
SECONDS_MAX = 1e9
"""Thirty years of throttling."""
COUNT_MAX = (1 << 53) - 1
"""Largest count that a float of the exposition can tell from its neighbours; blank 64-bit values lie above."""
COUNT_32_MAX = 0x7FFF_FFEF
"""Largest 32-bit count that is not one of the blank values 0x7ffffff0 and up."""
ROWS_MAX = 1 << 20
"""Spare rows of a board number some hundreds."""
BYTES_PER_S_MAX = 1e14
"""100 TB/s: thirty times the fastest link of a board."""

_UNION = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Members of nvmlValue_t in the order of nvmlValueType_t."""


def text(value: object) -> str:
    """A name as a label value: printable, stripped, bounded."""
    raw = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return "".join(c for c in raw if c.isprintable()).strip()[:TEXT_MAX]


def in_range(what: str, value: float, low: float, high: float) -> float:
    """`value` where it can be true; NotSupported where it is a sentinel, a blank or absurd."""
    if not math.isfinite(value) or not low <= value <= high:
        raise NotSupported(f"{what} gave {value!r}, which is no value between {low:g} and {high:g}")
    return value


def share(percent: float | None, most: float = PERCENT_MAX) -> float | None:
    """A share (0–1) of a percentage; None where it is no percentage."""
    if percent is None or not math.isfinite(percent) or not 0 <= percent <= most:
        return None
    return percent / 100


def typed(value: Any, value_type: int) -> float | None:
    """The member of the vendor's union that `value_type` (nvmlValueType_t) names."""
    return float(getattr(value, _UNION[value_type])) if 0 <= value_type < len(_UNION) else None
