"""Stories about one fleet, each checked by hand."""

import numpy as np
import pytest

from gpuscale.controller.domain import Floats
from gpuscale.controller.fleet import LAG_TICKS_MAX, Fleet, Outcome

NAN = float("nan")


def row(*values: float) -> Floats:
    return np.array(values, dtype=np.float64)


def fleet(replicas: float = 2, *, lead_s: float = 45.0, capacity: float = 10.0) -> Fleet:
    """One workload on 15 s ticks; three ticks from the ask to ready."""
    return Fleet(tick_s=15.0, capacity=row(capacity), lead_s=row(lead_s), replicas=row(replicas))


def step(it: Fleet, want: float = NAN, arriving: float = 0.0) -> Outcome:
    return it.step(row(want), row(arriving))


def test_a_replica_is_billed_from_the_ask_and_ready_one_cold_start_later() -> None:
    it = fleet()
    ready, billed = [], []
    for want in (5, NAN, NAN, NAN, NAN):
        outcome = step(it, want)
        ready.append(outcome.ready[0])
        billed.append(outcome.billed[0])
    assert ready == [2, 2, 2, 5, 5]
    assert billed == [5, 5, 5, 5, 5]


def test_what_is_not_ready_yet_goes_first_newest_first() -> None:
    it = fleet()
    step(it, 4)
    step(it, 6)
    outcome = step(it, 3)
    assert (outcome.ready[0], outcome.starting[0], outcome.draining[0]) == (2, 1, 0)
    # The survivor is the oldest of them: ready three ticks after the first ask.
    assert step(it).ready[0] == 3


def test_a_ready_replica_drains_for_thirty_seconds_and_is_billed_meanwhile() -> None:
    it = fleet(5)
    outcomes = [step(it, 2), step(it), step(it)]
    assert [o.ready[0] for o in outcomes] == [2, 2, 2]
    assert [o.draining[0] for o in outcomes] == [3, 3, 0]
    assert [o.billed[0] for o in outcomes] == [5, 5, 2]


def test_a_drained_replica_does_not_come_back_without_a_cold_start() -> None:
    it = fleet(5)
    step(it, 2)
    ready = [step(it, 5).ready[0] for _ in range(4)]
    assert ready == [2, 2, 2, 5]


def test_nobody_waits_while_the_capacity_suffices() -> None:
    outcome = step(fleet(2), arriving=20.0)
    assert (outcome.arrived[0], outcome.late[0], outcome.backlog[0]) == (300.0, 0.0, 0.0)
    assert outcome.busy[0] == 2.0


def test_those_who_wait_more_than_five_seconds_are_late() -> None:
    # 20 units/s are served, 30 arrive: the backlog passes 5 s of work (100 units) after 10 of the
    # tick's 15 seconds, so a third of the arrivals is late.
    outcome = step(fleet(2), arriving=30.0)
    assert outcome.late[0] == pytest.approx(450.0 / 3)
    assert outcome.backlog[0] == pytest.approx(150.0)
    assert outcome.busy[0] == 2.0


def test_a_backlog_that_melts_makes_only_the_first_arrivals_late() -> None:
    it = fleet(2)
    step(it, arriving=30.0)
    # From 150 units down by 5 per second: above 100 for 10 of 15 seconds.
    outcome = step(it, arriving=15.0)
    assert outcome.late[0] == pytest.approx(225.0 * 2 / 3)
    assert outcome.backlog[0] == pytest.approx(75.0)


def test_work_beyond_a_minute_is_dropped_and_counts_as_late() -> None:
    it = fleet(1)
    step(it, arriving=60.0)
    outcome = step(it, arriving=60.0)
    # 750 after the first tick are cut to 600; so are the 1,350 after the second.
    assert outcome.backlog[0] == 600.0
    assert outcome.dropped[0] == 750.0
    assert outcome.late[0] == 900.0


def test_without_a_ready_replica_everything_is_late_and_a_minute_of_one_replica_may_wait() -> None:
    outcome = step(fleet(0), arriving=50.0)
    assert outcome.late[0] == 750.0
    assert outcome.backlog[0] == 600.0
    assert outcome.dropped[0] == 150.0


def test_zero_replicas_and_zero_demand_cost_nothing() -> None:
    outcome = step(fleet(0))
    assert (outcome.billed[0], outcome.late[0], outcome.busy[0]) == (0.0, 0.0, 0.0)
    assert outcome.known[0]


def test_unknown_arrivals_enter_no_cost_while_replicas_go_on_starting() -> None:
    it = fleet(2)
    step(it, 4, arriving=30.0)
    backlog = it.backlog[0]
    blind = [step(it, arriving=NAN) for _ in range(3)]
    for outcome in blind:
        assert not outcome.known[0]
        assert (outcome.billed[0], outcome.arrived[0], outcome.late[0]) == (0.0, 0.0, 0.0)
        assert np.isnan(outcome.busy[0])
        assert outcome.backlog[0] == backlog
    assert blind[-1].ready[0] == 4


def test_an_unknown_capacity_is_as_unknown_as_the_arrivals() -> None:
    outcome = step(fleet(capacity=NAN), arriving=5.0)
    assert not outcome.known[0]
    assert outcome.late[0] == 0.0


def test_the_state_between_ticks_is_what_the_next_tick_begins_with() -> None:
    it = fleet(2)
    step(it, 4)
    step(it, 3)
    step(it)
    assert (it.asked[0], it.ready[0], it.starting[0]) == (3, 3, 0)
    step(it, 1)
    assert it.draining[0] == 2
    step(it)
    assert it.draining[0] == 0


def test_workloads_start_each_in_their_own_time_and_policies_each_on_their_own() -> None:
    it = Fleet(
        tick_s=15.0,
        capacity=row(10, 10),
        lead_s=row(15, 60),
        replicas=np.array([[1.0, 2.0], [1.0, 2.0]]),
        policies=2,
    )
    want = np.array([[3.0, 5.0], [3.0, 5.0]])
    ready = [it.step(want, row(1, 1)).ready.tolist() for _ in range(5)]
    assert ready[0] == [[1, 2], [1, 2]]
    assert ready[1] == [[3, 5], [1, 2]]
    assert ready[3] == [[3, 5], [1, 2]]
    assert ready[4] == [[3, 5], [3, 5]]


class TestRowsThatChange:
    def test_a_shorter_start_makes_ready_what_waited_long_enough(self) -> None:
        it = fleet(2, lead_s=90.0)
        step(it, 5)
        step(it)
        step(it)
        it.retune(capacity=row(10), lead_s=row(45))
        assert it.ready[0] == 5

    def test_a_longer_start_keeps_ready_what_is_ready_and_delays_the_rest(self) -> None:
        it = fleet(2, lead_s=45.0)
        step(it, 5)
        it.retune(capacity=row(10), lead_s=row(90))
        ready = [step(it).ready[0] for _ in range(6)]
        assert ready == [2, 2, 2, 2, 2, 5]

    def test_retuning_to_the_same_changes_nothing(self) -> None:
        it, other = fleet(), fleet()
        for want in (4, 7, 3, 3, 8, 1, 1, 1):
            it.retune(capacity=row(10), lead_s=row(45))
            assert step(it, want, 25).ready[0] == step(other, want, 25).ready[0]

    def test_a_new_capacity_serves_from_the_coming_tick_on(self) -> None:
        it = fleet(2)
        it.retune(capacity=row(20), lead_s=row(NAN))
        assert step(it, arriving=40.0).late[0] == 0.0
        assert it.lag_ticks[0] == 3

    def test_rows_come_and_go_and_the_others_do_not_notice(self) -> None:
        it, alone = fleet(), fleet()
        step(it, 5), step(alone, 5)
        it.add(capacity=row(1, 2), lead_s=row(300, 15), replicas=row(7, 9))
        it.step(row(6, NAN, 11), row(25, 1, 1))
        step(alone, 6, 25)
        it.keep(np.array([2, 0]))
        outcome = it.step(row(NAN, NAN), row(1, 25))
        expected = step(alone, NAN, 25)
        assert outcome.ready.tolist() == [11, expected.ready[0]]
        assert outcome.late[1] == expected.late[0]
        assert step_all(it, 2).ready.tolist() == [11, step_all(alone, 2).ready[0]]

    def test_a_reset_row_has_nothing_starting_draining_or_waiting(self) -> None:
        it = fleet(5)
        step(it, 3, 80)
        step(it, 9, 80)
        it.reset(np.array([0]), row(4))
        outcome = step(it)
        assert (outcome.ready[0], outcome.billed[0], outcome.backlog[0]) == (4, 4, 0)
        assert [step(it).ready[0] for _ in range(4)] == [4, 4, 4, 4]

    def test_a_fleet_may_be_empty(self) -> None:
        it = fleet()
        it.keep(np.array([], dtype=np.int64))
        assert it.step(row(), row()).billed.shape == (0,)
        it.add(capacity=row(10), lead_s=row(45), replicas=row(2))
        assert step(it).ready[0] == 2


def step_all(it: Fleet, ticks: int) -> Outcome:
    outcome = it.step(np.full(it.shape, NAN), np.ones(it.shape[0]))
    for _ in range(ticks - 1):
        outcome = it.step(np.full(it.shape, NAN), np.ones(it.shape[0]))
    return outcome


def test_a_start_beyond_the_limit_is_modelled_at_the_limit() -> None:
    assert fleet(lead_s=1e9).lag_ticks[0] == LAG_TICKS_MAX
    assert fleet(lead_s=0.0).lag_ticks[0] == 1


def test_a_tick_takes_time() -> None:
    with pytest.raises(ValueError, match="a tick takes time"):
        Fleet(tick_s=0.0, capacity=row(1), lead_s=row(1), replicas=row(1))
