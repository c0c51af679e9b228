"""What goes on in an invented GPU over time: a load, and power, energy, heat and traffic that follow from it.

Power rises from idle to a share of its limit, energy is its integral, temperature lags. The same
seed, load and times of reading give the same values.
"""

import math
from collections.abc import Callable

from gpuscale.exporter.simulated.cards import Card
from gpuscale.workload import Clipped, Noise, RepeatedRamp, Shape

STEPS_MAX = 240
"""Steps of integration between two reads at most; after a longer sleep the steps are coarser."""
STEP_S = 0.25

Load = Callable[[int], float | None]
"""Share (0–1) of a device by its index, as of now; None where nobody can tell."""

# Round figures of inference on such boards; nothing depends on them but how a dashboard looks.
_POWER_AT_FULL_SHARE = 0.88
_THERMAL_LAG_S = 25.0
HOT = 0.95
"""Of the rise in temperature from which the clocks are held down."""


class Board:
    """The state of one GPU, integrated from read to read. Its owner holds the lock."""

    def __init__(self, card: Card, index: int, seed: int, origin_s: float) -> None:
        self._card = card
        self._index = index
        self._origin_s = origin_s
        self.shape: Shape = _everyday(index, seed)
        self.busy: Load | None = None
        """Takes the place of the shape."""
        self.at_s = origin_s
        self.share: float | None = self._level(origin_s)
        """Of time that kernels run, at the last step."""
        self.energy_j = 0.0
        self.heat = 0.0
        """Rise of the temperature as a share of the one at full load."""
        self.served = False
        """Whether anything ever ran."""
        self.hot_s = 0.0
        self.work_s = 0.0
        """Seconds of full load ever done."""
        self.busy_s = 0.0
        self.known_s = 0.0
        """Of these seconds, since the reader set both to 0."""

    def advance(self, to_s: float) -> None:
        """Integrate from the last read to `to_s`; a clock that stands or steps back adds nothing."""
        elapsed_s = to_s - self.at_s
        if elapsed_s <= 0:
            return
        steps = min(STEPS_MAX, max(1, math.ceil(elapsed_s / STEP_S)))
        step_s = elapsed_s / steps
        start_s = self.at_s
        for step in range(steps):
            share = self._level(start_s + (step + 0.5) * step_s)
            self.share = share
            if share is not None:
                self.busy_s += share * step_s
                self.known_s += step_s
                self.work_s += share * step_s
                self.served = self.served or share > 0
            self.energy_j += self.watts(share or 0.0) * step_s
            decay = math.exp(-step_s / _THERMAL_LAG_S)
            self.heat = self.heat * decay + (share or 0.0) * (1.0 - decay)
            self.hot_s += step_s if self.heat >= HOT else 0.0
        self.at_s = to_s

    def watts(self, share: float) -> float:
        """Power at a share of busy time."""
        idle = self._card.power_idle_watts
        return idle + (self._card.power_limit_watts * _POWER_AT_FULL_SHARE - idle) * share

    def _level(self, at_s: float) -> float | None:
        if self.busy is not None:
            share = self.busy(self._index)
        else:
            share = self.shape.at(at_s - self._origin_s)
        return None if share is None else min(1.0, max(0.0, share))


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
