"""The one function that decides: from what is seen at a tick to replicas, for all workloads at once.

    observation -> history, forecast -> bank of candidate plans -> guardrails -> decision or hold

It is pure but for one economy: `Memory` is consumed. Its arrays are advanced in place and handed
back, because copying a gigabyte per tick would cost more than deciding. Whoever calls keeps the
memory that came back and never uses the one that went in. What it decided, a `Decided`, holds
copies of its own and stays true.

When nothing can be decided for a workload it is held (`Hold`):

- its signal is stale or missing: the last answer stands for `hold_s`, then the answer is an error,
  on which the HPA holds;
- its capacity is unknown: likewise, and the reason names the cure.

A held workload learns nothing: what was not seen is neither demand nor calm.
"""

from dataclasses import dataclass

import numpy as np

from gpuscale.controller.bank import Bank, Choice, Terms
from gpuscale.controller.domain import (
    Bools,
    Decision,
    FleetForecast,
    FleetObservation,
    Floats,
    Hold,
    Inputs,
)
from gpuscale.controller.forecast import Forecaster
from gpuscale.controller.forecast.past import Minutes, learn, minutes, seed
from gpuscale.controller.guardrails import Situation, guard, verdicts
from gpuscale.controller.history import History, aligned
from gpuscale.controller.outlook import Outlook
from gpuscale.controller.plan import draining

PASTS_PER_TICK = 8
"""Pasts that are learned in one tick, a tenth of a second each; until its turn comes, a workload
follows the default candidate."""


@dataclass(slots=True, kw_only=True)
class Standing:
    """What was answered and seen so far. Arrays of shape (n,)."""

    desired: Floats
    """The last answer, while it stands; NaN where there is none."""
    rose_at: Floats
    seen_s: Floats
    trusted_at: Floats
    """When demand was last known; -inf where it never was."""


@dataclass(slots=True, kw_only=True)
class Memory:
    """Everything that outlives a tick. Consumed by `decide`, `align` and `backfill` (see above)."""

    keys: tuple[str, ...]
    tick_s: float
    now: float | None
    """Of the last observation; None before the first."""
    history: History
    forecaster: Forecaster
    outlook: Outlook
    bank: Bank
    standing: Standing
    pasts: dict[str, Minutes]
    """Pasts that were entered and not learned yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """The outcome of one tick (`domain.FleetDecision`)."""

    observation: FleetObservation
    desired: Floats
    held: Bools
    forecast: FleetForecast
    planned: Floats
    choice: Choice
    candidates: tuple[str, ...]
    stages: tuple[Floats, ...]
    situation: Situation
    trusted_at: Floats

    @property
    def now(self) -> float:
        """Of the observation."""
        return self.observation.now

    @property
    def keys(self) -> tuple[str, ...]:
        """Of the observation."""
        return self.observation.keys

    def of(self, index: int) -> Decision | Hold:
        """The outcome of one workload, with its verdicts and reasons."""
        if self.held[index]:
            return Hold(
                key=self.keys[index],
                now=self.now,
                reason=self._reason(index),
                answer=_whole(self.desired[index]),
                inputs=_inputs(self.observation, index),
            )
        costs = self.choice.costs[index]
        quantiles = self.forecast.quantiles[index]
        coverage = self.forecast.coverage[index]
        return Decision(
            key=self.keys[index],
            now=self.now,
            planned=int(self.planned[index]),
            desired=int(self.desired[index]),
            verdicts=verdicts(self.planned, self.stages, self.situation, index),
            candidate=self.candidates[self.choice.candidate[index]],
            candidate_costs=_relative(self.candidates, costs),
            forecast=_by_level(self.forecast.levels, quantiles),
            forecast_coverage=_by_level(self.forecast.levels, coverage),
            inputs=_inputs(self.observation, index),
        )

    def _reason(self, index: int) -> str:
        """Why this workload is held: what is missing, since when, what would cure it."""
        seen = self.observation
        stands = (
            "the last answer stands"
            if not np.isnan(self.desired[index])
            else "no number can be given"
        )
        since = seen.now - self.trusted_at[index]
        ago = "was never known" if not np.isfinite(since) else f"was last known {since:.0f} s ago"
        stale_after = seen.policy.stale_after_s[index]
        if seen.age_s[index] > stale_after:
            age = seen.age_s[index]
            old = "there is no sample" if np.isinf(age) else f"the newest sample is {age:.0f} s old"
            return (
                f"The signal is stale ({old}, stale_after_s is {stale_after:.0f}) and demand {ago}: "
                f"{stands}. Check that the source answers and that its samples are recent."
            )
        if not _known(seen)[index]:
            return (
                f"Demand is missing and {ago}: {stands}. Check that the pods expose the metrics of "
                "the server that the policy names."
            )
        return (
            f"The capacity of a replica is unknown: {stands}. Set `capacity` (requests/s that one "
            "replica carries at full load) in the policy."
        )


def initial_memory(keys: tuple[str, ...], tick_s: float) -> Memory:
    """A memory that knows nothing yet of these workloads."""
    if not tick_s > 0:
        raise ValueError(f"tick_s is {tick_s}: a tick takes time")
    n = len(keys)
    return Memory(
        keys=tuple(keys),
        tick_s=tick_s,
        now=None,
        history=History(n),
        forecaster=Forecaster(n, tick_s),
        outlook=Outlook(n, tick_s),
        bank=Bank(n, tick_s),
        standing=Standing(
            desired=np.full(n, np.nan),
            rose_at=np.full(n, -np.inf),
            seen_s=np.zeros(n),
            trusted_at=np.full(n, -np.inf),
        ),
        pasts={},
    )


def align(memory: Memory, keys: tuple[str, ...]) -> Memory:
    """The memory for these workloads, in this order: known ones keep theirs, new ones start empty.

    Call it when workloads come, go or change places, before `decide`. The memory that goes in is
    consumed.
    """
    keys = tuple(keys)
    if keys == memory.keys:
        return memory
    row = {key: i for i, key in enumerate(memory.keys)}
    source = np.array([row.get(key, -1) for key in keys], dtype=np.int64)
    memory.history.align(source)
    memory.forecaster.align(source)
    memory.outlook.align(source)
    memory.bank.align(source)
    standing = memory.standing
    standing.desired = aligned(standing.desired, source, np.nan)
    standing.rose_at = aligned(standing.rose_at, source, -np.inf)
    standing.seen_s = aligned(standing.seen_s, source, 0.0)
    standing.trusted_at = aligned(standing.trusted_at, source, -np.inf)
    memory.keys = keys
    memory.pasts = {key: past for key, past in memory.pasts.items() if key in row}
    return memory


def set_back(memory: Memory, seconds: float, *, anew: bool) -> Memory:
    """The memory after the wall clock was set back by so much. The memory that goes in is consumed.

    What was answered stays, as the floor of what comes next. `anew` forgets what was learned: it
    lies in the future, and time that was seen before would teach nothing until then. Negative
    `seconds` are a clock that was set forward, which looks like ticks that were missed; but a rise
    is as long ago as it really was.
    """
    standing = memory.standing
    standing.rose_at = standing.rose_at - seconds
    standing.trusted_at = standing.trusted_at - max(0.0, seconds)
    if anew:
        memory = initial_memory(memory.keys, memory.tick_s)
        memory.standing = standing
        standing.seen_s[:] = 0.0
    return memory


def backfill(memory: Memory, key: str, times: Floats, demand: Floats, step_s: float) -> Memory:
    """Enter one workload's past from before the start. The memory that goes in is consumed.

    `times` (m,): ascending Unix seconds, each the END of an interval of `step_s` seconds, as
    `FleetObservation.now` is; nothing later than the first observation. `demand` (m,): mean
    units/s over it, NaN where unknown. Call it before the first `decide` in which the workload
    takes part: candidate policies are warmed on it there, since only then are capacity and start
    time known.
    """
    times = np.asarray(times, dtype=np.float64)
    demand = np.asarray(demand, dtype=np.float64)
    memory.history.put(memory.keys.index(key), times, demand, step_s)
    memory.pasts[key] = minutes(times, demand, step_s)
    return memory


def decide(observation: FleetObservation, memory: Memory) -> tuple[Decided, Memory]:
    """Decide for all workloads of the observation. The memory that goes in is consumed.

    Raises ValueError where the observation's keys or tick are not the memory's (`align` first).
    """
    if observation.keys != memory.keys:
        raise ValueError("the observation's workloads are not the memory's: align() first")
    if observation.tick_s != memory.tick_s:
        raise ValueError("the observation's tick is not the memory's: start with a new memory")
    now, policy, standing = observation.now, observation.policy, memory.standing
    terms = Terms.of(observation)
    new_tick = _pass_time(memory, now)
    trusted = _known(observation) & (observation.age_s <= policy.stale_after_s)
    _learn_pasts(memory, now, terms)
    forecast, choice, planned = _plan(memory, observation, terms, trusted, new_tick)

    standing.seen_s = np.where(now - standing.trusted_at > policy.hold_s, 0.0, standing.seen_s)
    standing.seen_s = standing.seen_s + np.where(trusted & new_tick, memory.tick_s, 0.0)
    standing.trusted_at = np.where(trusted, now, standing.trusted_at)
    situation = Situation(
        now=now,
        policy=policy,
        desired=standing.desired,
        asked=observation.asked,
        ready=observation.ready,
        coverage=observation.coverage,
        seen_s=standing.seen_s,
        rose_at=standing.rose_at,
        paused=observation.paused,
        collapsed=memory.forecaster.doubtful,
    )
    guarded, stages = guard(planned, situation)
    held = ~trusted | np.isnan(planned)
    blind_s = np.fmax(now - standing.trusted_at, observation.age_s)
    last = np.where(blind_s > policy.hold_s, np.nan, standing.desired)
    desired = np.where(held, last, guarded)

    before = np.where(np.isnan(standing.desired), observation.asked, standing.desired)
    standing.rose_at = np.where(~held & (desired > before), now, standing.rose_at)
    # An answer that expired is kept as what was asked last: when data come back, it is the floor.
    standing.desired = np.where(np.isnan(desired), standing.desired, desired)
    memory.now = now if memory.now is None else max(now, memory.now)
    decided = Decided(
        observation=observation,
        desired=desired,
        held=held,
        forecast=forecast,
        planned=planned,
        choice=choice,
        candidates=memory.bank.names,
        stages=stages,
        situation=situation,
        trusted_at=standing.trusted_at,
    )
    return decided, memory


def _plan(
    memory: Memory, seen: FleetObservation, terms: Terms, trusted: Bools, new_tick: bool
) -> tuple[FleetForecast, Choice, Floats]:
    """Learn the tick; gives the forecast, what the bank says, and the plan (n,), NaN where there is none."""
    forecaster, bank = memory.forecaster, memory.bank
    demand = np.where(trusted, seen.demand, np.nan)
    # Neither what half the pods said nor a tick seen before is learned, nor is a collapse at first.
    learn = trusted & (seen.coverage >= seen.policy.coverage_min) & new_tick
    settled = learn & ~forecaster.collapsed
    memory.history.add(seen.now, memory.tick_s, np.where(settled, demand, np.nan))
    forecast = forecaster.advance(seen.now, demand, learn, terms.lead_s, memory.history)
    choice = bank.advance(
        seen.now,
        memory.outlook.advance(
            seen.now,
            forecaster=forecaster,
            forecast=forecast,
            history=memory.history,
            lead_s=terms.lead_s,
            risk=terms.risk,
            seen=trusted,
        ),
        np.where(learn & ~forecaster.collapsed, demand, np.nan),
        terms,
    )
    # A total, not an addition, so that a backlog is counted once however long it lasts.
    backlog = draining(
        backlog=seen.backlog,
        level=forecaster.level,
        ready=seen.ready,
        capacity=terms.capacity,
        lead_s=terms.lead_s,
        price=terms.price,
    )
    return forecast, choice, np.maximum(choice.planned, backlog)


def _pass_time(memory: Memory, now: float) -> bool:
    """Let the ticks pass that were missed; False where this tick was seen before (a clock set back)."""
    if memory.now is None:
        return True
    ticks = round((now - memory.now) / memory.tick_s)
    if ticks > 1:
        memory.forecaster.skip(ticks - 1)
        memory.bank.skip(ticks - 1)
    return ticks >= 1


def _learn_pasts(memory: Memory, now: float, terms: Terms) -> None:
    """Learn pasts that were entered, of workloads whose capacity is known by now."""
    row = {key: i for i, key in enumerate(memory.keys)}
    ready = [key for key in memory.pasts if not np.isnan(terms.capacity[row[key]])]
    for key in ready[:PASTS_PER_TICK]:
        i, seen = row[key], memory.pasts.pop(key)
        past = learn(memory.forecaster, i, seen, float(terms.lead_s[i]), memory.history)
        if past is None:
            continue
        known_s = seed(memory.forecaster, i, seen, now)
        if known_s > 0:
            memory.standing.seen_s[i] = max(known_s, memory.standing.seen_s[i])
            memory.standing.trusted_at[i] = now
        bases = memory.outlook.learn(
            i,
            now,
            seen=seen,
            past=past,
            history=memory.history,
            lead_s=float(terms.lead_s[i]),
            risk=float(terms.risk[i]),
        )
        memory.bank.learn(i, now, bases, seen.demand, terms)


def _known(observation: FleetObservation) -> Bools:
    """Where demand is a number that can be one."""
    with np.errstate(invalid="ignore"):
        return np.isfinite(observation.demand) & (observation.demand >= 0)


def _relative(names: tuple[str, ...], costs: Floats) -> dict[str, float]:
    """Costs relative to the least; empty until there are some."""
    if np.isnan(costs).all():
        return {}
    least = np.nanmin(costs)
    return {n: float(c / least) for n, c in zip(names, costs, strict=True)} if least > 0 else {}


def _by_level(levels: tuple[float, ...], values: Floats) -> dict[float, float]:
    if np.isnan(values).any():
        return {}
    return {level: float(v) for level, v in zip(levels, values, strict=True)}


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _whole(value: float) -> int | None:
    return None if np.isnan(value) else int(value)


def _inputs(seen: FleetObservation, i: int) -> Inputs:
    return Inputs(
        demand=_number(seen.demand[i]),
        backlog=_number(seen.backlog[i]),
        coverage=_number(seen.coverage[i]),
        age_s=None if np.isinf(seen.age_s[i]) else _number(seen.age_s[i]),
        asked=_whole(seen.asked[i]),
        ready=_whole(seen.ready[i]),
        starting=_whole(seen.starting[i]),
        pending=_whole(seen.pending[i]),
        capacity=_number(seen.capacity[i]),
        lead_s=float(seen.lead_s[i]),
        min_replicas=int(seen.policy.min_replicas[i]),
        max_replicas=int(seen.policy.max_replicas[i]),
        risk=float(seen.policy.risk[i]),
        headroom=float(seen.policy.headroom[i]),
    )
