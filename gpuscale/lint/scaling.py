"""Rules on autoscalers: KEDA's ScaledObjects and HorizontalPodAutoscalers.

The four faults of the recipe that everybody starts from (avg(DCGM_FI_DEV_GPU_UTIL), threshold 70) are
GPU-L20 to GPU-L23.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from gpuscale.lint import promql
from gpuscale.lint.finding import Finding, Path
from gpuscale.lint.podspec import listed, mapping, quantity, text
from gpuscale.lint.subject import Subject, Target, Together, is_autoscaler, quoted, target_of

POD_LABELS = frozenset(
    [
        "pod",
        "namespace",
        "container",
        "exported_pod",
        "exported_namespace",
        "exported_container",
        "uuid",
        "UUID",
        "model_name",
    ]
)
"""Labels that name a workload, or its GPUs."""
EXPORTED = ("DCGM_FI_", "gpuscale_gpu_", "gpuscale_mig_", "nvidia_smi_", "nvidia_gpu_")
"""Prefixes of what an exporter says of every GPU of a node."""
SERVED = (
    "vllm:", "sglang:", "tgi_", "nv_inference_", "nv_trt_llm_", "nv_gpu_", "trtllm_", "llamacpp:", "ts_",
    "gpuscale_pod_",
)  # fmt: skip
"""Prefixes of what an inference server's own pods say."""
UTILIZATION = frozenset(
    [
        "DCGM_FI_DEV_GPU_UTIL",
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "gpuscale_gpu_utilization_ratio",
        "gpuscale_gpu_busy_seconds_total",
        "gpuscale_pod_gpu_utilization_ratio",
        "nvidia_smi_utilization_gpu_ratio",
        "nv_gpu_utilization",
    ]
)
_BOUNDED: tuple[tuple[re.Pattern[str], float], ...] = (
    (re.compile(r"DCGM_FI_DEV_\w*UTIL"), 100.0),
    (re.compile(r"DCGM_FI_PROF_\w+_(ACTIVE|OCCUPANCY)"), 1.0),
    (re.compile(r"gpuscale_(gpu|mig|pod)_\w+_ratio"), 1.0),
    (re.compile(r"nvidia_smi_utilization_\w+_ratio|nv_gpu_utilization"), 1.0),
    (re.compile(r"vllm:(gpu|cpu|kv)_cache_usage_perc|sglang:token_usage"), 1.0),
)
"""Gauges that never exceed a value."""
_KEEPS_BOUND = frozenset(
    [
        "avg",
        "max",
        "min",
        "quantile",
        "topk",
        "bottomk",
        "avg_over_time",
        "max_over_time",
        "min_over_time",
        "quantile_over_time",
        "last_over_time",
        "scalar",
        "clamp_max",
        "clamp",
    ]
)
"""What makes no more of a bounded value than it is."""
DEFAULT_MAX_REPLICAS = 100
TOLERANCE_FROM = 10
"""The HPA's tolerance of 10 % swallows a step of one from here on."""


class Triggers(Protocol):
    """What gpuscale's controller makes of a trigger."""

    def names_gpuscale(self, trigger: Mapping[str, Any]) -> bool:
        """Whether a trigger is gpuscale's."""
        ...

    def fault(self, metadata: Mapping[str, object]) -> str | None:
        """Why its metadata is refused, one sentence; None where it is not."""
        ...


def findings(subject: Subject, together: Together, triggers: Triggers) -> Iterator[Finding]:
    """What is wrong with an autoscaler; nothing for any other object."""
    if not is_autoscaler(subject):
        return
    target = target_of(subject)
    if target is not None:
        others = [
            s for s in together.scalers.get(target, ()) if s != f"{subject.kind} {subject.name}"
        ]
        if others:
            yield subject.found(
                "GPU-L30",
                ("spec", "scaleTargetRef"),
                f"{target[1]} {quoted(target[2])} is also scaled by {quoted(others[0])}",
            )
    if subject.kind == "ScaledObject":
        yield from _scaled_object(subject, triggers)
        listed_triggers = list(listed(subject.spec.get("triggers")))
        resources = [
            (("spec", "triggers", i), text(t.get("type")))
            for i, t in listed_triggers
            if t.get("type") in ("cpu", "memory")
        ]
    else:
        resources = _hpa_resources(subject)
        yield from _named_metrics(subject)
    yield from _by_cpu(subject, target, together, resources)


def _named_metrics(subject: Subject) -> Iterator[Finding]:
    """GPU-L21 and L24 on metrics that an HPA takes from an adapter: it knows them by name alone."""
    for i, metric in listed(subject.spec.get("metrics")):
        kind = text(metric.get("type"))
        source = mapping(metric.get(kind.lower()))
        name = text(mapping(source.get("metric")).get("name"))
        path: Path = ("spec", "metrics", i)
        if name in UTILIZATION:
            yield subject.found("GPU-L24", path, f"the metric is {quoted(name)}")
        target = mapping(source.get("target"))
        if kind in ("External", "Object") and target.get("type") == "AverageValue":
            yield from _too_few(
                subject,
                (*path, kind.lower(), "target", "averageValue"),
                _bound(promql.read(name)),
                target.get("averageValue"),
                subject.spec.get("maxReplicas"),
            )


def _by_cpu(
    subject: Subject,
    target: Target | None,
    together: Together,
    resources: list[tuple[tuple[str, str, int], str]],
) -> Iterator[Finding]:
    if target is None or target not in together.gpu:
        return
    for path, resource in resources:
        yield subject.found(
            "GPU-L31",
            path,
            f"{target[1]} {quoted(target[2])} holds GPUs and is scaled by its {resource}",
        )


def _hpa_resources(subject: Subject) -> list[tuple[tuple[str, str, int], str]]:
    found = []
    for i, metric in listed(subject.spec.get("metrics")):
        source = mapping(metric.get("resource") or metric.get("containerResource"))
        if source.get("name") in ("cpu", "memory"):
            found.append((("spec", "metrics", i), text(source.get("name"))))
    if not found and subject.spec.get("targetCPUUtilizationPercentage") is not None:
        found.append((("spec", "targetCPUUtilizationPercentage", 0), "cpu"))
    return found


# ---------------------------------------------------------------- ScaledObjects


def _scaled_object(subject: Subject, triggers: Triggers) -> Iterator[Finding]:
    entries = list(listed(subject.spec.get("triggers")))
    composed = bool(
        mapping(mapping(subject.spec.get("advanced")).get("scalingModifiers")).get("formula")
    )
    queries = []
    for i, trigger in entries:
        path: Path = ("spec", "triggers", i)
        metadata = mapping(trigger.get("metadata"))
        if triggers.names_gpuscale(trigger):
            yield from _ours(subject, path, trigger, triggers)
        elif trigger.get("type") == "prometheus" and isinstance(metadata.get("query"), str):
            query = promql.read(metadata["query"])
            queries.append(query)
            yield from _prometheus(subject, path, trigger, query, composed=composed)
    if len(queries) == len(entries):
        yield from _from_zero(subject, queries)
    yield from _fallback(subject)


def _prometheus(
    subject: Subject, path: Path, trigger: Mapping[str, Any], query: promql.Query, *, composed: bool
) -> Iterator[Finding]:
    metadata = mapping(trigger.get("metadata"))
    where: Path = (*path, "metadata", "query")
    exported = [s for s in query.selectors if s.metric.startswith(EXPORTED)]
    concerns_gpus = bool(exported) or any(s.metric.startswith(SERVED) for s in query.selectors)
    if not concerns_gpus:
        return
    if exported and not _names_pods(query):
        yield subject.found(
            "GPU-L20",
            where,
            f"the query reads {quoted(exported[0].metric)} of every GPU that is scraped",
        )
    dcgm = [s for s in exported if s.metric.startswith("DCGM_FI_")]
    ambiguous = [
        n for s in dcgm for n in sorted(s.labels) if n in ("pod", "namespace", "container")
    ]
    ambiguous += sorted(query.grouped & {"pod", "namespace", "container"}) if dcgm else []
    if ambiguous:
        yield subject.found(
            "GPU-L23",
            where,
            f"the query reads the label {ambiguous[0]} of {quoted(dcgm[0].metric)}",
        )
    loads = [s.metric for s in query.selectors if s.metric in UTILIZATION]
    if loads:
        yield subject.found("GPU-L24", where, f"the query reads {quoted(loads[0])}")
    if not composed:
        yield from _bounded(subject, path, trigger, query)
    if str(metadata.get("ignoreNullValues", "true")).lower() != "false":
        yield subject.found(
            "GPU-L22",
            (*path, "metadata"),
            "ignoreNullValues is not false, so that a query without a result counts as 0",
        )


def _names_pods(query: promql.Query) -> bool:
    """Whether the query is narrowed to somebody's pods or GPUs: by a label, or by a join."""
    return bool(query.grouped & POD_LABELS) or any(
        POD_LABELS & s.labels.keys() for s in query.selectors
    )


def _bounded(
    subject: Subject, path: Path, trigger: Mapping[str, Any], query: promql.Query
) -> Iterator[Finding]:
    """GPU-L21 on a trigger of KEDA."""
    if (trigger.get("metricType") or "AverageValue") == "AverageValue":
        yield from _too_few(
            subject,
            (*path, "metadata", "threshold"),
            _bound(query),
            mapping(trigger.get("metadata")).get("threshold"),
            subject.spec.get("maxReplicaCount", DEFAULT_MAX_REPLICAS),
        )


def _too_few(
    subject: Subject, path: Path, bound: float | None, given: object, top: object
) -> Iterator[Finding]:
    """GPU-L21: with AverageValue, no more than bound / threshold replicas are ever asked for."""
    threshold = quantity(given)
    if bound is None or threshold is None or threshold <= 0:
        return
    most = math.ceil(bound / float(threshold))
    if isinstance(top, int) and most < top:
        yield subject.found(
            "GPU-L21",
            path,
            f"the value never exceeds {bound:g}, so with the threshold {quoted(given)} "
            f"the HPA never asks for more than {most} replicas, and takes away those beyond",
        )


def _bound(query: promql.Query) -> float | None:
    """What the query's value never exceeds; None where that cannot be said."""
    if not query.selectors or query.arithmetic or (query.outer and query.outer not in _KEEPS_BOUND):
        return None
    bounds = []
    for selector in query.selectors:
        found = next((b for pattern, b in _BOUNDED if pattern.fullmatch(selector.metric)), None)
        if found is None:
            return None
        bounds.append(found * query.factor)
    return max(bounds)


def _from_zero(subject: Subject, queries: list[promql.Query]) -> Iterator[Finding]:
    """GPU-L25: every trigger reads what exists only while pods run."""
    low = subject.spec.get("minReplicaCount", 0)
    if not queries or not (low == 0 or subject.spec.get("idleReplicaCount") == 0):
        return
    own = all(
        q.selectors and all(s.metric.startswith(SERVED) or _of_pods(s, q) for s in q.selectors)
        for q in queries
    )
    if own:
        metric = queries[0].selectors[0].metric
        yield subject.found(
            "GPU-L25",
            ("spec", "minReplicaCount" if "minReplicaCount" in subject.spec else "triggers"),
            f"it may scale to zero, and {quoted(metric)} exists only while its pods run",
        )


def _of_pods(selector: promql.Selector, query: promql.Query) -> bool:
    return selector.metric.startswith(EXPORTED) and bool(
        {"pod", "exported_pod"} & (selector.labels.keys() | query.grouped)
    )


def _fallback(subject: Subject) -> Iterator[Finding]:
    fallback = mapping(subject.spec.get("fallback"))
    replicas = fallback.get("replicas")
    top = subject.spec.get("maxReplicaCount", DEFAULT_MAX_REPLICAS)
    if not isinstance(replicas, int) or not isinstance(top, int) or replicas >= top:
        return
    if (fallback.get("behavior") or "static") == "static":
        yield subject.found(
            "GPU-L26",
            ("spec", "fallback"),
            f"when the source is away, replicas go to {replicas}, however many of the {top} are busy",
        )


def _ours(
    subject: Subject, path: Path, trigger: Mapping[str, Any], triggers: Triggers
) -> Iterator[Finding]:
    """GPU-L27, L28, L29: a trigger that names gpuscale."""
    fault = triggers.fault(mapping(trigger.get("metadata")))
    if fault is not None:
        yield subject.found("GPU-L29", (*path, "metadata"), fault)
    kind = trigger.get("metricType") or "AverageValue"
    if kind != "AverageValue":
        yield subject.found("GPU-L28", (*path, "metricType"), f"its metricType is {quoted(kind)}")
    top = subject.spec.get("maxReplicaCount", DEFAULT_MAX_REPLICAS)
    config = mapping(mapping(subject.spec.get("advanced")).get("horizontalPodAutoscalerConfig"))
    behavior = mapping(config.get("behavior"))
    loose = [
        way
        for way in ("scaleUp", "scaleDown")
        if quantity(mapping(behavior.get(way)).get("tolerance")) != 0
    ]
    if loose and isinstance(top, int) and top > TOLERANCE_FROM:
        yield subject.found(
            "GPU-L27",
            ("spec", "advanced", "horizontalPodAutoscalerConfig", "behavior"),
            f"it may run {top} replicas, and {' and '.join(loose)} has no tolerance of 0",
        )
