"""A server's metrics page read by the server's table: Prometheus text in, one pod's canonical values out.

Only lines that begin with a wanted name are looked at, since a page has two thousand lines of which
a dozen are wanted, and every pod is read every tick. What is looked at is read strictly (text
format 0.0.4, https://prometheus.io/docs/instrumenting/exposition_formats/): a line that is not a
sample is skipped, never guessed at.
"""

import math
import re
from collections.abc import Iterable, Mapping

from gpuscale.controller.demand import PodSample
from gpuscale.controller.domain import ServerMetric, ServerTable
from gpuscale.errors import SourceMalformed

SERIES_MAX = 10_000
"""Wanted series on one page: engines × models × versions × reasons stay far below."""

START_TIME = "process_start_time_seconds"
"""Written by most client libraries; tells a restarted server from one whose counter fell."""

_SAMPLE = re.compile(
    rb"([a-zA-Z_:][a-zA-Z0-9_:]*+)"
    rb"(?:\{((?:[^\"}\n]|\"(?:[^\"\\\n]|\\.)*+\")*+)\})?"
    rb"[ \t]*+([0-9+\-.eEIinfNa]++)(?:[ \t]++-?[0-9.]++)?[ \t]*+(?:#.*+)?"
)
"""NAME{LABELS} VALUE [TIMESTAMP] [# EXEMPLAR]; possessive throughout, so that no page costs more than its length."""

_LABEL = re.compile(rb"([a-zA-Z_][a-zA-Z0-9_]*+)[ \t]*+=[ \t]*+(\"(?:[^\"\\\n]|\\.)*+\")")

Page = Mapping[str, Mapping[str, float]]
"""Metric name -> series (its sorted labels as one string) -> value. NaN where the page says so."""


def parse(text: bytes, names: Iterable[str]) -> Page:
    """The wanted series of a page. Of a series that stands twice the first counts, as in Prometheus.

    Raises SourceMalformed for more than SERIES_MAX wanted series.
    """
    wanted = {name.encode(): name for name in names}
    prefixes = tuple(wanted)
    found: dict[str, dict[str, float]] = {}
    count = 0
    for line in text.split(b"\n"):
        if not line.startswith(prefixes):
            continue
        match = _SAMPLE.fullmatch(line.rstrip(b"\r"))
        if match is None or (name := wanted.get(match[1])) is None:
            continue
        value = _number(match[3])
        if value is None:
            continue
        count += 1
        if count > SERIES_MAX:
            raise SourceMalformed(f"more than {SERIES_MAX} series of the wanted metrics")
        found.setdefault(name, {}).setdefault(_series(match[2]), value)
    return found


def _number(text: bytes) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _series(labels: bytes | None) -> str:
    """Labels in order of their names: servers that keep them in a hash map write them in any order."""
    if not labels:
        return ""
    pairs = sorted(name + b"=" + value for name, value in _LABEL.findall(labels))
    return b",".join(pairs).decode("utf-8", "replace")


def wanted(table: ServerTable) -> tuple[str, ...]:
    """The metric names to `parse` a page for."""
    return (*table.names, START_TIME)


def pod_sample(table: ServerTable, page: Page, *, pod: str, at: float) -> PodSample:
    """The canonical values of one pod. Raises SourceMalformed where the page has none of the table's names."""
    if not any(name in page for name in table.names):
        raise SourceMalformed(
            f"{pod} shows none of {table.server}'s metrics (looked for {', '.join(table.names)}): "
            "set the policy's `server` to what runs there, and check metrics_port and metrics_path"
        )
    started = page.get(START_TIME, {})
    return PodSample(
        pod=pod,
        at=at,
        completed=_counters(table.completed, page),
        running=_value(table.running, page),
        waiting=_value(table.waiting, page),
        sojourn_s=_value(table.sojourn_s, page),
        kv_fraction=_value(table.kv_fraction, page),
        queue_s=_value(table.queue_s, page),
        started_at=next(iter(started.values())) if len(started) == 1 else None,
    )


def _counters(metric: ServerMetric, page: Page) -> dict[str, float] | None:
    """Every series of a counter apart, so that the reset of one is seen; None where there is none."""
    name = next((name for name in metric.names if name in page), None)
    if name is None:
        return None
    return {
        f"{each}{{{labels}}}": value * metric.factor
        for each in (name, *metric.plus)
        for labels, value in page.get(each, {}).items()
    }


def _value(metric: ServerMetric | None, page: Page) -> float | None:
    """The series of a metric as one value; None where the page has none, or one that is no number."""
    if metric is None or (series := _counters(metric, page)) is None:
        return None
    values = list(series.values())
    if not all(math.isfinite(value) for value in values):
        return None
    match metric.across:
        case "sum":
            return math.fsum(values)
        case "mean":
            return math.fsum(values) / len(values)
        case "max":
            return max(values)
