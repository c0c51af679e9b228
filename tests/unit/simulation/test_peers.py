"""The peers, each in the moment that it is known for."""

from collections.abc import Sequence

import numpy as np
import pytest

from gpuscale.controller.domain import Floats
from gpuscale.errors import InputError
from gpuscale.simulation import peers

NAN = float("nan")
NOTHING = np.zeros((1, 1))


def cell(value: float) -> Floats:
    return np.array([[float(value)]])


def hpa(target: float = 0.7) -> peers.HpaRate:
    return peers.HpaRate(capacity=np.array([10.0]), targets=[target], tick_s=15.0)


def see_rate(peer: peers.HpaRate | peers.Knative, rate: float, backlog: float = 0.0) -> None:
    peer.see(np.array([rate]), busy=NOTHING, backlog=cell(backlog))


def ask(
    peer: peers.HpaRate | peers.HpaUtilization | peers.Knative,
    tick: int,
    asked: float,
    ready: float | None = None,
) -> float:
    now_ready = asked if ready is None else ready
    return float(peer.ask(tick, asked=cell(asked), ready=cell(now_ready))[0, 0])


class TestTheHpa:
    def test_holds_until_there_is_data_and_when_it_goes_away(self) -> None:
        peer = hpa()
        assert np.isnan(ask(peer, 0, 5))
        for _ in range(4):
            see_rate(peer, NAN)
        assert np.isnan(ask(peer, 1, 5))

    def test_does_nothing_within_ten_percent_of_the_target(self) -> None:
        peer = hpa()
        see_rate(peer, 10 * 0.7 * 10.9)
        assert ask(peer, 1, 10) == 10
        see_rate(peer, 10 * 0.7 * 14)
        assert ask(peer, 2, 10) == 13

    def test_doubles_at_most_or_adds_four(self) -> None:
        for asked, most in ((1, 5), (3, 7), (10, 20)):
            peer = hpa()
            see_rate(peer, 10_000.0)
            assert ask(peer, 1, asked) == most

    def test_comes_down_to_the_highest_of_the_last_five_minutes_only(self) -> None:
        peer = hpa()
        see_rate(peer, 70.0)
        assert ask(peer, 0, 20) == 10
        for tick in range(1, 30):
            see_rate(peer, 7.0)
            want = ask(peer, tick, 20)
            # The mean of a minute falls at once; the recommendation of ten stands for 20 syncs.
            assert (want >= 10) == (tick < 20), tick

    def test_syncs_every_fifteen_seconds_however_short_the_tick(self) -> None:
        peer = peers.HpaRate(capacity=np.array([10.0]), targets=[0.7], tick_s=5.0)
        see_rate(peer, 700.0)
        assert [np.isnan(ask(peer, tick, 5)) for tick in range(4)] == [False, True, True, False]

    def test_on_utilization_is_blind_beyond_saturation(self) -> None:
        peer = peers.HpaUtilization(capacity=np.array([10.0]), targets=[0.5], tick_s=15.0)
        peer.see(np.array([1000.0]), busy=cell(4), backlog=NOTHING)
        # Demand of a hundred replicas looks like four busy ones.
        assert ask(peer, 0, 4) == 8

    def test_on_utilization_does_not_take_away_what_is_starting_under_load(self) -> None:
        for ready, want in ((4, 12), (12, 8)):
            peer = peers.HpaUtilization(capacity=np.array([10.0]), targets=[0.5], tick_s=15.0)
            peer.see(np.array([40.0]), busy=cell(4), backlog=NOTHING)
            assert ask(peer, 0, 12, ready=ready) == want


class TestKnative:
    def knative(self) -> peers.Knative:
        return peers.Knative(capacity=np.array([10.0]), targets=[0.5], tick_s=15.0)

    def test_panics_at_twice_what_is_ready_and_does_not_come_down_meanwhile(self) -> None:
        peer = self.knative()
        see_rate(peer, 10.0)
        assert ask(peer, 0, 2) == 2
        see_rate(peer, 100.0)
        assert ask(peer, 1, 2) == 20
        wants = []
        for tick in range(2, 12):
            see_rate(peer, 10.0)
            wants.append(ask(peer, tick, 20, ready=20))
        assert wants[:4] == [20, 20, 20, 20]
        assert wants[-1] == 10, "down by at most half"

    def test_counts_what_waits(self) -> None:
        peer = self.knative()
        see_rate(peer, 10.0, backlog=100.0)
        assert ask(peer, 0, 4) == 4
        assert np.isnan(ask(self.knative(), 0, 4))


class TestTheClairvoyant:
    def plan(self, demand: Sequence[float], hold_ticks: float = 5.0) -> list[float]:
        plan = peers.clairvoyant(
            np.array(demand, dtype=np.float64),
            capacity=10.0,
            lag_ticks=2,
            hold_ticks=hold_ticks,
            replicas_min=1,
            replicas_max=4,
        )
        return [float(asked) for asked in plan]

    def test_asks_one_cold_start_before_the_need_and_releases_with_it(self) -> None:
        assert self.plan([5, 5, 5, 15, 15, 5, 5]) == [1, 2, 2, 2, 2, 1, 1]

    def test_keeps_a_replica_through_a_gap_shorter_than_a_restart(self) -> None:
        short = [15, 5, 5, 5, 15]
        assert self.plan(short, hold_ticks=3) == [2, 2, 2, 2, 2]
        assert self.plan(short, hold_ticks=2) == [2, 1, 2, 2, 2]

    def test_stays_within_the_bounds(self) -> None:
        assert self.plan([0, 0, 0, 999, 999]) == [1, 4, 4, 4, 4]


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("gpuscale", ("gpuscale", None)),
        ("keda-rate", ("keda-rate", 0.7)),
        ("keda-rate@0.85", ("keda-rate", 0.85)),
        ("oracle", ("oracle", 1.0)),
        ("static-peak@0.5", ("static-peak", 0.5)),
        ("hpa-util@1.5", ("hpa-util", 1.5)),
    ],
)
def test_a_policy_is_a_name_and_perhaps_a_target(
    text: str, meaning: tuple[str, float | None]
) -> None:
    assert peers.target_of(text) == meaning


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("keda", "there is no policy 'keda'; choose from gpuscale, keda-rate"),
        ("gpuscale@1.5", "must lie between 0 and 1"),
        ("knative@", "above 0 and at most 1.5, e.g. knative@0.8"),
        ("knative@70", "must be a share of a replica's capacity, above 0 and at most 1.5"),
        ("keda-rate@7", "must be a share of a replica's capacity, above 0 and at most 1.5"),
        ("hpa-util@1.51", "above 0 and at most 1.5"),
        ("static-peak@0", "above 0 and at most 1.5"),
        ("oracle@-0.7", "above 0 and at most 1.5"),
        ("knative@nan", "above 0 and at most 1.5"),
        ("", "there is no policy ''"),
    ],
)
def test_a_policy_that_does_not_exist_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        peers.target_of(text)
    assert sentence in str(caught.value)
