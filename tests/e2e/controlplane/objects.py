"""Manifests of the tests' cluster: nodes with GPUs, model servers, quotas, KWOK's stages."""

from collections.abc import Iterator
from typing import Any

Object = dict[str, Any]

START_S = "gpuscale.test/start-s"
"""Annotation of a pod: seconds from its scheduling until it is Ready."""
GPU = "nvidia.com/gpu"


def node(name: str, gpus: int = 8, **labels: str) -> Object:
    """A node with whole GPUs."""
    capacity = {"cpu": "96", "memory": "1Ti", "pods": "110", GPU: str(gpus)}
    known = {"kubernetes.io/hostname": name, "nvidia.com/gpu.product": "NVIDIA-H200"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {**known, **labels}},
        "status": {"capacity": capacity, "allocatable": capacity},
    }


def namespace(name: str) -> Object:
    """A namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def servers(
    space: str, name: str, *, kind: str = "Deployment", replicas: int = 1, start_s: float = 0.0
) -> Object:
    """Model servers that each take a GPU and are Ready `start_s` after they were scheduled."""
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"namespace": space, "name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {
                    "labels": labels,
                    "annotations": {START_S: f"{int(start_s * 1000)}ms"},
                },
                "spec": {
                    "containers": [
                        {
                            "name": "server",
                            "image": "vllm/vllm-openai",
                            "resources": {"limits": {GPU: "1"}},
                        }
                    ],
                    "terminationGracePeriodSeconds": 1,
                },
            },
        },
    }


def quota(space: str, name: str, gpus: int) -> Object:
    """The most GPUs that a namespace may request."""
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"namespace": space, "name": name},
        "spec": {"hard": {f"requests.{GPU}": str(gpus)}},
    }


# ---------------------------------------------------------------- KWOK

_IS_READY = '.status.conditions.[] | select( .type == "Ready" ) | .status'
_NODE_STATUS = """
conditions:
{{ range NodeConditions }}
- {lastHeartbeatTime: {{ Now | Quote }}, lastTransitionTime: {{ Now | Quote }}, message: {{ .message | Quote }}, reason: {{ .reason | Quote }}, status: {{ .status | Quote }}, type: {{ .type | Quote }}}
{{ end }}
addresses:
- {address: 127.0.0.1, type: InternalIP}
allocatable:
{{ YAML .status.allocatable 1 }}
capacity:
{{ YAML .status.capacity 1 }}
phase: Running
"""
_POD_WAITS = """
conditions:
- {lastTransitionTime: {{ Now | Quote }}, status: "True", type: Initialized}
- {lastTransitionTime: {{ Now | Quote }}, status: "False", type: Ready, reason: ContainersNotReady}
- {lastTransitionTime: {{ Now | Quote }}, status: "False", type: ContainersReady, reason: ContainersNotReady}
containerStatuses:
{{ range .spec.containers }}
- {image: {{ .image | Quote }}, name: {{ .name | Quote }}, ready: false, restartCount: 0, started: false, imageID: "", state: {running: {startedAt: {{ Now | Quote }}}}}
{{ end }}
hostIP: 127.0.0.1
podIP: 127.0.0.1
phase: Running
startTime: {{ Now | Quote }}
"""
_POD_READY = """
conditions:
- {lastTransitionTime: {{ Now | Quote }}, status: "True", type: Ready}
- {lastTransitionTime: {{ Now | Quote }}, status: "True", type: ContainersReady}
containerStatuses:
{{ range .spec.containers }}
- {image: {{ .image | Quote }}, name: {{ .name | Quote }}, ready: true, restartCount: 0, started: true, imageID: "", state: {running: {startedAt: {{ Now | Quote }}}}}
{{ end }}
"""


def stages() -> Iterator[Object]:
    """How simulated kubelets behave: nodes are Ready at once, pods run, and are Ready when their model is loaded."""
    alive = _expression(".metadata.deletionTimestamp", "DoesNotExist")
    yield _stage(
        "node-ready",
        "Node",
        [_expression(_IS_READY, "NotIn", "True")],
        {"statusTemplate": _NODE_STATUS},
    )
    yield _stage(
        "pod-runs",
        "Pod",
        [alive, _expression(".status.phase", "In", "Pending")],
        {"statusTemplate": _POD_WAITS},
    )
    loaded = _stage(
        "pod-ready",
        "Pod",
        [
            alive,
            _expression(".status.phase", "In", "Running"),
            _expression(_IS_READY, "In", "False"),
        ],
        {"statusTemplate": _POD_READY},
    )
    loaded["spec"]["delay"] = {
        "durationMilliseconds": 0,
        "durationFrom": {"expressionFrom": f'.metadata.annotations["{START_S}"]'},
    }
    yield loaded
    yield _stage(
        "pod-gone",
        "Pod",
        [_expression(".metadata.deletionTimestamp", "Exists")],
        {"finalizers": {"empty": True}, "delete": True},
    )


def _expression(key: str, operator: str, *values: str) -> Object:
    found: Object = {"key": key, "operator": operator}
    return found | ({"values": list(values)} if values else {})


def _stage(name: str, kind: str, match: list[Object], then: Object) -> Object:
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": kind},
            "selector": {"matchExpressions": match},
            "next": then,
        },
    }
