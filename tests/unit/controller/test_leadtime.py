"""Start times and capacity: declared until there is experience, and always with their source."""

import pytest

from gpuscale.controller.capacity import capacities, capacity
from gpuscale.controller.leadtime import OBSERVED_MIN, STARTS_MAX, LeadTimes
from gpuscale.settings import Policy


def test_the_declared_start_time_stands_until_enough_starts_were_seen() -> None:
    leads = LeadTimes()
    leads.observe("a/x", [100.0] * (OBSERVED_MIN - 1))
    lead = leads.of("a/x", declared_s=180.0)
    assert (lead.p90_s, lead.source, lead.observed) == (180.0, "declared", OBSERVED_MIN - 1)


def test_learned_start_times_give_p50_and_p90_and_the_delay_before_the_pod() -> None:
    leads = LeadTimes()
    leads.observe("a/x", [float(s) for s in range(10, 110, 10)])
    lead = leads.of("a/x", declared_s=180.0, extra_s=15.0)
    assert lead.source == "observed"
    assert lead.p50_s == pytest.approx(55.0 + 15.0)
    assert lead.p90_s == pytest.approx(91.0 + 15.0)


def test_a_changed_start_time_is_followed_and_memory_is_bounded() -> None:
    leads = LeadTimes()
    leads.observe("a/x", [120.0] * 1000)
    leads.observe("a/x", [600.0] * STARTS_MAX)
    lead = leads.of("a/x", declared_s=180.0)
    assert (lead.p50_s, lead.observed) == (600.0, STARTS_MAX)


def test_stuck_pods_and_nonsense_are_not_start_times() -> None:
    leads = LeadTimes()
    leads.observe("a/x", [0.0, -5.0, float("nan"), float("inf"), 1e9])
    assert leads.of("a/x", declared_s=180.0).observed == 0


def test_workloads_that_left_are_forgotten() -> None:
    leads = LeadTimes()
    leads.observe("a/x", [100.0] * OBSERVED_MIN)
    leads.keep(["a/y"])
    assert leads.of("a/x", declared_s=180.0).source == "declared"


def test_capacity_is_declared_or_unknown_and_says_the_cure() -> None:
    assert capacity(Policy(capacity=4.0)).source == "declared"
    unknown = capacity(Policy())
    assert unknown.value is None
    assert "set `capacity`" in unknown.sentence
    column = capacities([Policy(capacity=4.0), Policy()])
    assert column[0] == 4.0
    assert column[1] != column[1]
