"""Demand from pods' samples: what production does to counters and gauges, told as stories."""

import math

import pytest

from gpuscale.controller.demand import (
    GAUGES_LAG_S,
    PODS_MAX,
    REMEMBER_S,
    SETTLE_S,
    Demand,
    DemandState,
    update,
)
from gpuscale.controller.podsample import SERIES_MAX, PodSample

TICK_S = 15.0


class Story:
    """One workload, told tick by tick."""

    def __init__(self, expected: int | None) -> None:
        self.expected = expected
        self.now = 1000.0
        self.state = DemandState()

    def tick(self, *samples: PodSample, after_s: float = TICK_S) -> Demand:
        self.now += after_s
        at_now = [sample_at(sample, self.now) for sample in samples]
        self.state, demand = update(self.state, at_now, expected=self.expected, now=self.now)
        return demand


def sample_at(sample: PodSample, at: float) -> PodSample:
    fields = {name: getattr(sample, name) for name in PodSample.__dataclass_fields__}
    return PodSample(**{**fields, "at": at})


def pod(
    name: str,
    completed: float | None,
    running: float | None = 0.0,
    waiting: float | None = 0.0,
    *,
    started_at: float | None = None,
    queue_s: float | None = None,
    sojourn_s: float | None = None,
    kv_fraction: float | None = None,
    unserved: float | None = None,
) -> PodSample:
    return PodSample(
        pod=name,
        at=0.0,
        completed=None if completed is None else {"all": completed},
        running=running,
        waiting=waiting,
        started_at=started_at,
        queue_s=queue_s,
        sojourn_s=sojourn_s,
        kv_fraction=kv_fraction,
        unserved=unserved,
    )


def test_arrivals_are_completions_plus_the_change_of_what_waits_and_runs() -> None:
    story = Story(expected=1)
    assert story.tick(pod("a", 100, 2, 0)).arrivals is None
    # 30 ended, 8 more run, 112 more wait: 150 arrived in 15 s.
    demand = story.tick(pod("a", 130, 10, 112))
    assert demand.arrivals == pytest.approx(10.0)
    assert (demand.running, demand.waiting, demand.pods_answered) == (10, 112, 1)
    # The queue drains: completions alone would show 40/s.
    assert story.tick(pod("a", 130 + 600, 10, 0)).arrivals == pytest.approx((600 - 112) / 15)


def test_whoever_gave_up_is_demand_and_shows_no_capacity() -> None:
    """An overloaded pod ends 20 requests a second, 12 of them unserved: it carries 8."""
    story = Story(expected=1)
    story.tick(pod("a", 100, 10, 480, unserved=0))
    demand = story.tick(pod("a", 400, 10, 480, unserved=180))
    assert demand.arrivals == pytest.approx(20.0)
    assert demand.throughput == pytest.approx(8.0)
    # One scrape without the counter, one after a restart: never more than has ended, never below 0.
    for ended, unserved in ((700, None), (60, 60), (90, 500)):
        demand = story.tick(pod("a", ended, 10, 480, unserved=unserved))
        assert demand.throughput is not None
        assert demand.arrivals is not None
        assert 0.0 <= demand.throughput <= demand.arrivals + 1e-9


def test_the_first_sample_gives_gauges_and_no_rate() -> None:
    demand = Story(expected=1).tick(pod("a", 100, 2, 3))
    assert demand.arrivals is None
    assert demand.reason is not None
    assert "two samples" in demand.reason
    assert (demand.running, demand.waiting) == (2, 3)


def test_zero_with_full_coverage_is_demand() -> None:
    story = Story(expected=2)
    story.tick(pod("a", 5), pod("b", 7))
    demand = story.tick(pod("a", 5), pod("b", 7))
    assert (demand.arrivals, demand.waiting, demand.reason) == (0.0, 0.0, None)


def test_no_answer_is_missing_and_says_why() -> None:
    story = Story(expected=2)
    story.tick(pod("a", 5), pod("b", 7))
    demand = story.tick()
    assert demand.arrivals is demand.running is demand.waiting is None
    assert demand.at == -math.inf
    assert demand.reason == "none of the 2 pods that should answer did"


def test_at_zero_replicas_demand_is_unknown_and_not_zero() -> None:
    demand = Story(expected=0).tick()
    assert demand.arrivals is None
    assert demand.reason is not None
    assert "not zero" in demand.reason


def test_a_counter_reset_counts_what_has_ended_since() -> None:
    story = Story(expected=1)
    story.tick(pod("a", 10_000, 4, 0))
    # The engine restarted: 4 were lost, 45 ended, 15 are inside; all 60 arrived since.
    assert story.tick(pod("a", 45, 10, 5)).arrivals == pytest.approx(60 / 15)


def test_a_restart_is_seen_by_its_start_time_though_the_counter_has_grown_past() -> None:
    story = Story(expected=1)
    story.tick(pod("a", 30, 0, 0, started_at=1.0))
    assert story.tick(pod("a", 45, 0, 0, started_at=1020.0)).arrivals == pytest.approx(45 / 15)


def test_one_models_reset_does_not_bring_back_the_past_of_the_others() -> None:
    def models(first: float, second: float) -> PodSample:
        return PodSample(pod="a", at=0.0, completed={"m1": first, "m2": second}, waiting=0.0)

    story = Story(expected=1)
    story.tick(models(1_000_000, 500))
    assert story.tick(models(1_000_015, 30)).arrivals == pytest.approx(45 / 15)


def test_a_series_that_was_nan_for_one_scrape_is_no_burst() -> None:
    def models(first: float, second: float) -> PodSample:
        return PodSample(pod="a", at=0.0, completed={"m1": first, "m2": second}, waiting=0.0)

    story = Story(expected=1)
    story.tick(models(1_000_000, 500))
    assert story.tick(models(math.nan, 515)).arrivals == pytest.approx(1.0)
    assert story.tick(models(1_000_030, 530)).arrivals == pytest.approx(45 / 15)


def test_a_series_that_is_new_brings_no_past() -> None:
    story = Story(expected=1)
    story.tick(PodSample(pod="a", at=0.0, completed={"m1": 5.0}))
    demand = story.tick(PodSample(pod="a", at=0.0, completed={"m1": 20.0, "m2": 1e6}))
    assert demand.arrivals == pytest.approx(1.0)


def test_a_silent_pod_is_taken_to_carry_the_mean_of_the_others() -> None:
    story = Story(expected=4)
    story.tick(*(pod(name, 100, 2, 1) for name in "abcd"))
    demand = story.tick(*(pod(name, 250, 2, 1) for name in "ab"))
    assert demand.arrivals == pytest.approx(4 * 10)
    assert (demand.running, demand.waiting) == (8, 4)
    assert demand.pods_answered == 2


def test_a_pod_that_answers_again_is_measured_over_its_whole_gap() -> None:
    story = Story(expected=2)
    story.tick(pod("a", 0, 1), pod("b", 0, 1))
    story.tick(pod("a", 150, 1))
    story.tick(pod("a", 300, 1))
    demand = story.tick(pod("a", 450, 1), pod("b", 450, 1))
    assert demand.arrivals == pytest.approx(10 + 10)


def test_a_pod_that_was_away_too_long_begins_anew() -> None:
    story = Story(expected=1)
    story.tick(pod("a", 100, 1))
    assert story.tick(pod("a", 200, 1), after_s=REMEMBER_S + 1).arrivals is None


def test_a_scale_up_is_not_read_as_a_doubling() -> None:
    """Ready pods answer late; until they have had time to, the old ones carry all of the demand."""
    story = Story(expected=2)
    story.tick(pod("a", 0, 1), pod("b", 0, 1))
    story.expected = 4
    assert story.tick(pod("a", 150, 1), pod("b", 150, 1)).arrivals == pytest.approx(20)
    # A new pod's first sample has no rate, and it is not silent either.
    demand = story.tick(pod("a", 300, 1), pod("b", 300, 1), pod("c", 10, 1), pod("d", 10, 1))
    assert demand.arrivals == pytest.approx(20)
    assert demand.pods_answered == 4


def test_pods_that_never_answer_count_as_silent_in_the_end() -> None:
    story = Story(expected=2)
    story.tick(pod("a", 0, 1), pod("b", 0, 1))
    story.expected = 4
    ticks = math.ceil(SETTLE_S / TICK_S) + 1
    rates = [story.tick(pod("a", 150 * i, 1), pod("b", 150 * i, 1)) for i in range(1, ticks + 1)]
    assert rates[0].arrivals == pytest.approx(20)
    assert rates[-1].arrivals == pytest.approx(40)


def test_a_scale_down_takes_the_leaving_pods_demand_with_it_at_once() -> None:
    story = Story(expected=4)
    story.tick(*(pod(name, 0, 1) for name in "abcd"))
    story.expected = 2
    assert story.tick(pod("a", 300, 1), pod("b", 300, 1)).arrivals == pytest.approx(40)


def test_zeros_of_a_cold_start_are_unknown_until_the_gauges_can_be_believed() -> None:
    """vllm#49538: both gauges read 0 for some 18 s while requests wait already."""
    story = Story(expected=1)
    first = story.tick(pod("a", 0))
    assert first.waiting is first.running is first.arrivals is None
    early = story.tick(pod("a", 0))
    assert early.waiting is early.arrivals is None
    assert early.reason is not None
    assert "just started" in early.reason
    assert story.tick(pod("a", 0), after_s=GAUGES_LAG_S).waiting == 0.0
    assert story.tick(pod("a", 0)).arrivals == 0.0


def test_a_cold_start_that_shows_its_queue_is_believed_at_once() -> None:
    story = Story(expected=1)
    story.tick(pod("a", 0))
    assert story.tick(pod("a", 0, 8, 40)).waiting == 40
    assert story.tick(pod("a", 60, 8, 55)).arrivals == pytest.approx((60 + 15) / 15)


def test_a_gauge_that_lags_a_counter_is_set_off_in_the_next_interval() -> None:
    """Ten end before the gauge notices: the sum over both intervals is what arrived, which is nothing."""
    story = Story(expected=1)
    story.tick(pod("a", 100, 10, 0))
    # The gauge falls first (-10), then the counter rises (+10).
    assert story.tick(pod("a", 100, 0, 0)).arrivals == 0.0
    assert story.tick(pod("a", 110, 0, 0)).arrivals == 0.0
    assert story.tick(pod("a", 125, 0, 0)).arrivals == pytest.approx(1.0)


def test_lost_requests_are_held_against_one_interval_only() -> None:
    story = Story(expected=1)
    story.tick(pod("a", 100, 0, 1000))
    # A thousand gave up, uncounted.
    assert story.tick(pod("a", 100, 0, 0)).arrivals == 0.0
    assert story.tick(pod("a", 115, 0, 0)).arrivals == 0.0
    assert story.tick(pod("a", 130, 0, 0)).arrivals == pytest.approx(1.0)


def test_of_two_samples_of_a_pod_the_newest_counts_once() -> None:
    story = Story(expected=1)
    story.tick(pod("a", 100, 1))
    story.now += TICK_S
    old, new = sample_at(pod("a", 110, 1), story.now - 5), sample_at(pod("a", 115, 1), story.now)
    for order in ([old, new], [new, old], [new, new]):
        _, demand = update(story.state, order, expected=1, now=story.now)
        assert demand.arrivals == pytest.approx(1.0)
        assert demand.pods_answered == 1


def test_a_clock_that_steps_back_gives_no_rate_and_no_harm() -> None:
    story = Story(expected=1)
    story.tick(pod("a", 100, 1))
    assert story.tick(pod("a", 115, 1), after_s=-10.0).arrivals is None
    assert story.tick(pod("a", 130, 1)).arrivals == pytest.approx(1.0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, 1e18])
def test_what_cannot_be_is_missing(value: float) -> None:
    story = Story(expected=2)
    story.tick(pod("a", 100, 1), pod("b", 100, 1))
    demand = story.tick(pod("a", 115, 1, 0), pod("b", value, value, value, kv_fraction=value))
    # The spoilt pod is there, without a rate; it adds nothing, and takes nothing away.
    assert demand.arrivals == pytest.approx(1.0)
    assert demand.running == 1
    assert demand.waiting == 0
    assert demand.kv_fraction is None
    assert demand.pods_answered == 2


def test_a_counter_that_jumps_beyond_belief_is_missing() -> None:
    story = Story(expected=1)
    story.tick(pod("a", 100, 1))
    assert story.tick(pod("a", 1e12, 1)).arrivals is None
    assert story.tick(pod("a", 1e12 + 15, 1)).arrivals == pytest.approx(1.0)


def test_running_by_littles_law_leaves_out_what_waits() -> None:
    story = Story(expected=1)
    story.tick(pod("a", 0, None, 4, sojourn_s=100.0))
    # 150 seconds spent in the server over 15 s: ten at a time, of which four wait.
    assert story.tick(pod("a", 60, None, 4, sojourn_s=250.0)).running == pytest.approx(6)
    assert story.tick(pod("a", 5, None, 4, sojourn_s=10.0)).running is None


def test_queue_seconds_are_a_mean_over_the_requests_that_ended() -> None:
    story = Story(expected=2)
    story.tick(pod("a", 100, 1, queue_s=50.0), pod("b", 100, 1, queue_s=10.0))
    demand = story.tick(pod("a", 110, 1, queue_s=80.0), pod("b", 140, 1, queue_s=30.0))
    assert demand.queue_seconds == pytest.approx(50.0 / 50)
    idle = story.tick(pod("a", 110, 1, queue_s=80.0), pod("b", 140, 1, queue_s=30.0))
    assert idle.queue_seconds is None


def test_what_is_remembered_is_bounded() -> None:
    many = [pod(f"p{i}", 1, 1) for i in range(PODS_MAX + 10)]
    wide = PodSample(pod="p0", at=0.0, completed={str(i): 1.0 for i in range(SERIES_MAX + 10)})
    story = Story(expected=None)
    story.tick(wide, *many)
    assert len(story.state.pods) == PODS_MAX
    assert len(story.state.pods["p0"].last.completed or {}) <= SERIES_MAX
    story.tick(*(pod(f"q{i}", 1, 1) for i in range(PODS_MAX)))
    assert len(story.state.pods) == PODS_MAX
    story.tick(after_s=REMEMBER_S + 1)
    assert story.state.pods == {}
    for count in range(500):
        story.expected = count
        story.tick(after_s=0.01)
    assert len(story.state.expected.steps) <= 64
