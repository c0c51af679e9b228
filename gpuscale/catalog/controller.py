"""The families of the controller."""

from gpuscale.catalog.family import Family, Kind


def _controller(name: str, kind: Kind, text: str, *labels: str) -> Family:
    return Family(name=name, kind=kind, help=text, labels=labels, wing="controller")


_WORKLOAD = ("namespace", "workload")

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
        "Demand that one replica carries, requests per second (llama.cpp: tokens); source: pinned, declared or learned.",
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
        "gpuscale_workload_guard_info",
        "info",
        "A guard that changed the plan at the last tick; no series for those that let it pass.",
        *_WORKLOAD,
        "guard",
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
        "gpuscale_controller_tick_seconds",
        "gauge",
        "Seconds from tick to tick, as tick_s sets them.",
    ),
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
        "gpuscale_audit_findings",
        "gauge",
        "Owners of pods that may use GPUs which they were not given (rules GPU-A01 to GPU-A09); details at /api/v1/audit.",
        "rule",
        "severity",
        "namespace",
    ),
    _controller(
        "gpuscale_audit_last_pass_timestamp_seconds",
        "gauge",
        "When all pods were last looked at by the audit; absent before that, and without a cluster.",
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
