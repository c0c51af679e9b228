"""Every metric that gpuscale publishes: name, type, unit, labels, help. The contract with dashboards, alerts and docs.

Names follow Prometheus: base units, `_total` for counters, `_ratio` in 0–1, `_info` for constant 1.
`docs/metrics.md` is generated from this table, and tests hold dashboards, alerts and expositions
against it. A series whose value is unknown is absent: never 0, never NaN.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "info"]
Wing = Literal["exporter", "controller"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric family. `labels` are all its label names, in order."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    wing: Wing


def _exporter(name: str, kind: Kind, text: str, *labels: str) -> Family:
    return Family(name=name, kind=kind, help=text, labels=labels, wing="exporter")


def _controller(name: str, kind: Kind, text: str, *labels: str) -> Family:
    return Family(name=name, kind=kind, help=text, labels=labels, wing="controller")


_GPU = ("gpu", "uuid")
_WORKLOAD = ("namespace", "workload")

EXPORTER: tuple[Family, ...] = (
    _exporter("gpuscale_exporter_build_info", "info", "Version of the exporter.", "version"),
    _exporter(
        "gpuscale_nvml_up",
        "gauge",
        "1 while NVML answers, 0 while it does not: gpuscale_nvml_error_info says why.",
    ),
    _exporter(
        "gpuscale_nvml_error_info",
        "info",
        "Why NVML does not answer; absent while it does.",
        "reason",
    ),
    _exporter(
        "gpuscale_driver_info",
        "info",
        "Versions of the NVIDIA driver, of NVML and of the CUDA driver API.",
        "driver",
        "nvml",
        "cuda",
    ),
    _exporter("gpuscale_gpus_detected", "gauge", "Physical GPUs that NVML enumerates."),
    _exporter(
        "gpuscale_gpu_info",
        "info",
        "Identity of a GPU; join by uuid.",
        *_GPU,
        "pci_bus_id",
        "device",
        "product",
        "node",
    ),
    _exporter(
        "gpuscale_gpu_up",
        "gauge",
        "1 while the GPU answers, 0 while it is lost or a call on it hangs.",
        *_GPU,
    ),
    _exporter(
        "gpuscale_gpu_error_info",
        "info",
        "Why a GPU does not answer; absent while it does.",
        *_GPU,
        "reason",
    ),
    _exporter(
        "gpuscale_gpu_unsupported_info",
        "info",
        "A family that this GPU does not give, and which is therefore absent.",
        *_GPU,
        "metric",
    ),
    _exporter(
        "gpuscale_gpu_sample_age_seconds",
        "gauge",
        "Age of the newest fast values of the GPU when the page was rendered.",
        *_GPU,
    ),
    _exporter(
        "gpuscale_gpu_utilization_ratio",
        "gauge",
        "Share of the last period in which at least one kernel ran. It saturates at one request: not a measure of load.",
        *_GPU,
    ),
    _exporter(
        "gpuscale_gpu_busy_seconds_total",
        "counter",
        "Seconds in which at least one kernel ran; rate() of it is the exact utilization over any interval.",
        *_GPU,
    ),
    _exporter(
        "gpuscale_gpu_memory_copy_utilization_ratio",
        "gauge",
        "Share of the last period in which device memory was read or written. Activity, not occupancy.",
        *_GPU,
    ),
    _exporter(
        "gpuscale_gpu_memory_copy_busy_seconds_total",
        "counter",
        "Seconds in which device memory was read or written.",
        *_GPU,
    ),
    _exporter("gpuscale_gpu_memory_total_bytes", "gauge", "Device memory, all of it.", *_GPU),
    _exporter(
        "gpuscale_gpu_memory_used_bytes",
        "gauge",
        "Device memory allocated, without what the driver reserves.",
        *_GPU,
    ),
    _exporter(
        "gpuscale_gpu_memory_free_bytes",
        "gauge",
        "Device memory that can still be allocated.",
        *_GPU,
    ),
    _exporter(
        "gpuscale_gpu_memory_reserved_bytes",
        "gauge",
        "Device memory that the driver and firmware reserve.",
        *_GPU,
    ),
    _exporter("gpuscale_gpu_power_watts", "gauge", "Power drawn by the board.", *_GPU),
    _exporter("gpuscale_gpu_power_limit_watts", "gauge", "Power limit that is enforced.", *_GPU),
    _exporter(
        "gpuscale_gpu_energy_joules_total",
        "counter",
        "Energy used since the driver was loaded.",
        *_GPU,
    ),
    _exporter(
        "gpuscale_gpu_temperature_celsius",
        "gauge",
        "Temperature by sensor (gpu, memory).",
        *_GPU,
        "sensor",
    ),
    _exporter(
        "gpuscale_gpu_allocation_info",
        "info",
        "A container that holds a GPU or a share of it; many-to-many, join by uuid.",
        "uuid",
        "namespace",
        "pod",
        "container",
        "resource",
        "replica",
    ),
    _exporter(
        "gpuscale_attribution_up",
        "gauge",
        "1 while the kubelet's PodResources API answers; absent when attribution is off.",
    ),
    _exporter(
        "gpuscale_attribution_age_seconds",
        "gauge",
        "Age of the last answer of the kubelet when the page was rendered.",
    ),
    _exporter(
        "gpuscale_attribution_unmatched_devices",
        "gauge",
        "Device ids that the kubelet lists and no GPU of this node matches.",
    ),
    _exporter(
        "gpuscale_collector_duration_seconds",
        "gauge",
        "Time the last read of a collector took, all GPUs together.",
        "collector",
    ),
    _exporter(
        "gpuscale_collector_errors_total",
        "counter",
        "Reads of a collector that failed, by what NVML answered.",
        "collector",
        "error",
    ),
    _exporter("gpuscale_exporter_cycles_total", "counter", "Finished collection cycles."),
)

CONTROLLER: tuple[Family, ...] = (
    _controller("gpuscale_controller_build_info", "info", "Version of the controller.", "version"),
    _controller(
        "gpuscale_workload_info",
        "info",
        "How a workload is scaled.",
        *_WORKLOAD,
        "server",
        "mode",
        "policy",
        "actuator",
    ),
    _controller(
        "gpuscale_workload_demand",
        "gauge",
        "Arriving requests per second, last reading; absent while unknown.",
        *_WORKLOAD,
    ),
    _controller(
        "gpuscale_workload_backlog",
        "gauge",
        "Requests that wait in the servers' queues; absent while unknown.",
        *_WORKLOAD,
    ),
    _controller(
        "gpuscale_workload_signal_age_seconds",
        "gauge",
        "Age of the newest reading; absent until there was one.",
        *_WORKLOAD,
    ),
    _controller(
        "gpuscale_workload_signal_coverage_ratio",
        "gauge",
        "Pods that answered over pods that should have.",
        *_WORKLOAD,
    ),
    _controller(
        "gpuscale_workload_forecast_demand",
        "gauge",
        "Quantile of the highest demand over the lead time.",
        *_WORKLOAD,
        "quantile",
    ),
    _controller(
        "gpuscale_workload_lead_time_seconds",
        "gauge",
        "Lead time in use: from asking for a replica to its first request, P90.",
        *_WORKLOAD,
        "source",
    ),
    _controller(
        "gpuscale_workload_capacity",
        "gauge",
        "Requests per second that one replica carries.",
        *_WORKLOAD,
        "source",
    ),
    _controller(
        "gpuscale_workload_planned_replicas",
        "gauge",
        "Replicas of the raw plan, before the guardrails.",
        *_WORKLOAD,
    ),
    _controller(
        "gpuscale_workload_desired_replicas",
        "gauge",
        "Replicas asked for; absent while there is no answer.",
        *_WORKLOAD,
    ),
    _controller(
        "gpuscale_workload_replicas",
        "gauge",
        "Replicas by stage: asked, ready, starting, pending.",
        *_WORKLOAD,
        "stage",
    ),
    _controller(
        "gpuscale_workload_held",
        "gauge",
        "1 while the last answer is held for want of good data, else 0.",
        *_WORKLOAD,
    ),
    _controller(
        "gpuscale_workload_hold_info",
        "info",
        "Why the last answer is held or refused.",
        *_WORKLOAD,
        "reason",
    ),
    _controller(
        "gpuscale_workload_candidate_info",
        "info",
        "The candidate policy in use.",
        *_WORKLOAD,
        "candidate",
    ),
    _controller(
        "gpuscale_workload_candidate_cost",
        "gauge",
        "Discounted virtual cost of a candidate policy on the demand just seen, relative to the best.",
        *_WORKLOAD,
        "candidate",
    ),
    _controller(
        "gpuscale_workload_forecast_coverage_ratio",
        "gauge",
        "Share of past outcomes at or below the forecast quantile.",
        *_WORKLOAD,
        "quantile",
    ),
    _controller(
        "gpuscale_workload_scale_events_total",
        "counter",
        "Changes of the replicas asked for.",
        *_WORKLOAD,
        "direction",
    ),
    _controller(
        "gpuscale_controller_tick_duration_seconds",
        "gauge",
        "Time the last tick took, by step.",
        "step",
    ),
    _controller("gpuscale_controller_ticks_total", "counter", "Finished ticks."),
    _controller(
        "gpuscale_controller_last_tick_timestamp_seconds", "gauge", "When the last tick finished."
    ),
    _controller("gpuscale_controller_workloads", "gauge", "Workloads known."),
    _controller(
        "gpuscale_signal_errors_total", "counter", "Readings that failed, by source.", "source"
    ),
    _controller(
        "gpuscale_scaler_requests_total",
        "counter",
        "External scaler calls answered, by method and gRPC code.",
        "method",
        "code",
    ),
    _controller("gpuscale_scaler_streams", "gauge", "Open streams, by method.", "method"),
    _controller(
        "gpuscale_actuator_writes_total",
        "counter",
        "Writes to scale subresources, by result.",
        "result",
    ),
    _controller(
        "gpuscale_kube_cache_synced",
        "gauge",
        "1 while the list-and-watch cache of a resource is complete.",
        "resource",
    ),
    _controller(
        "gpuscale_kube_cache_age_seconds",
        "gauge",
        "Age of the last event or bookmark of a resource's cache.",
        "resource",
    ),
)

FAMILIES: dict[str, Family] = {f.name: f for f in (*EXPORTER, *CONTROLLER)}
