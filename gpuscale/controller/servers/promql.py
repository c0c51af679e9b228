"""A server's table as PromQL: one expression per canonical signal of one workload, and what the answers say.

What demand.py does with samples, these do in the query: arrivals of a pod are the rate of what
ended plus the change of what waits and runs, over one window and so from the same scrapes; a pod
that restarted within the window shows a negative change of its gauges, which is cut at 0 for that
pod alone before the pods are added. Values of one pod that two scrape jobs collected count once.
Comparisons drop the series that are NaN or negative, which would spoil the sum of all pods.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpuscale.controller.demand import (
    GAUGES_LAG_S,
    LAGGING,
    Expectation,
    filled,
    nobody,
    offered,
)
from gpuscale.controller.domain import SignalReading, SignalTarget
from gpuscale.controller.podsample import clean
from gpuscale.controller.servertable import ServerMetric, ServerTable
from gpuscale.settings import CustomQueries

POD = "by (instance,pod)"
"""One pod: Prometheus sets `instance` on every target, Kubernetes' service discovery adds `pod`."""

COPIES: tuple[str, ...] = (
    "job",
    "endpoint",
    "service",
    "container",
    "prometheus",
    "prometheus_replica",
    "replica",
    "receive",
    "metrics_path",
)
"""Labels in which two collections of one series differ (two monitors, a highly available pair)."""

MODELS = "models"
"""The signal whose answer is labels: one series per served model, each with its name in MODEL."""
MODEL = "model"
MODELS_MAX = 64
"""Names of models of one workload that are remembered."""

_ON_POD = "on (instance,pod)"

_FUNCTION = {"sum": "sum", "mean": "avg", "max": "max"}


def expressions(table: ServerTable, selector: str, window_s: float) -> Mapping[str, str]:
    """Signal -> expression that gives one sample without labels, or nothing where the value is missing.

    Signals: `arrivals` (requests/s), `throughput` (what ends per second), `rated` (pods that have a
    rate), `answered` (pods that have any of the table's metrics now), `at` (time of the newest
    sample), `served` (requests ever ended), and where the table has them `unserved` (of `throughput`), `waiting`, `running`,
    `sojourn` and `queued` (mean requests in the server, and waiting in it, by Little's law),
    `kv_fraction`, `prompt_tokens`, `generation_tokens`, `busy`, `startup_s`. `models` gives a series
    per model.
    """
    return _Expressions(table, selector, window_s).all()


class _Expressions:
    """The expressions of one table for one selector and window."""

    def __init__(self, table: ServerTable, selector: str, window_s: float) -> None:
        self._table = table
        self._selector = selector
        self._window_s = window_s
        self._over = f"[{max(1, round(window_s * 1000))}ms]"
        labels = [label for label in COPIES if label not in table.identity]
        self._copies = f"without ({','.join((*labels, *table.copies))})"

    def all(self) -> dict[str, str]:
        table = self._table
        ended = self._series(table.completed, "rate")
        gauges = [m for m in (table.waiting, table.running) if m is not None]
        if table.unit == "tokens":
            arrivals = f"sum({self._once(ended)})"
        else:
            arrived = _union([ended], "gauge", [self._change(metric) for metric in gauges])
            arrivals = f"sum(clamp_min(sum {POD} ({self._once(arrived)}),0))"
        out = {
            "arrivals": arrivals,
            "throughput": f"sum({self._once(ended)})",
            "rated": f"count(sum {POD} ({ended}))",
            "answered": f"count(count {POD} ({self._any([table.completed, *gauges])}))",
            "at": f"max({self._series(table.completed, 'timestamp')})",
            "served": f"sum({self._series(table.completed)})",
            MODELS: self._models(),
        }
        for name, metric in table.metrics.items():
            if name == "completed":
                continue
            known = {"sojourn_s": "sojourn", "queue_s": "queued"}.get(name, name)
            if metric.kind == "counter":
                out[known] = f"sum({self._once(self._series(metric, 'rate'))}){_times(metric)}"
            else:
                function = _FUNCTION[metric.across]
                out[known] = f"{function}({self._once(self._series(metric))}){_times(metric)}"
        return out

    def _series(self, metric: ServerMetric, call: str = "", *, believable: str = ">=0") -> str:
        span = self._over if call in {"rate", "delta"} else ""
        where = "".join(f',{label}="{value}"' for label, value in metric.where)

        def vector(name: str) -> str:
            return f"{call}({name}{{{self._selector}{where}}}{span}){believable}"

        # Of a pod's aliases the newest counts alone: their labels differ, so that both would add up.
        aliases = [vector(name) for name in metric.names]
        newest = [
            f"({alias} unless {_ON_POD} ({' or '.join(aliases[:i])}))" if i else alias
            for i, alias in enumerate(aliases)
        ]
        return _union(newest, "metric", ((name, vector(name)) for name in metric.plus))

    def _change(self, gauge: ServerMetric) -> tuple[str, str]:
        """(mark, requests per second by which the gauge grew)."""
        grown = self._series(gauge, "delta", believable=">-Inf")
        mark = gauge.names[0] + "".join(value for _, value in gauge.where)
        return mark, f"({grown})/{self._window_s:g}"

    def _any(self, metrics: Sequence[ServerMetric]) -> str:
        names = dict.fromkeys(name for metric in metrics for name in metric.names)
        return f'{{__name__=~"{"|".join(names)}",{self._selector}}}'

    def _models(self) -> str:
        vector = self._any([self._table.completed])
        for label in self._table.models:
            vector = f'label_replace({vector},"{MODEL}","$1","{label}","(.+)")'
        return f"group by ({MODEL}) ({vector})"

    def _once(self, vector: str) -> str:
        return f"max {self._copies} ({vector})"


def _union(first: Iterable[str], label: str, marked: Iterable[tuple[str, str]]) -> str:
    """Vectors as one; each of `marked` gets its mark in a label, so that nothing of it is left out."""
    kept = [f'label_replace({vector},"{label}","{mark}","","")' for mark, vector in marked]
    return " or ".join((*first, *kept))


def _times(metric: ServerMetric) -> str:
    return "" if metric.factor == 1.0 else f"*{metric.factor:g}"


def questions(
    table: ServerTable | None, target: SignalTarget, window_s: float
) -> Mapping[str, str]:
    """The expressions that are asked for one workload, by signal: its server's, or the operator's own."""
    return target.queries if table is None else expressions(table, target.selector, window_s)


def own(queries: CustomQueries, *, namespace: str, name: str, selector: str) -> Mapping[str, str]:
    """The operator's queries by signal, filled in; each gives one sample at most, whatever it selects."""
    filled_in: dict[str, str] = {}
    for signal in queries.__struct_fields__:
        query = getattr(queries, signal)
        if query is None:
            continue
        for placeholder, value in (
            ("{namespace}", namespace),
            ("{name}", name),
            ("{selector}", selector),
        ):
            query = query.replace(placeholder, value)
        filled_in[signal] = f"{_ACROSS.get(signal, 'sum')}({query})"
    return filled_in


_ACROSS = {"kv_fraction": "avg", "busy": "avg", "at": "max"}
"""How several series of one of the operator's queries become one; amounts add up."""


def gpu_busy(selector: str, window_s: float) -> str:
    """Share of time in which the GPUs worked that the selected pods hold alone, by gpuscale's exporter.

    A GPU that is shared (`replica` is set) also works for others, and says nothing of these pods.
    """
    over = f"[{max(1, round(window_s * 1000))}ms]"
    return (
        f"avg(max by (uuid) (rate(gpuscale_gpu_busy_seconds_total{over})) "
        f'and on (uuid) gpuscale_gpu_allocation_info{{{selector},replica=""}})'
    )


def any_series(selector: str) -> str:
    """How many series the selector finds at all, whatever their names: tells a wrong server from no pods."""
    return f"count({{{selector}}})"


def as_one(asked: Mapping[str, str], mark: str, key: str) -> str:
    """All expressions of a workload as one, each answer marked SIGNAL/KEY in the label `mark`."""
    return " or ".join(
        f'label_replace({expression},"{mark}","{signal}/{key}","","")'
        for signal, expression in asked.items()
    )


@dataclass(slots=True)
class Values:
    """The answers to one workload's question."""

    numbers: dict[str, float] = field(default_factory=dict)
    """By signal."""
    models: set[str] = field(default_factory=set)

    def take(self, signal: str, value: float, labels: Mapping[str, str]) -> None:
        """Enter one series of the answer."""
        if signal != MODELS:
            self.numbers[signal] = value
        elif (model := labels.get(MODEL)) and len(self.models) < MODELS_MAX:
            self.models.add(model)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What is remembered of one workload from tick to tick."""

    expected: Expectation = field(default_factory=Expectation)
    up_since: float | None = None
    """When its pods were first seen after there were none; None while there are none."""

    def next(self, values: Mapping[str, float], expected: int | None, now: float) -> "Watch":
        """After one more answer: `values` by signal, as `expressions` names them."""
        since = None
        if values.get("answered", 0.0) > 0:
            since = now if self.up_since is None else self.up_since
        return Watch(expected=self.expected.next(expected, now), up_since=since)


def reading(
    table: ServerTable | None,
    target: SignalTarget,
    values: Mapping[str, float],
    watch: Watch,
    now: float,
    *,
    models: Collection[str] = (),
) -> SignalReading:
    """One workload's reading from the values of its signals, scaled to the pods that should answer.

    `table` is its server's, as for `questions`; None for the operator's own queries.
    """
    if table is None:
        return _custom(target, values, now)
    answered, rated = (int(clean(values.get(name)) or 0) for name in ("answered", "rated"))
    # A pod that has just gone still has a rate: it is not silent, its demand is in the sum.
    seen = max(answered, rated)
    queued, sojourn = clean(values.get("queued")), clean(values.get("sojourn"))
    waiting, running = clean(values.get("waiting")), clean(values.get("running"))
    waiting = queued if waiting is None else waiting
    if running is None and sojourn is not None:
        running = max(0.0, sojourn - (waiting or 0.0))
    arrivals, ended = (clean(values.get(n)) if rated else None for n in ("arrivals", "throughput"))
    unserved = clean(values.get("unserved")) or 0.0
    reason = None
    if not answered:
        arrivals, reason = None, _nobody(target)
    elif watch.up_since is not None and now - watch.up_since < GAUGES_LAG_S and _idle(values):
        arrivals, running, waiting, reason = None, None, None, LAGGING
    elif arrivals is None:
        reason = "a rate needs two samples within the rate window, and no pod has given them yet"
    in_tokens = table.unit == "tokens"
    if in_tokens and arrivals is not None:
        arrivals = clean(offered(arrivals, running, waiting))

    def scaled(total: float | None, known: int) -> float | None:
        return None if total is None else filled(total, known, seen, watch.expected.settled)

    def each(inside: float | None) -> float | None:
        """Mean seconds per request, of those that ended."""
        return inside / ended if inside is not None and ended and not in_tokens else None

    in_flight = None if running is None else running + (waiting or 0.0)
    return SignalReading(
        key=target.key,
        at=values.get("at", -math.inf),
        arrivals=scaled(arrivals, rated),
        running=scaled(running, seen),
        waiting=None if in_tokens else scaled(waiting, seen),
        in_flight=scaled(in_flight, seen),
        throughput=scaled(None if ended is None else max(0.0, ended - unserved), rated),
        latency_s=each(sojourn),
        queue_seconds=each(queued),
        prompt_tokens=scaled(clean(values.get("prompt_tokens")), rated) if rated else None,
        generation_tokens=scaled(clean(values.get("generation_tokens")), rated) if rated else None,
        pods_answered=answered,
        pods_expected=target.pods_expected,
        kv_fraction=clean(values.get("kv_fraction"), ceiling=1.0),
        busy=clean(values.get("gpu_busy", values.get("busy")), ceiling=1.0),
        startup_s=clean(values.get("startup_s")),
        models=frozenset(models),
        reason=reason,
    )


def _custom(target: SignalTarget, values: Mapping[str, float], now: float) -> SignalReading:
    """The reading of the operator's own queries: nothing is scaled, since only they know what is in it."""
    arrivals = clean(values.get("arrivals"))
    running, waiting = clean(values.get("running")), clean(values.get("waiting"))
    expected = target.pods_expected
    if "pods" in target.queries:
        answered = int(clean(values.get("pods")) or 0)
    else:
        # Nobody says who answered: an answer is taken to speak for all.
        answered = 0 if arrivals is None else 1 if expected is None else expected
        expected = answered if expected is None else expected
    at = values.get("at", -math.inf) if "at" in target.queries else now
    return SignalReading(
        key=target.key,
        at=at if arrivals is not None else -math.inf,
        arrivals=arrivals,
        running=running,
        waiting=waiting,
        in_flight=None if running is None else running + (waiting or 0.0),
        throughput=clean(values.get("throughput")),
        pods_answered=answered,
        pods_expected=expected,
        kv_fraction=clean(values.get("kv_fraction"), ceiling=1.0),
        busy=clean(values.get("busy"), ceiling=1.0),
        reason=None
        if arrivals is not None
        else f"the query custom.arrivals gave no number for {target.key}: try it in Prometheus",
    )


def _idle(values: Mapping[str, float]) -> bool:
    """Whether everything reads zero, and has since the servers' start."""
    return not any(values.get(name) for name in ("arrivals", "running", "waiting", "served"))


def _nobody(target: SignalTarget) -> str:
    if target.pods_expected == 0:
        return nobody(0)
    return (
        f"no series matches {{{target.selector}}}: check that the pods are scraped, and the "
        "policy's `selector`"
    )
