"""The dashboard "Workloads": what was asked for, what came, and why."""

from grafana_foundation_sdk.models import dashboard
from panels import Board, Query
from queries import CHOSEN, CLUSTER, KEYS, SETTINGS, largest, of_fleet, rates


def board() -> dashboard.Dashboard:
    """Build it."""
    page = Board(
        uid="gpuscale-workloads",
        title="gpuscale / Workloads",
        description="Demand, forecast, replicas and the reason for them. What is unknown has no line.",
    )
    page.cluster("gpuscale_controller_build_info")
    page.namespaces(f"gpuscale_workload_info{{{CLUSTER}}}")
    page.variable(
        "workload",
        "Workload",
        f'label_values(gpuscale_workload_info{{{CLUSTER},namespace=~"$namespace"}}, workload)',
        multi=False,
    )
    _replicas(page)
    _forecast(page)
    _signal(page)
    _reasons(page)
    return page.done()


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


def _reasons(page: Board) -> None:
    page.row("Reasons, all workloads of the namespace")
    page.table(
        "How they are scaled",
        "Mode, server, policy and actuator of each workload.",
        [("Known", "bool_yes_no", of_fleet("gpuscale_workload_info", by=f"{KEYS}, {SETTINGS}"))],
        keys=["namespace", "workload", *SETTINGS.split(", ")],
        height=6,
    )
    page.table(
        "What is held, and why",
        "Every workload that has no new number.",
        [("Held", "bool_yes_no", of_fleet("gpuscale_workload_hold_info", by=f"{KEYS}, reason"))],
        keys=["namespace", "workload", "reason"],
        height=6,
    )
    page.table(
        "What guards changed",
        "Every workload whose plan a guard changed at the last tick. partial_data keeps replicas for "
        "want of data: while it lasts, nothing is scaled down.",
        [("Changed", "bool_yes_no", of_fleet("gpuscale_workload_guard_info", by=f"{KEYS}, guard"))],
        keys=["namespace", "workload", "guard"],
        height=6,
    )
