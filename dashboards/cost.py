"""The dashboard "Cost and energy": whose the time, the joules and the money were."""

from grafana_foundation_sdk.models import dashboard
from panels import Board, Query
from queries import CLUSTER, HOLDERS

CHOSEN = f'{CLUSTER},namespace=~"$namespace"'
HELD = f"gpuscale_namespace_gpu_seconds_total{{{CHOSEN}}}"
IDLE = f'gpuscale_namespace_gpu_seconds_total{{{CHOSEN},state="idle"}}'
ACTIVE = f'gpuscale_namespace_gpu_seconds_total{{{CHOSEN},state="active"}}'
ENERGY = f"gpuscale_namespace_gpu_energy_joules_total{{{CHOSEN}}}"
NODES = f"gpuscale_node_gpu_seconds_total{{{CLUSTER}}}"
GIVEN_OUT = f'gpuscale_node_gpu_seconds_total{{{CLUSTER},state="allocated"}}'
COST = f"namespace:gpuscale_cost_per_hour:rate5m{{{CHOSEN}}}"


def board() -> dashboard.Dashboard:
    """Build it."""
    page = Board(
        uid="gpuscale-cost",
        title="gpuscale / Cost and energy",
        description="GPU time, energy and money by namespace. Money needs the recorded rules and prices (prometheusRule.gpuHourPrices).",
    )
    page.cluster("gpuscale_nvml_up")
    page.namespaces(f"gpuscale_gpu_allocation_info{{{CLUSTER}}}")
    _range(page)
    _accounts(page)
    _money(page)
    _idle(page)
    return page.done()


def _range(page: Board) -> None:
    page.row("Within the time shown")
    held = f"sum(increase({HELD}[$__range]))"
    idle = f"sum(increase({IDLE}[$__range]))"
    page.stat("GPU-hours held", "By the chosen namespaces, weighted by share.", f"{held} / 3600")
    page.stat(
        "GPU-hours idle",
        "Held, and no kernel ran.",
        f"({idle} / 3600) or 0 * {held}",
    )
    page.stat(
        "Share idle",
        "Of what was held.",
        f"({idle} / {held}) or 0 * {held}",
        unit="percentunit",
    )
    page.stat(
        "Share given out",
        "Of all GPU time of the nodes, what somebody held.",
        f"sum(increase({GIVEN_OUT}[$__range])) / sum(increase({NODES}[$__range]))",
        unit="percentunit",
    )
    page.stat(
        "Energy",
        "Of the GPUs that the chosen namespaces held, in kilowatt-hours.",
        f"sum(increase({ENERGY}[$__range])) / 3.6e6",
        unit="kwatth",
    )
    page.stat(
        "Money",
        "Recorded cost per hour times the hours shown, in the currency of the prices.",
        f"sum(avg_over_time({COST}[$__range])) * $__range_s / 3600",
    )
    page.table(
        "By namespace",
        "Within the time shown: GPU-hours by state, weighted by share, and kilowatt-hours.",
        [
            ("GPU-hours", "short", f"sum by (namespace) (increase({HELD}[$__range])) / 3600"),
            (
                "Idle",
                "short",
                f"sum by (namespace) (increase({IDLE}[$__range])) / 3600",
            ),
            ("kWh", "kwatth", f"sum by (namespace) (increase({ENERGY}[$__range])) / 3.6e6"),
        ],
        keys=["namespace"],
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
    page.series(
        "GPUs held by namespace",
        "Weighted by share, active and idle: shared GPUs and MIG instances count for their part.",
        [
            Query(
                expr=f"sum by (namespace, state) (rate({HELD}[$__rate_interval]))",
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
    busy = f"sum(rate({ACTIVE}[$__rate_interval]))"
    page.series(
        "Use of what is held",
        "Active over held: what of the GPUs given out ran kernels.",
        [
            Query(
                expr=f"{busy} / sum(rate({HELD}[$__rate_interval]))",
                legend="active over held",
            )
        ],
        unit="percentunit",
        bounds=(0, 1),
    )
    page.series(
        "GPUs held by product",
        "Weighted by share.",
        [
            Query(
                expr=f"sum by (product) (rate({HELD}[$__rate_interval]))",
                legend="{{product}}",
            )
        ],
        unit="short",
        stacked=True,
    )


def _money(page: Board) -> None:
    page.row("Money, recorded (needs prices)")
    page.series(
        "Cost per hour by namespace",
        "GPUs held times their price. Products without a price cost nothing here.",
        [
            Query(
                expr=f"sum by (namespace) ({COST})",
                legend="{{namespace}}",
            )
        ],
        unit="short",
        stacked=True,
    )
    page.series(
        "Cost per hour by what it did",
        "Active, idle, unmeasured, and all GPUs of the nodes whether held or not.",
        [
            Query(
                expr=f"sum by (state) ({COST})",
                legend="{{state}}",
            ),
            Query(
                expr=f"sum(cluster:gpuscale_cost_per_hour:sum{{{CLUSTER}}})",
                legend="all GPUs",
            ),
        ],
        unit="short",
    )


def _idle(page: Board) -> None:
    page.row("Held and idle")
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
