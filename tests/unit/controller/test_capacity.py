"""Capacity learned online: from servers whose true one is known, and what must not mislead it."""

import math
from collections.abc import Iterable

import numpy as np
import pytest

from gpuscale.controller.capacity import Capacities, Capacity, declared
from gpuscale.controller.capacity.knee import BINS, SLOWDOWN, Knee
from gpuscale.controller.capacity.learner import CHANGE_TICKS, RANGE
from gpuscale.settings import Policy
from tests.fakes.batching import Batching, Fleet, sight

TICK_S = 15.0
HOUR = 240
"""Ticks."""


class Story:
    """One workload, told tick by tick."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self.capacities = Capacities()
        self.capacities.align(("ai/chat",))
        self.now = 0.0
        self.values: list[float] = []

    def tick(
        self,
        seen: tuple[float, float, float],
        *,
        replicas: float = 3.0,
        coverage: float = 1.0,
        kv: float = np.nan,
        busy: float = np.nan,
        build: str = "one",
    ) -> Capacity:
        self.now += TICK_S
        objective = self.policy.latency_objective_s
        self.capacities.observe(
            sight(
                self.now, seen, replicas=replicas, coverage=coverage, kv=kv, busy=busy, build=build,
                objective_s=np.nan if objective is None else objective,
            )
        )  # fmt: skip
        capacity = self.last
        if capacity.value is not None:
            self.values.append(capacity.value)
        return capacity

    @property
    def last(self) -> Capacity:
        return self.capacities.of([self.policy], ["requests"])[0]

    def play(self, fleet: Fleet, rates: Iterable[float], **more: float) -> Capacity:
        """Ticks at these requests per second of each replica; what is inside is given up each hour."""
        capacity = None
        for i, rate in enumerate(rates):
            if i % HOUR == 0:
                fleet.drain()
            capacity = self.tick(fleet.tick(rate, TICK_S), **more)  # type: ignore[arg-type]
        assert capacity is not None
        return capacity


def wave(most: float, hours: float, *, low: float = 0.15, high: float = 1.15) -> list[float]:
    """An hour's wave between two shares of `most`."""
    mid, half = (low + high) / 2, (high - low) / 2
    count = round(hours * HOUR)
    return [most * (mid - half * math.cos(2 * math.pi * i / HOUR)) for i in range(count)]


SLOTS = Batching(alpha_s=2.0, slots=16)
"""M/G/16: eight a second, whatever comes."""
LLM = Batching(alpha_s=1.0, beta_s=0.02, slots=64)
BIG = Batching(alpha_s=1.0, beta_s=0.1, slots=256)
"""So many slots that nothing ever waits: it only slows down."""


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("kind", "within"), [(SLOTS, 0.06), (LLM, 0.06), (BIG, 0.15)])
def test_the_knee_of_a_server_is_found_within_bounds(
    kind: Batching, within: float, seed: int
) -> None:
    """Whether it queues at its slots or slows down with its batch, within hours of varying load."""
    true = kind.within(SLOWDOWN * (kind.alpha_s + kind.beta_s))
    story = Story(Policy(capacity=true * 1.6))
    capacity = story.play(Fleet(kind, replicas=3, seed=seed), wave(true, 3))
    assert (capacity.source, capacity.limit) == ("learned", "saturation")
    assert capacity.value == pytest.approx(true, rel=within)
    assert capacity.confidence > 0.5


@pytest.mark.parametrize("kind", [SLOTS, LLM])
def test_a_jump_from_idle_to_overload_finds_what_was_carried_in_it(kind: Batching) -> None:
    story = Story()
    rates = [kind.most * (1.25 if i % 60 >= 50 else 0.3) for i in range(2 * HOUR)]
    assert story.play(Fleet(kind, replicas=3, seed=3), rates).value == pytest.approx(
        kind.most, rel=0.06
    )


def test_a_workload_that_was_never_idle_is_known_by_its_queue() -> None:
    capacity = Story().play(Fleet(SLOTS, replicas=2, seed=4), [10.0] * 60, replicas=2.0)
    assert capacity.value == pytest.approx(SLOTS.most, rel=0.06)


@pytest.mark.parametrize("kind", [SLOTS, LLM, BIG, Batching(alpha_s=0.2, slots=1)])
def test_low_load_is_never_taken_for_a_limit(kind: Batching) -> None:
    """Scatter of a quiet server, a day long, with every load from next to nothing to a third."""
    story = Story(Policy(capacity=kind.most))
    rates = [kind.most * share for share in np.linspace(0.01, 0.33, 4 * HOUR)]
    capacity = story.play(Fleet(kind, replicas=3, seed=5), rates)
    assert (capacity.value, capacity.source) == (kind.most, "declared")
    assert "until it is learned" in capacity.sentence


def test_what_was_learned_does_not_drift_while_load_is_low() -> None:
    story, fleet = Story(), Fleet(SLOTS, replicas=3, seed=6)
    learned = story.play(fleet, wave(SLOTS.most, 2)).value
    assert learned is not None
    story.values.clear()
    story.play(fleet, wave(SLOTS.most, 5, low=0.02, high=0.4))
    assert min(story.values) == pytest.approx(learned, rel=0.02)
    assert max(story.values) == pytest.approx(learned, rel=0.02)


def test_more_than_declared_is_believed_when_it_was_carried_and_no_further() -> None:
    """Declared 3, able to do 8, asked for 5: at least what was seen, never what was not."""
    story = Story(Policy(capacity=3.0))
    capacity = story.play(Fleet(SLOTS, replicas=3, seed=7), [5.0] * HOUR)
    assert (capacity.source, capacity.limit) == ("learned", "carried")
    assert capacity.value == pytest.approx(5.0, rel=0.06)
    assert max(story.values) < 5.0 * 1.15


def test_a_latency_objective_moves_the_knee() -> None:
    slack = Story(Policy(latency_objective_s=8.0)).play(
        Fleet(BIG, replicas=3, seed=8), wave(BIG.within(8.0), 3)
    )
    tight = Story(Policy(latency_objective_s=2.0)).play(
        Fleet(BIG, replicas=3, seed=8), wave(BIG.within(2.0), 3)
    )
    assert slack.value == pytest.approx(BIG.within(8.0), rel=0.15)
    assert tight.value == pytest.approx(BIG.within(2.0), rel=0.15)


def test_a_pinned_capacity_is_never_learned_away() -> None:
    story = Story(Policy(capacity=20.0, capacity_pinned=True))
    capacity = story.play(Fleet(SLOTS, replicas=3, seed=9), wave(8.0, 2))
    assert (capacity.value, capacity.source) == (20.0, "pinned")
    with pytest.raises(ValueError, match="capacity_pinned"):
        Policy(capacity_pinned=True)


def test_another_model_begins_anew_and_the_declaration_stands_again() -> None:
    story, fleet = Story(Policy(capacity=12.0)), Fleet(SLOTS, replicas=3, seed=10)
    assert story.play(fleet, wave(8.0, 2)).source == "learned"
    for i in range(CHANGE_TICKS):
        capacity = story.tick(fleet.tick(2.0, TICK_S), build="two")
        assert capacity.source == ("learned" if i < CHANGE_TICKS - 1 else "declared")
    assert "what the pods run has changed" in story.last.sentence
    faster = Fleet(Batching(alpha_s=1.0, slots=16), replicas=3, seed=11)
    for rate in wave(16.0, 2):
        story.tick(faster.tick(rate, TICK_S), build="two")
    capacity = story.last
    assert capacity.value == pytest.approx(16.0, rel=0.06)


def test_an_odd_page_and_a_missing_one_change_nothing() -> None:
    story, fleet = Story(), Fleet(SLOTS, replicas=3, seed=12)
    learned = story.play(fleet, wave(8.0, 2)).value
    for build in ("two", "", "", "", "", "", "three", "one"):
        assert story.tick(fleet.tick(2.0, TICK_S), build=build).value == learned


def test_a_broken_server_is_not_a_small_one() -> None:
    """Engines that hang for ten minutes with a queue before them leave what is known as it is."""
    story, fleet = Story(), Fleet(SLOTS, replicas=3, seed=13)
    learned = story.play(fleet, wave(8.0, 2)).value
    for _ in range(40):
        assert story.tick((0.9, 500.0, 452.0)).value == learned
    for _ in range(40):
        assert story.tick((0.0, 500.0, 452.0)).value == learned


def test_a_server_that_stays_slower_is_learned_anew() -> None:
    story, fleet = Story(Policy(capacity=8.0)), Fleet(SLOTS, replicas=3, seed=14)
    story.play(fleet, wave(8.0, 2))
    slower = Fleet(Batching(alpha_s=6.0, slots=16), replicas=3, seed=15)
    capacity = story.play(slower, wave(SLOTS.most / 3, 4))
    assert capacity.value == pytest.approx(SLOTS.most / 3, rel=0.08)
    assert capacity.begun is not None


@pytest.mark.parametrize("what", ["coverage", "replicas", "throughput", "in_flight"])
def test_what_is_unknown_or_unsettled_teaches_nothing(what: str) -> None:
    story, fleet = Story(), Fleet(SLOTS, replicas=3, seed=16)
    for i, rate in enumerate(wave(8.0, 2)):
        ended, inside, waiting = fleet.tick(rate, TICK_S)
        seen = (
            np.nan if what == "throughput" else ended,
            np.nan if what == "in_flight" else inside,
            waiting,
        )
        capacity = story.tick(
            seen,
            coverage=0.5 if what == "coverage" else 1.0,
            replicas=3.0 + i % 2 if what == "replicas" else 3.0,
        )
        assert capacity.value is None
        assert capacity.carried is None
    assert "set `capacity` in the policy" in story.last.sentence


def test_one_glitch_does_not_widen_the_range_or_become_a_load() -> None:
    story, fleet = Story(), Fleet(SLOTS, replicas=3, seed=17)
    learned = story.play(fleet, wave(8.0, 2)).value
    assert learned is not None
    story.tick((1e7, 10.0, 0.0))
    story.tick((1e7, 10.0, 0.0))
    assert story.play(fleet, wave(8.0, 1)).value == pytest.approx(learned, rel=0.06)


def test_a_learned_value_stays_within_reach_of_the_declared_one() -> None:
    story = Story(Policy(capacity=800.0))
    assert story.play(Fleet(SLOTS, replicas=3, seed=18), wave(8.0, 2)).value == 800.0 / RANGE


# ---------------------------------------------------------------- the two laws


def test_busy_seconds_tell_the_most_of_a_server_that_does_not_batch() -> None:
    """U = x S: at 0.3 and at 0.6 of the time busy, each request costs the same fifth of a second."""
    story = Story(Policy(capacity=9.0))
    for i in range(HOUR):
        share = 0.3 if i // 20 % 2 else 0.6
        story.tick((3 * 5 * share, 3 * share, 0.0), busy=share)
    capacity = story.last
    assert (capacity.source, capacity.limit) == ("learned", "utilization")
    assert capacity.value == pytest.approx(5.0, rel=0.02)


def test_a_batching_server_breaks_the_utilization_law_and_is_not_judged_by_it() -> None:
    """Its GPU is busy with one request as with thirty."""
    story = Story(Policy(capacity=30.0))
    for i in range(HOUR):
        high = i // 20 % 2
        busy = 0.9 if high else 0.45
        story.tick((60.0 if high else 6.0, 40.0 if high else 5.0, 0.0), busy=busy)
    capacity = story.last
    assert (capacity.value, capacity.source) == (30.0, "declared")


def test_the_kv_cache_limits_before_compute_does() -> None:
    """At 6 a second the cache is half full: at 11.4 it is, whatever was declared."""
    story = Story(Policy(capacity=20.0))
    for i in range(HOUR):
        share = 0.8 if i // 20 % 2 else 1.0
        story.tick((3 * 6 * share, 3 * 12 * share, 0.0), kv=0.5 * share)
    capacity = story.last
    assert (capacity.source, capacity.limit) == ("learned", "kv")
    assert capacity.value == pytest.approx(11.4, rel=0.02)
    assert "KV cache" in capacity.sentence


# ---------------------------------------------------------------- the shape


def test_workloads_keep_what_they_learned_when_others_come_and_go() -> None:
    capacities = Capacities()
    capacities.align(("a", "b"))
    fleet = Fleet(SLOTS, replicas=3, seed=19)
    for i, rate in enumerate(wave(8.0, 2)):
        one = sight(i * TICK_S, fleet.tick(rate, TICK_S), replicas=3.0)
        two = {
            name: np.repeat(getattr(one, name), 2)
            for name in ("throughput", "in_flight", "waiting", "kv_fraction", "busy", "replicas")
        }
        two["coverage"] = np.array([1.0, 0.0])
        two["objective_s"] = np.full(2, np.nan)
        capacities.observe(type(one)(now=one.now, tick_s=TICK_S, builds=["", ""], **two))
    policies = [Policy()] * 2
    learned = capacities.of(policies, ["requests"] * 2)[0].value
    assert learned == pytest.approx(8.0, rel=0.06)
    capacities.align(("c", "b", "a"))
    after = capacities.of([Policy()] * 3, ["requests"] * 3)
    assert [c.value for c in after] == [None, None, learned]


def test_bins_widen_without_losing_weight() -> None:
    knee = Knee(1)
    rows = np.array([0])

    def add(x: float, c: float) -> None:
        knee.add(
            rows, np.array([x]), np.array([c]), least=np.array([c]),
            objective_s=np.array([1.0]), queueing=np.array([False]),
        )  # fmt: skip

    for _ in range(10):
        add(1.0, 0.5)
    for x in (3.0, 9.0, 27.0):
        for _ in range(5):
            add(x, x / 2)
    assert knee.carried[0] == pytest.approx(27.0)
    for _ in range(6):
        add(30.0, 90.0)
    assert knee.value[0] == pytest.approx(30.0)
    assert BINS % 2 == 0


def test_without_experience_it_is_declared_or_unknown_and_says_the_cure() -> None:
    known, unknown = declared([Policy(capacity=4.0), Policy()])
    assert (known.value, known.source) == (4.0, "declared")
    assert (unknown.value, unknown.source) == (None, "unknown")
    assert "set `capacity`" in unknown.sentence
