"""The open loop: exogenous demand, a fleet per case and policy, and the production `decide` in it.

A batch of cases (traces × cold starts that share a tick) runs as one: every tick is one step of one
`Fleet` of shape (cases, columns), where a column is one policy. A policy decides at tick i from
what ticks 0 … i - 1 showed and from the replicas' state at the beginning of tick i, and nothing
else: the loop hands out what was seen after the tick, never before.

The ask is applied directly. The HPA's tolerance, syncs and stabilization belong to the HPA peers
and to the demo, where a real answer goes through a simulated KEDA.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from gpuscale.controller.domain import (
    Bools,
    FleetDecision,
    FleetObservation,
    FleetPolicy,
    Floats,
)
from gpuscale.controller.fleet import Fleet, Outcome
from gpuscale.settings import Policy

WINDOW_START_S = 2646 * 7 * 86_400.0
"""Unix seconds at which every case's window begins for `decide`, which has one `now` for all: whole
weeks, so that a trace's grid stays a grid. Constant, so that no case depends on its neighbours."""

PROGRESS_TICKS = 200
"""Ticks between two words to the progress bar."""

M = TypeVar("M")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One trace at one cold start: what happens, and what is known beforehand."""

    name: str
    cold_start_s: float
    tick_s: float
    capacity: float
    """Units/s that one ready replica serves."""
    replicas_min: int
    replicas_max: int
    replicas: int
    """Ready at the first tick, for every policy that does not say otherwise."""
    step_s: float
    history: Floats
    """Shape (bins,): everything before the window at `step_s`, NaN where missing; may be empty."""
    demand: Floats
    """Shape (ticks,): units/s that arrive."""
    seen: Floats
    """Shape (ticks,): what a metric says of it, NaN where it is missing."""


class Contender(Protocol):
    """One or more policies, one per column, over all cases of a batch."""

    def ask(self, tick: int, *, asked: Floats, ready: Floats) -> Floats:
        """Replicas wanted, shape (cases, columns), NaN for no change, from what `see` has told."""
        ...

    def see(self, seen: Floats, *, busy: Floats, backlog: Floats) -> None:
        """What a tick showed: arrivals (cases,), NaN where missing; busy replicas and the backlog
        at its end, (cases, columns)."""
        ...


class Decider(Protocol[M]):
    """The production core, `gpuscale.controller.decide`."""

    def initial_memory(self, keys: tuple[str, ...], tick_s: float) -> M:
        """Nothing learned yet."""
        ...

    def backfill(self, memory: M, key: str, times: Floats, demand: Floats, step_s: float) -> M:
        """Learn one workload's past."""
        ...

    def decide(self, observation: FleetObservation, memory: M) -> tuple[FleetDecision, M]:
        """One tick of all workloads."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A contender in a batch, the names of its columns and where they start."""

    names: tuple[str, ...]
    contender: Contender
    replicas: Floats | None = None
    """Shape (cases, columns): ready at the first tick; None for the cases' own number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What a batch came to, over the ticks that are scored. Arrays of shape (cases, columns)."""

    names: tuple[str, ...]
    replica_s: Floats
    late: Floats
    arrived: Floats
    events: Floats
    """Changes of the ask."""
    peak_replicas: Floats
    """The highest ask."""
    scored_s: Floats
    """Shape (cases,): time that is scored."""


Recorder = Callable[[int, Outcome], None]
"""Told of every tick: its index, and the outcome over (cases, columns)."""

Watch = Callable[[int, FleetDecision], None]
"""Told of every decision of the production core: the tick's index, and all workloads' outcome."""


# ---------------------------------------------------------------- the production core as a contender


class Production:
    """`decide` over all cases at once, under one or more risks: a column for each.

    It sees what a controller would see, and nothing more. Every case is a workload of its own for
    every risk, so that all of them go through one `decide`.
    """

    def __init__(
        self,
        cases: Sequence[Case],
        decider: Decider[M],
        policy: Policy,
        *,
        risks: Sequence[float] = (),
        watch: Watch | None = None,
    ) -> None:
        """`policy`: the settings of every case but its bounds; `risks`: none for the policy's own;
        `watch` is told every decision: the workloads of the first risk come first, one per case."""
        self._tick_s = cases[0].tick_s
        self._risks = tuple(risks) or (policy.risk,)
        self._watch = watch
        count = len(self._risks)
        self._keys = tuple(
            f"{c.name}/cold-start-{c.cold_start_s:g}s" + (f"@{risk:g}" if at else "")
            for at, risk in enumerate(self._risks)
            for c in cases
        )
        self._capacity: Floats = np.array([c.capacity for c in cases] * count)
        self._lead_s: Floats = np.array([c.cold_start_s for c in cases] * count)
        arrays = FleetPolicy.of([policy] * len(self._keys))
        columns = {name: getattr(arrays, name) for name in FleetPolicy.__dataclass_fields__}
        columns["risk"] = np.repeat(self._risks, len(cases)).astype(np.float64)
        columns["min_replicas"] = np.array([c.replicas_min for c in cases] * count, np.float64)
        columns["max_replicas"] = np.array([c.replicas_max for c in cases] * count, np.float64)
        self._policy = FleetPolicy(**columns)
        self._step = _bound(decider, self._keys, [*cases] * count)
        self._seen: Floats = np.array([c.history[-1] if len(c.history) else np.nan for c in cases])
        self._age_s: Floats = np.array([_age_s(c) for c in cases])
        self._backlog: Floats = np.zeros((len(cases), count))

    def ask(self, tick: int, *, asked: Floats, ready: Floats) -> Floats:
        """What `decide` answers; NaN where it answers nothing, so that the present ask stands."""
        n, count = len(self._keys), len(self._risks)
        seen = np.tile(self._seen, count)
        missing = np.isnan(seen)
        asks, serves = _rows(asked), _rows(ready)
        observation = FleetObservation(
            now=WINDOW_START_S + tick * self._tick_s,
            tick_s=self._tick_s,
            keys=self._keys,
            policy=self._policy,
            demand=seen,
            backlog=np.where(missing, np.nan, _rows(self._backlog)),
            coverage=np.where(missing, np.nan, 1.0),
            age_s=np.tile(self._age_s, count),
            asked=asks,
            ready=serves,
            starting=asks - serves,
            pending=np.zeros(n),
            capacity=self._capacity,
            lead_s=self._lead_s,
            paused=np.zeros(n, dtype=np.bool_),
        )
        decision = self._step(observation)
        if self._watch is not None:
            self._watch(tick, decision)
        return decision.desired.reshape(count, -1).T

    def see(self, seen: Floats, *, busy: Floats, backlog: Floats) -> None:
        """Remember the tick for the next observation."""
        del busy
        self._seen = seen
        self._age_s = np.where(np.isnan(seen), self._age_s + self._tick_s, 0.0)
        self._backlog = backlog.copy()


def _rows(table: Floats) -> Floats:
    """(cases, risks) as the workloads of `Production`: one risk after another."""
    return table.T.reshape(-1).copy()


def _bound(
    decider: Decider[M], keys: tuple[str, ...], cases: Sequence[Case]
) -> Callable[[FleetObservation], FleetDecision]:
    """`decide` with its memory inside, taught each case's history."""
    memory = decider.initial_memory(keys, cases[0].tick_s)
    for key, case in zip(keys, cases, strict=True):
        if len(case.history):
            # Like an observation's `now`, a time is the end of the interval it speaks of.
            back = np.arange(len(case.history) - 1, -1, -1)
            times: Floats = WINDOW_START_S - back.astype(np.float64) * case.step_s
            memory = decider.backfill(memory, key, times, case.history, case.step_s)

    def step(observation: FleetObservation) -> FleetDecision:
        nonlocal memory
        decision, memory = decider.decide(observation, memory)
        return decision

    return step


def _age_s(case: Case) -> float:
    """Age of the newest known bin of the history at the beginning of the window."""
    known = np.flatnonzero(~np.isnan(case.history))
    return float("inf") if len(known) == 0 else (len(case.history) - 1 - known[-1]) * case.step_s


# ---------------------------------------------------------------- the loop


def run(
    cases: Sequence[Case],
    entries: Sequence[Entry],
    *,
    recorders: Sequence[Recorder] = (),
    progress: Callable[[int], None] | None = None,
) -> Totals:
    """Run all cases (of one tick) under all entries; `progress` is told ticks done since last time.

    Scored is every tick after the first cold start whose demand was seen.
    """
    world = _World(cases, entries)
    reported = 0
    for tick in range(world.ticks):
        outcome = world.step(tick)
        for record in recorders:
            record(tick, outcome)
        if progress is not None and tick - reported >= PROGRESS_TICKS:
            progress(tick - reported)
            reported = tick
    if progress is not None:
        progress(world.ticks - reported)
    return world.totals()


class _World:
    """The fleet, the contenders and the sums of one batch."""

    def __init__(self, cases: Sequence[Case], entries: Sequence[Entry]) -> None:
        if len({case.tick_s for case in cases}) != 1:
            raise ValueError("the cases of a batch share one tick")
        self._entries = entries
        self._names = tuple(name for entry in entries for name in entry.names)
        shape = (len(cases), len(self._names))
        self._slices: list[slice] = []
        start: Floats = np.empty(shape)
        start[:] = np.array([case.replicas for case in cases], dtype=np.float64)[:, None]
        column = 0
        for entry in entries:
            columns = slice(column, column + len(entry.names))
            self._slices.append(columns)
            if entry.replicas is not None:
                start[:, columns] = entry.replicas
            column = columns.stop
        self.ticks = max(len(case.demand) for case in cases)
        # Shape (ticks, cases); what a shorter window lacks is unknown, and enters nothing.
        self._demand = _padded([case.demand for case in cases], self.ticks)
        self._seen = _padded([case.seen for case in cases], self.ticks)
        self._fleet = Fleet(
            tick_s=cases[0].tick_s,
            capacity=np.array([case.capacity for case in cases]),
            lead_s=np.array([case.cold_start_s for case in cases]),
            replicas=start,
            policies=len(self._names),
        )
        lag = self._fleet.lag_ticks
        self._counts = (np.arange(self.ticks)[:, None] >= lag) & ~np.isnan(self._seen)
        self._low = np.array([case.replicas_min for case in cases], dtype=np.float64)[:, None]
        self._high = np.array([case.replicas_max for case in cases], dtype=np.float64)[:, None]
        self._sums: Mapping[str, Floats] = {
            name: np.zeros(shape)
            for name in ("replica_s", "late", "arrived", "events", "peak_replicas")
        }

    def step(self, tick: int) -> Outcome:
        """One tick: all ask, all is served, all see."""
        fleet = self._fleet
        asked, ready = fleet.asked, fleet.ready
        wants = [
            entry.contender.ask(tick, asked=asked[:, columns], ready=ready[:, columns])
            for entry, columns in zip(self._entries, self._slices, strict=True)
        ]
        want = np.clip(np.concatenate(wants, axis=1), self._low, self._high)
        outcome = fleet.step(want, self._demand[tick])
        self._add(self._counts[tick][:, None], asked, outcome)
        seen = self._seen[tick]
        for entry, columns in zip(self._entries, self._slices, strict=True):
            entry.contender.see(
                seen, busy=outcome.busy[:, columns], backlog=outcome.backlog[:, columns]
            )
        return outcome

    def _add(self, counts: Bools, asked_before: Floats, outcome: Outcome) -> None:
        sums = self._sums
        sums["replica_s"] += np.where(counts, outcome.billed * self._fleet.tick_s, 0.0)
        sums["late"] += np.where(counts, outcome.late, 0.0)
        sums["arrived"] += np.where(counts, outcome.arrived, 0.0)
        sums["events"] += counts & (outcome.asked != asked_before)
        peak = sums["peak_replicas"]
        np.maximum(peak, np.where(counts, outcome.asked, 0.0), out=peak)

    def totals(self) -> Totals:
        """The sums so far."""
        return Totals(
            names=self._names,
            scored_s=self._counts.sum(axis=0) * self._fleet.tick_s,
            **self._sums,
        )


def _padded(rows: Sequence[Floats], ticks: int) -> Floats:
    """Shape (ticks, rows), NaN after a row's end."""
    out: Floats = np.full((ticks, len(rows)), np.nan)
    for index, row in enumerate(rows):
        out[: len(row), index] = row
    return out
