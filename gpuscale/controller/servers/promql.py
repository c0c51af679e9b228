"""A server's table as PromQL: one expression per canonical signal of one workload, and what the answers say.

What demand.py does with samples, these do in the query: arrivals of a pod are the rate of what
ended plus the change of what waits and runs, over one window and so from the same scrapes; a pod
that restarted within the window shows a negative change of its gauges, which is cut at 0 for that
pod alone before the pods are added. Values of one pod that two scrape jobs collected count once.
Comparisons drop the series that are NaN or negative, which would spoil the sum of all pods.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpuscale.controller.demand import (
    GAUGES_LAG_S,
    LAGGING,
    Expectation,
    clean,
    filled,
    nobody,
)
from gpuscale.controller.domain import ServerMetric, ServerTable, SignalReading, SignalTarget

POD = "by (instance,pod)"
"""One pod: Prometheus sets `instance` on every target, Kubernetes' service discovery adds `pod`."""

COPIES = "without (job,endpoint,service,container,prometheus,prometheus_replica,replica,receive,metrics_path)"
"""Labels in which two collections of one series differ (two monitors, a highly available pair)."""

_FUNCTION = {"sum": "sum", "mean": "avg", "max": "max"}


def expressions(table: ServerTable, selector: str, window_s: float) -> Mapping[str, str]:
    """Signal -> expression that gives one sample without labels, or nothing where the value is missing.

    Signals: `arrivals` (requests/s), `rated` (pods that have a rate), `answered` (pods that have any
    of the table's metrics now), `at` (time of the newest sample), `served` (requests ever ended),
    `waiting`, and where the table has them `running`, `sojourn` (mean requests in the server),
    `kv_fraction`, `queue_seconds`.
    """
    over = f"[{max(1, round(window_s * 1000))}ms]"

    def per_series(metric: ServerMetric, call: str = "", *, believable: str = ">=0") -> str:
        span = over if call in {"rate", "delta"} else ""

        def vector(name: str) -> str:
            return f"{call}({name}{{{selector}}}{span}){believable}"

        return _union(map(vector, metric.names), ((name, vector(name)) for name in metric.plus))

    gauges = [metric for metric in (table.waiting, table.running) if metric is not None]
    ended = per_series(table.completed, "rate")
    changes = [
        (metric.names[0], f"({per_series(metric, 'delta', believable='>-Inf')})/{window_s:g}")
        for metric in gauges
    ]
    arrived = _union([ended], changes)
    names = [name for metric in (table.completed, *gauges) for name in metric.names]
    any_name = f'{{__name__=~"{"|".join(names)}",{selector}}}'
    out = {
        "arrivals": f"sum(clamp_min(sum {POD} ({_once(arrived)}),0))",
        "rated": f"count(sum {POD} ({ended}))",
        "answered": f"count(count {POD} ({any_name}))",
        "at": f"max({per_series(table.completed, 'timestamp')})",
        "served": f"sum({per_series(table.completed)})",
        "waiting": _gauge(table.waiting, per_series(table.waiting)),
    }
    if table.running is not None:
        out["running"] = _gauge(table.running, per_series(table.running))
    if table.sojourn_s is not None:
        out["sojourn"] = _sum(table.sojourn_s, per_series(table.sojourn_s, "rate"))
    if table.kv_fraction is not None:
        out["kv_fraction"] = _gauge(table.kv_fraction, per_series(table.kv_fraction))
    if table.queue_s is not None:
        queued = _sum(table.queue_s, per_series(table.queue_s, "rate"))
        out["queue_seconds"] = f"{queued}/sum({_once(ended)})"
    return out


def _union(first: Iterable[str], marked: Iterable[tuple[str, str]]) -> str:
    """Vectors as one. `first` are aliases, of which a series counts once; `marked` are added to them."""
    kept = [f'label_replace({vector},"metric","{name}","","")' for name, vector in marked]
    return " or ".join((*first, *kept))


def _once(vector: str) -> str:
    return f"max {COPIES} ({vector})"


def _gauge(metric: ServerMetric, vector: str) -> str:
    return f"{_FUNCTION[metric.across]}({_once(vector)}){_times(metric)}"


def _sum(metric: ServerMetric, vector: str) -> str:
    return f"sum({_once(vector)}){_times(metric)}"


def _times(metric: ServerMetric) -> str:
    return "" if metric.factor == 1.0 else f"*{metric.factor:g}"


def any_series(selector: str) -> str:
    """How many series the selector finds at all, whatever their names: tells a wrong server from no pods."""
    return f"count({{{selector}}})"


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
    target: SignalTarget, values: Mapping[str, float], watch: Watch, now: float
) -> SignalReading:
    """One workload's reading from the values of its signals, scaled to the pods that should answer."""
    answered, rated = (int(clean(values.get(name)) or 0) for name in ("answered", "rated"))
    # A pod that has just gone still has a rate: it is not silent, its demand is in the sum.
    seen = max(answered, rated)
    waiting = clean(values.get("waiting"))
    running = clean(values.get("running"))
    if running is None and (sojourn := clean(values.get("sojourn"))) is not None:
        running = max(0.0, sojourn - (waiting or 0.0))
    arrivals = clean(values.get("arrivals")) if rated else None
    reason = None
    if not answered:
        arrivals, reason = None, _nobody(target)
    elif watch.up_since is not None and now - watch.up_since < GAUGES_LAG_S and _idle(values):
        arrivals, running, waiting, reason = None, None, None, LAGGING
    elif arrivals is None:
        reason = "a rate needs two samples within the rate window, and no pod has given them yet"

    def scaled(total: float | None, known: int) -> float | None:
        return None if total is None else filled(total, known, seen, watch.expected.settled)

    return SignalReading(
        key=target.key,
        at=values.get("at", -math.inf),
        arrivals=scaled(arrivals, rated),
        running=scaled(running, seen),
        waiting=scaled(waiting, seen),
        pods_answered=answered,
        pods_expected=target.pods_expected,
        kv_fraction=clean(values.get("kv_fraction"), ceiling=1.0),
        queue_seconds=clean(values.get("queue_seconds")),
        reason=reason,
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
