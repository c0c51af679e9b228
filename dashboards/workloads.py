"""The dashboard "Workloads": what was asked for, what came, and why; and how the controller does."""

from grafana_foundation_sdk.models import dashboard
from panels import Board, Query

CLUSTER = 'cluster=~"$cluster"'
FLEET = f'{CLUSTER},namespace=~"$namespace"'
CHOSEN = f'{FLEET},workload=~"$workload"'
KEYS = "namespace, workload"
SETTINGS = "mode, server, policy, actuator"


def largest(metric: str, *, by: str = KEYS, labels: str = "", of: str = CHOSEN) -> str:
    """A gauge of the chosen workload; the maximum, since an old and a new controller may both be scraped."""
    matchers = f"{of},{labels}" if labels else of
    return f"max by ({by}) ({metric}{{{matchers}}})"


def rates(metric: str, by: str, matchers: str = CLUSTER) -> str:
    """Per second, summed."""
    return f"sum by ({by}) (rate({metric}{{{matchers}}}[$__rate_interval]))"


def board() -> dashboard.Dashboard:
    """Build it."""
    page = Board(
        uid="gpuscale-workloads",
        title="gpuscale / Workloads",
        description="Demand, forecast, replicas and the reason for them. What is unknown has no line.",
    )
    page.variable(
        "cluster", "Cluster", "label_values(gpuscale_controller_build_info, cluster)", multi=True
    )
    page.variable(
        "namespace",
        "Namespace",
        f"label_values(gpuscale_workload_info{{{CLUSTER}}}, namespace)",
        multi=True,
    )
    page.variable(
        "workload",
        "Workload",
        f'label_values(gpuscale_workload_info{{{CLUSTER},namespace=~"$namespace"}}, workload)',
        multi=False,
    )
    _overview(page)
    _replicas(page)
    _forecast(page)
    _signal(page)
    _controller(page)
    return page.done()


def _fleet(metric: str, *, by: str = KEYS, labels: str = "") -> str:
    """A gauge of every workload of the chosen namespaces."""
    return largest(metric, by=by, labels=labels, of=FLEET)


def _overview(page: Board) -> None:
    page.row("All workloads of the namespace")
    desired = _fleet("gpuscale_workload_desired_replicas")
    ready = _fleet("gpuscale_workload_replicas", labels='stage="ready"')
    known = _fleet("gpuscale_workload_info")
    acting = _fleet("gpuscale_workload_info", labels='mode="act"')
    held = _fleet("gpuscale_workload_held")
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
            ("Demand", "reqps", _fleet("gpuscale_workload_demand")),
            ("Waiting", "short", _fleet("gpuscale_workload_backlog")),
            (
                "Peak forecast",
                "reqps",
                _fleet("gpuscale_workload_forecast_demand", labels='quantile="0.9"'),
            ),
            ("Planned", "short", _fleet("gpuscale_workload_planned_replicas")),
            ("Asked", "short", desired),
            ("Ready", "short", ready),
            ("Capacity each", "reqps", _fleet("gpuscale_workload_capacity")),
            ("Lead time", "s", _fleet("gpuscale_workload_lead_time_seconds")),
            ("Signal age", "s", _fleet("gpuscale_workload_signal_age_seconds")),
        ],
        keys=["namespace", "workload"],
    )
    page.table(
        "How they are scaled",
        "Mode, server, policy and actuator of each workload.",
        [("Known", "bool_yes_no", _fleet("gpuscale_workload_info", by=f"{KEYS}, {SETTINGS}"))],
        keys=["namespace", "workload", *SETTINGS.split(", ")],
        height=6,
    )
    page.table(
        "What is held, and why",
        "Every workload that has no new number.",
        [("Held", "bool_yes_no", _fleet("gpuscale_workload_hold_info", by=f"{KEYS}, reason"))],
        keys=["namespace", "workload", "reason"],
        height=6,
    )
    page.table(
        "What guards changed",
        "Every workload whose plan a guard changed at the last tick. partial_data keeps replicas for "
        "want of data: while it lasts, nothing is scaled down.",
        [("Changed", "bool_yes_no", _fleet("gpuscale_workload_guard_info", by=f"{KEYS}, guard"))],
        keys=["namespace", "workload", "guard"],
        height=6,
    )


def _peak(quantile: str) -> str:
    return largest("gpuscale_workload_forecast_demand", labels=f'quantile="{quantile}"')


def _replicas(page: Board) -> None:
    page.row("Demand and replicas of $workload")
    page.series(
        "Demand and its forecast",
        "Arriving requests per second, and quantiles of the highest demand expected within the lead time.",
        [
            Query(expr=largest("gpuscale_workload_demand"), legend="demand"),
            Query(expr=_peak("0.95"), legend="peak 95 %"),
            Query(expr=_peak("0.5"), legend="peak 50 %"),
        ],
        unit="reqps",
        band=("peak 95 %", "peak 50 %"),
    )
    stages = largest("gpuscale_workload_replicas", by=f"{KEYS}, stage")
    page.series(
        "Replicas",
        "The raw plan, what is asked for after the guardrails, and replicas by stage.",
        [
            Query(expr=largest("gpuscale_workload_planned_replicas"), legend="planned"),
            Query(expr=largest("gpuscale_workload_desired_replicas"), legend="desired"),
            Query(expr=stages, legend="{{stage}}"),
        ],
        unit="short",
        steps=("planned", "desired", "asked", "ready"),
    )
    capacity = largest("gpuscale_workload_capacity")
    ready = largest("gpuscale_workload_replicas", labels='stage="ready"')
    page.series(
        "Load of the ready replicas",
        "Demand over what the ready replicas carry. Above 100 % requests wait.",
        [
            Query(
                expr=f"{largest('gpuscale_workload_demand')} / ({capacity} * on ({KEYS}) {ready})",
                legend="{{workload}}",
            )
        ],
        unit="percentunit",
    )
    page.series(
        "Waiting requests",
        "Requests in the servers' queues.",
        [Query(expr=largest("gpuscale_workload_backlog"), legend="{{workload}}")],
        unit="short",
    )
    events = rates("gpuscale_workload_scale_events_total", f"{KEYS}, direction", CHOSEN)
    page.series(
        "Scale events",
        "Changes of the replicas asked for, per hour.",
        [Query(expr=f"3600 * {events}", legend="{{direction}}")],
        unit="short",
    )
    page.series(
        "Lead time",
        "Seconds from asking for a replica to its first request, as learned or declared (source).",
        [
            Query(
                expr=largest("gpuscale_workload_lead_time_seconds", by=f"{KEYS}, source"),
                legend="{{source}}",
            )
        ],
        unit="s",
    )


def _forecast(page: Board) -> None:
    page.row("Forecast and policy of $workload")
    page.series(
        "Coverage of the forecast",
        "Share of outcomes at or below each quantile. A good forecast shows 0.9 near 90 %.",
        [
            Query(
                expr=largest("gpuscale_workload_forecast_coverage_ratio", by=f"{KEYS}, quantile"),
                legend="{{quantile}}",
            )
        ],
        unit="percentunit",
        bounds=(0, 1),
    )
    page.series(
        "Virtual cost of the candidate policies",
        "What each candidate would have cost on the demand just seen, relative to the best (1). The cheapest is followed.",
        [
            Query(
                expr=largest("gpuscale_workload_candidate_cost", by=f"{KEYS}, candidate"),
                legend="{{candidate}}",
            )
        ],
        unit="short",
        bounds=(None, None),
    )
    page.table(
        "Candidate in use",
        "The policy that each workload follows now.",
        [
            (
                "In use",
                "none",
                largest("gpuscale_workload_candidate_info", by=f"{KEYS}, candidate"),
            )
        ],
        keys=["namespace", "workload", "candidate"],
        height=6,
    )


def _signal(page: Board) -> None:
    page.row("Signal of $workload")
    page.series(
        "Age of the newest reading",
        "Stale after stale_after_s (45 s by default): then the last answer is held for hold_s.",
        [Query(expr=largest("gpuscale_workload_signal_age_seconds"), legend="{{workload}}")],
        unit="s",
        width=8,
    )
    page.series(
        "Pods that answer",
        "Over those that should. Below coverage_min nothing is scaled down.",
        [
            Query(
                expr=f"min by ({KEYS}) (gpuscale_workload_signal_coverage_ratio{{{CHOSEN}}})",
                legend="{{workload}}",
            )
        ],
        unit="percentunit",
        bounds=(0, 1),
        width=8,
    )
    page.timeline(
        "Held",
        "When the last answer stood for want of good data.",
        [Query(expr=largest("gpuscale_workload_held"), legend="{{workload}}")],
        states={"0": ("fresh", "green"), "1": ("held", "orange")},
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
