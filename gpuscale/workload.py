"""Repeatable load: shapes that are pure functions of time, for the simulated driver, the demo and the tests.

A shape maps seconds since its own origin to a level (a busy share, requests per second: the unit
is the caller's). Shapes compose by wrapping each other, and the same shape gives the same values for ever: noise is a hash of the seed and of the
time step, not a generator that remembers.
"""

import math
from dataclasses import dataclass
from typing import Protocol


class Shape(Protocol):
    """A level as a function of time alone."""

    def at(self, t_s: float) -> float:
        """The level `t_s` seconds after the origin."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """The same level for ever."""

    level: float

    def at(self, t_s: float) -> float:
        """The level."""
        return self.level


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """`level` from `start_s` for `duration_s`, 0 otherwise; add it to another shape."""

    start_s: float
    duration_s: float
    level: float

    def __post_init__(self) -> None:
        _positive("duration_s", self.duration_s)

    def at(self, t_s: float) -> float:
        """The burst's level inside of it, else 0."""
        return self.level if 0.0 <= t_s - self.start_s < self.duration_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedRamp:
    """Every `period_s`: up over `rise_s`, high for `hold_s`, down over `fall_s`, low for the rest.

    A fall of 0 seconds is a cliff. This is the load with which a forecast shows itself: after two
    or three periods the next rise can be known before it starts.
    """

    period_s: float
    rise_s: float
    hold_s: float
    fall_s: float
    low: float
    high: float
    offset_s: float = 0.0
    """The first rise begins here."""

    def __post_init__(self) -> None:
        _positive("period_s", self.period_s)
        _positive("rise_s", self.rise_s)
        if min(self.hold_s, self.fall_s) < 0 or (
            self.rise_s + self.hold_s + self.fall_s > self.period_s
        ):
            raise ValueError(
                "rise_s, hold_s and fall_s must fit into period_s, none of them below 0"
            )

    def at(self, t_s: float) -> float:
        """The level at this phase of the period."""
        phase = (t_s - self.offset_s) % self.period_s
        if phase < self.rise_s:
            share = phase / self.rise_s
        elif phase < self.rise_s + self.hold_s:
            share = 1.0
        elif phase < self.rise_s + self.hold_s + self.fall_s:
            share = 1.0 - (phase - self.rise_s - self.hold_s) / self.fall_s
        else:
            share = 0.0
        return self.low + (self.high - self.low) * share


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """The parts added up."""

    parts: tuple[Shape, ...]

    def at(self, t_s: float) -> float:
        """The sum."""
        return sum((part.at(t_s) for part in self.parts), start=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """`of` times `factor`, seen `delay_s` later."""

    of: Shape
    factor: float = 1.0
    delay_s: float = 0.0

    def at(self, t_s: float) -> float:
        """The scaled and delayed level."""
        return self.of.at(t_s - self.delay_s) * self.factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Clipped:
    """`of`, held between `low` and `high`."""

    of: Shape
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("low must not be above high")

    def at(self, t_s: float) -> float:
        """The clipped level."""
        return min(self.high, max(self.low, self.of.at(t_s)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """`of` times (1 + `ratio` × a standard normal), never below 0; a new draw every `step_s`."""

    of: Shape
    seed: int
    ratio: float = 0.05
    step_s: float = 1.0

    def __post_init__(self) -> None:
        _positive("step_s", self.step_s)
        if self.ratio < 0:
            raise ValueError("ratio must not be below 0")

    def at(self, t_s: float) -> float:
        """The noisy level, the same for the same seed and time step."""
        draw = normal(self.seed, math.floor(t_s / self.step_s))
        return max(0.0, self.of.at(t_s) * (1.0 + self.ratio * draw))


def normal(seed: int, step: int) -> float:
    """A standard normal number that depends on `seed` and `step` alone (Box–Muller over SplitMix64)."""
    first = _mix(_mix(seed) ^ (step & _MASK))
    second = _mix(first)
    # The open interval: the logarithm of 0 does not exist.
    u = ((first >> 11) + 0.5) / (1 << 53)
    v = (second >> 11) / (1 << 53)
    return math.sqrt(-2.0 * math.log(u)) * math.cos(2.0 * math.pi * v)


_MASK = (1 << 64) - 1


def _mix(x: int) -> int:
    """One output of SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators")."""
    z = (x + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def _positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a finite number above 0, not {value!r}")
