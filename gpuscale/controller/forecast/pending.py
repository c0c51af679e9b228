"""What is forecast, and forecasts that wait for their outcome."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuscale.controller.domain import QUANTILES, Floats, Ints
from gpuscale.controller.forecast.experts import EXPERTS
from gpuscale.controller.forecast.looks import LOOKS
from gpuscale.controller.history import aligned

MINUTE_S = 60.0
LOSS_HALF_LIFE_S = 86_400.0
"""Losses of a day ago count half: experts are good at different hours, and a day holds them all."""
PENDING_MAX = 32
"""Forecasts of one workload that wait for their outcome; longer lead times are scored more rarely."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What is forecast, and on which grid of time."""

    step_s: float = MINUTE_S
    """Demand here is demand over such a step; forecasts are made and scored once in each."""
    peak: bool = True
    """The highest step of the horizon; otherwise its last one."""
    levels: tuple[float, ...] = QUANTILES
    """Ascending, each within (0, 1)."""

    @property
    def decay(self) -> float:
        """What a loss weighs one step later."""
        return float(0.5 ** (self.step_s / LOSS_HALF_LIFE_S))

    def horizon(self, lead_s: Floats) -> Ints:
        """Seconds ahead as whole steps, one at least."""
        steps: Ints = np.maximum(1, np.ceil(lead_s / self.step_s - 1e-9)).astype(np.int64)
        return steps


@dataclass(slots=True, kw_only=True)
class Pending:
    """Forecasts that wait for their outcome, in slots: arrays of shape (n, PENDING_MAX, …)."""

    issued: Ints
    """Step of the forecast; -1 for an empty slot."""
    level: NDArray[np.float32]
    rise: NDArray[np.float32]
    """(n, PENDING_MAX, experts + 1): of each expert, and of the blend before the gate."""
    looked: NDArray[np.float32]
    """(n, PENDING_MAX, LOOKS)"""
    unit: NDArray[np.float32]
    """Scale of the looks."""
    point: NDArray[np.float32]
    scale: NDArray[np.float32]
    quantiles: NDArray[np.float32]
    peak: NDArray[np.float32]
    """Highest step since; NaN before the first."""
    known: NDArray[np.float32]
    """Steps known since."""

    @classmethod
    def of(cls, n: int, levels: int) -> "Pending":
        """All slots empty."""

        def floats(*shape: int) -> NDArray[np.float32]:
            return np.full((n, PENDING_MAX, *shape), np.nan, dtype=np.float32)

        return cls(
            issued=np.full((n, PENDING_MAX), -1, dtype=np.int64),
            level=floats(),
            rise=floats(len(EXPERTS) + 1),
            looked=floats(len(LOOKS)),
            unit=floats(),
            point=floats(),
            scale=floats(),
            quantiles=floats(levels),
            peak=floats(),
            known=np.zeros((n, PENDING_MAX), dtype=np.float32),
        )

    def align(self, source: Ints) -> None:
        """Put rows into a new order; -1 is a new workload."""
        self.issued = aligned(self.issued, source, -1)
        for name in ("level", "rise", "looked", "unit", "point", "scale", "quantiles", "peak"):
            setattr(self, name, aligned(getattr(self, name), source, np.nan))
        self.known = aligned(self.known, source, 0.0)
