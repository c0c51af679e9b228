"""The families of the exporter that say whose the GPUs are: holders, pods' use, accounts, the node audit."""

from gpuscale.catalog.family import Family, Kind


def _usage(name: str, kind: Kind, text: str, *labels: str) -> Family:
    return Family(name=name, kind=kind, help=text, labels=labels, wing="exporter")


_POD = ("uuid", "namespace", "pod", "container")

USAGE: tuple[Family, ...] = (
    _usage(
        "gpuscale_gpu_allocation_info",
        "info",
        "A container that holds a GPU or a share of it; many-to-many, join by uuid. The holder of a MIG instance stands twice: under the instance's uuid and under its GPU's.",
        *_POD,
        "resource",
        "replica",
    ),
    _usage(
        "gpuscale_gpu_claim_info",
        "info",
        "The ResourceClaim (DRA) by which a container holds a GPU or MIG instance, as NAMESPACE/NAME.",
        *_POD,
        "claim",
    ),
    _usage(
        "gpuscale_attribution_up",
        "gauge",
        "1 while the kubelet's PodResources API answers; absent when attribution is off.",
    ),
    _usage(
        "gpuscale_attribution_error_info",
        "info",
        "Why the kubelet gives no list: not_asked_yet, no_socket, unreachable, timeout, rate_limited, unimplemented, refused or malformed; absent while it does.",
        "reason",
    ),
    _usage(
        "gpuscale_attribution_age_seconds",
        "gauge",
        "Age of the last answer of the kubelet when the page was rendered.",
    ),
    _usage(
        "gpuscale_attribution_unmatched_devices",
        "gauge",
        "Devices that the kubelet lists and no GPU or MIG instance of this node matches.",
    ),
    _usage(
        "gpuscale_attribution_dropped_devices",
        "gauge",
        "Devices that the kubelet still lists for pods that have ended.",
    ),
    _usage(
        "gpuscale_attribution_pods_known",
        "gauge",
        "1 while the UIDs of this node's pods can be read from the kubelet's log directories.",
    ),
    _usage(
        "gpuscale_process_mapping_up",
        "gauge",
        "1 while processes on GPUs are mapped to pods; 0 where that is off or impossible: gpuscale_process_mapping_error_info says which.",
    ),
    _usage(
        "gpuscale_process_mapping_error_info",
        "info",
        "Why processes are not mapped: off (the setting processes.enabled), or impossible (no hostPID).",
        "reason",
    ),
    _usage(
        "gpuscale_pod_gpu_utilization_ratio",
        "gauge",
        "Share of the GPU's time in which kernels of the pod ran; absent without process mapping and on MIG. The pods of a GPU never exceed it together.",
        *_POD,
    ),
    _usage(
        "gpuscale_pod_gpu_memory_used_bytes",
        "gauge",
        "Device memory of the pod's processes; absent without process mapping.",
        *_POD,
    ),
    _usage(
        "gpuscale_node_gpu_seconds_total",
        "counter",
        "Seconds of the node's physical GPUs: allocated, unallocated, or unknown (the kubelet or the driver did not answer, or the exporter was away). Their sum is wall time times GPUs.",
        "state",
    ),
    _usage(
        "gpuscale_namespace_gpu_seconds_total",
        "counter",
        "GPU seconds held by a namespace, weighted by share (replicas, MIG slices): active, idle, or unmeasured, which together are what was allocated.",
        "namespace",
        "resource",
        "product",
        "state",
    ),
    _usage(
        "gpuscale_namespace_gpu_energy_joules_total",
        "counter",
        "Energy of the node's GPUs by the namespace that held them, by share; the empty namespace is what nobody held or nobody knows.",
        "namespace",
    ),
    _usage(
        "gpuscale_audit_up",
        "gauge",
        "1 while the node audit can judge; it needs process mapping.",
    ),
    _usage(
        "gpuscale_node_audit_findings",
        "gauge",
        "Lasting findings of the node audit (GPU-N01 to GPU-N03); details at /api/v1/audit.",
        "rule",
        "severity",
        "namespace",
    ),
    _usage(
        "gpuscale_unaccounted_gpu_processes",
        "gauge",
        "Processes on a GPU that no allocation explains, by what owns them.",
        "uuid",
        "owner_kind",
    ),
)
