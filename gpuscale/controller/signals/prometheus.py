"""Signals from any server that speaks the Prometheus query API (Prometheus, Thanos, Mimir, VictoriaMetrics).

One tick asks, for many workloads in one instant query, the expressions of servers/promql.py; each
comes back as one sample marked with its workload and signal. An expression that gives no sample is
a missing value, never zero; zero with full coverage is demand.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpuscale import log
from gpuscale.clock import Clock, SystemClock
from gpuscale.controller.domain import Floats, SignalReading, SignalTarget
from gpuscale.controller.podsample import clean
from gpuscale.controller.queryapi import QueryApi, QueryRefused
from gpuscale.controller.servers import SERVERS
from gpuscale.controller.servers.promql import (
    Values,
    Watch,
    any_series,
    as_one,
    gpu_busy,
    questions,
    reading,
)
from gpuscale.errors import SourceError, SourceMalformed, SourceUnreachable
from gpuscale.settings import PrometheusSettings

QUERY_BYTES_MAX = 12_000
"""Of one query's text: VictoriaMetrics refuses more than 16 KiB, and a proxy may sooner."""

QUERIES_MAX = 4
"""At the same time: Prometheus runs 20 queries at once for everybody (query.max-concurrency)."""

POINTS_MAX = 10_000
"""Of one range query: Prometheus refuses more than 11,000 points per series."""

GRID_MAX = 500_000
"""Points of one workload's past: 60 days at 15 s are 345,600. Beyond it the oldest are left out."""

EXPLAINED_MAX = 8
"""Extra queries per tick that find out why a workload has no series at all; all of them together
get the time of one."""

GPU_BUSY_TARGETS_MAX = 256
"""Workloads up to which the exporter's busy seconds are asked for: each such expression looks at every
GPU of the cluster, and it only helps to learn capacity sooner."""

MARK = "gpuscale"
"""Label under which a sample says which workload and signal it is."""

_log = log.get("signals.prometheus")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """All expressions of one workload as one."""

    key: str
    text: str


class PrometheusSignal:
    """A `Signal` from a server that speaks the Prometheus query API."""

    def __init__(
        self, settings: PrometheusSettings, tick_s: float, clock: Clock | None = None
    ) -> None:
        self._settings = settings
        self._api = QueryApi(settings, clock or SystemClock(), connections_max=2 * QUERIES_MAX)
        self._deadline_s = max(settings.timeout_s, 0.8 * tick_s)
        """All queries of one tick together."""
        self._watches: dict[str, Watch] = {}

    async def read(
        self, targets: Sequence[SignalTarget], now: float
    ) -> Mapping[str, SignalReading | Exception]:
        """A reading per target, or the error of the query that it was part of."""
        late = SourceUnreachable(
            f"the Prometheus at {self._api.shown} did not answer all queries within "
            f"{self._deadline_s:g} s: raise tick_s, or give Prometheus more CPU"
        )
        found: dict[str, Values | SourceError] = {t.key: late for t in targets}
        batches = iter(self._batches(targets))
        down: list[SourceUnreachable] = []

        async def worker(limit: asyncio.Timeout) -> None:
            for batch in batches:
                # A cancellation can meet a query's own time-out and be taken for it.
                if limit.expired():
                    return
                # One query that found nobody is enough: the rest need not wait for the same.
                answers: Mapping[str, Values | SourceError]
                if down:
                    answers = dict.fromkeys((each.key for each in batch), down[0])
                else:
                    answers = await self._ask(batch, now)
                down.extend(e for e in answers.values() if isinstance(e, SourceUnreachable))
                found.update(answers)

        try:
            async with asyncio.timeout(self._deadline_s) as limit, asyncio.TaskGroup() as group:
                for _ in range(QUERIES_MAX):
                    group.create_task(worker(limit), name="query Prometheus")
        except TimeoutError:
            pass
        watches: dict[str, Watch] = {}
        outcomes: dict[str, SignalReading | Exception] = {}
        for target in targets:
            values = found[target.key]
            watch = self._watches.get(target.key, Watch())
            if isinstance(values, SourceError):
                watches[target.key], outcomes[target.key] = watch, values
            else:
                watch = watch.next(values.numbers, target.pods_expected, now)
                watches[target.key] = watch
                models = frozenset(values.models)
                table = SERVERS.get(target.server)
                outcomes[target.key] = reading(
                    table, target, values.numbers, watch, now, models=models
                )
        self._watches = watches
        return await self._explained(targets, outcomes, now)

    async def history(
        self, targets: Sequence[SignalTarget], start: float, end: float, step_s: float
    ) -> Mapping[str, tuple[Floats, Floats]]:
        """Arrivals on the grid of whole steps within [start, end], NaN where there is none.

        A value at t is the mean over the step before it, or over the rate window where that is
        longer. A target whose queries are refused is left out, with a warning in the log. Raises
        SourceError where the server gives nothing for any target.
        """
        first = max(math.ceil(start / step_s), math.floor(end / step_s) - GRID_MAX + 1)
        times = np.arange(first, math.floor(end / step_s) + 1, dtype=np.float64) * step_s
        slots = asyncio.Semaphore(QUERIES_MAX)
        past: dict[str, tuple[Floats, Floats]] = {}
        refusals: list[SourceError] = []

        async def one(target: SignalTarget) -> None:
            async with slots:
                if refusals and isinstance(refusals[0], SourceUnreachable):
                    return
                try:
                    past[target.key] = times, await self._past(target, times, step_s)
                except SourceError as error:
                    refusals.append(error)
                    _log.warning("past not read", workload=target.key, reason=str(error))

        async with asyncio.TaskGroup() as group:
            for target in targets:
                group.create_task(one(target), name=f"past of {target.key}")
        if refusals and (not past or isinstance(refusals[0], SourceUnreachable)):
            raise refusals[0]
        return past

    async def close(self) -> None:
        """Release connections."""
        await self._api.close()

    def _batches(self, targets: Sequence[SignalTarget]) -> list[list[_Question]]:
        """The targets' questions, as many to a query as fit."""
        batches: list[list[_Question]] = []
        size = 0
        window_s = self._settings.rate_window_s
        for target in targets:
            asked = dict(questions(SERVERS.get(target.server), target, window_s))
            if len(targets) <= GPU_BUSY_TARGETS_MAX and target.server in SERVERS:
                asked["gpu_busy"] = gpu_busy(target.selector, window_s)
            text = as_one(asked, MARK, target.key)
            size += len(text) + 4
            if not batches or size > QUERY_BYTES_MAX:
                batches.append([])
                size = len(text)
            batches[-1].append(_Question(key=target.key, text=text))
        return batches

    async def _ask(
        self, batch: Sequence[_Question], now: float
    ) -> Mapping[str, Values | SourceError]:
        """What is known of each workload of a batch; one bad selector spoils its own answer only."""
        try:
            series = await self._api.instant(" or ".join(each.text for each in batch), now)
        except QueryRefused as error:
            if len(batch) == 1:
                return {batch[0].key: error}
            half = len(batch) // 2
            return {**await self._ask(batch[:half], now), **await self._ask(batch[half:], now)}
        except SourceError as error:
            return dict.fromkeys((each.key for each in batch), error)
        values = {each.key: Values() for each in batch}
        for one in series:
            signal, _, key = one.metric.get(MARK, "").partition("/")
            if key in values and one.value is not None:
                values[key].take(signal, _number(one.value[1]), one.metric)
        return {**values}

    async def _explained(
        self,
        targets: Sequence[SignalTarget],
        outcomes: dict[str, SignalReading | Exception],
        now: float,
    ) -> Mapping[str, SignalReading | Exception]:
        """The outcomes, with the likely cause where a workload has pods and no series."""
        silent = [
            target
            for target in targets
            if isinstance(outcome := outcomes[target.key], SignalReading)
            and not outcome.pods_answered
            and target.server in SERVERS
            and target.pods_expected != 0
        ]
        try:
            async with asyncio.timeout(self._settings.timeout_s) as limit:
                for target in silent[:EXPLAINED_MAX]:
                    if limit.expired():
                        break
                    outcomes[target.key] = await self._explain(target, now) or outcomes[target.key]
        except TimeoutError:
            pass
        return outcomes

    async def _explain(self, target: SignalTarget, now: float) -> SourceError | None:
        """Why a workload has no series; None where nothing tells: its reading says that it has none."""
        try:
            series = await self._api.instant(any_series(target.selector), now)
        except SourceError:
            return None
        if not series:
            return None
        table = SERVERS[target.server]
        return SourceMalformed(
            f"{self._api.shown} has series of {{{target.selector}}}, and none of them is "
            f"{target.server}'s (looked for {table.sought}): set the policy's `server` to what "
            "runs there, and check that its metrics page is scraped"
        )

    async def _past(self, target: SignalTarget, times: Floats, step_s: float) -> Floats:
        window_s = max(self._settings.rate_window_s, step_s)
        query = questions(SERVERS.get(target.server), target, window_s)["arrivals"]
        demand = np.full(len(times), np.nan)
        for begin in range(0, len(times), POINTS_MAX):
            part = times[begin : begin + POINTS_MAX]
            series = await self._api.range(query, float(part[0]), float(part[-1]), step_s)
            for at, value in series[0].values if series else ():
                index = round((at - float(times[0])) / step_s)
                known = clean(_number(value))
                if 0 <= index < len(times) and known is not None:
                    demand[index] = known
        return demand


def _number(text: str) -> float:
    """A sample's value; NaN where it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan
