"""What the doctor knows before it judges: facts of a cluster, of Prometheus and of this machine.

Gathered elsewhere. What could not be read is `Unread` with the reason, never an empty list: a check
on it says that it could not look.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

Status = Literal["error", "warning", "info", "unknown", "ok"]
STATUSES: tuple[Status, ...] = ("error", "warning", "info", "unknown", "ok")
"""As results are shown: what needs a person first."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Unread:
    """What could not be read, and why: one sentence."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unreachable(Unread):
    """What was named, and did not answer: an illness of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a check came to."""

    check: str
    """Its name, the same at every visit: `device-plugin`."""
    status: Status
    """unknown: it could not look."""
    sentence: str
    cure: str = ""
    """One sentence in the imperative; empty where nothing is to be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of the cluster."""

    name: str
    ready: bool
    labels: Mapping[str, str]
    capacity: Mapping[str, int]
    """Of GPU resources only."""
    allocatable: Mapping[str, int]
    dra_devices: int = 0
    """GPUs that the DRA driver offers there."""

    @property
    def says_gpu(self) -> bool:
        """Whether a label says that it has NVIDIA GPUs."""
        return (
            self.labels.get("nvidia.com/gpu.present") == "true"
            or "cloud.google.com/gke-accelerator" in self.labels
        )

    @property
    def has_gpu(self) -> bool:
        """Whether GPUs of it can be asked for."""
        return any(self.capacity.values()) or self.dra_devices > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod that asks for GPUs, or that belongs to what is looked for."""

    namespace: str
    name: str
    phase: str
    ready: bool
    node: str
    images: tuple[str, ...]
    labels: Mapping[str, str]
    runtime_class: str
    resources: frozenset[str]
    """GPU resources that it asks for, or what looks like one."""
    pending: str
    """Why it is not scheduled; empty where it is."""
    reason: str
    """status.reason of a pod that was refused; else empty."""

    @property
    def key(self) -> str:
        """NAMESPACE/NAME."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """What one gpuscale exporter says of its node."""

    driver_up: bool
    reason: str
    """Why the driver does not answer; empty where it does."""
    gpus: int
    lost: int
    """GPUs that do not answer."""
    driver: str = ""
    """The driver's version; empty where it does not tell."""
    attribution: str
    """Why holders are not known; empty where they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A Kubernetes cluster."""

    server: str
    version: str
    """As the API server calls itself: v1.34.1."""
    nodes: tuple[Node, ...] | Unread
    pods: tuple[Pod, ...] | Unread
    runtime_classes: frozenset[str] | Unread
    scaled_objects: tuple[Mapping[str, Any], ...] | Unread | None
    """As the API server gave them; None where KEDA's types are not installed."""
    autoscalers: tuple[Mapping[str, Any], ...] | Unread
    """HorizontalPodAutoscalers, as the API server gave them."""
    workloads: tuple[Mapping[str, Any], ...] | Unread
    """Deployments and StatefulSets whose pods hold GPUs, as the API server gave them."""
    quotas: tuple[Mapping[str, Any], ...] | Unread
    exporters: Mapping[str, Exporter | Unread]
    """By node, of the exporter pods that were asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prometheus:
    """What a Prometheus answered. A count is None where the query had no result: there is no such series."""

    address: str
    gpus: float | None
    """GPUs of which gpuscale's exporters tell."""
    nodes: float | None
    """Nodes of which they tell."""
    renamed: float | None
    """Allocation series with `exported_pod`: scraped without honorLabels."""
    dcgm: float | None
    """Series of dcgm-exporter's utilization."""
    controllers: float | None
    kube_state: float | None
    """Pods of which kube-state-metrics tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """This machine and this installation."""

    version: str
    python: str
    driver: str | Unread
    """The NVIDIA driver's version; Unread where there is none."""
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that was gathered."""

    here: Here | None
    """None where this machine is of no interest: a controller looks at its cluster."""
    cluster: Cluster | Unread
    prometheus: Prometheus | Unread


def some(names: "list[str] | tuple[str, ...]", most: int = 3) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def number(count: int, word: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{count} {word}{'' if count == 1 else 's'}"
