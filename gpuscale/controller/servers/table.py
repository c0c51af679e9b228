"""A server's metrics page read by the server's table: Prometheus text in, one pod's canonical values out.

Only lines that begin with a wanted name are looked at, since a page has two thousand lines of which
a dozen are wanted, and every pod is read every tick. What is looked at is read strictly (text
format 0.0.4, https://prometheus.io/docs/instrumenting/exposition_formats/): a line that is not a
sample is skipped, never guessed at.
"""

import io
import math
import re
from collections.abc import Iterable, Mapping

from gpuscale.controller.podsample import PodSample
from gpuscale.controller.servertable import ServerMetric, ServerTable
from gpuscale.errors import SourceMalformed

SERIES_MAX = 10_000
"""Wanted series on one page: engines × models × versions × reasons stay far below."""

LINES_MAX = 500_000
"""On one page: a page of line ends alone is small, and reading it takes long."""

LINE_BYTES_MAX = 64 * 1024
"""Of one sample; a longer line is none. Matching keeps the interpreter for itself meanwhile."""

LOOKED_AT_MAX = 5 * SERIES_MAX
"""Lines that begin like a wanted metric, samples or not."""

START_TIME = "process_start_time_seconds"
"""Written by most client libraries; tells a restarted server from one whose counter fell."""

_SAMPLE = re.compile(
    rb"([a-zA-Z_:][a-zA-Z0-9_:]*+)"
    rb"(?:\{((?:[^\"}\n]|\"(?:[^\"\\\n]|\\.)*+\")*+)\})?"
    rb"[ \t]*+([0-9+\-.eEIinfNa]++)(?:[ \t]++-?[0-9.]++)?[ \t]*+(?:#.*+)?"
)
"""NAME{LABELS} VALUE [TIMESTAMP] [# EXEMPLAR]; possessive throughout, so that no page costs more than its length."""

_LABEL = re.compile(rb"([a-zA-Z_][a-zA-Z0-9_]*+)[ \t]*+=[ \t]*+(\"(?:[^\"\\\n]|\\.)*+\")")

_PAIR = re.compile(_LABEL.pattern.decode())

MODELS_MAX = 64
"""Names of models of one pod that are remembered."""

Page = Mapping[str, Mapping[str, float]]
"""Metric name -> series (its sorted labels as one string) -> value. NaN where the page says so."""


def parse(text: bytes, names: Iterable[str]) -> Page:
    """The wanted series of a page. Of a series that stands twice the first counts, as in Prometheus.

    Raises SourceMalformed for more than LINES_MAX lines, LOOKED_AT_MAX that begin like wanted ones
    or SERIES_MAX wanted series.
    """
    wanted = {name.encode(): name for name in names}
    prefixes = tuple(wanted)
    found: dict[str, dict[str, float]] = {}
    count = looked_at = 0
    # Line by line, not split: a list of millions would be ten times the page.
    for number, line in enumerate(io.BytesIO(text)):
        if number >= LINES_MAX:
            raise SourceMalformed(f"more than {LINES_MAX} lines")
        if not line.startswith(prefixes):
            continue
        looked_at += 1
        if looked_at > LOOKED_AT_MAX:
            raise SourceMalformed(f"more than {LOOKED_AT_MAX} lines of the wanted metrics")
        if len(line) > LINE_BYTES_MAX:
            continue
        match = _SAMPLE.fullmatch(line.rstrip(b"\r\n"))
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
    """The canonical values of one pod. Raises SourceMalformed where the page has none of the table's series."""
    found = {name: _series_of(metric, page, table) for name, metric in table.metrics.items()}
    if all(series is None for series in found.values()):
        raise SourceMalformed(
            f"{pod} shows none of {table.server}'s metrics (looked for {table.sought}): "
            "set the policy's `server` to what runs there, and check metrics_port and metrics_path"
        )
    started = page.get(START_TIME, {})
    values = {name: _value(table.metrics[name], series) for name, series in found.items()}
    return PodSample(
        pod=pod,
        at=at,
        completed=found["completed"],
        in_tokens=table.unit == "tokens",
        started_at=next(iter(started.values())) if len(started) == 1 else None,
        models=_models(table, page),
        **{name: values.get(name) for name in _ONE_VALUE},
    )


_ONE_VALUE = (
    "unserved",
    "running",
    "waiting",
    "sojourn_s",
    "queue_s",
    "kv_fraction",
    "prompt_tokens",
    "generation_tokens",
    "busy",
    "startup_s",
)


def _series_of(metric: ServerMetric, page: Page, table: ServerTable) -> dict[str, float] | None:
    """Every series of a metric apart, so that the reset of one is seen; None where there is none.

    Of series that differ only in the table's `copies` the largest counts, as one.
    """
    found: dict[str, float] = {}
    plain = not (metric.where or table.copies)
    for name in (_first(metric, page), *metric.plus):
        for labels, value in page.get(name or "", {}).items():
            series = f"{name}{{{labels}}}"
            if not plain:
                pairs = _pairs(labels)
                if any(pairs.get(label) != wanted for label, wanted in metric.where):
                    continue
                kept = (f"{k}={v}" for k, v in pairs.items() if k not in table.copies)
                series = f"{name}{{{','.join(kept)}}}"
            # A NaN beside a number is a rank that does not say; alone it stays NaN.
            before, now = found.get(series, math.nan), value * metric.factor
            found[series] = now if math.isnan(before) else max(before, now)
    return found or None


def _first(metric: ServerMetric, page: Page) -> str | None:
    return next((name for name in metric.names if name in page), None)


def _pairs(labels: str) -> dict[str, str]:
    """Labels of a series' key, with their values unquoted (escapes stay: they are only compared)."""
    return {m[1]: m[2][1:-1] for m in _PAIR.finditer(labels)}


def _models(table: ServerTable, page: Page) -> frozenset[str]:
    """The models that the completed requests are counted by."""
    series = page.get(_first(table.completed, page) or "", {})
    models = {
        pairs[label] for pairs in map(_pairs, series) for label in table.models if pairs.get(label)
    }
    return frozenset(sorted(models)[:MODELS_MAX])


def _value(metric: ServerMetric, series: Mapping[str, float] | None) -> float | None:
    """The series of a metric as one value; None where the page has none, or one that is no number."""
    if series is None or not all(math.isfinite(value) for value in series.values()):
        return None
    values = list(series.values())
    match metric.across:
        case "sum":
            return math.fsum(values)
        case "mean":
            return math.fsum(values) / len(values)
        case "max":
            return max(values)
