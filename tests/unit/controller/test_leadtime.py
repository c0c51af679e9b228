"""Start times by stage: declared until there is experience, and then what was seen, with its changes."""

import pytest

from gpuscale.controller.domain import Start
from gpuscale.controller.leadtime import (
    OBSERVED_MIN,
    SHIFT_AFTER,
    SHIFT_DOWN,
    SHIFT_UP,
    STARTS_MAX,
    LeadTime,
    LeadTimes,
)


def starts(*seconds: float, build: str = "a", witnessed: bool = True) -> list[Start]:
    return [Start(total_s=s, build=build, witnessed=witnessed) for s in seconds]


def learned(*batches: list[Start], declared_s: float = 180.0, extra_s: float = 0.0) -> LeadTime:
    leads = LeadTimes()
    for batch in batches:
        leads.observe("a/x", batch)
    return leads.of("a/x", declared_s, extra_s)


def test_the_declared_start_time_stands_until_enough_starts_were_seen() -> None:
    lead = learned(starts(*[100.0] * (OBSERVED_MIN - 1)))
    assert (lead.p90_s, lead.source, lead.observed) == (180.0, "declared", OBSERVED_MIN - 1)


def test_learned_start_times_give_p50_and_p90_and_the_delay_before_the_pod() -> None:
    lead = learned(starts(*[float(s) for s in range(10, 110, 10)]), extra_s=15.0)
    assert lead.source == "observed"
    assert lead.p50_s == pytest.approx(55.0 + 15.0)
    assert lead.p90_s == pytest.approx(99.0 + 15.0)
    assert "The policy declares 180 s." in lead.sentence


def test_the_p90_of_a_few_is_their_largest() -> None:
    assert learned(starts(100.0, 110.0, 120.0, 130.0, 200.0)).p90_s == 200.0


def test_stages_are_told_apart_from_the_time_without_a_node() -> None:
    one = Start(
        total_s=240.0,
        stages={"schedule": 0.0, "pull": 60.0, "load": 170.0, "ready": 10.0},
        unschedulable_s=3000.0,
    )
    lead = learned([one] * OBSERVED_MIN)
    assert lead.p90_s == 240.0
    assert list(lead.stages) == ["schedule", "pull", "load", "ready"]
    assert lead.stages["load"] == (170.0, 170.0)
    assert "pull 60 s, load 170 s, ready 10 s" in lead.sentence
    assert "found no node for up to 3000 s" in lead.sentence


def test_a_node_that_had_to_come_is_a_stage_and_part_of_the_start() -> None:
    warm = Start(total_s=120.0, stages={"schedule": 1.0, "load": 119.0})
    cold = Start(total_s=420.0, stages={"provision": 300.0, "load": 120.0})
    lead = learned([warm] * 8 + [cold] * 2)
    # One start in five needs a node: the P90 has to reckon with it.
    assert (lead.p50_s, lead.p90_s) == (120.0, 420.0)
    assert lead.stages["provision"] == (300.0, 300.0)


def test_another_image_begins_anew_and_the_old_time_stands_until_it_is_known() -> None:
    old = starts(*[100.0] * 20)
    few = learned(old, starts(150.0, 600.0, build="b"))
    assert (few.p90_s, few.observed) == (600.0, 2)
    quick = learned(old, starts(40.0, build="b"))
    assert quick.p90_s == 100.0
    enough = learned(old, starts(*[40.0] * OBSERVED_MIN, build="b"))
    assert (enough.p90_s, enough.observed) == (40.0, OBSERVED_MIN)
    assert "earlier image" in enough.sentence


def test_a_start_that_has_become_longer_is_followed_within_four() -> None:
    before = [120.0 + i % 5 for i in range(SHIFT_AFTER + 4)]
    assert learned(starts(*before, *[600.0] * (SHIFT_UP - 1))).p50_s < 130.0
    lead = learned(starts(*before, *[600.0] * SHIFT_UP, 610.0))
    assert lead.p50_s == 600.0
    assert "longer" in lead.sentence


def test_a_start_that_has_become_shorter_is_believed_later() -> None:
    before = [120.0 + i % 5 for i in range(SHIFT_AFTER)]
    assert learned(starts(*before, *[40.0] * (SHIFT_DOWN - 1))).p90_s > 120.0
    assert learned(starts(*before, *[40.0] * SHIFT_DOWN)).p90_s == 40.0


def test_memory_is_bounded() -> None:
    assert learned(starts(*[100.0 + i % 7 for i in range(1000)])).observed == STARTS_MAX


def test_stuck_pods_and_nonsense_are_not_start_times() -> None:
    lead = learned(starts(0.0, -5.0, float("nan"), float("inf"), 1e9))
    assert (lead.source, lead.observed) == ("declared", 0)


def test_a_restarted_controller_learns_from_the_pods_that_it_finds() -> None:
    found = starts(*[100.0, 110.0, 120.0, 125.0, 130.0], witnessed=False)
    assert learned(found, declared_s=30.0).p90_s == 130.0
    # A Ready that flapped hours later is no start: it neither agrees nor is near the declaration.
    flapped = [*found, *starts(9000.0, witnessed=False)]
    assert learned(flapped, declared_s=100.0).p90_s == 130.0
    assert learned(flapped, declared_s=30.0).source == "declared"


def test_the_servers_own_word_on_its_start_is_kept() -> None:
    leads = LeadTimes()
    leads.observe("a/x", starts(*[100.0] * OBSERVED_MIN))
    assert leads.of("a/x", 180.0).engine_s is None
    leads.observe("a/x", [], engine_s=41.5)
    lead = leads.of("a/x", 180.0)
    assert lead.engine_s == 41.5
    assert "42 s of it go into its engine" in lead.sentence


def test_workloads_that_left_are_forgotten() -> None:
    leads = LeadTimes()
    leads.observe("a/x", starts(*[100.0] * OBSERVED_MIN))
    leads.keep(["a/y"])
    assert leads.of("a/x", declared_s=180.0).source == "declared"
