"""The simulated cluster keeps the books that the demo shows: pods, GPUs, queues, requests."""

import pytest

from gpuscale.simulation.cluster import (
    DRAIN_S,
    WAIT_MAX_S,
    SimulatedCluster,
    SimulatedWorkload,
)


def workload(rate: float = 8.0, **changes: object) -> SimulatedWorkload:
    fields: dict[str, object] = {
        "namespace": "chat",
        "name": "llama",
        "server": "vllm",
        "demand": lambda _: rate,
        "capacity": 10.0,
        "start_s": 90.0,
        "start_spread": 0.0,
    }
    return SimulatedWorkload(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_replica_serves_only_after_its_start_time() -> None:
    cluster = SimulatedCluster({"n": 4}, [workload(20.0)], now=0.0)
    cluster.scale("chat/llama", 2)
    cluster.advance(89.0)
    assert sum(p.ready for p in cluster.pods("chat/llama")) == 1
    cluster.advance(91.0)
    assert sum(p.ready for p in cluster.pods("chat/llama")) == 2


def test_a_pod_without_a_free_gpu_stays_pending_until_one_is_released() -> None:
    cluster = SimulatedCluster({"n": 1}, [workload(1.0)], now=0.0)
    cluster.scale("chat/llama", 2)
    cluster.advance(200.0)
    first, second = cluster.pods("chat/llama")
    assert first.ready
    assert second.node is None
    assert second.scheduled_at is None


def test_a_drained_pod_holds_its_gpu_for_the_drain_and_then_frees_it() -> None:
    cluster = SimulatedCluster({"n": 1}, [workload(1.0)], now=0.0)
    cluster.scale("chat/llama", 0)
    cluster.advance(DRAIN_S - 2)
    assert len(cluster.holders("n")) == 1
    cluster.advance(DRAIN_S + 2)
    assert cluster.holders("n") == ()


def test_scaling_down_takes_what_is_not_ready_first() -> None:
    cluster = SimulatedCluster({"n": 4}, [workload(1.0)], now=0.0)
    cluster.scale("chat/llama", 3)
    cluster.advance(10.0)
    cluster.scale("chat/llama", 1)
    (left,) = cluster.pods("chat/llama")
    assert left.ready


def test_overload_waits_then_is_late_then_is_lost_and_nothing_vanishes() -> None:
    cluster = SimulatedCluster({"n": 1}, [workload(20.0)], now=0.0)
    cluster.advance(600.0)
    (pod,) = cluster.pods("chat/llama")
    totals = cluster.totals("chat/llama")
    assert pod.waiting == pytest.approx(WAIT_MAX_S * 10.0)
    assert pod.completed + pod.waiting + pod.lost == pytest.approx(totals.arrived)
    assert pod.busy == 1.0
    # The first five seconds of queue build up over ten seconds; everything after them is late.
    assert totals.late / totals.arrived == pytest.approx(1 - 10 / 600, abs=0.01)


def test_enough_replicas_are_never_late_and_busy_is_the_utilization_law() -> None:
    cluster = SimulatedCluster({"n": 1}, [workload(8.0)], now=0.0)
    cluster.advance(100.0)
    assert cluster.totals("chat/llama").late == 0.0
    assert cluster.busy("n", 0) == pytest.approx(0.8)


def test_the_same_seed_gives_the_same_run() -> None:
    def run(seed: int) -> list[float]:
        cluster = SimulatedCluster({"n": 8}, [workload(30.0, start_spread=0.2)], now=0.0, seed=seed)
        cluster.scale("chat/llama", 5)
        cluster.advance(300.0)
        return [p.ready_at or 0.0 for p in cluster.pods("chat/llama")]

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_negative_replicas_are_refused() -> None:
    cluster = SimulatedCluster({"n": 1}, [workload()], now=0.0)
    with pytest.raises(ValueError, match="must not be negative"):
        cluster.scale("chat/llama", -1)
