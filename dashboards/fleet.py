"""The dashboard "Fleet": the GPUs, the workloads and what is wrong, at a glance."""

from grafana_foundation_sdk.models import dashboard
from panels import Board, Query
from queries import BUSY, CLUSTER, FLEET, IDENTITY, KEYS, of_fleet, of_nodes, rate_of, some


def board() -> dashboard.Dashboard:
    """Build it."""
    page = Board(
        uid="gpuscale-fleet",
        title="gpuscale / Fleet",
        description="Start here: GPUs, workloads, replicas asked for and ready, and what is wrong.",
    )
    page.cluster("gpuscale_nvml_up")
    page.nodes()
    page.namespaces(f"gpuscale_workload_info{{{CLUSTER}}}")
    _gpus(page)
    _over_time(page)
    _workloads(page)
    return page.done()


def _gpus(page: Board) -> None:
    page.row("GPUs")
    page.stat("GPUs", "Physical GPUs of the chosen nodes.", f"count({IDENTITY})")
    page.stat(
        "Held by pods",
        "GPUs that at least one container holds, whole or shared.",
        f"count(max by (cluster, uuid) ({of_nodes(f'gpuscale_gpu_allocation_info{{{CLUSTER}}}')}))",
    )
    page.stat(
        "Lost GPUs",
        "GPUs of the cluster that do not answer. Pods that hold one fail.",
        some(f"gpuscale_gpu_up{{{CLUSTER}}} == 0", f"gpuscale_gpu_up{{{CLUSTER}}}"),
        tone="bad-above-zero",
    )
    page.stat(
        "Nodes without a driver",
        "Exporters of the cluster whose NVML does not answer.",
        some(f"gpuscale_nvml_up{{{CLUSTER}}} == 0", f"gpuscale_nvml_up{{{CLUSTER}}}"),
        tone="bad-above-zero",
    )
    used = f"gpuscale_gpu_memory_used_bytes{{{CLUSTER}}}"
    total = f"gpuscale_gpu_memory_total_bytes{{{CLUSTER}}}"
    page.stat(
        "Memory in use",
        "Device memory allocated, over all chosen GPUs. Inference servers reserve most of it at start.",
        f"sum({of_nodes(used)}) / sum({of_nodes(total)})",
        unit="percentunit",
        tone="share",
    )
    page.stat(
        "Power",
        "Power drawn by the boards together.",
        f"sum({of_nodes(f'gpuscale_gpu_power_watts{{{CLUSTER}}}')})",
        unit="watt",
    )
    page.table(
        "Alerts that fire",
        "Of gpuscale's own; each has its page in docs/operations.md.",
        [
            (
                "Firing",
                "short",
                "count by (alertname, severity) "
                f'(ALERTS{{{CLUSTER},alertname=~"Gpuscale.*",alertstate="firing"}})',
            )
        ],
        keys=["severity", "alertname"],
        height=6,
    )


def _over_time(page: Board) -> None:
    page.series(
        "GPUs given out and free",
        "Physical GPUs by state; unknown is what nobody could say.",
        [
            Query(
                expr=f"sum by (state) ({rate_of('gpuscale_node_gpu_seconds_total')})",
                legend="{{state}}",
            )
        ],
        unit="short",
        stacked=True,
        width=8,
    )
    page.series(
        "Busy by node",
        "Mean over the GPUs of a node of the share of time in which at least one kernel ran.",
        [Query(expr=f"avg by (node) ({of_nodes(BUSY)})", legend="{{node}}")],
        unit="percentunit",
        bounds=(0, 1),
        width=8,
    )
    asked = f'max by ({KEYS}) (gpuscale_workload_replicas{{{FLEET},stage="asked"}})'
    ready = f'max by ({KEYS}) (gpuscale_workload_replicas{{{FLEET},stage="ready"}})'
    page.series(
        "Replicas of all workloads",
        "What gpuscale wants, what was asked of the cluster, and what is ready.",
        [
            Query(expr=f"sum({of_fleet('gpuscale_workload_desired_replicas')})", legend="desired"),
            Query(expr=f"sum({asked})", legend="asked"),
            Query(expr=f"sum({ready})", legend="ready"),
        ],
        unit="short",
        width=8,
        steps=("desired", "asked", "ready"),
    )


def _workloads(page: Board) -> None:
    page.row("Workloads")
    desired = of_fleet("gpuscale_workload_desired_replicas")
    ready = of_fleet("gpuscale_workload_replicas", labels='stage="ready"')
    known = of_fleet("gpuscale_workload_info")
    acting = of_fleet("gpuscale_workload_info", labels='mode="act"')
    held = of_fleet("gpuscale_workload_held")
    page.stat("Workloads", "Workloads of the chosen namespaces.", f"count({known})")
    page.stat(
        "In act mode",
        "Workloads whose replicas are moved. The others are computed and explained, and left alone.",
        f"count({acting}) or 0 * count({known})",
    )
    page.stat("Replicas asked for", "Sum of what the controller wants.", f"sum({desired})")
    page.stat("Replicas ready", "Sum of what runs and is ready.", f"sum({ready})")
    page.stat(
        "Held",
        "Workloads whose last answer stands for want of good data.",
        f"count({held} == 1) or 0 * count({held})",
        tone="bad-above-zero",
    )
    page.stat(
        "Without an answer",
        "Workloads for which nothing can be decided. In act mode KEDA gets an error, and the HPA holds what runs.",
        f"count({known} unless on ({KEYS}) {desired}) or 0 * count({known})",
        tone="bad-above-zero",
    )
    page.table(
        "Workloads now",
        "One row per workload. Ready below asked is normal within the lead time.",
        [
            ("Demand", "reqps", of_fleet("gpuscale_workload_demand")),
            ("Waiting", "short", of_fleet("gpuscale_workload_backlog")),
            (
                "Peak forecast",
                "reqps",
                of_fleet("gpuscale_workload_forecast_demand", labels='quantile="0.9"'),
            ),
            ("Planned", "short", of_fleet("gpuscale_workload_planned_replicas")),
            ("Asked", "short", desired),
            ("Ready", "short", ready),
            ("Capacity each", "reqps", of_fleet("gpuscale_workload_capacity")),
            ("Lead time", "s", of_fleet("gpuscale_workload_lead_time_seconds")),
            ("Signal age", "s", of_fleet("gpuscale_workload_signal_age_seconds")),
        ],
        keys=["namespace", "workload"],
    )
