"""How good the controller's forecasts would have been on recorded demand: rolling origins.

The very forecaster that decides (`controller.forecast`) runs through the trace in time: it learns
what lies before the window as a controller does at its start, then takes one step at a time, and is
asked before each. An answer at time t has seen the bins that ended by t, and nothing after.

    value   the mean demand of the bin that ends `horizon_s` after the origin
    peak    the highest bin of those that end within `horizon_s` after it

Scores are taken over so many origins, evenly spread over the window; coverage over every bin's
origin whose outcome is above zero, since a zero is at or below any quantile. An outcome counts only
where it is known and lies in the window.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gpuscale.controller.domain import Bools, Floats, Ints
from gpuscale.controller.forecast import KNOWN_MIN, Aim, Forecaster
from gpuscale.controller.forecast.experts import HORIZON_S_MAX
from gpuscale.controller.forecast.past import learn, minutes, seed
from gpuscale.controller.history import BIN_S, DAY_S, History
from gpuscale.errors import InputError
from gpuscale.simulation import trace as traces
from gpuscale.simulation.trace import Trace

Target = Literal["peak", "value"]

ORIGINS = 300
"""Fewer make differences of a tenth noise."""
WINDOW_HORIZONS_MIN = 4
"""A window shorter than this many horizons holds too few outcomes that are not one and the same."""
QUANTILES = (0.5, 0.9, 0.95)
LEVELS_MAX = 20
POINT = 0.5
"""The quantile that is the point forecast: what absolute errors are least for."""

_EPOCH_S = 400 * DAY_S
"""Where a trace's first bin begins on the forecaster's clock: bins line up with its grid, and what
the trace calls its seconds makes no difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of a trace."""

    horizon_s: float
    target: Target = "peak"
    quantiles: tuple[float, ...] = QUANTILES
    origins: int = ORIGINS
    from_s: float | None = None
    to_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be asked, naming the option."""
        if not 0 < self.horizon_s <= HORIZON_S_MAX:  # NaN too
            raise InputError(
                f"--horizon is {self.horizon_s:g}; give seconds above 0, {HORIZON_S_MAX:g} at most"
            )
        if self.origins < 1:
            raise InputError(f"--origins is {self.origins}; it must be at least 1")
        if not 0 < len(self.quantiles) <= LEVELS_MAX:
            raise InputError(f"--quantiles names {len(self.quantiles)}; give 1 to {LEVELS_MAX}")
        for level in self.quantiles:
            if not 0 < level < 1:
                raise InputError(
                    f"--quantiles names {level:g}; each lies between 0 and 1, e.g. 0.5,0.9"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A forecast from the last bin that was seen."""

    trace: str
    at_s: float
    """In the trace's own seconds."""
    horizon_s: float
    target: Target
    quantiles: dict[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Scores over a window; NaN where there is nothing to compute one from."""

    trace: str
    horizon_s: float
    target: Target
    origins: int
    """That had an outcome."""
    mase: float
    """Mean absolute error of the median over the mean change from bin to bin before the window."""
    wape: float
    """Absolute errors of the median over absolute outcomes."""
    relative_mae: float
    """Absolute errors of the median over those of the last value."""
    pinball: dict[float, float]
    """Twice the quantile's loss over absolute outcomes."""
    coverage: dict[float, float]
    """Share of outcomes above zero that are at or below the quantile, over every bin's origin."""
    seconds_per_update: float
    """One step of the forecaster, this workload alone."""


class _Live:
    """The controller's forecaster on a trace: it learns a past at once, then takes bin after bin."""

    def __init__(self, recorded: Trace, asked: Question) -> None:
        self._parts = int(np.ceil(recorded.step_s / BIN_S - traces.STEP_TOLERANCE))
        """Steps of a bin: bins of the trace may be longer than those of the history."""
        self._step_s = recorded.step_s / self._parts
        self._values = np.repeat(recorded.values, self._parts)
        self._lead_s = np.array([_bins(recorded, asked) * recorded.step_s])
        self.levels = tuple(sorted({*asked.quantiles, POINT}))
        aim = Aim(step_s=self._step_s, peak=asked.target == "peak", levels=self.levels)
        self._forecaster = Forecaster(1, self._step_s, aim)
        self._history = History(1)

    def begin(self, bins: int) -> None:
        """Learn the first `bins` of the trace as a past."""
        steps = bins * self._parts
        if steps == 0 or np.isnan(self._values[:steps]).all():
            return
        times, past = self._time(np.arange(steps)), self._values[:steps]
        self._history.put(0, times, past, self._step_s)
        seen = minutes(times, past, self._step_s, self._step_s)
        learn(self._forecaster, 0, seen, float(self._lead_s[0]), self._history)
        seed(self._forecaster, 0, seen, float(times[-1]) + self._step_s)

    def take(self, number: int) -> None:
        """See one bin of the trace."""
        for step in range(number * self._parts, (number + 1) * self._parts):
            now, demand = float(self._time(step)), self._values[step : step + 1]
            self._history.add(now, self._step_s, demand)
            self._forecaster.advance(now, demand, ~np.isnan(demand), self._lead_s, self._history)

    def quantiles(self) -> Floats:
        """(levels,) as of what was seen; NaN where that is nothing."""
        return np.array(self._forecaster.quantiles()[0])

    def _time(self, step: int | Ints) -> Floats:
        """When a step ends, on the forecaster's clock."""
        return np.asarray(_EPOCH_S + (np.asarray(step) + 1.0) * self._step_s)


def _bins(recorded: Trace, asked: Question) -> int:
    """The horizon in bins of the trace, rounded up."""
    return max(1, int(np.ceil(asked.horizon_s / recorded.step_s - traces.STEP_TOLERANCE)))


def answer(recorded: Trace, asked: Question) -> Answer:
    """The forecast from the end of the trace, or from `to_s`. Raises InputError."""
    fine = traces.coarsened(recorded)
    _, last = traces.window(fine, fine.start_s, asked.to_s)
    if np.isnan(fine.values[:last]).all():
        raise InputError(f"{fine.name} has no value before {fine.at(last):.15g} s")
    live = _Live(fine, asked)
    # The last bin is taken as every later one would be.
    live.begin(last - 1)
    live.take(last - 1)
    found = dict(zip(live.levels, live.quantiles().tolist(), strict=True))
    return Answer(
        trace=fine.name,
        at_s=fine.at(last),
        horizon_s=asked.horizon_s,
        target=asked.target,
        quantiles={level: found[level] for level in asked.quantiles},
    )


def evaluate(recorded: Trace, asked: Question, seconds: Callable[[], float]) -> Evaluation:
    """Scores over the window, by default the one that a backtest judges. Raises InputError.

    `seconds` tells the time that passes, for `seconds_per_update` alone.
    """
    fine = traces.coarsened(recorded)
    first, last = traces.window(fine, asked.from_s, asked.to_s)
    window_s = (last - first) * fine.step_s
    if asked.horizon_s * WINDOW_HORIZONS_MIN > window_s:
        raise InputError(
            f"--horizon {asked.horizon_s:g} s is more than a quarter of {fine.name}'s window of {window_s:g} s, which leaves too few outcomes; widen the window with --from, or shorten the horizon"
        )
    horizon = _bins(fine, asked)
    live = _Live(fine, asked)
    live.begin(first)
    found = np.full((last - first, len(live.levels)), np.nan)
    took = 0.0
    for number in range(first, last):
        found[number - first] = live.quantiles()
        began = seconds()
        live.take(number)
        took += seconds() - began
    outcome = _outcomes(fine.values, horizon, asked.target)[first:last]
    outcome[max(0, last - first - horizon + 1) :] = np.nan
    return _scored(
        fine,
        asked,
        first,
        outcome=outcome,
        quantiles=dict(zip(live.levels, found.T, strict=True)),
        seconds_per_update=took / (last - first),
    )


def _outcomes(values: Floats, horizon: int, target: Target) -> Floats:
    """What came of the forecast at each bin's beginning (bins,); NaN where it is not known."""
    padded = np.concatenate([values, np.full(horizon - 1, np.nan)])
    if target == "value":
        return padded[horizon - 1 :]
    window = np.lib.stride_tricks.sliding_window_view(padded, horizon)
    known = np.count_nonzero(~np.isnan(window), axis=1)
    highest: Floats = np.fmax.reduce(window, axis=1)
    return np.where(known >= KNOWN_MIN * horizon, highest, np.nan)


def _scored(
    recorded: Trace,
    asked: Question,
    first: int,
    *,
    outcome: Floats,
    quantiles: dict[float, Floats],
    seconds_per_update: float,
) -> Evaluation:
    values = recorded.values
    last = _last_known(values)[first : first + len(outcome)]
    point = quantiles[POINT]
    every = ~np.isnan(outcome) & ~np.isnan(point) & ~np.isnan(last)
    spread = np.unique(np.linspace(0, len(outcome) - _bins(recorded, asked), asked.origins).round())
    chosen = np.zeros(len(outcome), dtype=np.bool_)
    chosen[spread.astype(np.int64)] = True
    chosen &= every
    if not chosen.any():
        raise InputError(
            f"{recorded.name}: no origin of the window has a known outcome; choose another with --from and --to"
        )
    truth = outcome[chosen]
    error = float(np.abs(point[chosen] - truth).sum())
    total = float(np.abs(truth).sum())
    steps = np.abs(np.diff(values[:first]))
    step = float(np.nanmean(steps)) if np.isfinite(steps).any() else 0.0
    counted: Bools = every & (outcome > 0)
    return Evaluation(
        trace=recorded.name,
        horizon_s=asked.horizon_s,
        target=asked.target,
        origins=int(chosen.sum()),
        mase=_ratio(error / len(truth), step),
        wape=_ratio(error, total),
        relative_mae=_ratio(error, float(np.abs(last[chosen] - truth).sum())),
        pinball={
            level: _ratio(2.0 * _pinball(truth, quantiles[level][chosen], level), total)
            for level in asked.quantiles
        },
        coverage={
            level: _ratio(
                float((outcome[counted] <= quantiles[level][counted] * (1.0 + 1e-9)).sum()),
                float(counted.sum()),
            )
            for level in asked.quantiles
        },
        seconds_per_update=seconds_per_update,
    )


def _last_known(values: Floats) -> Floats:
    """The last known value before each bin (bins,); NaN before the first."""
    index = np.where(np.isnan(values), -1, np.arange(len(values)))
    newest = np.concatenate([[-1], np.maximum.accumulate(index)[:-1]])
    return np.where(newest >= 0, values[np.maximum(newest, 0)], np.nan)


def _pinball(truth: Floats, quantile: Floats, level: float) -> float:
    return float(np.maximum(level * (truth - quantile), (level - 1.0) * (truth - quantile)).sum())


def _ratio(above: float, below: float) -> float:
    return above / below if below > 0 else float("nan")
