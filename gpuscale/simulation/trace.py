"""Recorded demand: reading it from a CSV file, the window that is judged, the demand of each tick."""

import csv
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpuscale.controller.domain import Floats
from gpuscale.errors import InputError, foreign

HEADER = ("timestamp", "value")

ROWS_MAX = 5_000_000
"""Nearly ten years at one-minute steps; a longer file is not a trace, and would fill the memory."""

STEP_TOLERANCE = 1e-6
"""Share of a step by which a timestamp may be off the grid: decimals, not gaps."""

WINDOW_S = 7 * 86_400
"""The window that is judged by default: the last week, so that a weekend is in it."""

UTILIZATION = 0.7
"""What the default capacity and the first tick's replicas are planned at."""

PEAK_QUANTILE = 0.995
"""The demand that `peak_replicas` carry: what lies above is a handful of bins."""

PEAK_REPLICAS = 20
"""Replicas that carry it where nobody says another number."""

NOISE_SHAPE = 100.0
"""Shape of the gamma noise within a bin, whose mean alone is recorded: a coefficient of variation
of 0.1."""

TICK_S = 15.0
FINE_TICK_S = 5.0
"""The tick, and the tick of traces whose step is at most `FINE_STEP_S`."""

FINE_STEP_S = 10.0

TICKS_MAX = 2_000_000
"""Nearly a year at 15 s: what a window may have, since all ticks are in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Mean demand per bin on a regular grid."""

    name: str
    start_s: float
    """The beginning of the first bin, in the trace's own seconds."""
    step_s: float
    values: Floats
    """Shape (bins,): units/s, NaN where missing; at least one is not."""

    @property
    def end_s(self) -> float:
        """The end of the last bin."""
        return self.start_s + len(self.values) * self.step_s

    def at(self, index: int) -> float:
        """When a bin begins."""
        return self.start_s + index * self.step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticks:
    """The demand of a window, tick by tick."""

    tick_s: float
    demand: Floats
    """Shape (ticks,): units/s; a missing bin is bridged from its neighbours."""
    seen: Floats
    """Shape (ticks,): the same, NaN where the bin is missing."""


# ---------------------------------------------------------------- reading


def load(path: Path) -> Trace:
    """Read `timestamp,value` rows at a fixed step; an empty value is a missing observation.

    Raises InputError, one sentence with the line and the cure.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return _parse(path, file)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: a trace is a CSV file") from error
    except csv.Error as error:
        raise InputError(f"{path} is not a CSV file: {foreign(error)}") from error


def _parse(path: Path, lines: Iterator[str]) -> Trace:
    reader = csv.reader(lines)
    header = next(reader, None)
    if header is None or tuple(field.strip() for field in header) != HEADER:
        found = "nothing" if header is None else repr(foreign(",".join(header)))
        raise InputError(f"{path}, line 1: the header must be timestamp,value, found {found}")
    times: list[float] = []
    values: list[float] = []
    for row in reader:
        if not row:
            continue
        where = f"{path}, line {reader.line_num}"
        if len(row) != len(HEADER):
            raise InputError(
                f"{where}: {len(row)} fields instead of 2; write timestamp,value, and leave the value empty where it is missing"
            )
        time_s = _number(row[0], where, "timestamp", "seconds as a number")
        _check_step(where, times, time_s)
        times.append(time_s)
        values.append(_value(row[1], where))
        if len(times) > ROWS_MAX:
            raise InputError(f"{where}: more than {ROWS_MAX} rows; cut the trace")
    if len(times) < 2:
        raise InputError(f"{path} has {len(times)} rows of data; a trace needs at least two")
    demand = np.array(values, dtype=np.float64)
    if np.isnan(demand).all():
        raise InputError(f"{path} has no value at all: every row's value is empty")
    step = (times[-1] - times[0]) / (len(times) - 1)
    return Trace(name=path.stem, start_s=times[0], step_s=_tidy(step), values=demand)


def _number(text: str, where: str, field: str, cure: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise InputError(f"{where}: the {field} is {foreign(repr(text))}; write {cure}") from None
    if not math.isfinite(number):
        raise InputError(f"{where}: the {field} is {foreign(repr(text))}; write {cure}")
    return number


def _value(text: str, where: str) -> float:
    if not text.strip():
        return math.nan
    value = _number(text, where, "value", "units per second, or nothing where it is missing")
    if value < 0:
        raise InputError(f"{where}: the value is {value:g}; demand cannot be negative")
    return value


def _check_step(where: str, times: list[float], time_s: float) -> None:
    """The timestamp must continue the grid that the first two began."""
    if not times:
        return
    gap = time_s - times[-1]
    if gap <= 0:
        raise InputError(
            f"{where}: the timestamp {time_s:.15g} does not come after {times[-1]:.15g}; sort the rows and keep one of each"
        )
    if len(times) == 1:
        return
    step = times[1] - times[0]
    if abs(gap - step) <= step * STEP_TOLERANCE * 2:
        return
    if gap > step:
        cure = "write the missing rows with an empty value"
    else:
        cure = "bring the rows to one step"
    raise InputError(
        f"{where}: the timestamp {time_s:.15g} follows {times[-1]:.15g}, but the step is {step:.15g} s; {cure}"
    )


def _tidy(step_s: float) -> float:
    """Whole seconds where it is whole seconds but for the last digits of a decimal."""
    whole = round(step_s)
    return float(whole) if whole and abs(step_s - whole) <= whole * STEP_TOLERANCE else step_s


# ---------------------------------------------------------------- the window, the ticks


def window(trace: Trace, from_s: float | None, to_s: float | None) -> tuple[int, int]:
    """(first bin, bin after the last) that are judged; everything before them is history.

    By default the last week, or the last half of a trace shorter than two. A `to_s` past the end
    means the end.
    """
    n = len(trace.values)
    first = max(n // 2, n - int(WINDOW_S // trace.step_s))
    last = n
    span = f"{trace.name} reaches from {trace.start_s:.15g} to {trace.end_s:.15g} s"
    if from_s is not None:
        if not trace.start_s <= from_s < trace.end_s:
            raise InputError(f"--from {from_s:.15g} is outside the trace: {span}")
        first = int((from_s - trace.start_s) // trace.step_s)
    if to_s is not None:
        if not to_s > trace.start_s:
            raise InputError(f"--to {to_s:.15g} is outside the trace: {span}")
        last = int((min(to_s, trace.end_s) - trace.start_s) // trace.step_s)
    if last <= first:
        raise InputError(
            f"the window from {trace.at(first):.15g} to {trace.at(last):.15g} s is empty; --to must come after --from"
        )
    return first, last


def capacity(trace: Trace, peak_replicas: int = PEAK_REPLICAS) -> float:
    """Units/s of a replica, such that the p99.5 demand needs `peak_replicas` at 70 % utilization."""
    peak = float(np.nanquantile(trace.values, PEAK_QUANTILE))
    if not peak > 0:
        raise InputError(
            f"{trace.name}: the p99.5 of the demand is 0, so no capacity follows from it; give --capacity"
        )
    return peak / (UTILIZATION * peak_replicas)


def coarsened(trace: Trace) -> Trace:
    """A trace whose step is below the finest tick, as means over the least multiple that is not."""
    bins = math.ceil(FINE_TICK_S / trace.step_s - STEP_TOLERANCE)
    if bins <= 1:
        return trace
    whole = len(trace.values) // bins * bins
    if whole == 0:
        raise InputError(
            f"{trace.name} lasts {trace.end_s - trace.start_s:g} s; a tick alone is {FINE_TICK_S:g} s"
        )
    table = trace.values[:whole].reshape(-1, bins)
    known = ~np.isnan(table)
    count = known.sum(axis=1)
    total = np.where(known, table, 0.0).sum(axis=1)
    values: Floats = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    if np.isnan(values).all():
        raise InputError(f"{trace.name} has no value in whole ticks of {FINE_TICK_S:g} s")
    return Trace(name=trace.name, start_s=trace.start_s, step_s=trace.step_s * bins, values=values)


def tick_of(step_s: float) -> float:
    """The tick for a step: 15 s, 5 s for steps up to 10 s, or what divides the step just below."""
    aim = FINE_TICK_S if step_s <= FINE_STEP_S else TICK_S
    if step_s == round(step_s):
        for whole in range(int(aim), int(aim) // 2, -1):
            if round(step_s) % whole == 0:
                return float(whole)
    return step_s / math.ceil(step_s / aim)


def ticks(trace: Trace, first: int, last: int) -> Ticks:
    """The demand of the bins first … last - 1 on ticks: constant within a bin, times gamma noise.

    The noise has mean 1 and a coefficient of variation of 0.1, and is seeded by the trace's name:
    the same trace gives the same demand whatever else is run.
    """
    tick_s = tick_of(trace.step_s)
    per_bin = round(trace.step_s / tick_s)
    if (last - first) * per_bin > TICKS_MAX:
        raise InputError(
            f"the window of {trace.name} has more than {TICKS_MAX} ticks of {tick_s:g} s; narrow it with --from and --to"
        )
    hole = np.isnan(trace.values)
    index = np.arange(len(trace.values))
    bridged = np.interp(index, index[~hole], trace.values[~hole]) if hole.any() else trace.values
    bins = np.repeat(np.arange(first, last), per_bin)
    random = np.random.default_rng(zlib.crc32(trace.name.encode()))
    demand: Floats = bridged[bins] * random.gamma(NOISE_SHAPE, 1.0 / NOISE_SHAPE, len(bins))
    seen: Floats = np.where(hole[bins], np.nan, demand)
    return Ticks(tick_s=tick_s, demand=demand, seen=seen)
