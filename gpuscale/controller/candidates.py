"""The candidate policies among which the bank chooses, and the holds that they follow down by.

A candidate is a parameter set of the plan (`plan.Candidate`): which column of the outlook it reads,
at which utilization, and how fast it follows down. `quick` follows at once, no suffix after five
minutes (the HPA's default), `steady` after two start times, a quarter of an hour at least. Columns
that look back further than a minute have the last minute at 95 % utilization as their floor: what
arrives now is served now; `loose` ones let a minute's noise queue for a moment.

Families overlap on purpose. Each was kept because leaving it out cost more, on demand made from
seeds and on recordings alike, than the time it takes to run it.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpuscale.controller.domain import Floats, Ints
from gpuscale.controller.history import aligned
from gpuscale.controller.outlook import BASES
from gpuscale.controller.plan import Candidate

HOLD_SHORT_S = 300.0
"""The HPA's default: the highest ask of the last five minutes stands."""
HOLD_LONG_S = 900.0
HOLD_LEADS = 2.0
"""A steady candidate holds for two start times, and a quarter of an hour at least: giving a replica
up for less than it takes to start one again saves nothing."""
HOLD_SLOTS = 6

FLOOR_TARGET = 0.95
LOOSE_TARGET = 1.0
"""A minute that fills what is ready is noise that a queue carries, where the mean of five fits."""

_HOLDS: tuple[str, ...] = ("quick", "held", "steady")
SIGNALS: tuple[str, ...] = tuple(f"{base}-{hold}" for hold in _HOLDS for base in BASES)

DEFAULT = "forecast-q99-quick@1"
"""What a workload without any past starts with: of all, the one that was never far off in the first
hour of synthetic workloads."""
REFERENCE = "reactive@0.8"
"""What the others are compared with in explanations: the common rule of thumb, an HPA on the rate."""
BLEND = "blend"
"""Name under which the blend's own virtual cost is told."""

_SUFFIX = {"quick": "-quick", "held": "", "steady": "-steady"}


def _family(
    name: str,
    base: str,
    *,
    floor: str | None = None,
    floor_target: float = FLOOR_TARGET,
    **targets: Sequence[float],
) -> tuple[Candidate, ...]:
    """One candidate for each hold and each of its targets."""
    return tuple(
        Candidate(
            name=f"{name}{_SUFFIX[hold]}@{target:g}",
            signal=f"{base}-{hold}",
            target=target,
            floor=floor,
            floor_target=floor_target,
        )
        for hold, some in targets.items()
        for target in some
    )


_NOW = "recent-quick"
_EXPECTED = "q50-quick"
"""What is alike knows no hour of the day: what the forecast expects is served too."""


def _loose(base: str, *, floor: str = _NOW, **targets: Sequence[float]) -> tuple[Candidate, ...]:
    """A family whose floor may fill what is ready."""
    return _family(f"{base}-loose", base, floor=floor, floor_target=LOOSE_TARGET, **targets)


CANDIDATES: tuple[Candidate, ...] = (
    *_family(
        "reactive",
        "recent",
        quick=(0.7, 0.8, 0.9),
        held=(0.8, 0.9, 1.0),
        steady=(0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    ),
    *_family("burst", "burst", quick=(0.5, 0.6, 0.7, 0.8, 0.9), held=(0.7,), steady=(0.5,)),
    *_family("mean3", "mean3", floor=_NOW, quick=(0.6, 0.7, 0.8, 0.9)),
    *_family("mean5", "mean5", floor=_NOW, quick=(0.9,), held=(0.9,), steady=(0.9,)),
    *_family("mean10", "mean10", floor=_NOW, quick=(0.8, 0.9), held=(0.9,), steady=(0.8,)),
    *_family("forecast-q50", "q50", held=(0.9, 1.0), steady=(1.0,)),
    *_family("forecast-q75", "q75", quick=(0.9, 1.0), held=(0.9, 1.0), steady=(1.0,)),
    *_family("forecast-q90", "q90", quick=(0.8, 0.9, 1.0), held=(0.9, 1.0), steady=(1.0,)),
    *_family("forecast-q95", "q95", quick=(1.0,), held=(0.8, 1.0)),
    *_family("forecast-q99", "q99", quick=(1.0,)),
    *_family("rise-10", "rise-10", floor=_NOW, quick=(0.9, 1.0), held=(1.0,), steady=(0.9,)),
    *_family("rise-30", "rise-30", floor=_NOW, quick=(1.0,), held=(0.9, 1.0), steady=(1.0,)),
    *_family("rise-100", "rise-100", floor=_NOW, quick=(1.0,), held=(1.0,), steady=(0.9, 1.0)),
    *_family("hour-10", "hour-10", floor=_NOW, quick=(1.0,)),
    *_family("hour-30", "hour-30", floor=_NOW, quick=(0.9, 1.0)),
    *_family("hour-100", "hour-100", floor=_NOW, quick=(0.9,)),
    *_family("hour-100-held", "hour-100", floor="recent-held", quick=(1.0,)),
    *_loose("rise-10", quick=(1.0,)),
    *_loose("rise-30", quick=(1.0,), held=(1.0,)),
    *_loose("rise-100", quick=(0.95, 1.0), held=(1.0,)),
    *_loose("like-30", floor=_EXPECTED, quick=(0.9,)),
    *_loose("like-100", floor=_EXPECTED, quick=(1.0,), held=(0.9,), steady=(0.9,)),
    *_family("like-30-held", "like-30", floor="recent-held", quick=(0.9,)),
    *_family("like-100-held", "like-100", floor="recent-held", quick=(0.9,)),
)


class Holds:
    """The highest value of a signal over the last `span_s` (up to a fifth more), advanced in place."""

    def __init__(self, n: int, signals: int) -> None:
        self.slots: NDArray[np.float32] = np.full((n, signals, HOLD_SLOTS), np.nan, np.float32)
        self.number: Ints = np.zeros(n, dtype=np.int64)

    def add(self, now: float, span_s: Floats, values: Floats) -> Floats:
        """Enter `values` (n, signals), NaN where unknown; gives the highest of the span, same shape."""
        number = (now // (span_s / (HOLD_SLOTS - 1))).astype(np.int64)
        for back in range(HOLD_SLOTS):
            rows = np.flatnonzero(number - back > self.number)
            if len(rows) == 0:
                break
            self.slots[rows, :, (number[rows] - back) % HOLD_SLOTS] = np.nan
        self.number = number
        rows = np.arange(len(values))
        slot = number % HOLD_SLOTS
        self.slots[rows, :, slot] = np.fmax(self.slots[rows, :, slot], values)
        highest: Floats = np.fmax.reduce(self.slots, axis=2).astype(np.float64)
        return highest

    def align(self, source: Ints) -> None:
        """Put rows into a new order; -1 is a new workload."""
        self.slots = aligned(self.slots, source, np.nan)
        self.number = aligned(self.number, source, 0)

    def take(self, row: int, other: "Holds") -> None:
        """Go on where the last row of `other` ended."""
        self.slots[row], self.number[row] = other.slots[-1], other.number[-1]
