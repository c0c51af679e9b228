"""From readings to arrays: what a source did not give is unknown, and nothing is filled in."""

import dataclasses

import numpy as np
import pytest

from gpuscale.controller.domain import FleetObservation, ReplicaState, SignalReading, Target
from gpuscale.controller.observe import coverage_of, observation_of, target_of
from gpuscale.settings import CustomQueries, Policy
from tests.fakes.cluster import replica_state
from tests.fakes.statuses import NOW, TICK_S, workload

LLAMA = workload("llama")


def reading(**changed: object) -> SignalReading:
    values: dict[str, object] = {
        "key": LLAMA.key,
        "at": NOW,
        "arrivals": 12.0,
        "running": 3.0,
        "waiting": 1.0,
        "pods_answered": 3,
        "pods_expected": 4,
    }
    return SignalReading(**(values | changed))  # type: ignore[arg-type]


def observe(
    fresh: SignalReading | None, last: SignalReading | None, state: ReplicaState | None = None
) -> FleetObservation:
    return observation_of(
        now=NOW,
        tick_s=TICK_S,
        workloads=[LLAMA],
        fresh={} if fresh is None else {LLAMA.key: fresh},
        last={} if last is None else {LLAMA.key: last},
        replicas={} if state is None else {LLAMA.key: state},
        lead_s=np.array([180.0]),
        capacity=np.array([5.0]),
    )


def test_a_reading_becomes_the_arrays() -> None:
    seen = observe(reading(), reading())

    assert seen.demand.tolist() == [12.0]
    assert seen.backlog.tolist() == [1.0]
    assert seen.coverage.tolist() == [0.75]
    assert seen.age_s.tolist() == [0.0]


def test_a_failed_reading_leaves_demand_unknown_and_the_last_good_one_ageing() -> None:
    seen = observe(None, reading(at=NOW - 90))

    assert np.isnan(seen.demand[0])
    assert np.isnan(seen.coverage[0])
    assert seen.age_s.tolist() == [90.0]


def test_before_the_first_reading_the_age_is_infinite() -> None:
    assert np.isinf(observe(None, None).age_s[0])


def test_without_a_cluster_the_pods_that_answered_are_the_ready_ones() -> None:
    seen = observe(reading(), reading())

    assert seen.ready.tolist() == [3.0]
    assert np.isnan(seen.asked[0])
    assert np.isnan(seen.starting[0])


def test_with_a_cluster_its_word_counts() -> None:
    seen = observe(reading(), reading(), replica_state(LLAMA.key, asked=6, ready=4))

    assert (seen.asked[0], seen.ready[0], seen.starting[0]) == (6.0, 4.0, 2.0)


@pytest.mark.parametrize(
    ("answered", "expected", "coverage"),
    [(3, 4, 0.75), (5, 4, 1.0), (0, 4, 0.0), (0, 0, 1.0), (3, None, None)],
)
def test_coverage(answered: int, expected: int | None, coverage: float | None) -> None:
    """A workload at zero is covered whole; where nobody knows how many should answer, nobody knows."""
    assert coverage_of(reading(pods_answered=answered, pods_expected=expected)) == coverage


def test_pods_are_scraped_at_the_port_of_their_server() -> None:
    state = replica_state(LLAMA.key, asked=2, ready=2)

    plain = target_of(LLAMA, state)
    moved = target_of(
        workload("llama", policy=Policy(metrics_port=9100, metrics_path="/stats")), state
    )

    assert plain.endpoints == ("http://10.0.0.0:8000/metrics", "http://10.0.0.1:8000/metrics")
    assert moved.endpoints[0] == "http://10.0.0.0:9100/stats"
    assert plain.pods_expected == 2


def test_the_selector_is_filled_in_and_regular_expressions_stay_whole() -> None:
    policy = Policy(selector='namespace="{namespace}",pod=~"{name}-[a-z0-9]{5}"')

    target = target_of(workload("llama", policy=policy), None)

    assert target.selector == 'namespace="inference",pod=~"llama-[a-z0-9]{5}"'
    assert target.pods_expected is None


def test_pods_are_looked_for_under_the_name_of_the_scale_target() -> None:
    """A ScaledObject may be called otherwise than the Deployment whose pods it scales."""
    scaled = Target(api_version="apps/v1", kind="Deployment", name="llama-server")
    named = dataclasses.replace(workload("chat-scaling"), target=scaled)

    assert 'pod=~"llama-server-.+"' in target_of(named, None).selector


def test_the_page_is_where_the_server_has_it() -> None:
    state = replica_state("llama", asked=1, ready=1)
    nim = target_of(workload("llama", policy=Policy(server="nim")), state)
    assert [page.rpartition(":")[2] for page in nim.endpoints] == ["8000/v1/metrics"]


def test_the_operators_queries_are_filled_in_and_no_page_is_read() -> None:
    policy = Policy(
        server="custom", custom=CustomQueries(arrivals='rate(x{n="{namespace}",{selector}}[1m])')
    )
    target = target_of(workload("llama", policy=policy), replica_state("llama", asked=2, ready=2))
    assert target.endpoints == ()
    assert target.pods_expected == 2
    assert target.queries["arrivals"].startswith('sum(rate(x{n="inference",namespace="inference"')


def test_a_reading_whose_time_is_no_number_is_infinitely_old() -> None:
    """Prometheus may answer NaN to the question for the newest sample's time."""
    for at in (float("nan"), float("-inf"), float("inf")):
        assert observe(reading(at=at), reading(at=at)).age_s.tolist() == [np.inf]
