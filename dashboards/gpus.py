"""The dashboard "GPUs and nodes": what the exporters see, and who holds it."""

from grafana_foundation_sdk.models import dashboard
from panels import Board, Query

CLUSTER = 'cluster=~"$cluster"'
IDENTITY = f'max by (cluster, uuid, node, product) (gpuscale_gpu_info{{{CLUSTER},node=~"$node"}})'
"""One series per GPU of the chosen nodes, value 1: multiplying by it adds node and product."""
HOLDERS = f'gpuscale_gpu_allocation_info{{{CLUSTER},namespace=~"$namespace"}}'
BUSY = f"rate(gpuscale_gpu_busy_seconds_total{{{CLUSTER}}}[$__rate_interval])"


def of_nodes(expression: str) -> str:
    """A device series of the chosen nodes, with the labels node and product."""
    return f"{expression} * on (cluster, uuid) group_left (node, product) {IDENTITY}"


def by_gpu(metric: str, labels: str = "") -> str:
    """A gauge of each GPU of the chosen nodes."""
    matchers = f"{CLUSTER},{labels}" if labels else CLUSTER
    return f"max by (node, gpu, product, uuid) ({of_nodes(f'{metric}{{{matchers}}}')})"


def some(condition: str, all_of_it: str) -> str:
    """How many meet the condition; 0 only where there is something that could: never for no data."""
    return f"count({condition}) or 0 * count({all_of_it})"


def board() -> dashboard.Dashboard:
    """Build it."""
    page = Board(
        uid="gpuscale-gpus",
        title="gpuscale / GPUs and nodes",
        description="GPUs as the driver reports them, and the pods that hold them. What is unknown has no line.",
    )
    page.variable("cluster", "Cluster", "label_values(gpuscale_nvml_up, cluster)", multi=True)
    page.variable("node", "Node", f"label_values(gpuscale_gpu_info{{{CLUSTER}}}, node)", multi=True)
    page.variable(
        "namespace",
        "Namespace",
        f"label_values(gpuscale_gpu_allocation_info{{{CLUSTER}}}, namespace)",
        multi=True,
    )
    _fleet(page)
    _devices(page)
    _hardware(page)
    _health(page)
    _mig(page)
    _holders(page)
    _usage(page)
    _accounts(page)
    _exporter(page)
    return page.done()


def _fleet(page: Board) -> None:
    page.row("Fleet")
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
        "GPUs now",
        "One row per GPU. Utilization says that something ran, not how much: it saturates at one request.",
        [
            (
                "Utilization",
                "percentunit",
                by_gpu("gpuscale_gpu_utilization_ratio"),
            ),
            ("Memory used", "bytes", by_gpu("gpuscale_gpu_memory_used_bytes")),
            ("Memory total", "bytes", by_gpu("gpuscale_gpu_memory_total_bytes")),
            ("Power", "watt", by_gpu("gpuscale_gpu_power_watts")),
            ("Limit", "watt", by_gpu("gpuscale_gpu_power_limit_watts")),
            (
                "Temperature",
                "celsius",
                by_gpu("gpuscale_gpu_temperature_celsius", 'sensor="gpu"'),
            ),
            ("Answers", "bool_yes_no", by_gpu("gpuscale_gpu_up")),
        ],
        keys=["node", "gpu", "product", "uuid"],
    )


def _devices(page: Board) -> None:
    page.row("Devices")
    legend = "{{node}} / {{gpu}}"
    page.series(
        "Busy",
        "Share of time in which at least one kernel ran, exact at any zoom: rate of a counter.",
        [Query(expr=f"max by (node, gpu) ({of_nodes(BUSY)})", legend=legend)],
        unit="percentunit",
        bounds=(0, 1),
    )
    copying = f"rate(gpuscale_gpu_memory_copy_busy_seconds_total{{{CLUSTER}}}[$__rate_interval])"
    page.series(
        "Memory activity",
        "Share of time in which device memory was read or written. Activity, not occupancy.",
        [Query(expr=f"max by (node, gpu) ({of_nodes(copying)})", legend=legend)],
        unit="percentunit",
        bounds=(0, 1),
    )
    page.series(
        "Memory used",
        "Device memory allocated, without what the driver reserves.",
        [
            Query(
                expr=f"max by (node, gpu) ({of_nodes(f'gpuscale_gpu_memory_used_bytes{{{CLUSTER}}}')})",
                legend=legend,
            )
        ],
        unit="bytes",
    )
    page.series(
        "Power of the boards",
        "Power drawn. A board at its enforced limit runs at a lower clock.",
        [
            Query(
                expr=f"max by (node, gpu) ({of_nodes(f'gpuscale_gpu_power_watts{{{CLUSTER}}}')})",
                legend=legend,
            )
        ],
        unit="watt",
    )
    page.series(
        "Temperature",
        "By sensor. Boards throttle a few degrees above 85 °C; memory is specified to about 95 °C.",
        [
            Query(
                expr=f"max by (node, gpu, sensor) ({of_nodes(f'gpuscale_gpu_temperature_celsius{{{CLUSTER}}}')})",
                legend=legend + " {{sensor}}",
            )
        ],
        unit="celsius",
        bounds=(None, None),
    )
    energy = f"rate(gpuscale_gpu_energy_joules_total{{{CLUSTER}}}[$__rate_interval])"
    page.series(
        "Power by node",
        "Mean power from the boards' energy counters, which miss nothing between two scrapes.",
        [Query(expr=f"sum by (node) ({of_nodes(energy)})", legend="{{node}}")],
        unit="watt",
        stacked=True,
    )


def _per_gpu(metric: str, *, by: str = "", labels: str = "") -> str:
    """The highest of each GPU, and of what `by` names beside it."""
    matchers = f"{CLUSTER},{labels}" if labels else CLUSTER
    return f"max by (node, gpu{by}) ({of_nodes(f'{metric}{{{matchers}}}')})"


def _rate(metric: str, *, by: str = "", labels: str = "") -> str:
    """The same of a counter, as a rate."""
    matchers = f"{CLUSTER},{labels}" if labels else CLUSTER
    counted = f"rate({metric}{{{matchers}}}[$__rate_interval])"
    return f"max by (node, gpu{by}) ({of_nodes(counted)})"


def _hourly(metric: str, *, by: str = "", labels: str = "") -> str:
    """The same of a counter, as its increase within an hour."""
    matchers = f"{CLUSTER},{labels}" if labels else CLUSTER
    counted = f"increase({metric}{{{matchers}}}[1h])"
    return f"max by (node, gpu{by}) ({of_nodes(counted)})"


def _hardware(page: Board) -> None:
    page.row("Inside the GPUs (Hopper and later, but for clocks and links)")
    legend = "{{node}} / {{gpu}}"
    for title, text, metric in (
        (
            "SMs busy",
            "Share of the SMs that had work, mean over time. Unlike utilization it tells one request from many.",
            "gpuscale_gpu_sm_active_ratio",
        ),
        (
            "SM occupancy",
            "Warps resident on the SMs, as a share of the most there can be.",
            "gpuscale_gpu_sm_occupancy_ratio",
        ),
        (
            "Tensor pipes busy",
            "High while prompts are read, low while tokens are written one by one.",
            "gpuscale_gpu_tensor_active_ratio",
        ),
        (
            "Memory bandwidth",
            "Share of the bandwidth in use: what bounds the writing of tokens.",
            "gpuscale_gpu_dram_active_ratio",
        ),
    ):
        page.series(
            title,
            text,
            [Query(expr=_per_gpu(metric), legend=legend)],
            unit="percentunit",
            bounds=(0, 1),
        )
    page.series(
        "SM clock",
        "Falls while nothing runs, and when the board is held down.",
        [Query(expr=_per_gpu("gpuscale_gpu_clock_hertz", labels='domain="sm"'), legend=legend)],
        unit="hertz",
    )
    page.series(
        "Links",
        "Bytes per second over PCIe and NVLink, as seen from the GPU.",
        [
            Query(
                expr=_rate("gpuscale_gpu_pcie_bytes_total", by=", direction"),
                legend=legend + " PCIe {{direction}}",
            ),
            Query(
                expr=_rate("gpuscale_gpu_nvlink_bytes_total", by=", direction"),
                legend=legend + " NVLink {{direction}}",
            ),
        ],
        unit="Bps",
    )


def _health(page: Board) -> None:
    page.row("Health of the GPUs")
    legend = "{{node}} / {{gpu}}"
    page.series(
        "Clocks held down",
        "Share of time by reason; a power cap is how a board is run, heat and the brake are not. Reasons overlap.",
        [
            Query(
                expr=_rate("gpuscale_gpu_throttle_seconds_total", by=", reason") + " > 0",
                legend=legend + " {{reason}}",
            )
        ],
        unit="percentunit",
        bounds=(0, 1),
    )
    page.series(
        "Memory errors",
        "Within an hour: ECC errors, rows of memory replaced by spares, and packets that PCIe sent again.",
        [
            Query(
                expr=_hourly(
                    "gpuscale_gpu_ecc_errors_total",
                    by=", severity",
                    labels='persistence="volatile"',
                ),
                legend=legend + " {{severity}}",
            ),
            Query(
                expr=_hourly("gpuscale_gpu_remapped_rows_total", by=", cause"),
                legend=legend + " rows, {{cause}}",
            ),
            Query(expr=_hourly("gpuscale_gpu_pcie_replays_total"), legend=legend + " PCIe replays"),
        ],
        unit="short",
    )
    page.table(
        "Errors announced",
        "XIDs by code, and how long ago the last one was.",
        [
            ("In the last hour", "short", _hourly("gpuscale_gpu_xid_errors_total", by=", xid")),
            (
                "Last, ago",
                "s",
                f"time() - {_per_gpu('gpuscale_gpu_xid_last_timestamp_seconds', by=', xid')}",
            ),
        ],
        keys=["node", "gpu", "xid"],
        height=7,
    )


def _mig(page: Board) -> None:
    page.row("MIG instances")
    legend = "{{profile}} {{uuid}}"
    used = f"max by (uuid, profile) (gpuscale_mig_memory_used_bytes{{{CLUSTER}}})"
    total = f"max by (uuid, profile) (gpuscale_mig_memory_total_bytes{{{CLUSTER}}})"
    page.series(
        "Memory of instances",
        "Share of an instance's memory that is allocated.",
        [Query(expr=f"{used} / {total}", legend=legend)],
        unit="percentunit",
        bounds=(0, 1),
    )
    page.series(
        "SMs of instances",
        "Share of an instance's SMs that had work (Hopper and later; before, nobody can tell).",
        [
            Query(
                expr=f"max by (uuid, profile) (gpuscale_mig_sm_active_ratio{{{CLUSTER}}})",
                legend=legend,
            )
        ],
        unit="percentunit",
        bounds=(0, 1),
    )


def _holders(page: Board) -> None:
    page.row("Who holds them")
    busy_gpu = f"max by (cluster, uuid) ({BUSY})"
    page.series(
        "Busy GPUs by pod",
        "How busy the GPUs are that a pod holds, their mean. Pods that share a GPU show the same: the GPU's.",
        [
            Query(
                expr=f"avg by (namespace, pod) ({HOLDERS} * on (cluster, uuid) group_left () {busy_gpu})",
                legend="{{namespace}}/{{pod}}",
            )
        ],
        unit="percentunit",
        bounds=(0, 1),
    )
    page.series(
        "GPUs by namespace",
        "Physical GPUs of which a namespace holds at least a share. A shared GPU counts for each of its holders.",
        [
            Query(
                expr=f"count by (namespace) (max by (cluster, namespace, uuid) ({of_nodes(HOLDERS)}))",
                legend="{{namespace}}",
            )
        ],
        unit="short",
    )
    idle = f"max by (cluster, uuid) (rate(gpuscale_gpu_busy_seconds_total{{{CLUSTER}}}[1h])) < 0.01"
    page.table(
        "Held and idle",
        "Pods whose GPU ran a kernel in less than 1 % of the last hour.",
        [
            (
                "Busy in the last hour",
                "percentunit",
                f"avg by (namespace, pod, container, resource) ({HOLDERS} * on (cluster, uuid) group_left () ({idle}))",
            )
        ],
        keys=["namespace", "pod", "container", "resource"],
        height=7,
    )


def _usage(page: Board) -> None:
    page.row("Use by pod (needs processes.enabled)")
    of_pods = f'{{{CLUSTER},namespace=~"$namespace"}}'
    page.series(
        "GPU time by pod",
        "Share of its GPUs' time in which kernels of the pod ran: also where pods share a GPU.",
        [
            Query(
                expr=f"sum by (namespace, pod) (gpuscale_pod_gpu_utilization_ratio{of_pods})",
                legend="{{namespace}}/{{pod}}",
            )
        ],
        unit="percentunit",
    )
    page.series(
        "Device memory by pod",
        "What the pod's processes have allocated.",
        [
            Query(
                expr=f"sum by (namespace, pod) (gpuscale_pod_gpu_memory_used_bytes{of_pods})",
                legend="{{namespace}}/{{pod}}",
            )
        ],
        unit="bytes",
        stacked=True,
    )
    page.table(
        "Work that no allocation explains",
        "Lasting findings of the node audit; the evidence is at /api/v1/audit of the node's exporter.",
        [
            (
                "Findings",
                "short",
                f"sum by (node, rule, severity, namespace) (gpuscale_node_audit_findings{{{CLUSTER}}})",
            ),
        ],
        keys=["node", "rule", "severity", "namespace"],
        height=7,
    )


def _accounts(page: Board) -> None:
    page.row("Whose the time was")

    def rate(metric: str) -> str:
        return f"rate({metric}{{{CLUSTER}}}[$__rate_interval])"

    page.series(
        "GPUs by state",
        "Physical GPUs given out, free, and those of which nobody could say.",
        [
            Query(
                expr=f"sum by (state) ({rate('gpuscale_node_gpu_seconds_total')})",
                legend="{{state}}",
            )
        ],
        unit="short",
        stacked=True,
        width=8,
    )
    seconds = f'gpuscale_namespace_gpu_seconds_total{{{CLUSTER},namespace=~"$namespace"}}'
    page.series(
        "GPUs held by namespace",
        "Weighted by share, active and idle: shared GPUs and MIG instances count for their part.",
        [
            Query(
                expr=f"sum by (namespace, state) (rate({seconds}[$__rate_interval]))",
                legend="{{namespace}} {{state}}",
            )
        ],
        unit="short",
        stacked=True,
        width=8,
    )
    page.series(
        "Power by namespace",
        "What the GPUs' energy counters gained, split by the shares held. Without a name: held by nobody.",
        [
            Query(
                expr=f"sum by (namespace) ({rate('gpuscale_namespace_gpu_energy_joules_total')})",
                legend="{{namespace}}",
            )
        ],
        unit="watt",
        stacked=True,
        width=8,
    )


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
