"""The controller's own metrics: one tick's status as the families of the catalog, written when scraped.

A value that is unknown has no series. Names, help and labels come from the catalog alone, and a
family that is not in it cannot be made.
"""

import functools
import math
from collections.abc import Mapping, Sequence

from gpuscale import __version__, catalog, httpd
from gpuscale.controller.domain import Decision, Hold
from gpuscale.controller.faults import without_numbers
from gpuscale.controller.status import FleetStatus, Tally

REASON_CHARS_MAX = 160
"""A reason becomes a label value: long enough to read, short enough for a time-series database."""
CANDIDATES_MAX = 4
"""Cheapest candidates with a series each, beside the one in use. A bank has dozens, which the page
and the API show whole; times a thousand workloads they would be most of what is scraped."""
ENDS_KEPT = 4_096
"""Labels beside those of the workload whose text is kept: candidates, guards, policies, reasons."""


class Writer:
    """Families of the catalog, filled by name. Raises KeyError for a name that the catalog lacks.

    Written here and not by prometheus-client: an object per sample, sorted and escaped one by one,
    takes ten times as long. A line is the same in both formats; only the heads differ.
    """

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}

    def add(self, name: str, labels: Sequence[str], value: float | None) -> None:
        """One series; nothing where the value is None or not finite."""
        if value is None or not math.isfinite(value):
            return
        text = _labels(catalog.FAMILIES[name], labels)
        self._lines.setdefault(name, []).append(f"{name}{text} {float(value)!r}\n")

    def column(self, name: str, owners: Sequence[str], values: Sequence[float], *rest: str) -> None:
        """One series per workload; `owners` are the texts of their labels, `rest` the other labels' values."""
        end = _end(name, rest)
        self._lines.setdefault(name, []).extend(
            f"{name}{{{owner}{end} {value!r}\n"
            for owner, value in zip(owners, values, strict=True)
            if math.isfinite(value)
        )

    def row(self, name: str, owner: str, value: float, *rest: str) -> None:
        """As `column`, for one workload."""
        if math.isfinite(value):
            line = f"{name}{{{owner}{_end(name, rest)} {value!r}\n"
            self._lines.setdefault(name, []).append(line)

    def text(self) -> bytes:
        """What was filled, in the catalog's order, in the text format 0.0.4."""
        return self._written({})

    def openmetrics(self) -> bytes:
        """The same in OpenMetrics 1.0.0, without its end marker: there, a counter's family has no `_total`."""
        return self._written({"counter": "_total"})

    def _written(self, cut: Mapping[str, str]) -> bytes:
        parts: list[str] = []
        for name, family in catalog.FAMILIES.items():
            if self._lines.get(name):
                shown = name.removesuffix(cut.get(family.kind, ""))
                # An info family is a gauge of constant 1: the classic text format knows no other way.
                kind = "gauge" if family.kind == "info" else family.kind
                parts.append(f"# HELP {shown} {family.help}\n# TYPE {shown} {kind}\n")
                parts.extend(self._lines[name])
        return "".join(parts).encode(errors="replace")


@functools.lru_cache(maxsize=ENDS_KEPT)
def _end(name: str, rest: tuple[str, ...]) -> str:
    """What follows the owner's labels in a line: those that are the family's own."""
    family = catalog.FAMILIES[name]
    return "".join(f",{pair}" for pair in _pairs(family, family.labels[2:], rest)) + "}"


def _labels(family: catalog.Family, values: Sequence[str]) -> str:
    return f"{{{','.join(_pairs(family, family.labels, values))}}}" if family.labels else ""


def _pairs(family: catalog.Family, names: Sequence[str], values: Sequence[str]) -> list[str]:
    if len(values) != len(names):
        raise ValueError(f"{family.name} has the labels {family.labels}, not {values}")
    return [f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True)]


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def owner_labels(namespace: str, name: str) -> str:
    """The labels that every series of a workload begins with."""
    return f'namespace="{_escaped(namespace)}",workload="{_escaped(name)}"'


def render(status: FleetStatus | None, tally: Tally) -> httpd.Exposition:
    """Everything the controller publishes after a tick; before the first, what it is and counts.

    It is written when somebody asks, in their thread, and once for both formats: a tick does not
    wait for it, and ticks that nobody scrapes cost nothing.
    """
    written = functools.cache(lambda: written_of(status, tally))
    return httpd.render(
        (), extra_text=lambda: written().text(), extra_openmetrics=lambda: written().openmetrics()
    )


def written_of(status: FleetStatus | None, tally: Tally) -> Writer:
    """The families of `render`."""
    out = Writer()
    _process(out, tally)
    if status is not None:
        out.add("gpuscale_controller_tick_seconds", (), status.observation.tick_s)
        out.add("gpuscale_controller_last_tick_timestamp_seconds", (), status.snapshot.at)
        out.add("gpuscale_controller_workloads", (), float(len(status.workloads)))
        owners = [owner_labels(w.namespace, w.name) for w in status.workloads]
        _arrays(out, status, owners)
        for i, owner in enumerate(owners):
            _workload(out, status, i, owner)
    return out


def _process(out: Writer, tally: Tally) -> None:
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
    for found, count in tally.audit_findings.items():
        out.add("gpuscale_audit_findings", found, float(count))
    out.add("gpuscale_audit_last_pass_timestamp_seconds", (), tally.audit_at)
    for resource, synced in tally.cache_synced.items():
        out.add("gpuscale_kube_cache_synced", (resource,), float(synced))
    for resource, age_s in tally.cache_age_s.items():
        out.add("gpuscale_kube_cache_age_seconds", (resource,), age_s)
    for key, (up, down) in tally.scale_events.items():
        namespace, _, name = key.partition("/")
        out.add("gpuscale_workload_scale_events_total", (namespace, name, "up"), float(up))
        out.add("gpuscale_workload_scale_events_total", (namespace, name, "down"), float(down))


def _arrays(out: Writer, status: FleetStatus, owners: Sequence[str]) -> None:
    """The families that are one array of the observation or the decision each."""
    seen, decision = status.observation, status.decision
    columns = {
        "gpuscale_workload_demand": seen.demand,
        "gpuscale_workload_backlog": seen.backlog,
        "gpuscale_workload_signal_age_seconds": seen.age_s,
        "gpuscale_workload_signal_coverage_ratio": seen.coverage,
        "gpuscale_workload_desired_replicas": decision.desired,
        "gpuscale_workload_held": decision.held.astype(float),
    }
    for name, values in columns.items():
        out.column(name, owners, values.tolist())
    stages = {"asked": seen.asked, "ready": seen.ready}
    stages |= {"starting": seen.starting, "pending": seen.pending}
    for stage, array in stages.items():
        out.column("gpuscale_workload_replicas", owners, array.tolist(), stage)
    forecast = decision.forecast
    for j, level in enumerate(forecast.levels):
        for name, matrix in (
            ("gpuscale_workload_forecast_demand", forecast.quantiles),
            ("gpuscale_workload_forecast_coverage_ratio", forecast.coverage),
        ):
            out.column(name, owners, matrix[:, j].tolist(), f"{level:g}")


def _workload(out: Writer, status: FleetStatus, i: int, owner: str) -> None:
    """The families that need the outcome of one workload."""
    workload, seen = status.workloads[i], status.observation
    policy, lead, capacity = workload.policy, status.leads[i], status.capacities[i]
    info = (policy.server, policy.mode, workload.policy_name, workload.actuator)
    out.row("gpuscale_workload_info", owner, 1.0, *info)
    out.row("gpuscale_workload_lead_time_seconds", owner, float(seen.lead_s[i]), lead.source)
    out.row("gpuscale_workload_capacity", owner, float(seen.capacity[i]), capacity.source)
    outcome = status.decision.of(i)
    match outcome:
        case Hold():
            out.row("gpuscale_workload_hold_info", owner, 1.0, label_text(outcome.reason))
        case Decision():
            out.row("gpuscale_workload_planned_replicas", owner, float(outcome.planned))
            out.row("gpuscale_workload_candidate_info", owner, 1.0, outcome.candidate)
            for verdict in outcome.verdicts:
                out.row("gpuscale_workload_guard_info", owner, 1.0, verdict.guard)
            for candidate, cost in _told(outcome):
                out.row("gpuscale_workload_candidate_cost", owner, cost, candidate)


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
    line = without_numbers(sentence)
    return line if len(line) <= REASON_CHARS_MAX else line[: REASON_CHARS_MAX - 1] + "…"
