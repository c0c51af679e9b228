"""What a person may choose of a backtest, and what of it cannot be run."""

import math
from dataclasses import dataclass

from gpuscale.errors import InputError, foreign
from gpuscale.simulation import peers

COLD_STARTS_S = (60.0, 180.0, 600.0)
"""A warm node with the image and weights at hand; a pull; a node that has to be provisioned."""

COLD_START_MAX_S = 6 * 3600.0
REPLICAS_MIN = 1
REPLICAS_MAX = 80
POLICIES_MAX = 64
"""Columns of a run; each costs memory and time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a person may choose. `capacity` and `peak_replicas` exclude each other."""

    capacity: float | None = None
    peak_replicas: int | None = None
    cold_starts_s: tuple[float, ...] = COLD_STARTS_S
    replicas_min: int = REPLICAS_MIN
    replicas_max: int = REPLICAS_MAX
    policies: tuple[str, ...] = peers.POLICIES
    from_s: float | None = None
    to_s: float | None = None
    timeline: bool = False
    curve: tuple[str, ...] = ()
    """Policies that are run too, and are shown on the curve of a report alone."""
    digest_bins: int = 0
    """Bins of each run's digest, which a report is drawn from; 0 for none."""
    explained_per_bin: int = 1

    def __post_init__(self) -> None:
        """Refuse what cannot be run, naming the option."""
        if self.capacity is not None and self.peak_replicas is not None:
            raise InputError("--capacity and --peak-replicas exclude each other; give one of them")
        if self.capacity is not None and not (0 < self.capacity < math.inf):
            raise InputError(f"--capacity is {self.capacity:g}; it must be above 0")
        if self.peak_replicas is not None and self.peak_replicas < 1:
            raise InputError(f"--peak-replicas is {self.peak_replicas}; it must be at least 1")
        if not 0 <= self.replicas_min <= self.replicas_max or self.replicas_max < 1:
            raise InputError(
                f"--min {self.replicas_min} and --max {self.replicas_max} do not fit; 0 <= min <= max and max >= 1"
            )
        if not self.cold_starts_s:
            raise InputError("--cold-start names no cold start; give seconds, e.g. 60,180,600")
        for cold in self.cold_starts_s:
            if not 0 < cold <= COLD_START_MAX_S:  # NaN too
                raise InputError(
                    f"--cold-start {cold:g} s is out of range; it must be above 0 and at most {COLD_START_MAX_S:g} s"
                )
        if not self.policies or len(self.policies + self.curve) > POLICIES_MAX:
            raise InputError(
                f"{len(self.policies + self.curve)} policies were named; 1 to {POLICIES_MAX} can be run"
            )
        for name in self.policies + self.curve:
            peers.target_of(name)


def cold_starts_of(text: str) -> tuple[float, ...]:
    """Seconds out of `60,180,600`."""
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise InputError(
            f"--cold-start {foreign(text)!r} is not a list of seconds; write e.g. 60,180,600"
        ) from None
