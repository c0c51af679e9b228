"""Clocks, and for how long they were held down and why."""

from collections.abc import Iterable
from functools import partial

from gpuscale.exporter.device import ClockDomain, Device, Throttle, ThrottleReason
from gpuscale.exporter.gather import Gathering
from gpuscale.exporter.sample import Reading, Tier

CLOCK = "gpuscale_gpu_clock_hertz"
THROTTLED = "gpuscale_gpu_throttle_seconds_total"
DOMAINS: tuple[ClockDomain, ...] = ("graphics", "sm", "memory", "video")

OBSERVED: tuple[ThrottleReason, ...] = (
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal",
    "hw_thermal",
    "hw_power_brake",
)
"""Reasons that the driver tells of the present moment; where it does not count one, it is integrated."""
GAP_S_MAX = 120.0
"""A reason that was seen at two reads held between them, unless they are further apart than this."""


class ClockCollector:
    """By domain."""

    name = "clocks"
    tier = Tier.MEDIUM
    families = (CLOCK,)

    def read(self, device: Device, state: dict[str, float], elapsed_s: float | None) -> Reading:
        """Read every domain once."""
        gathering = Gathering()
        for domain in DOMAINS:
            hertz = gathering.ask(partial(device.clock_hertz, domain), CLOCK)
            if hertz is not None:
                gathering.add(CLOCK, hertz, ("domain", domain))
        return gathering.reading()


class ThrottleCollector:
    """Seconds by reason: the driver's own count, else the time between reads at which it held."""

    name = "throttle"
    tier = Tier.MEDIUM
    families = (THROTTLED,)

    def read(self, device: Device, state: dict[str, float], elapsed_s: float | None) -> Reading:
        """Read once. Reasons overlap: their seconds do not add up to anything."""
        gathering = Gathering()
        seen = gathering.ask(device.throttle, THROTTLED)
        if seen is not None:
            _integrate(seen, state, elapsed_s)
            for reason, seconds in seen.counted_s.items():
                gathering.add(THROTTLED, seconds, ("reason", reason))
            for reason in _uncounted(seen):
                gathering.add(THROTTLED, state.get(reason, 0.0), ("reason", reason))
        return gathering.reading()


def _uncounted(seen: Throttle) -> Iterable[ThrottleReason]:
    return () if seen.active is None else (r for r in OBSERVED if r not in seen.counted_s)


def _integrate(seen: Throttle, state: dict[str, float], elapsed_s: float | None) -> None:
    """Half of the time since the last read for each end of it at which the reason held."""
    for reason in _uncounted(seen):
        now = float(reason in (seen.active or ()))
        before = state.get(f"{reason} held", now)
        state[f"{reason} held"] = now
        if elapsed_s is not None and 0 < elapsed_s <= GAP_S_MAX:
            state[reason] = state.get(reason, 0.0) + (before + now) / 2 * elapsed_s
