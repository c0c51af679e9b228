"""The map of GPUs: each state by what an exporter says, and nothing that it does not say."""

from typing import Any

import msgspec
import pytest

from gpuscale.controller.gpumap import (
    BUSY_FROM_RATIO,
    GpuMap,
    NodeReport,
    State,
    as_dict,
    node_of,
)

UUID = "GPU-1"


def device(index: int = 0, *, up: bool = True, **values: float) -> dict[str, Any]:
    return {
        "identity": {"index": index, "uuid": f"GPU-{index + 1}", "product": "H100"},
        "up": up,
        "reason": None if up else "fallen off the bus",
        "samples": [
            {"family": f"gpuscale_gpu_{name}", "value": value, "labels": []}
            for name, value in values.items()
        ],
    }


def held(uuid: str = UUID, **more: Any) -> dict[str, Any]:
    return {"uuid": uuid, "namespace": "chat", "pod": "llama-0", "container": "server", **more}


def report(
    *devices: dict[str, Any],
    holders: tuple[dict[str, Any], ...] = (),
    attribution: dict[str, Any] | str | None = "up",
    findings: tuple[dict[str, Any], ...] = (),
) -> NodeReport:
    told = {"up": True, "allocations": list(holders)} if attribution == "up" else attribution
    return msgspec.convert(
        {
            "at": 100.0,
            "node": "gpu-a",
            "driver": {"up": True},
            "devices": list(devices),
            "attribution": told,
            "usage": {"audit": {"findings": list(findings)}},
        },
        NodeReport,
    )


STORIES: dict[str, tuple[NodeReport, State]] = {
    "allocated and working": (report(device(utilization_ratio=0.9), holders=(held(),)), "busy"),
    "allocated and doing nothing": (
        report(device(utilization_ratio=0.0), holders=(held(),)),
        "idle",
    ),
    "allocated, its use not measured (MIG)": (report(device(), holders=(held(),)), "held"),
    "allocated to nobody": (report(device(utilization_ratio=0.0)), "free"),
    "one instance of seven allocated, and idle": (
        report(
            device(utilization_ratio=0.0),
            holders=(held("MIG-1", parent_uuid=UUID, share=1 / 7),),
        ),
        "fragmented",
    ),
    "one instance of seven allocated, and working": (
        report(
            device(utilization_ratio=0.4),
            holders=(held("MIG-1", parent_uuid=UUID, share=1 / 7),),
        ),
        "busy",
    ),
    "fallen off the bus while held": (report(device(up=False), holders=(held(),)), "sick"),
    "a row without a spare": (
        report(device(utilization_ratio=0.9, row_remap_failed=1.0), holders=(held(),)),
        "sick",
    ),
    "worked on by a stranger": (
        report(
            device(utilization_ratio=0.9),
            findings=({"rule": "GPU-N01", "uuid": UUID, "evidence": "a process of the host"},),
        ),
        "bypassed",
    ),
    "the kubelet is not asked": (
        report(device(utilization_ratio=0.9), attribution=None),
        "unknown",
    ),
    "the kubelet's list is too old": (
        report(
            device(utilization_ratio=0.9),
            attribution={"up": False, "fresh": False, "reason": "no socket", "allocations": []},
        ),
        "unknown",
    ),
    "the kubelet missed one answer, the last list still holds": (
        report(
            device(utilization_ratio=0.9),
            attribution={"up": False, "fresh": True, "reason": "slow", "allocations": [held()]},
        ),
        "busy",
    ),
}


@pytest.mark.parametrize("story", STORIES)
def test_a_gpu_is_in_the_state_that_its_exporter_tells(story: str) -> None:
    told, state = STORIES[story]
    assert node_of(told, "http://a:9400").gpus[0].state == state


def test_a_state_that_needs_a_person_says_why() -> None:
    for told, state in STORIES.values():
        gpu = node_of(told, "http://a:9400").gpus[0]
        assert (gpu.why is not None) == (state in {"sick", "bypassed", "unknown"})


def test_what_is_not_told_is_unknown_and_never_zero() -> None:
    gpu = node_of(report(device(), attribution=None), "http://a:9400").gpus[0]
    assert gpu.utilization is None
    assert gpu.memory_used_bytes is None
    assert gpu.power_watts is None
    assert gpu.temperature_celsius is None
    assert gpu.allocated is None


def test_the_driver_window_noise_is_not_work() -> None:
    quiet = report(device(utilization_ratio=BUSY_FROM_RATIO / 2), holders=(held(),))
    assert node_of(quiet, "http://a:9400").gpus[0].state == "idle"


def test_an_exporter_of_another_version_is_understood_as_far_as_it_goes() -> None:
    body = msgspec.json.encode(
        {"at": 1.0, "node": "n", "driver": {"up": True, "new": 1}, "devices": [], "newer": [1]}
    )
    assert node_of(msgspec.json.decode(body, type=NodeReport), "http://a").gpus == ()


def test_a_driver_that_does_not_answer_is_the_nodes_problem() -> None:
    told = msgspec.convert(
        {"at": 1.0, "node": "n", "driver": {"up": False, "reason": "no driver"}}, NodeReport
    )
    assert node_of(told, "http://a").problem == "no driver"


def test_counts_are_of_the_whole_cluster_whatever_part_is_asked_for() -> None:
    busy = node_of(report(device(utilization_ratio=0.5), holders=(held(),)), "http://a")
    free = node_of(report(device(), device(1)), "http://b")
    shown = as_dict(GpuMap(configured=True, nodes=(busy, free)), offset=1, limit=1)
    assert shown["states"] == {"busy": 1, "free": 2}
    assert shown["total"] == 2
    assert shown["largest_free_block"] == 2
    assert [node["address"] for node in shown["items"]] == ["http://b"]


def test_a_node_that_lists_without_end_is_cut() -> None:
    endless = report(
        device(), holders=tuple(held(pod="p" * 10_000, share=0.001) for _ in range(500))
    )
    gpu = node_of(endless, "http://a").gpus[0]
    assert len(gpu.holders) == 64
    assert len(gpu.holders[0]["pod"]) == 253
