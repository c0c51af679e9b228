"""In direct mode a person's count stands for a while, and our own counts are never taken for a person's."""

from dataclasses import replace

import pytest

from gpuscale.controller.byhand import OWN_MAX, ByHand
from gpuscale.controller.domain import Target, Workload
from gpuscale.settings import Policy
from tests.fakes.cluster import replica_state
from tests.fakes.statuses import workload

ACT = Policy(mode="act", capacity=5.0)
DIRECT = replace(
    workload("llama", policy=ACT),
    actuator="scale",
    target=Target(api_version="apps/v1", kind="Deployment", name="llama"),
)
HOLD_S = ACT.manual_hold_s


class Life:
    """Tick after tick: what is asked of the target, what we answered at the tick before."""

    def __init__(self, declared: Workload = DIRECT) -> None:
        self.rule = ByHand()
        self.declared = declared
        self.now = 1000.0

    def tick(self, asked: int | None, answered: int | None, after_s: float = 15.0) -> str | None:
        self.now += after_s
        key = self.declared.key
        states = {} if asked is None else {key: replica_state(key, asked=asked, ready=asked)}
        (found,) = self.rule.heed([self.declared], states, {key: answered}, self.now)
        return found.paused


def test_a_count_that_we_did_not_ask_for_stands_for_a_quarter_of_an_hour_and_no_longer() -> None:
    life = Life()
    assert life.tick(3, 3) is None
    assert life.tick(7, 3) == "a person who set 7 replicas"
    assert life.tick(7, 7, after_s=HOLD_S - 16.0) is not None
    assert life.tick(7, 7, after_s=17.0) is None
    assert life.tick(5, 5) is None


def test_another_count_by_hand_begins_the_time_anew() -> None:
    life = Life()
    life.tick(3, 3)
    assert life.tick(7, 3) is not None
    assert life.tick(1, 7, after_s=HOLD_S - 60.0) == "a person who set 1 replica"
    assert life.tick(1, 1, after_s=HOLD_S - 60.0) is not None


def test_our_own_writes_are_ours_however_late_the_cache_shows_them() -> None:
    life = Life()
    answers = [3, 5, 8, 9, 9, 9, 9]
    shown = [3, 3, 3, 5, 5, 8, 9]
    assert [life.tick(s, a) for s, a in zip(shown, answers, strict=True)] == [None] * 7


def test_what_stands_at_the_start_and_what_is_unknown_is_nobodys_doing() -> None:
    life = Life()
    assert life.tick(6, None) is None
    assert life.tick(None, 6) is None
    assert life.tick(6, 6) is None


def test_a_count_of_ours_from_long_ago_is_a_persons_today() -> None:
    life = Life()
    for count in range(100, 101 + OWN_MAX):
        life.tick(count, count)
    assert life.tick(100, 100 + OWN_MAX) is not None


@pytest.mark.parametrize(
    "declared",
    [
        replace(DIRECT, actuator="keda"),
        replace(DIRECT, policy=Policy(mode="shadow")),
        replace(DIRECT, policy=Policy(mode="act", capacity=5.0, manual_hold_s=0.0)),
    ],
    ids=["keda", "shadow", "off"],
)
def test_where_gpuscale_does_not_write_or_is_told_not_to_heed_nobody_is_heeded(
    declared: Workload,
) -> None:
    life = Life(declared)
    life.tick(3, 3)
    assert life.tick(7, 3) is None


def test_an_annotation_that_pauses_is_not_painted_over() -> None:
    life = Life(replace(DIRECT, paused="autoscaling.keda.sh/paused"))
    life.tick(3, 3)
    assert life.tick(7, 3) == "autoscaling.keda.sh/paused"


def test_a_workload_that_went_is_forgotten() -> None:
    life = Life()
    life.tick(3, 3)
    life.rule.heed([], {}, {}, life.now)
    assert life.tick(9, 9) is None
