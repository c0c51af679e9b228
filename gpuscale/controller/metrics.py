"""The controller's own metrics: one tick's status as the families of the catalog, rendered once per tick.

A value that is unknown has no series. Names, help and labels come from the catalog alone, and a
family that is not in it cannot be made.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gpuscale import __version__, catalog
from gpuscale.controller.domain import Decision, Hold
from gpuscale.controller.status import FleetStatus, Tally

REASON_CHARS_MAX = 160
"""A reason becomes a label value: long enough to read, short enough for a time-series database."""
CANDIDATES_MAX = 4
"""Cheapest candidates with a series each, beside the one in use. A bank has dozens, which the page
and the API show whole; times a thousand workloads they would be most of what is scraped."""


class Families:
    """Families of the catalog, filled by name. Raises KeyError for a name that the catalog lacks."""

    def __init__(self) -> None:
        self._made: dict[str, Metric] = {}

    def add(self, name: str, labels: Sequence[str], value: float | None) -> None:
        """One series; nothing where the value is None or not finite."""
        if value is None or not math.isfinite(value):
            return
        metric = self._made.get(name)
        family = catalog.FAMILIES[name]
        if len(labels) != len(family.labels):
            raise ValueError(f"{name} has the labels {family.labels}, not {labels}")
        if metric is None:
            metric = self._made[name] = _made(family)
        metric.add_sample(name, dict(zip(family.labels, labels, strict=True)), float(value))

    def all(self) -> tuple[Metric, ...]:
        """What was filled, in the catalog's order."""
        return tuple(self._made[name] for name in catalog.FAMILIES if name in self._made)


def _made(family: catalog.Family) -> Metric:
    if family.kind == "counter":
        return CounterMetricFamily(family.name, family.help, labels=family.labels)
    # An info family is a gauge of constant 1: the classic text format knows no other way.
    return GaugeMetricFamily(family.name, family.help, labels=family.labels)


def families(status: FleetStatus | None, tally: Tally) -> tuple[Metric, ...]:
    """Everything the controller publishes after a tick; before the first, what it is and counts."""
    out = Families()
    _process(out, tally)
    if status is not None:
        out.add("gpuscale_controller_last_tick_timestamp_seconds", (), status.snapshot.at)
        out.add("gpuscale_controller_workloads", (), float(len(status.workloads)))
        _arrays(out, status)
        for i, key in enumerate(status.observation.keys):
            _workload(out, status, i, key)
    return out.all()


def _process(out: Families, tally: Tally) -> None:
    out.add("gpuscale_controller_build_info", (__version__,), 1.0)
    out.add("gpuscale_controller_ticks_total", (), float(tally.ticks))
    for step, seconds in tally.step_s.items():
        out.add("gpuscale_controller_tick_duration_seconds", (step,), seconds)
    for source, count in tally.signal_errors.items():
        out.add("gpuscale_signal_errors_total", (source,), float(count))
    for (method, code), count in tally.scaler_requests.items():
        out.add("gpuscale_scaler_requests_total", (method, code), float(count))
    for method, count in tally.scaler_streams.items():
        out.add("gpuscale_scaler_streams", (method,), float(count))
    for result, count in tally.actuator_writes.items():
        out.add("gpuscale_actuator_writes_total", (result,), float(count))
    for resource, synced in tally.cache_synced.items():
        out.add("gpuscale_kube_cache_synced", (resource,), float(synced))
    for resource, age_s in tally.cache_age_s.items():
        out.add("gpuscale_kube_cache_age_seconds", (resource,), age_s)
    for key, (up, down) in tally.scale_events.items():
        namespace, _, name = key.partition("/")
        out.add("gpuscale_workload_scale_events_total", (namespace, name, "up"), float(up))
        out.add("gpuscale_workload_scale_events_total", (namespace, name, "down"), float(down))


def _arrays(out: Families, status: FleetStatus) -> None:
    """The families that are one array of the observation or the decision each."""
    seen, decision = status.observation, status.decision
    labels = [(w.namespace, w.name) for w in status.workloads]
    columns: Mapping[str, Iterable[float]] = {
        "gpuscale_workload_demand": seen.demand.tolist(),
        "gpuscale_workload_backlog": seen.backlog.tolist(),
        "gpuscale_workload_signal_age_seconds": seen.age_s.tolist(),
        "gpuscale_workload_signal_coverage_ratio": seen.coverage.tolist(),
        "gpuscale_workload_desired_replicas": decision.desired.tolist(),
        "gpuscale_workload_held": decision.held.astype(float).tolist(),
    }
    for name, values in columns.items():
        for owner, value in zip(labels, values, strict=True):
            out.add(name, owner, value)
    stages = {"asked": seen.asked, "ready": seen.ready}
    stages |= {"starting": seen.starting, "pending": seen.pending}
    for stage, array in stages.items():
        for owner, value in zip(labels, array.tolist(), strict=True):
            out.add("gpuscale_workload_replicas", (*owner, stage), value)
    forecast = decision.forecast
    for j, level in enumerate(forecast.levels):
        quantiles, covered = forecast.quantiles[:, j].tolist(), forecast.coverage[:, j].tolist()
        for owner, value, share in zip(labels, quantiles, covered, strict=True):
            out.add("gpuscale_workload_forecast_demand", (*owner, f"{level:g}"), value)
            out.add("gpuscale_workload_forecast_coverage_ratio", (*owner, f"{level:g}"), share)


def _workload(out: Families, status: FleetStatus, i: int, key: str) -> None:
    """The families that need the outcome of one workload."""
    workload, seen = status.workloads[i], status.observation
    owner = (workload.namespace, workload.name)
    policy = workload.policy
    out.add(
        "gpuscale_workload_info",
        (*owner, policy.server, policy.mode, workload.policy_name, workload.actuator),
        1.0,
    )
    out.add(
        "gpuscale_workload_lead_time_seconds",
        (*owner, status.leads[i].source),
        float(seen.lead_s[i]),
    )
    out.add(
        "gpuscale_workload_capacity", (*owner, status.capacities[i].source), float(seen.capacity[i])
    )
    outcome = status.decision.of(i)
    match outcome:
        case Hold():
            out.add("gpuscale_workload_hold_info", (*owner, label_text(outcome.reason)), 1.0)
        case Decision():
            out.add("gpuscale_workload_planned_replicas", owner, float(outcome.planned))
            out.add("gpuscale_workload_candidate_info", (*owner, outcome.candidate), 1.0)
            for candidate, cost in _told(outcome):
                out.add("gpuscale_workload_candidate_cost", (*owner, candidate), cost)


def _told(decision: Decision) -> list[tuple[str, float]]:
    """(candidate, cost) of the candidate in use and of the cheapest others."""
    costs = sorted(decision.candidate_costs.items(), key=lambda item: item[1])
    used = [item for item in costs if item[0] == decision.candidate]
    others = [item for item in costs if item[0] != decision.candidate]
    return used + others[:CANDIDATES_MAX]


def label_text(sentence: str) -> str:
    """A sentence as a label value whose numbers do not change at every tick, cut at REASON_CHARS_MAX.

    A reason that says "for 45 s" and then "for 60 s" would make a new series at each tick.
    """
    words = ["N" if word[:1].isdigit() else word for word in sentence.split()]
    line = " ".join(words)
    return line if len(line) <= REASON_CHARS_MAX else line[: REASON_CHARS_MAX - 1] + "…"
