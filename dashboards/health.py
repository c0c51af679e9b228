"""The dashboard "Exporter and controller": how gpuscale itself does."""

from grafana_foundation_sdk.models import dashboard
from panels import Board, Query
from queries import CLUSTER, rates


def board() -> dashboard.Dashboard:
    """Build it."""
    page = Board(
        uid="gpuscale-health",
        title="gpuscale / Exporter and controller",
        description="Whether what measures and what decides is well: reads, ages, ticks, answers, errors.",
    )
    page.cluster("gpuscale_nvml_up")
    _exporter(page)
    _controller(page)
    return page.done()


def _exporter(page: Board) -> None:
    page.row("Exporter")
    page.timeline(
        "Driver by exporter",
        "Whether NVML answers.",
        [Query(expr=f"min by (instance) (gpuscale_nvml_up{{{CLUSTER}}})", legend="{{instance}}")],
        states={"0": ("down", "red"), "1": ("up", "green")},
    )
    page.series(
        "Age of the newest values",
        "Per exporter, of its oldest GPU. Values past stale_after_s (30 s) are no longer published.",
        [
            Query(
                expr=f"max by (instance) (gpuscale_gpu_sample_age_seconds{{{CLUSTER}}})",
                legend="{{instance}}",
            )
        ],
        unit="s",
    )
    page.series(
        "Slowest reads",
        "Time of the last read by collector, the slowest node's: what the driver takes.",
        [
            Query(
                expr=f"max by (collector) (gpuscale_collector_duration_seconds{{{CLUSTER}}})",
                legend="{{collector}}",
            )
        ],
        unit="s",
        width=8,
    )
    errors = f"rate(gpuscale_collector_errors_total{{{CLUSTER}}}[$__rate_interval])"
    page.series(
        "Failed reads",
        "Reads per second that the driver answered with an error.",
        [
            Query(
                expr=f"sum by (collector, error) ({errors})",
                legend="{{collector}} {{error}}",
            )
        ],
        unit="ops",
        width=8,
    )
    page.series(
        "Age of the kubelet's answer",
        "Per exporter. Past its bound, the holders of the node's GPUs are no longer published.",
        [
            Query(
                expr=f"max by (instance) (gpuscale_attribution_age_seconds{{{CLUSTER}}})",
                legend="{{instance}}",
            )
        ],
        unit="s",
        width=8,
    )


def _controller(page: Board) -> None:
    page.row("Controller")
    page.series(
        "Time of a tick",
        "By step, stacked. Near tick_s (15 s) decisions come late.",
        [
            Query(
                expr=f"max by (step) (gpuscale_controller_tick_duration_seconds{{{CLUSTER}}})",
                legend="{{step}}",
            )
        ],
        unit="s",
        stacked=True,
        width=8,
    )
    page.series(
        "External scaler",
        "KEDA's calls per second by method and gRPC code.",
        [
            Query(
                expr=rates("gpuscale_scaler_requests_total", "method, code"),
                legend="{{method}} {{code}}",
            )
        ],
        unit="reqps",
        width=8,
    )
    page.series(
        "Failures",
        "Failed readings by source, and writes to scale subresources by result, per second.",
        [
            Query(expr=rates("gpuscale_signal_errors_total", "source"), legend="read {{source}}"),
            Query(
                expr=rates("gpuscale_actuator_writes_total", "result"), legend="write {{result}}"
            ),
        ],
        unit="ops",
        width=8,
    )
    page.series(
        "Time since the last decision",
        "Between 0 and tick_s when all is well.",
        [
            Query(
                expr=f"time() - max(gpuscale_controller_last_tick_timestamp_seconds{{{CLUSTER}}})",
                legend="controller",
            )
        ],
        unit="s",
        width=8,
    )
    page.series(
        "Open streams",
        "StreamIsActive and the like: about one per ScaledObject of type external-push.",
        [
            Query(
                expr=f"sum by (method) (gpuscale_scaler_streams{{{CLUSTER}}})", legend="{{method}}"
            )
        ],
        unit="short",
        width=8,
    )
    page.series(
        "Age of the cluster view",
        "Since the last event or bookmark of each list-and-watch cache.",
        [
            Query(
                expr=f"max by (resource) (gpuscale_kube_cache_age_seconds{{{CLUSTER}}})",
                legend="{{resource}}",
            )
        ],
        unit="s",
        width=8,
    )
    page.series(
        "Time since the last audit",
        "Since all pods were last looked at for GPUs that nobody gave them.",
        [
            Query(
                expr=f"time() - max(gpuscale_audit_last_pass_timestamp_seconds{{{CLUSTER}}})",
                legend="controller",
            )
        ],
        unit="s",
        width=8,
    )
