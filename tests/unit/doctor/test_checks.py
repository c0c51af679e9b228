"""The doctor finds each illness by its facts, finds a healthy cluster healthy, and says what it could not see."""

from dataclasses import fields, replace
from typing import Any

import pytest
import yaml

from gpuscale.controller import scaledobject
from gpuscale.doctor import examine
from gpuscale.doctor.facts import (
    Cluster,
    Exporter,
    Facts,
    Here,
    Node,
    Pod,
    Prometheus,
    Result,
    Unreachable,
    Unread,
)
from gpuscale.settings import ControllerSettings
from tests.unit.lint.cases import prometheus as trigger
from tests.unit.lint.cases import scaled_object

NODE = Node(
    name="gpu-1",
    ready=True,
    labels={"nvidia.com/gpu.present": "true", "nvidia.com/gpu.count": "8"},
    capacity={"nvidia.com/gpu": 8},
    allocatable={"nvidia.com/gpu": 8},
)
SERVER = Pod(
    namespace="ml",
    name="llama-1",
    phase="Running",
    ready=True,
    node="gpu-1",
    images=("vllm/vllm-openai:v0.11.0",),
    labels={},
    runtime_class="nvidia",
    resources=frozenset({"nvidia.com/gpu"}),
    pending="",
    reason="",
)


def system_pod(name: str, component: str, **changed: Any) -> Pod:
    labels = {"app.kubernetes.io/name": "gpuscale", "app.kubernetes.io/component": component}
    own = replace(SERVER, namespace="gpuscale", name=name, labels=labels, resources=frozenset())
    return replace(own, runtime_class="", **changed)


OPERATOR = replace(
    SERVER,
    namespace="keda",
    name="keda-operator-1",
    images=("ghcr.io/kedacore/keda:2.20.1",),
    labels={"app": "keda-operator"},
    resources=frozenset(),
    runtime_class="",
)


def ours(high: int = 40) -> dict[str, Any]:
    workload, metadata = scaledobject.declare(
        "ml", "llama", ControllerSettings(), fields={"max_replicas": high}
    )
    return scaledobject.scaledobject(workload, metadata)


def hpa(
    *, kind: str = "AverageValue", tolerance: str | None = "0", metrics: bool = True
) -> dict[str, Any]:
    way = {} if tolerance is None else {"tolerance": tolerance}
    return {
        "metadata": {
            "namespace": "ml",
            "name": "keda-hpa-llama",
            "ownerReferences": [{"kind": "ScaledObject", "name": "llama"}],
        },
        "spec": {
            "scaleTargetRef": {"kind": "Deployment", "name": "llama"},
            "maxReplicas": 40,
            "metrics": [{"type": "External", "external": {"target": {"type": kind}}}]
            if metrics
            else [{"type": "Resource", "resource": {"name": "cpu"}}],
            "behavior": {"scaleUp": way, "scaleDown": way},
        },
    }


CLUSTER = Cluster(
    server="https://cluster:6443",
    version="v1.35.2",
    nodes=(NODE, Node(name="cpu-1", ready=True, labels={}, capacity={}, allocatable={})),
    pods=(SERVER, OPERATOR, system_pod("exp-1", "exporter"), system_pod("ctl-1", "controller")),
    runtime_classes=frozenset({"nvidia"}),
    scaled_objects=(ours(),),
    autoscalers=(hpa(),),
    workloads=(),
    quotas=(),
    exporters={"gpu-1": Exporter(driver_up=True, reason="", gpus=8, lost=0, attribution="")},
)
PROMETHEUS = Prometheus(
    address="http://p:9090", gpus=8, nodes=1, renamed=None, dcgm=None, controllers=1, kube_state=5
)
HERE = Here(version="0.1.0", python="3.11.7", driver="580.65.06", gpus=8)
HEALTHY = Facts(
    here=HERE,
    cluster=CLUSTER,
    prometheus=PROMETHEUS,
)


def told(facts: Facts) -> list[Result]:
    return [result for result in examine(facts) if result.status != "ok"]


def cluster(**changed: Any) -> Facts:
    return replace(HEALTHY, cluster=replace(CLUSTER, **changed))


def node(**changed: Any) -> Facts:
    return cluster(nodes=(replace(NODE, **changed),))


def with_pod(pod: Pod) -> Facts:
    return cluster(pods=(*CLUSTER.pods, pod))  # type: ignore[misc]


def test_a_healthy_cluster_is_told_nothing_but_what_is_well() -> None:
    assert told(HEALTHY) == []
    checks = {result.check for result in examine(HEALTHY)}
    assert checks >= {
        "gpu-nodes",
        "device-plugin",
        "keda",
        "hpa",
        "exporters",
        "controller",
        "prometheus",
    }


SICK: dict[str, tuple[Facts, str, str, str]] = {
    "no plugin": (
        node(capacity={}, allocatable={}), "device-plugin", "error", "gpu-1 has GPUs by label",
    ),
    "no GPUs at all": (
        node(labels={}, capacity={}, allocatable={}), "gpu-nodes", "warning", "offers a GPU",
    ),
    "a node away": (node(ready=False), "gpu-nodes", "warning", "not ready: gpu-1"),
    "unhealthy GPUs": (
        node(allocatable={"nvidia.com/gpu": 6}), "unhealthy-gpus", "error", "6 of 8 nvidia.com/gpu",
    ),
    "MIG that failed": (
        node(labels={"nvidia.com/mig.config.state": "failed"}), "mig", "error", "gpu-1",
    ),
    "shares called GPUs": (
        node(labels={"nvidia.com/gpu.replicas": "4"}), "shares", "warning", "bills count shares",
    ),
    "a GPU that only the plugin sees": (
        cluster(exporters={"gpu-1": Exporter(driver_up=True, reason="", gpus=7, lost=0, attribution="")}),
        "gpus-of-the-driver", "error", "shows 7 GPUs",
    ),
    "a pod before a taint": (
        with_pod(replace(SERVER, ready=False, phase="Pending", pending="taint on 3 nodes")),
        "pending-gpu-pods", "warning", "1 pod that asks for GPUs waits (taint on 3 nodes)",
    ),
    "a gated pod": (
        with_pod(replace(SERVER, ready=False, phase="Pending", pending="gated")),
        "pending-gpu-pods", "info", "gated",
    ),
    "a pod that the kubelet refused": (
        with_pod(replace(SERVER, phase="Failed", reason="OutOfnvidia.com/gpu")),
        "refused-pods", "warning", "ml/llama-1",
    ),
    "a runtime class that is not there": (
        cluster(runtime_classes=frozenset()), "runtime-class", "error", "nvidia, which does not exist",
    ),
    "a resource that no node has": (
        with_pod(replace(SERVER, resources=frozenset({"nvidia.com/mig-1g.10gb"}))),
        "resource-names", "error", "no node has nvidia.com/mig-1g.10gb",
    ),
    "no KEDA": (cluster(scaled_objects=None), "keda", "info", "is not installed"),
    "KEDA without operator": (
        cluster(pods=tuple(p for p in CLUSTER.pods if p is not OPERATOR)),  # type: ignore[union-attr]
        "keda", "error", "no pod of its operator",
    ),
    "a KEDA that is down": (
        cluster(pods=(replace(OPERATOR, ready=False),)), "keda", "error", "not ready",
    ),
    "a KEDA that drops the tolerance": (
        cluster(pods=(replace(OPERATOR, images=("ghcr.io/kedacore/keda:2.17.2",)),)),
        "keda", "warning", "KEDA 2.17.2 drops",
    ),
    "a KEDA with the CPU trap": (
        cluster(pods=(replace(OPERATOR, images=("docker.io/x/keda-operator:v2.19.0",)),)),
        "keda", "warning", "CPU 80 %",
    ),
    "a KEDA of unknown version": (
        cluster(pods=(replace(OPERATOR, images=("registry/keda@sha256:00",)),)),
        "keda", "unknown", "does not say which version",
    ),
    "an old Kubernetes": (cluster(version="v1.32.0-gke.1"), "kubernetes", "info", "v1.32.0-gke.1"),
    "an HPA on CPU": (cluster(autoscalers=(hpa(metrics=False),)), "hpa", "error", "scales by CPU"),
    "an HPA that multiplies": (cluster(autoscalers=(hpa(kind="Value"),)), "hpa", "error", "multiplies"),
    "a tolerance that was dropped": (
        cluster(autoscalers=(hpa(tolerance=None),)), "hpa", "warning", "which the ScaledObject asked for",
    ),
    "no HPA": (cluster(autoscalers=()), "hpa", "error", "ml/llama has no HPA"),
    "the recipe that everybody starts from": (
        cluster(scaled_objects=(yaml.safe_load(scaled_object(trigger("avg(DCGM_FI_DEV_GPU_UTIL)"))),)),
        "GPU-L21", "error", "never asks for more than 2 replicas",
    ),
    "a quota that counts nothing": (
        cluster(quotas=({"metadata": {"name": "q"}, "spec": {"hard": {"limits.nvidia.com/gpu": 1}}},)),
        "GPU-L04", "warning", "never counted",
    ),
    "no exporter": (cluster(pods=(SERVER, OPERATOR)), "exporters", "warning", "no pod of gpuscale's exporter"),
    "an exporter that is not ready": (
        cluster(pods=(OPERATOR, system_pod("exp-1", "exporter", ready=False))),
        "exporters", "error", "gpuscale/exp-1 on gpu-1",
    ),
    "a node without exporter": (
        cluster(pods=(OPERATOR, system_pod("exp-1", "exporter", node="gpu-9"))),
        "exporters", "warning", "no exporter runs on gpu-1",
    ),
    "an exporter without driver": (
        cluster(exporters={"gpu-1": Exporter(driver_up=False, reason="no library", gpus=0, lost=0, attribution="")}),
        "exporters", "error", "has no driver: no library",
    ),
    "a lost GPU": (
        cluster(exporters={"gpu-1": Exporter(driver_up=True, reason="", gpus=8, lost=1, attribution="")}),
        "exporters", "error", "1 GPU of 8",
    ),
    "holders unknown": (
        cluster(exporters={"gpu-1": Exporter(driver_up=True, reason="", gpus=8, lost=0, attribution="no_socket")}),
        "exporters", "warning", "no_socket",
    ),
    "drivers of two branches": (
        cluster(exporters={
            "gpu-1": Exporter(driver_up=True, reason="", gpus=8, lost=0, attribution="", driver="580.65.06"),
            "gpu-2": Exporter(driver_up=True, reason="", gpus=8, lost=0, attribution="", driver="510.47"),
        }),
        "drivers", "info", "510.47 on gpu-2; 580.65.06 on gpu-1",
    ),
    "an old driver": (
        cluster(exporters={
            "gpu-1": Exporter(driver_up=True, reason="", gpus=8, lost=0, attribution="", driver="470.1"),
        }),
        "drivers", "info", "before 520",
    ),
    "no controller": (
        cluster(pods=(OPERATOR, system_pod("exp-1", "exporter"))), "controller", "warning", "controller",
    ),
    "exporters not scraped": (
        replace(HEALTHY, prometheus=replace(PROMETHEUS, gpus=None, nodes=None)),
        "prometheus", "error", "no series of gpuscale's exporters",
    ),
    "half the nodes not scraped": (
        replace(cluster(nodes=(NODE, replace(NODE, name="gpu-2"))), prometheus=PROMETHEUS),
        "prometheus", "warning", "1 of 2 nodes",
    ),
    "labels renamed": (
        replace(HEALTHY, prometheus=replace(PROMETHEUS, renamed=3)),
        "honor-labels", "error", "honorLabels",
    ),
    "no kube-state-metrics": (
        replace(HEALTHY, prometheus=replace(PROMETHEUS, kube_state=None)),
        "kube-state-metrics", "warning", "kube-state-metrics",
    ),
    "both exporters": (
        replace(HEALTHY, prometheus=replace(PROMETHEUS, dcgm=8)), "dcgm", "info", "dcgm-exporter",
    ),
    "no driver here": (
        replace(HEALTHY, here=replace(HERE, driver=Unread("no library"))),
        "driver-here", "info", "no library",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SICK)
def test_an_illness_is_named_with_its_severity(name: str) -> None:
    facts, check, status, words = SICK[name]
    found = [r for r in told(facts) if (r.check, r.status) == (check, status)]
    assert any(words in r.sentence for r in found), told(facts)
    if status in ("error", "warning"):
        assert all(r.cure.endswith((".", "lint -", "== 0.")) for r in found), found


def test_a_paused_scaledobject_has_no_hpa_and_that_is_well() -> None:
    paused = ours()
    paused["metadata"]["annotations"] = {"autoscaling.keda.sh/paused": "true"}
    facts = cluster(scaled_objects=(paused,), autoscalers=())
    assert [r for r in told(facts) if r.check == "hpa"] == []


def test_what_dra_gives_is_no_missing_plugin_and_no_missing_resource() -> None:
    facts = node(capacity={}, allocatable={}, dra_devices=8)
    assert {r.check for r in told(facts)} & {
        "device-plugin",
        "resource-names",
        "gpu-nodes",
    } == set()


UNREAD = Unread("403: not allowed")


@pytest.mark.parametrize(
    "field", ["nodes", "pods", "runtime_classes", "scaled_objects", "autoscalers", "quotas"]
)
def test_what_cannot_be_read_is_said_and_is_no_illness(field: str) -> None:
    assert field in {f.name for f in fields(Cluster)}
    found = told(cluster(**{field: UNREAD}))
    assert any(r.status == "unknown" and "403" in r.sentence for r in found)
    assert not any(r.status in ("error", "warning") for r in found), found


def test_an_exporter_that_cannot_be_asked_is_unknown() -> None:
    (found,) = told(cluster(exporters={"gpu-1": UNREAD}))
    assert (found.check, found.status) == ("exporters", "unknown")


def test_without_cluster_and_prometheus_it_says_what_it_did_not_see() -> None:
    blind = replace(HEALTHY, cluster=Unread("no kubeconfig"), prometheus=Unread("none named"))
    assert [(r.check, r.status) for r in told(blind)] == [
        ("cluster", "unknown"),
        ("prometheus", "unknown"),
    ]


def test_what_was_named_and_did_not_answer_is_an_illness() -> None:
    gone = replace(HEALTHY, cluster=Unreachable("no route"), prometheus=Unreachable("refused"))
    assert [(r.check, r.status) for r in told(gone)] == [
        ("cluster", "error"),
        ("prometheus", "error"),
    ]


def test_what_needs_a_person_comes_first() -> None:
    order = [
        r.status
        for r in examine(replace(node(capacity={}, allocatable={}), prometheus=Unread("x")))
    ]
    ranks = [("error", "warning", "info", "unknown", "ok").index(status) for status in order]
    assert ranks == sorted(ranks)
