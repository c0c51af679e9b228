"""Stages of a start and the build of a pod, from its object."""

from typing import Any

import pytest

from gpuscale.controller.inventory import pod_of, replica_state, target_of
from gpuscale.controller.podstart import build_of, provisioned, start_of

CONTAINER = {
    "name": "server",
    "image": "registry/vllm:0.9",
    "args": ["--model", "acme/chat-8b", "--max-num-seqs", "64"],
    "resources": {"limits": {"nvidia.com/gpu": "1"}},
}


def pod(
    *,
    name: str = "chat-1",
    scheduled: str = "10:00:01",
    started: str | None = "10:01:31",
    containers_ready: str | None = "10:04:31",
    ready: str = "10:04:41",
    **changed: Any,
) -> dict[str, Any]:
    """A pod created at ten o'clock."""
    day = "2026-11-30T"
    conditions = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": f"{day}{scheduled}Z"},
        {"type": "Ready", "status": "True", "lastTransitionTime": f"{day}{ready}Z"},
    ]
    if containers_ready:
        at = f"{day}{containers_ready}Z"
        conditions.append({"type": "ContainersReady", "status": "True", "lastTransitionTime": at})
    running = {"state": {"running": {"startedAt": f"{day}{started}Z"}}} if started else {}
    return {
        "metadata": {
            "name": name, "namespace": "ai", "uid": name, "creationTimestamp": f"{day}10:00:00Z",
            "labels": {"app": "chat"}, "annotations": changed.get("annotations", {}),
        },
        "spec": {
            "nodeName": "gpu-7",
            "containers": [CONTAINER | changed.get("container", {})],
            "nodeSelector": changed.get("selector", {"gpu": "h100"}),
        },
        "status": {
            "phase": "Running", "podIP": "10.0.0.1", "conditions": conditions,
            "containerStatuses": [{"restartCount": 0, **running}],
        },
    }  # fmt: skip


def test_a_start_is_told_by_stages() -> None:
    start = start_of(pod(), build="b")
    assert start is not None
    assert start.total_s == 281.0
    assert start.stages == {"schedule": 1.0, "pull": 90.0, "load": 180.0, "ready": 10.0}
    assert (start.unschedulable_s, start.build) == (0.0, "b")


def test_the_wait_for_a_free_gpu_is_no_part_of_a_start() -> None:
    late = pod(
        scheduled="10:30:00", started="10:31:30", containers_ready="10:34:30", ready="10:34:40"
    )
    start = start_of(late)
    assert start is not None
    assert (start.total_s, start.unschedulable_s) == (280.0, 1800.0)
    assert start.stages["schedule"] == 0.0


def test_a_node_that_came_for_it_is_provisioning() -> None:
    late = pod(
        scheduled="10:05:00", started="10:06:30", containers_ready="10:09:30", ready="10:09:40"
    )
    start, created = start_of(late), 1_796_032_800.0
    assert start is not None
    came = provisioned(start, created, created + 240.0)
    assert (came.total_s, came.unschedulable_s, came.stages["provision"]) == (580.0, 0.0, 300.0)
    # A node that was there before did not come for it.
    assert provisioned(start, created, created - 3600.0) == start
    assert provisioned(start, created, None) == start


def test_nodes_that_are_known_reach_the_starts_of_a_workload() -> None:
    late = pod(
        scheduled="10:05:00", started="10:06:30", containers_ready="10:09:30", ready="10:09:40"
    )
    target = target_of({"spec": {"replicas": 1, "selector": {"matchLabels": {"app": "chat"}}}})
    state, _ = replica_state(
        "k", target, [pod_of(late)], frozenset(), {"gpu-7": 1_796_032_800.0 + 200.0}
    )
    assert [s.stages.get("provision") for s in state.starts] == [300.0]


def test_what_is_missing_costs_its_stage_and_not_the_start() -> None:
    start = start_of(pod(started=None, containers_ready=None))
    assert start is not None
    assert start.total_s == 281.0
    assert "load" not in start.stages
    assert "pull" not in start.stages
    # Containers that started "before" they were scheduled, by a clock that is off.
    odd = start_of(pod(started="09:59:00"))
    assert odd is not None
    assert "pull" not in odd.stages


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({"annotations": {"kubectl.kubernetes.io/restartedAt": "now"}}, True),
        ({"name": "chat-2"}, True),
        ({"container": {"image": "registry/vllm:0.10"}}, False),
        ({"container": {"args": ["--model", "acme/chat-70b"]}}, False),
        ({"container": {"env": [{"name": "MAX_NUM_SEQS", "value": "128"}]}}, False),
        ({"container": {"resources": {"limits": {"nvidia.com/gpu": "2"}}}}, False),
        ({"selector": {"gpu": "l4"}}, False),
    ],
)
def test_a_build_is_what_decides_capacity_and_start(changed: dict[str, Any], same: bool) -> None:
    assert (pod_of(pod(**changed)).build == pod_of(pod()).build) is same


def test_the_build_of_a_workload_is_that_of_most_of_its_ready_pods() -> None:
    target = target_of({"spec": {"replicas": 3, "selector": {"matchLabels": {"app": "chat"}}}})
    new: dict[str, Any] = {"container": {"image": "registry/vllm:0.10"}}
    pods = [pod_of(pod(name=f"p{i}", **(new if i else {}))) for i in range(3)]
    state, _ = replica_state("k", target, pods, None)
    assert state.build == pods[1].build


@pytest.mark.parametrize("spec", [{}, {"containers": "none"}, {"containers": []}])
def test_a_pod_without_containers_has_no_build(spec: dict[str, Any]) -> None:
    assert build_of(spec) == ""
