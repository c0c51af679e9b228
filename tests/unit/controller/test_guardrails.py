"""What each guard does, that it says why, and that bounds, steps and dwell hold together."""

from dataclasses import replace

import numpy as np
import pytest

from gpuscale.controller.domain import FleetPolicy
from gpuscale.controller.guardrails import FRESH_S, GUARDS, Situation, guard, verdicts
from gpuscale.settings import Policy


def situation(policy: Policy | None = None, **values: float) -> Situation:
    fields = {
        "desired": 10.0,
        "asked": 10.0,
        "ready": 10.0,
        "coverage": 1.0,
        "seen_s": 1e9,
        "rose_at": -np.inf,
    } | values
    return Situation(
        now=1000.0,
        policy=FleetPolicy.of([policy or Policy()]),
        paused=np.array([False]),
        collapsed=np.array([False]),
        **{name: np.array([value]) for name, value in fields.items()},
    )


def outcome(planned: float, seen: Situation) -> tuple[int, list[str], list[str]]:
    plan = np.array([planned])
    after, stages = guard(plan, seen)
    found = verdicts(plan, stages, seen, 0)
    assert all(v.before != v.after and v.reason.endswith(".") for v in found)
    if found:
        assert found[0].before == planned
        assert found[-1].after == after[0]
    else:
        assert after[0] == planned
    return int(after[0]), [v.guard for v in found], [v.reason for v in found]


def test_nothing_in_the_way_changes_nothing() -> None:
    assert outcome(4.0, situation()) == (4, [], [])


def test_partial_coverage_blocks_down_and_not_up() -> None:
    half = situation(coverage=0.5)
    after, names, reasons = outcome(4.0, half)
    assert (after, names) == (10, ["partial_data"])
    assert "50%" in reasons[0]
    assert "coverage_min is 90%" in reasons[0]
    assert outcome(15.0, half)[0] == 15


def test_unknown_coverage_says_that_it_is_unknown() -> None:
    after, _, reasons = outcome(4.0, situation(coverage=np.nan))
    assert after == 10
    assert "not known how many pods" in reasons[0]


def test_a_fresh_start_keeps_what_runs_asked_or_ready() -> None:
    fresh = situation(seen_s=FRESH_S - 15.0, desired=np.nan, asked=np.nan, ready=7.0)
    assert outcome(2.0, fresh)[:2] == (7, ["fresh_start"])


def test_a_collapse_keeps_what_is_asked_for() -> None:
    seen = replace(situation(), collapsed=np.array([True]))
    assert outcome(1.0, seen)[:2] == (10, ["collapse"])


def test_steps_limit_both_ways() -> None:
    policy = Policy(step_up_max=3, step_down_max=2)
    assert outcome(30.0, situation(policy))[:2] == (13, ["step_up"])
    assert outcome(1.0, situation(policy))[:2] == (8, ["step_down"])


def test_dwell_holds_after_a_rise() -> None:
    recent = situation(Policy(dwell_s=60.0), rose_at=970.0)
    after, names, reasons = outcome(4.0, recent)
    assert (after, names) == (10, ["dwell"])
    assert "30 s ago" in reasons[0]
    assert outcome(4.0, situation(Policy(dwell_s=60.0), rose_at=930.0))[0] == 4


def test_bounds_win_over_steps_and_dwell() -> None:
    lowered = Policy(max_replicas=5, step_down_max=1, dwell_s=600.0)
    assert outcome(10.0, situation(lowered, rose_at=990.0))[0] == 5
    raised = Policy(min_replicas=20, step_up_max=1)
    assert outcome(10.0, situation(raised))[0] == 20


def test_a_pause_wins_over_everything() -> None:
    paused = replace(situation(Policy(min_replicas=5), asked=2.0), paused=np.array([True]))
    after, names, _ = outcome(50.0, paused)
    assert after == 2
    assert names[-1] == "paused"


@pytest.mark.parametrize("one", GUARDS, ids=lambda g: g.name)
def test_every_guard_explains_itself_in_one_or_two_sentences(one: object) -> None:
    from gpuscale.controller.guardrails import Guard

    assert isinstance(one, Guard)
    seen = situation(Policy(step_up_max=3, step_down_max=2), coverage=0.5, rose_at=970.0)
    reason = one.reason(seen, 0)
    assert reason[0].isupper()
    assert reason.endswith(".")
    assert "nan" not in reason
