"""The dashboard "Nodes and GPUs": what the exporters see."""

from grafana_foundation_sdk.models import dashboard
from panels import Board, Query
from queries import BUSY, CLUSTER, by_gpu, of_nodes


def board() -> dashboard.Dashboard:
    """Build it."""
    page = Board(
        uid="gpuscale-gpus",
        title="gpuscale / Nodes and GPUs",
        description="GPUs as the driver reports them: what they do, what is inside, and their health. What is unknown has no line.",
    )
    page.cluster("gpuscale_nvml_up")
    page.nodes()
    _table(page)
    _devices(page)
    _hardware(page)
    _health(page)
    return page.done()


def _table(page: Board) -> None:
    page.row("GPUs")
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
