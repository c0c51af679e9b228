"""Demand that a Prometheus has recorded, as a trace: range queries in pieces that it accepts.

A trace's value is the mean over the step that begins at its time, and a `rate` at T speaks of what
went before T: what a query gives at the end of a bin is that bin's value. What it does not give, or
gives as NaN, is missing.
"""

import math
import re
from collections.abc import Callable, Sequence

import numpy as np

from gpuscale.clock import Clock
from gpuscale.controller.domain import Floats
from gpuscale.controller.queryapi import QueryApi, QueryRefused, Series
from gpuscale.errors import InputError, SourceMalformed, foreign
from gpuscale.settings import PrometheusSettings
from gpuscale.simulation.trace import Trace

POINTS_PER_QUERY = 10_000
"""Prometheus refuses more than 11,000 points per series."""

POINTS_MAX = 200_000
"""Of a whole trace: 138 days by the minute, in twenty queries."""

STEPS_S = (60.0, 300.0, 900.0, 3600.0)
"""Steps to choose from: the finest of which the trace has at most STEP_POINTS points."""

STEP_POINTS = 50_000
"""A month by the minute."""

NAME = "prometheus"
"""Of the trace."""

_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[smhdwy]))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdwy])")
_UNIT_S = {
    "ms": 0.001,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
    "w": 604_800.0,
    "y": 31_536_000.0,
}


def duration_s(text: str, option: str) -> float:
    """Seconds of a duration as Prometheus writes it (14d, 1h30m), or of a plain number. Raises InputError."""
    try:
        seconds = float(text)
    except ValueError:
        parts = _PART.findall(text) if _DURATION.fullmatch(text) else []
        seconds = sum(float(number) * _UNIT_S[unit] for number, unit in parts)
    if not 0 < seconds < math.inf:
        raise InputError(
            f"{option} is {foreign(repr(text))}; write a duration like 14d, 36h or 90m"
        )
    return seconds


def step_for(since_s: float) -> float:
    """The step for a trace of this length."""
    return next((step for step in STEPS_S if since_s / step <= STEP_POINTS), STEPS_S[-1])


async def read(
    settings: PrometheusSettings,
    query: str,
    *,
    since_s: float,
    step_s: float,
    clock: Clock,
    progress: Callable[[float], None] | None = None,
) -> Trace:
    """The demand that `query` gives of the last `since_s`, by steps of `step_s`.

    Raises SourceError for what the server does, InputError for what the query gives.
    """
    last = math.floor(clock.wall() / step_s)
    count = math.ceil(since_s / step_s)
    if not 2 <= count <= POINTS_MAX:
        raise InputError(
            f"--since {since_s:g} s has {count} steps of {step_s:g} s; 2 to {POINTS_MAX} can be read: choose another --step"
        )
    api = QueryApi(settings, clock, connections_max=1)
    values = np.full(count, np.nan)
    try:
        for begin in range(0, count, POINTS_PER_QUERY):
            end = min(begin + POINTS_PER_QUERY, count)
            first_s, last_s = (last - count + 1 + begin) * step_s, (last - count + end) * step_s
            series = await _range(api, query, first_s, last_s, step_s)
            values[begin:end] = _values(series, first_s, step_s, end - begin)
            if progress is not None:
                progress(end / count)
    finally:
        await api.close()
    known = np.flatnonzero(~np.isnan(values))
    if len(known) < 2:
        raise InputError(
            f"the query gives {'one value' if len(known) else 'nothing'} over the last {since_s:g} s: "
            "try it in Prometheus' own page, and check --since and the labels"
        )
    # What lies before the first value is no gap: the server did not keep it, or nothing ran.
    values = values[known[0] :]
    start_s = (last - len(values)) * step_s
    return Trace(name=NAME, start_s=start_s, step_s=step_s, values=values)


async def _range(
    api: QueryApi, query: str, first_s: float, last_s: float, step_s: float
) -> Sequence[Series]:
    try:
        return await api.range(query, first_s, last_s, step_s)
    except QueryRefused as error:
        raise InputError(f"--query cannot be answered: {error}") from error


def _values(series: Sequence[Series], first_s: float, step_s: float, count: int) -> Floats:
    """Shape (count,): the one series on the grid. Raises InputError for several, or for no demand."""
    if len(series) > 1:
        names = ", ".join(_labels(one) for one in series[:2])
        raise InputError(
            f"the query gives {len(series)} series ({foreign(names)}, …); a trace is one: write sum(…) around it"
        )
    values: Floats = np.full(count, np.nan)
    for at, text in series[0].values if series else ():
        index = round((at - first_s) / step_s)
        try:
            value = float(text)
        except ValueError as error:
            raise SourceMalformed(f"the value {foreign(repr(text))} is no number") from error
        if value < 0:
            raise InputError(
                f"the query gives {value:g} at {at:.15g}; demand cannot be negative: is it a rate of a counter?"
            )
        if 0 <= index < count and math.isfinite(value):
            values[index] = value
    return values


def _labels(series: Series) -> str:
    return (
        "{" + ", ".join(f'{name}="{value}"' for name, value in sorted(series.metric.items())) + "}"
    )
