"""What holds of every decision, whatever is observed."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscale.controller.bank import _blend
from gpuscale.controller.decide import Decided, Memory, align, backfill, decide, initial_memory
from gpuscale.controller.domain import Decision, FleetObservation, FleetPolicy, Floats, Hold
from gpuscale.controller.follow import Follower
from gpuscale.controller.guardrails import Situation, guard, verdicts
from gpuscale.controller.plan import draining, replicas
from gpuscale.settings import Policy
from tests.fakes.observations import START_S, TICK_S, observation

KEYS = ("a/x", "b/y")
NAN = float("nan")

rates = st.one_of(st.just(NAN), st.just(0.0), st.floats(0.0, 1e4), st.floats(-10.0, 0.0))
counts = st.one_of(st.just(NAN), st.integers(0, 60).map(float))
coverages = st.one_of(st.just(NAN), st.just(1.0), st.floats(0.0, 1.0))
ages = st.one_of(st.just(5.0), st.floats(0.0, 1000.0), st.just(float("inf")))


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    low = draw(st.integers(0, 20))
    return Policy(
        min_replicas=low,
        max_replicas=max(1, low + draw(st.integers(0, 60))),
        headroom=draw(st.sampled_from([0.0, 0.2, 0.5])),
        risk=draw(st.floats(0.05, 0.99)),
        step_up_max=draw(st.one_of(st.none(), st.integers(1, 10))),
        step_down_max=draw(st.one_of(st.none(), st.integers(1, 10))),
        dwell_s=draw(st.sampled_from([0.0, 60.0, 300.0])),
    )


@st.composite
def ticks(draw: st.DrawFn, policy: Policy, now: float) -> FleetObservation:
    def pair(one: st.SearchStrategy[float]) -> list[float]:
        return [draw(one), draw(one)]

    return observation(
        KEYS,
        now,
        pair(rates),
        policy=policy,
        backlog=pair(rates.map(abs)),
        coverage=pair(coverages),
        age_s=pair(ages),
        asked=pair(counts),
        ready=pair(counts),
        capacity=pair(st.one_of(st.just(NAN), st.floats(0.1, 50.0))),
        lead_s=pair(st.sampled_from([15.0, 60.0, 180.0, 600.0])),
    )


@st.composite
def runs(draw: st.DrawFn) -> list[FleetObservation]:
    policy = draw(policies())
    count = draw(st.integers(1, 12))
    now, out = START_S, []
    for _ in range(count):
        out.append(draw(ticks(policy, now)))
        now += draw(st.sampled_from([TICK_S, TICK_S, TICK_S, 60.0, 400.0, 2000.0]))
    return out


def play(observations: list[FleetObservation]) -> list[Decided]:
    memory: Memory = initial_memory(KEYS, TICK_S)
    out = []
    for seen in observations:
        decided, memory = decide(seen, memory)
        out.append(decided)
    return out


@given(runs())
def test_every_answer_is_whole_within_bounds_or_none(observations: list[FleetObservation]) -> None:
    for seen, decided in zip(observations, play(observations), strict=True):
        free = ~decided.held
        desired = decided.desired[free]
        assert (desired >= seen.policy.min_replicas[free]).all()
        assert (desired <= seen.policy.max_replicas[free]).all()
        known = decided.desired[~np.isnan(decided.desired)]
        assert (known == np.floor(known)).all()


@given(runs())
def test_steps_and_dwell_are_kept(observations: list[FleetObservation]) -> None:
    last, rose = np.full(2, NAN), np.full(2, -np.inf)
    for seen, decided in zip(observations, play(observations), strict=True):
        standing = np.fmax(last, seen.asked)
        base = np.where(np.isnan(standing), seen.ready, standing)
        base = np.clip(base, seen.policy.min_replicas, seen.policy.max_replicas)
        free = ~decided.held & ~np.isnan(base)
        assert (decided.desired[free] <= (base + seen.policy.step_up_max)[free]).all()
        assert (decided.desired[free] >= (base - seen.policy.step_down_max)[free]).all()
        dwelling = free & (seen.now - rose < seen.policy.dwell_s)
        floor = np.clip(last, seen.policy.min_replicas, seen.policy.max_replicas)
        assert (decided.desired[dwelling] >= floor[dwelling]).all()
        before = np.where(np.isnan(last), seen.asked, last)
        rose = np.where(~decided.held & (decided.desired > before), seen.now, rose)
        last = np.where(np.isnan(decided.desired), last, decided.desired)


@given(runs())
def test_bad_data_never_scale_down(observations: list[FleetObservation]) -> None:
    last = np.full(2, NAN)
    for seen, decided in zip(observations, play(observations), strict=True):
        bad = (
            ~(seen.demand >= 0)
            | ~(seen.coverage >= seen.policy.coverage_min)
            | (seen.age_s > seen.policy.stale_after_s)
        )
        floor = np.clip(last, seen.policy.min_replicas, seen.policy.max_replicas)
        told = bad & ~np.isnan(decided.desired) & ~np.isnan(last)
        assert (decided.desired[told] >= np.minimum(floor, last)[told]).all()
        last = np.where(np.isnan(decided.desired), last, decided.desired)


@given(runs())
def test_same_input_same_decision(observations: list[FleetObservation]) -> None:
    for one, other in zip(play(observations), play(observations), strict=True):
        np.testing.assert_array_equal(one.desired, other.desired)
        assert [one.of(i) for i in range(2)] == [other.of(i) for i in range(2)]


@given(runs())
def test_every_change_has_a_verdict_and_every_hold_a_cure(
    observations: list[FleetObservation],
) -> None:
    for decided in play(observations):
        for index in range(2):
            outcome = decided.of(index)
            if isinstance(outcome, Hold):
                assert outcome.reason.endswith(".")
                assert (outcome.answer is None) == bool(np.isnan(decided.desired[index]))
                continue
            value = outcome.planned
            for verdict in outcome.verdicts:
                assert verdict.before == value != verdict.after
                assert verdict.reason
                value = verdict.after
            assert value == outcome.desired


@given(runs())
def test_quantiles_are_ordered(observations: list[FleetObservation]) -> None:
    for decided in play(observations):
        known = decided.forecast.quantiles[~np.isnan(decided.forecast.level)]
        assert not np.isnan(known).any()
        assert (known >= 0).all()
        assert (np.diff(known, axis=1) >= 0).all()


@given(runs(), st.integers(1, 50))
def test_an_outcome_stays_as_it_was_when_memory_moves_on(
    observations: list[FleetObservation], more: int
) -> None:
    memory = initial_memory(KEYS, TICK_S)
    first, memory = decide(observations[0], memory)
    told = [first.of(i) for i in range(2)]
    for tick in range(1, more % 8 + 2):
        _, memory = decide(
            replace(observations[-1], now=observations[-1].now + tick * TICK_S), memory
        )
    assert [first.of(i) for i in range(2)] == told


@given(st.lists(st.floats(0.0, 1e4), min_size=2, max_size=2), st.data())
def test_more_demand_is_never_fewer_replicas(signal: list[float], data: st.DataObject) -> None:
    """Through plan, blend and guards, with the same costs and the same standing."""
    less, more = sorted(signal)
    n = 6
    target = np.array(data.draw(st.lists(st.floats(0.3, 1.0), min_size=n, max_size=n)))
    costs = np.array([data.draw(st.lists(st.floats(1.0, 3.0), min_size=n, max_size=n))])
    before, owed = data.draw(counts), [data.draw(st.floats(0.0, 100.0)) for _ in range(2)]
    policy = FleetPolicy.of([data.draw(policies())])
    seen = Situation(
        now=1000.0,
        policy=policy,
        desired=np.array([data.draw(counts)]),
        asked=np.array([data.draw(counts)]),
        ready=np.array([data.draw(counts)]),
        coverage=np.array([data.draw(coverages)]),
        seen_s=np.array([data.draw(st.floats(0, 1000))]),
        rose_at=np.array([data.draw(st.floats(0, 1000))]),
        paused=np.array([data.draw(st.booleans())]),
        collapsed=np.array([data.draw(st.booleans())]),
    )

    def asked_for(demand: float) -> float:
        capacity = np.array([7.0])
        wants = replicas(np.full((1, n), demand), target, capacity, policy.headroom)
        backlog = draining(
            backlog=np.array([500.0]),
            level=np.array([demand]),
            ready=np.array([3.0]),
            capacity=capacity,
            lead_s=np.array([180.0]),
            price=np.array([10.0]),
        )
        follower = Follower(1, TICK_S)
        follower.start(0, before)
        follower.above[0], follower.below[0] = owed
        planned = np.maximum(follower.advance(_blend(wants, costs)), backlog)
        after, stages = guard(planned, seen)
        assert (verdicts(planned, stages, seen, 0) != ()) == bool(
            any(s[0] != planned[0] for s in stages)
        )
        return float(after[0])

    assert asked_for(less) <= asked_for(more)


def demand_of(seed: int, count: int) -> Floats:
    rng = np.random.default_rng(seed)
    steps: Floats = np.repeat(rng.uniform(5.0, 80.0, count // 20 + 1), 20)[:count]
    return np.asarray(steps * rng.gamma(100.0, 0.01, count), dtype=np.float64)


def closed(demand: Floats, start: float, scale: float = 1.0) -> Floats:
    memory = initial_memory(KEYS[:1], TICK_S)
    past = start - 300.0 * np.arange(600, dtype=np.float64)[::-1]
    memory = backfill(memory, KEYS[0], past, scale * (20.0 + past % 3600.0 / 100.0), 300.0)
    out = []
    for tick, value in enumerate(demand):
        seen = observation(
            KEYS[:1], start + (tick + 1) * TICK_S, scale * value, capacity=10.0 * scale
        )
        decided, memory = decide(seen, memory)
        out.append(decided.desired[0])
    return np.array(out)


@pytest.mark.parametrize("seed", range(3))
def test_shifting_time_by_weeks_changes_nothing(seed: int) -> None:
    demand = demand_of(seed, 120)
    week = 7 * 86_400.0
    start = 2646 * week
    np.testing.assert_array_equal(closed(demand, start), closed(demand, start + 9 * week))


@pytest.mark.parametrize("seed", range(3))
def test_scaling_units_changes_no_replicas(seed: int) -> None:
    demand = demand_of(seed, 120)
    start = 2646 * 7 * 86_400.0
    np.testing.assert_array_equal(closed(demand, start), closed(demand, start, scale=1024.0))


@given(st.integers(0, 1000), st.integers(1, 59))
def test_the_future_changes_no_past_decision(seed: int, cut: int) -> None:
    demand = demand_of(seed, 60)
    other = demand.copy()
    other[cut:] = demand_of(seed + 1, 60)[cut:]
    start = 2646 * 7 * 86_400.0
    np.testing.assert_array_equal(closed(demand, start)[:cut], closed(other, start)[:cut])


@given(st.permutations(["a", "b", "c", "d"]), st.integers(0, 3))
def test_align_keeps_rows_with_their_workload(order: list[str], drop: int) -> None:
    names = ("a", "b", "c", "d")
    demand = dict(zip(names, (10.0, 40.0, 90.0, 160.0), strict=True))
    first = observation(names, START_S, [demand[k] for k in names])
    decided, memory = decide(first, initial_memory(names, TICK_S))
    for tick in range(1, 30):
        decided, memory = decide(replace(first, now=START_S + tick * TICK_S), memory)
    before = {name: decided.of(i) for i, name in enumerate(names)}
    kept = (*order[drop:], "new")
    memory = align(memory, kept)
    values = [demand.get(k, 7.0) for k in kept]
    after, memory = decide(observation(kept, START_S + 30 * TICK_S, values), memory)
    for i, name in enumerate(kept):
        outcome = after.of(i)
        assert isinstance(outcome, Decision)
        if name == "new":
            assert not outcome.candidate_costs
        else:
            was = before[name]
            assert isinstance(was, Decision)
            assert outcome.desired == was.desired
            assert outcome.candidate_costs == pytest.approx(was.candidate_costs, rel=0.05)
