"""Pods and targets, as the API server shows them, to replicas by stage, start times and reasons."""

from typing import Any

import pytest

from gpuscale.controller.inventory import (
    Pod,
    ScaleTarget,
    matches,
    parse_selector,
    pending_cause,
    pod_of,
    replica_state,
    scale_of,
    selector_of,
    target_of,
)

CREATED = "2026-11-30T10:00:00Z"


def raw_pod(
    name: str = "p",
    *,
    ready: str | None = None,
    node: str | None = "n1",
    phase: str = "Running",
    deleted: bool = False,
    restarts: int = 0,
    labels: dict[str, str] | None = None,
) -> dict[str, Any]:
    status: dict[str, Any] = {
        "phase": phase,
        "podIP": f"10.0.0.{len(name)}",
        "conditions": [{"type": "PodScheduled", "status": "True" if node else "False"}],
        "containerStatuses": [{"restartCount": restarts}],
    }
    ready_condition: dict[str, Any] = {"type": "Ready", "status": "True" if ready else "False"}
    if ready:
        ready_condition["lastTransitionTime"] = ready
    status["conditions"].append(ready_condition)
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": "llm",
        "uid": f"uid-{name}",
        "creationTimestamp": CREATED,
        "labels": {"app": "llama"} if labels is None else labels,
    }
    if deleted:
        metadata["deletionTimestamp"] = CREATED
    return {"metadata": metadata, "spec": {"nodeName": node} if node else {}, "status": status}


def raw_target(replicas: Any = 3) -> dict[str, Any]:
    return {"spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "llama"}}}}


TARGET = target_of(raw_target())


# ---------------------------------------------------------------- stages


@pytest.mark.parametrize(
    ("pod", "stage"),
    [
        (raw_pod(ready="2026-11-30T10:03:00Z"), "ready"),
        (raw_pod(), "starting"),
        (raw_pod(phase="Pending"), "starting"),
        (raw_pod(node=None, phase="Pending"), "pending"),
        (raw_pod(ready="2026-11-30T10:03:00Z", deleted=True), "gone"),
        (raw_pod(phase="Succeeded"), "gone"),
        (raw_pod(phase="Failed"), "gone"),
        (raw_pod(phase="Failed", node=None), "gone"),
    ],
)
def test_a_pod_is_in_one_stage(pod: dict[str, Any], stage: str) -> None:
    assert pod_of(pod).stage == stage


def test_replicas_are_counted_by_stage_and_only_the_targets_own() -> None:
    raws = [
        raw_pod("a", ready="2026-11-30T10:03:00Z"),
        raw_pod("bb", ready="2026-11-30T10:04:00Z"),
        raw_pod("c"),
        raw_pod("d", node=None),
        raw_pod("e", ready="2026-11-30T10:03:00Z", deleted=True),
        raw_pod("f", phase="Failed"),
        raw_pod("g", ready="2026-11-30T10:03:00Z", labels={"app": "other"}),
    ]
    state, _ = replica_state("llm/llama", TARGET, [pod_of(r) for r in raws], None)
    assert (state.asked, state.ready, state.starting, state.pending) == (3, 2, 1, 1)
    assert state.endpoints == ("10.0.0.1", "10.0.0.2")
    assert state.pending_reason == "1 pod is not scheduled (not scheduled yet)"


# ---------------------------------------------------------------- start times


def test_a_start_is_told_once_when_the_pod_is_first_seen_ready() -> None:
    starting, ready = pod_of(raw_pod()), pod_of(raw_pod(ready="2026-11-30T10:03:05Z"))
    state, seen = replica_state("k", TARGET, [starting], None)
    assert state.starts == ()
    state, seen = replica_state("k", TARGET, [ready], seen)
    assert [s.total_s for s in state.starts] == [185.0]
    state, seen = replica_state("k", TARGET, [ready], seen)
    assert state.starts == ()


def test_pods_that_were_ready_before_we_looked_were_not_witnessed() -> None:
    """Their Ready may be the second: a probe that failed for a moment resets its time."""
    state, seen = replica_state("k", TARGET, [pod_of(raw_pod(ready="2026-11-30T23:00:00Z"))], None)
    assert [(s.total_s, s.witnessed) for s in state.starts] == [(46_800.0, False)]
    again, _ = replica_state("k", TARGET, [pod_of(raw_pod(ready="2026-11-30T23:00:00Z"))], seen)
    assert again.starts == ()


def test_a_probe_that_flaps_is_no_second_start() -> None:
    first, seen = replica_state("k", TARGET, [pod_of(raw_pod())], None)
    _, seen = replica_state("k", TARGET, [pod_of(raw_pod(ready="2026-11-30T10:03:00Z"))], seen)
    _, seen = replica_state("k", TARGET, [pod_of(raw_pod())], seen)
    again, _ = replica_state("k", TARGET, [pod_of(raw_pod(ready="2026-11-30T12:00:00Z"))], seen)
    assert (first.starts, again.starts) == ((), ())


@pytest.mark.parametrize(
    "pod",
    [
        raw_pod(ready="2026-11-30T10:03:00Z", restarts=1),
        raw_pod(ready="2026-11-30T09:00:00Z"),
        raw_pod(ready="2026-12-02T10:00:00Z"),
        raw_pod(ready="yesterday"),
        raw_pod(ready="2026-11-30T10:03:00"),
    ],
    ids=["restarted", "before its creation", "days", "no time", "no zone"],
)
def test_a_start_that_is_not_one_is_not_told(pod: dict[str, Any]) -> None:
    state, _ = replica_state("k", TARGET, [pod_of(pod)], frozenset())
    assert (state.ready, state.starts) == (1, ())


def test_what_is_remembered_is_bounded_by_the_pods_that_live() -> None:
    seen: frozenset[str] = frozenset()
    for i in range(50):
        pod = pod_of(raw_pod(f"p{i}", ready="2026-11-30T10:03:00Z"))
        _, seen = replica_state("k", TARGET, [pod], seen)
    assert seen == {"uid-p49"}


# ---------------------------------------------------------------- why pods wait


@pytest.mark.parametrize(
    ("reason", "message", "cause"),
    [
        ("SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates", "gated"),
        ("Unschedulable", None, "not scheduled yet"),
        (None, None, "not scheduled yet"),
        (
            "Unschedulable",
            "0/5 nodes are available: 3 Insufficient nvidia.com/gpu, 2 node(s) had untolerated taint "
            "{nvidia.com/gpu: present}. preemption: 0/5 nodes are available: 5 No preemption victims "
            "found for incoming pod.",
            "insufficient_gpu on 3 nodes, taint on 2 nodes",
        ),
        (
            "Unschedulable",
            "0/3 nodes are available: 1 Insufficient memory, 2 Insufficient nvidia.com/mig-1g.10gb.",
            "insufficient_gpu on 2 nodes, insufficient_resource on 1 node",
        ),
        (
            "Unschedulable",
            "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.",
            "affinity on 2 nodes",
        ),
        (
            "Unschedulable",
            "0/1 nodes are available: 1 node(s) had volume node affinity conflict.",
            "affinity on 1 node",
        ),
        (
            "Unschedulable",
            'persistentvolumeclaim "models" not found',
            "volume",
        ),
        ("Unschedulable", "the dog ate it", "other"),
        ("Unschedulable", "0/9 nodes are available: " + "x, " * 100_000, "other"),
    ],
)
def test_the_schedulers_message_is_read_to_causes(
    reason: str | None, message: str | None, cause: str
) -> None:
    assert pending_cause(reason, message) == cause


def test_the_commonest_cause_speaks_for_all() -> None:
    waiting = [
        Pod(
            uid=str(i),
            labels={"app": "llama"},
            stage="pending",
            host=None,
            start=None,
            ready_at=None,
            created_at=None,
            node=None,
            build="",
            cause=c,
        )
        for i, c in enumerate(("insufficient_gpu", "gated", "insufficient_gpu"))
    ]
    state, _ = replica_state("k", TARGET, waiting, None)
    assert state.pending_reason == "3 pods are not scheduled (insufficient_gpu)"


# ---------------------------------------------------------------- selectors


@pytest.mark.parametrize(
    ("text", "labels", "matched"),
    [
        ("app=llama", {"app": "llama"}, True),
        ("app==llama", {"app": "llama"}, True),
        ("app=llama,tier=gpu", {"app": "llama", "tier": "gpu"}, True),
        ("app=llama,tier=gpu", {"app": "llama"}, False),
        ("app!=llama", {}, True),
        ("app!=llama", {"app": "llama"}, False),
        ("app in (a, b)", {"app": "b"}, True),
        ("app in (a,b),x", {"app": "b"}, False),
        ("app notin (a,b)", {"app": "c"}, True),
        ("app notin (a,b)", {}, True),
        ("app", {"app": ""}, True),
        ("!app", {"app": ""}, False),
        ("!app", {}, True),
        ("example.com/app=llama", {"example.com/app": "llama"}, True),
        ("app=", {"app": ""}, True),
        ("", {"app": "llama"}, False),
        ("app=llama)(", {"app": "llama"}, False),
        ("app in (a", {"app": "a"}, False),
        (",,", {}, False),
    ],
)
def test_selectors_in_text_form_match_as_kubernetes_does(
    text: str, labels: dict[str, str], matched: bool
) -> None:
    assert matches(parse_selector(text), labels) is matched


@pytest.mark.parametrize(
    ("selector", "labels", "matched"),
    [
        ({"matchLabels": {"app": "llama"}}, {"app": "llama", "x": "y"}, True),
        ({"matchLabels": {"app": "llama"}}, {}, False),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1"]}]}, {"a": "1"}, True),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}, {}, True),
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, {"a": "1"}, True),
        ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, {"a": "1"}, False),
        ({"matchExpressions": [{"key": "a", "operator": "Odd"}]}, {"a": "1"}, False),
        ({}, {"a": "1"}, False),
        (None, {"a": "1"}, False),
    ],
)
def test_label_selectors_match_as_kubernetes_does(
    selector: object, labels: dict[str, str], matched: bool
) -> None:
    assert matches(selector_of(selector), labels) is matched


def test_a_scale_without_a_count_asks_for_none() -> None:
    """A Scale leaves out a count of 0; a Deployment never does, so that there it is unknown."""
    scale = {"spec": {}, "status": {"selector": "app=llama"}}
    assert scale_of(scale) == ScaleTarget(asked=0, selector=TARGET.selector)
    assert target_of({"spec": {}}) == ScaleTarget(asked=None, selector=())


@pytest.mark.parametrize("odd", [-1, "3", True, 2.5, None])
def test_an_odd_count_is_not_known(odd: object) -> None:
    assert target_of(raw_target(odd)).asked is None
