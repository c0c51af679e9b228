"""Quantiles of the highest demand until a replica that is asked for now could serve."""

import numpy as np

from gpuscale.controller.domain import QUANTILES, Bools, FleetForecast, Floats, Ints
from gpuscale.controller.history import History, aligned


class Forecaster:
    """Forecasts of all workloads, advanced in place."""

    def __init__(self, n: int, tick_s: float) -> None:
        self.level: Floats = np.full(n, np.nan)
        self._tick_s = tick_s

    def advance(
        self, now: float, demand: Floats, lead_s: Floats, learn: Bools, history: History
    ) -> FleetForecast:
        """One tick."""
        weight = min(1.0, self._tick_s / 60.0)
        moved = self.level + weight * (demand - self.level)
        self.level = np.where(
            np.isnan(demand), self.level, np.where(np.isnan(self.level), demand, moved)
        )
        n = len(demand)
        return FleetForecast(
            levels=QUANTILES,
            quantiles=np.repeat(self.level[:, None], len(QUANTILES), axis=1),
            level=self.level.copy(),
            coverage=np.full((n, len(QUANTILES)), np.nan),
        )

    def align(self, source: Ints) -> None:
        """Put rows into a new order; -1 is a new workload."""
        self.level = aligned(self.level, source, np.nan)
