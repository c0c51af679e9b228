"""Stories of one decision after the other: what is seen, what is answered, what is held and why."""

from dataclasses import replace

import numpy as np
import pytest

from gpuscale.controller.decide import Decided, Memory, align, backfill, decide, initial_memory
from gpuscale.controller.domain import Decision, FleetObservation, Hold
from gpuscale.settings import Policy
from tests.fakes.observations import START_S, TICK_S, grid, observation, run

KEYS = ("shop/chat",)


def settled(
    demand: float = 30.0, ticks: int = 60, lead_s: float = 180.0
) -> tuple[FleetObservation, Decided, Memory]:
    """A quarter of an hour of calm: the observation after it, the last outcome, the memory."""
    seen = observation(KEYS, START_S, demand, lead_s=lead_s)
    decided, memory = run(initial_memory(KEYS, TICK_S), seen, ticks)
    last = decided[-1]
    after = replace(seen, now=START_S + ticks * TICK_S, asked=last.desired, ready=last.desired)
    return after, last, memory


def test_demand_becomes_replicas() -> None:
    _, last, _ = settled(demand=30.0)
    outcome = last.of(0)
    assert isinstance(outcome, Decision)
    assert outcome.desired == 4
    assert outcome.inputs.demand == 30.0
    assert not last.held[0]


def test_more_demand_is_answered_at_once() -> None:
    seen, last, memory = settled(demand=30.0)
    decided, _ = run(memory, replace(seen, demand=np.array([200.0])), 5)
    assert decided[-1].desired[0] >= 20 > last.desired[0]


def test_stale_signal_never_scales_down_and_turns_into_an_error() -> None:
    seen, last, memory = settled(demand=60.0)
    policy = seen.policy
    decided = last
    for tick in range(40):
        now = seen.now + tick * TICK_S
        age = 50.0 + tick * TICK_S
        stale = replace(seen, now=now, demand=np.array([1.0]), age_s=np.array([age]))
        decided, memory = decide(stale, memory)
        assert decided.held[0]
        if age <= policy.hold_s[0]:
            assert decided.desired[0] == last.desired[0]
        if age > policy.hold_s[0] + TICK_S:
            assert np.isnan(decided.desired[0])
    outcome = decided.of(0)
    assert isinstance(outcome, Hold)
    assert outcome.answer is None
    assert "stale" in outcome.reason


def test_missing_demand_holds_then_errs_even_when_samples_are_young() -> None:
    seen, last, memory = settled(demand=60.0)
    gone = replace(seen, demand=np.array([np.nan]))
    decided, memory = run(memory, gone, 10)
    assert [d.desired[0] for d in decided] == [last.desired[0]] * 10
    later = replace(gone, now=gone.now + 400.0)
    outcome, _ = decide(later, memory)
    hold = outcome.of(0)
    assert isinstance(hold, Hold)
    assert hold.answer is None
    assert "missing" in hold.reason


def test_when_data_come_back_after_an_error_nothing_is_scaled_down_at_once() -> None:
    seen, last, memory = settled(demand=100.0)
    decided, memory = run(memory, replace(seen, demand=np.array([np.nan])), 40)
    assert np.isnan(decided[-1].desired[0])
    back = replace(seen, now=seen.now + 40 * TICK_S, demand=np.array([5.0]))
    for tick in range(19):
        outcome, memory = decide(replace(back, now=back.now + tick * TICK_S), memory)
        assert outcome.desired[0] >= last.desired[0]


def test_half_the_pods_silent_never_scales_down_but_may_scale_up() -> None:
    seen, last, memory = settled(demand=100.0)
    half = replace(seen, demand=np.array([50.0]), coverage=np.array([0.5]))
    decided, memory = run(memory, half, 40)
    assert all(d.desired[0] >= last.desired[0] for d in decided)
    more = replace(half, now=half.now + 40 * TICK_S, demand=np.array([300.0]))
    decided, _ = run(memory, more, 5)
    assert decided[-1].desired[0] >= 30


def test_unknown_coverage_never_scales_down_and_says_so() -> None:
    seen, last, memory = settled(demand=100.0)
    blind = replace(seen, demand=np.array([10.0]), coverage=np.array([np.nan]))
    decided, _ = run(memory, blind, 60)
    assert decided[-1].desired[0] == last.desired[0]
    # The level itself is kept, so the plan need not even be clamped.
    assert decided[-1].planned[0] >= last.desired[0]


def test_no_demand_with_full_coverage_is_demand() -> None:
    seen, last, memory = settled(demand=100.0)
    decided, _ = run(memory, replace(seen, demand=np.array([0.0])), 80)
    assert last.desired[0] > 10
    assert decided[-1].desired[0] == 1


def test_a_quiet_workload_may_go_to_zero_where_the_policy_allows_it() -> None:
    seen = observation(KEYS, START_S, 0.0, policy=Policy(min_replicas=0), asked=0.0, ready=0.0)
    decided, _ = run(initial_memory(KEYS, TICK_S), seen, 60)
    assert decided[-1].desired[0] == 0


def test_unknown_capacity_holds_and_names_the_cure() -> None:
    seen = observation(KEYS, START_S, 30.0, capacity=float("nan"))
    decided, _ = run(initial_memory(KEYS, TICK_S), seen, 3)
    hold = decided[-1].of(0)
    assert isinstance(hold, Hold)
    assert hold.answer is None
    assert "Set `capacity`" in hold.reason


@pytest.mark.parametrize("nonsense", [0.0, -1.0, float("inf")])
def test_a_capacity_that_cannot_be_one_is_unknown(nonsense: float) -> None:
    seen = observation(KEYS, START_S, 30.0, capacity=nonsense)
    decided, _ = run(initial_memory(KEYS, TICK_S), seen, 2)
    assert decided[-1].held[0]


@pytest.mark.parametrize("nonsense", [-3.0, float("inf"), float("nan")])
def test_a_demand_that_cannot_be_one_is_missing(nonsense: float) -> None:
    seen, last, memory = settled(demand=60.0)
    decided, _ = decide(replace(seen, demand=np.array([nonsense])), memory)
    assert decided.held[0]
    assert decided.desired[0] == last.desired[0]


def test_just_started_keeps_what_runs() -> None:
    seen = observation(KEYS, START_S, 1.0, asked=12.0, ready=12.0)
    decided, memory = decide(seen, initial_memory(KEYS, TICK_S))
    for tick in range(1, 19):
        decided, memory = decide(replace(seen, now=START_S + tick * TICK_S), memory)
        assert decided.desired[0] == 12
    verdict = decided.of(0)
    assert isinstance(verdict, Decision)
    assert [v.guard for v in verdict.verdicts] == ["fresh_start"]
    for tick in range(19, 60):
        decided, memory = decide(replace(seen, now=START_S + tick * TICK_S), memory)
    assert decided.desired[0] < 12


def test_just_started_without_the_api_server_keeps_what_is_ready() -> None:
    seen = observation(KEYS, START_S, 1.0, asked=float("nan"), ready=9.0)
    decided, _ = decide(seen, initial_memory(KEYS, TICK_S))
    assert decided.desired[0] == 9


def test_without_the_api_server_the_own_last_answer_is_the_present() -> None:
    seen, last, memory = settled(demand=100.0)
    blind = replace(seen, asked=np.array([np.nan]), ready=np.array([np.nan]))
    decided, _ = decide(replace(blind, coverage=np.array([0.2]), demand=np.array([3.0])), memory)
    assert decided.desired[0] == last.desired[0]


def test_a_paused_workload_stays_where_it_is() -> None:
    seen, _, memory = settled(demand=30.0)
    paused = replace(seen, paused=np.array([True]), asked=np.array([7.0]), demand=np.array([500.0]))
    decided, _ = decide(paused, memory)
    outcome = decided.of(0)
    assert isinstance(outcome, Decision)
    assert outcome.desired == 7
    assert outcome.verdicts[-1].guard == "paused"


def test_a_backlog_is_asked_for_once_however_long_it_lasts() -> None:
    """Ramp from 10 to 1,000 units/s with a start time of five minutes: no avalanche."""
    seen, _, memory = settled(demand=10.0, lead_s=300.0)
    flood = replace(
        seen,
        demand=np.array([900.0]),
        backlog=np.array([6000.0]),
        policy=observation(KEYS, 0.0, 0.0, policy=Policy(max_replicas=100_000)).policy,
    )
    most = 0.0
    for tick in range(40):
        backlog = np.array([6000.0 + 3000.0 * tick])
        decided, memory = decide(
            replace(flood, now=flood.now + tick * TICK_S, backlog=backlog), memory
        )
        most = max(most, decided.desired[0])
    need = (900.0 + 123_000.0 / 300.0) / 10.0
    assert most <= 1.3 * max(need, 2 * 900.0 / 10.0)


def test_a_collapse_without_precedent_is_not_followed_at_once() -> None:
    """Steady for three days, then nothing: more often an outage upstream than calm."""
    memory = initial_memory(KEYS, TICK_S)
    times = START_S - 60.0 * np.arange(3 * 1440, dtype=np.float64)[::-1]
    memory = backfill(memory, KEYS[0], times, np.full(len(times), 100.0), 60.0)
    seen = observation(KEYS, START_S + TICK_S, 100.0, asked=12.0, ready=12.0)
    decided, memory = run(memory, seen, 30)
    standing = decided[-1].desired[0]
    down = replace(
        seen, now=seen.now + 30 * TICK_S, demand=np.array([0.0]), asked=np.array([standing])
    )
    decided, memory = run(memory, down, 100)
    assert all(d.desired[0] == standing for d in decided)
    decided, _ = run(memory, replace(down, now=down.now + 100 * TICK_S), 100)
    assert decided[-1].desired[0] == 1, "after half an hour it is how things are"


def test_demand_is_expected_before_a_repeated_ramp() -> None:
    """Six mornings alike; on the seventh, replicas are asked for before the ramp begins."""
    times = grid(1, 7 * 288 + 1, 300.0) + START_S // 86_400.0 * 86_400.0
    hour = times % 86_400.0 / 3600.0
    demand = np.where((hour > 8.0) & (hour <= 20.0), 200.0, 10.0)
    now = times[-1] + 8 * 3600.0 - 600.0
    night = times[-1] + grid(1, 7 * 12 + 11, 300.0)
    memory = initial_memory(KEYS, TICK_S)
    memory = backfill(
        memory,
        KEYS[0],
        np.concatenate([times, night]),
        np.concatenate([demand, np.full(len(night), 10.0)]),
        300.0,
    )
    seen = observation(KEYS, now, 10.0, asked=2.0, ready=2.0, lead_s=600.0)
    decided, _ = run(memory, seen, 38)
    assert max(d.desired[0] for d in decided) >= 15
    assert decided[-1].forecast.quantiles[0, 2] > 100.0


def test_the_clock_set_back_learns_nothing_twice() -> None:
    seen, last, memory = settled(demand=30.0)
    decided, memory = decide(replace(seen, now=seen.now - 3600.0), memory)
    assert decided.desired[0] == last.desired[0]
    decided, _ = decide(seen, memory)
    assert decided.desired[0] == last.desired[0]


def test_a_sleep_of_an_hour_is_a_gap_not_calm() -> None:
    seen, last, memory = settled(demand=100.0)
    woken = replace(seen, now=seen.now + 3600.0, demand=np.array([5.0]))
    decided, _ = decide(woken, memory)
    assert decided.desired[0] >= last.desired[0]


def test_workloads_come_and_go_and_keep_their_memory() -> None:
    keys = ("a/one", "a/two")
    seen = observation(keys, START_S, [30.0, 300.0])
    _, memory = run(initial_memory(keys, TICK_S), seen, 40)
    moved = ("a/two", "a/new", "a/one")
    memory = align(memory, moved)
    after = observation(moved, START_S + 40 * TICK_S, [300.0, 50.0, 30.0], asked=[38.0, 3.0, 4.0])
    decided, memory = decide(after, memory)
    assert decided.desired[0] >= 30
    assert 3 <= decided.desired[2] <= 5
    fresh = decided.of(1)
    assert isinstance(fresh, Decision)
    assert not fresh.candidate_costs, "a new workload has no costs yet"
    memory = align(memory, ("a/new",))
    decided, _ = decide(observation(("a/new",), START_S + 41 * TICK_S, 50.0), memory)
    assert decided.keys == ("a/new",)


def test_other_workloads_do_not_matter() -> None:
    """A workload is decided alike alone and beside others."""
    keys = ("a/one", "a/two")
    rng = np.random.default_rng(1)
    values = rng.gamma(4.0, 10.0, 200)
    together = initial_memory(keys, TICK_S)
    alone = initial_memory(keys[:1], TICK_S)
    for tick, value in enumerate(values):
        now = START_S + tick * TICK_S
        both, together = decide(observation(keys, now, [value, 500.0 - value]), together)
        one, alone = decide(observation(keys[:1], now, value), alone)
        assert both.desired[0] == one.desired[0]


def test_an_observation_of_other_workloads_is_refused() -> None:
    with pytest.raises(ValueError, match="align"):
        decide(observation(("a/x",), START_S, 1.0), initial_memory(("a/y",), TICK_S))
    with pytest.raises(ValueError, match="tick"):
        decide(observation(("a/x",), START_S, 1.0, tick_s=5.0), initial_memory(("a/x",), TICK_S))


def test_no_workload_at_all_is_no_error() -> None:
    decided, memory = decide(observation((), START_S, 0.0), initial_memory((), TICK_S))
    assert len(decided.desired) == 0
    memory = align(memory, KEYS)
    decided, _ = decide(observation(KEYS, START_S + TICK_S, 30.0), memory)
    assert decided.desired[0] >= 3
