"""What a run leaves behind: every tick of a timeline, or the digest of a run that a report is drawn from.

Both are told of every tick while the engine runs. A timeline keeps all of it; a digest keeps as
many bins as a chart can show, and the explanations of the decisions that changed the answer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gpuscale.controller import explain
from gpuscale.controller.domain import FleetDecision, Floats, Ints
from gpuscale.controller.fleet import Outcome
from gpuscale.simulation.engine import Case
from gpuscale.simulation.report import Timeline

LINES = ("asked", "ready", "busy", "late", "arrived")
"""What a digest adds up per policy."""


class TickRecord:
    """Every tick's state of a batch, single precision but for the backlog."""

    def __init__(self, cases: Sequence[Case], columns: int) -> None:
        shape = (max(len(case.demand) for case in cases), len(cases), columns)
        self._stages = {
            name: np.empty(shape, dtype=np.float32)
            for name in ("asked", "ready", "starting", "draining")
        }
        self._backlog: Floats = np.empty(shape)

    def __call__(self, tick: int, outcome: Outcome) -> None:
        """One tick of the engine."""
        for name, values in self._stages.items():
            values[tick] = getattr(outcome, name)
        self._backlog[tick] = outcome.backlog

    def timelines(
        self, case: Case, row: int, *, start_s: float, names: Sequence[str], policies: Sequence[str]
    ) -> Iterator[Timeline]:
        """One case's, in the order of the policies; `names` are those of the columns."""
        n = len(case.demand)
        for policy in dict.fromkeys(policies):
            column = names.index(policy)
            stages = {
                name: values[:n, row, column].astype(np.float64)
                for name, values in self._stages.items()
            }
            yield Timeline(
                cold_start_s=case.cold_start_s,
                policy=policy,
                start_s=start_s,
                tick_s=case.tick_s,
                demand=case.seen,
                desired=stages.pop("asked"),
                backlog=self._backlog[:n, row, column],
                **stages,
            )


# ---------------------------------------------------------------- the digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """One policy, bin by bin. Arrays of shape (bins,)."""

    asked: Floats
    """The highest ask."""
    ready: Floats
    """Mean of the ready replicas."""
    busy: Floats
    """Mean of the replicas' worth of work in service; what is ready beyond it idles."""
    late_ratio: Floats
    """Late over arrived; NaN where nothing arrived or nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What gpuscale decided at one tick, and why."""

    at_s: float
    """In the trace's own seconds."""
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Digest:
    """One case, in bins of `bin_s` from `start_s` on. Arrays of shape (bins,)."""

    start_s: float
    bin_s: float
    demand: Floats
    """Mean of what was seen, units/s; NaN where nothing was."""
    demand_peak: Floats
    """Highest tick of it."""
    forecast: Floats
    """(bins, levels): gpuscale's quantiles of the peak over the cold start, at the bin's last tick."""
    levels: tuple[float, ...]
    lines: dict[str, Lines]
    """By policy."""
    explained: tuple[Explanation, ...]
    """In order of time: the decisions that changed the answer, as many as fit, and at least one per bin."""


class Digester:
    """Digests of all cases of a batch, from the engine's `Recorder` and `Watch`."""

    def __init__(
        self, cases: Sequence[Case], names: Sequence[str], *, bins: int, explained_per_bin: int
    ) -> None:
        """`names`: the policies to keep; `over` is to be called before the first tick."""
        n = len(cases)
        self._cases = cases
        self._names = tuple(names)
        self._columns: Ints = np.arange(len(names), dtype=np.int64)
        self._length: Ints = np.array([len(c.demand) for c in cases], dtype=np.int64)
        self._width: Ints = np.maximum(1, -(-self._length // bins))
        """Ticks of a bin, per case."""
        shape = (n, len(names))
        self._sums: dict[str, Floats] = {name: np.zeros(shape) for name in LINES}
        self._known: Floats = np.zeros(shape)
        self._bins: dict[str, Floats] = {name: np.full((bins, *shape), np.nan) for name in LINES}
        self._per_bin = explained_per_bin
        self._levels: tuple[float, ...] = ()
        self._forecast: Floats = np.empty((bins, n, 0))
        self._before: Floats = np.full(n, np.nan)
        self._given: Ints = np.zeros(n, dtype=np.int64)
        """Explanations of the bin in progress."""
        self._explained: list[list[tuple[int, tuple[str, ...]]]] = [[] for _ in cases]

    def over(self, columns: Sequence[str]) -> None:
        """Say which policies the engine's columns are."""
        self._columns = np.array([list(columns).index(name) for name in self._names])

    # ------------------------------------------------------------ told by the engine

    def __call__(self, tick: int, outcome: Outcome) -> None:
        """One tick of the engine: what happened."""
        columns, sums = self._columns, self._sums
        known = outcome.known[:, columns]
        np.maximum(sums["asked"], outcome.asked[:, columns], out=sums["asked"])
        sums["ready"] += np.where(known, outcome.ready[:, columns], 0.0)
        sums["busy"] += np.where(known, outcome.busy[:, columns], 0.0)
        sums["late"] += outcome.late[:, columns]
        sums["arrived"] += outcome.arrived[:, columns]
        self._known += known
        rows = self._closing(tick)
        if len(rows) == 0:
            return
        at = tick // self._width[rows]
        with np.errstate(invalid="ignore", divide="ignore"):
            for name in ("ready", "busy"):
                sums[name][rows] /= self._known[rows]
        for name in LINES:
            self._bins[name][at, rows] = sums[name][rows]
            sums[name][rows] = 0.0
        self._known[rows] = 0.0

    def watch(self, tick: int, decision: FleetDecision) -> None:
        """Keep the forecast and the explanations of the first workloads, one per case."""
        n = len(self._cases)
        if not self._levels:
            self._levels = decision.forecast.levels
            self._forecast = np.full((*self._forecast.shape[:2], len(self._levels)), np.nan)
        desired = decision.desired[:n]
        changed = (desired != self._before) & ~(np.isnan(desired) & np.isnan(self._before))
        self._before = desired.copy()
        closing = np.zeros(n, dtype=np.bool_)
        rows = self._closing(tick)
        closing[rows] = True
        due = (changed & (self._given < self._per_bin)) | (closing & (self._given == 0))
        for row in np.flatnonzero(due & (tick < self._length)).tolist():
            self._given[row] += 1
            self._explained[row].append((tick, explain.sentences(decision.of(row))))
        self._forecast[tick // self._width[rows], rows] = decision.forecast.quantiles[rows]
        self._given[rows] = 0

    def _closing(self, tick: int) -> Ints:
        """Cases of which a bin ends with this tick."""
        ends = ((tick + 1) % self._width == 0) | (tick + 1 == self._length)
        rows: Ints = np.flatnonzero(ends & (tick < self._length))
        return rows

    # ------------------------------------------------------------ the result

    def digest(self, row: int, *, start_s: float) -> Digest:
        """One case's, as of the end of the run."""
        case, width = self._cases[row], int(self._width[row])
        bins = -(-len(case.demand) // width)
        with np.errstate(invalid="ignore", divide="ignore"):
            lines = {
                name: Lines(
                    asked=self._bins["asked"][:bins, row, column],
                    ready=self._bins["ready"][:bins, row, column],
                    busy=self._bins["busy"][:bins, row, column],
                    late_ratio=self._bins["late"][:bins, row, column]
                    / self._bins["arrived"][:bins, row, column],
                )
                for column, name in enumerate(self._names)
            }
        mean, peak = _binned(case.seen, width)
        return Digest(
            start_s=start_s,
            bin_s=width * case.tick_s,
            demand=mean,
            demand_peak=peak,
            forecast=self._forecast[:bins, row],
            levels=self._levels,
            lines=lines,
            explained=tuple(
                Explanation(at_s=start_s + tick * case.tick_s, sentences=sentences)
                for tick, sentences in self._explained[row]
            ),
        )


def _binned(values: Floats, width: int) -> tuple[Floats, Floats]:
    """(mean, maximum) of what is known of every `width` values; NaN where nothing is."""
    padded = np.full(-(-len(values) // width) * width, np.nan)
    padded[: len(values)] = values
    table = padded.reshape(-1, width)
    known = ~np.isnan(table)
    count = known.sum(axis=1)
    mean = np.where(known, table, 0.0).sum(axis=1) / np.maximum(count, 1)
    peak = np.where(known, table, -np.inf).max(axis=1)
    return np.where(count > 0, mean, np.nan), np.where(count > 0, peak, np.nan)
