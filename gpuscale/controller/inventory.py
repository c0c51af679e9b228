"""From pods and their scale target, as the API server shows them, to the replicas of a workload by stage.

`pod_of` and `target_of` keep the few facts of an object that are used; they read it once, when it
arrives. Objects come from other people: a missing, odd or oversized field is a fact that is not
known, and never an exception.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from gpuscale.controller.domain import ReplicaState, Start
from gpuscale.controller.podstart import build_of, listed, mapping, provisioned, start_of, time_of

Stage = Literal["ready", "starting", "pending", "gone"]
Operator = Literal["in", "notin", "exists", "absent"]

MESSAGE_MAX = 2_048
"""Characters of a scheduler's message that are read."""
CAUSES_MAX = 4
"""Causes that one reason lists."""
LABELS_MAX = 128
"""Labels of a pod that are kept; the API server bounds their size, not their number."""
REQUIREMENTS_MAX = 64
"""Requirements of a selector; people write one to five."""

_CAUSES: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "insufficient_gpu",
        re.compile(r"insufficient \S*(gpu|/mig-)|cannot allocate all claims", re.IGNORECASE),
    ),
    ("insufficient_resource", re.compile(r"insufficient |too many pods", re.IGNORECASE)),
    ("quota", re.compile(r"quota", re.IGNORECASE)),
    ("taint", re.compile(r"taint|unschedulable", re.IGNORECASE)),
    ("affinity", re.compile(r"affinity|selector|topology spread", re.IGNORECASE)),
    ("volume", re.compile(r"volume|persistentvolumeclaim", re.IGNORECASE)),
)
"""Substrings of the scheduler's reasons; the first that fits names the cause."""
NO_NODES: Mapping[str, float] = {}
"""Where nobody may read nodes."""
_NODES = re.compile(r"^\s*(\d{1,6}) ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """What is kept of a pod."""

    uid: str
    labels: Mapping[str, str]
    stage: Stage
    """gone: ended or being deleted; it still may hold its GPU, and serves nobody new."""
    host: str | None
    """IP address; None until it has one."""
    start: Start | None
    """How it started; None unless it is ready and no container of it has restarted."""
    ready_at: float | None
    """Unix seconds at which it became ready; None unless it is."""
    created_at: float | None
    node: str | None
    build: str
    """Of what decides how it starts and what it carries: images, arguments, environment, resources."""
    cause: str | None
    """Why it is not scheduled, as `pending_cause` reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One requirement of a label selector."""

    key: str
    operator: Operator
    values: frozenset[str] = frozenset()


Selector = tuple[Requirement, ...]
"""All must hold. Empty selects nothing: a target that selects every pod is not one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleTarget:
    """What is kept of a scale target."""

    asked: int | None
    """spec.replicas."""
    selector: Selector


# ---------------------------------------------------------------- reading objects


def pod_of(raw: Mapping[str, Any]) -> Pod:
    """The facts of a pod object (core/v1)."""
    metadata, spec, status = (mapping(raw.get(name)) for name in ("metadata", "spec", "status"))
    conditions = {str(c.get("type")): c for c in listed(status.get("conditions"))}
    stage = _stage(metadata, spec, status, conditions)
    labels = mapping(metadata.get("labels"))
    host = status.get("podIP")
    message = conditions.get("PodScheduled", {})
    build = build_of(spec)
    return Pod(
        uid=str(metadata.get("uid") or f"{metadata.get('namespace')}/{metadata.get('name')}"),
        labels={str(k): str(v) for k, v in list(labels.items())[:LABELS_MAX]},
        stage=stage,
        host=host if isinstance(host, str) and host else None,
        start=start_of(raw, build=build) if stage == "ready" else None,
        ready_at=time_of(conditions.get("Ready", {}).get("lastTransitionTime"))
        if stage == "ready"
        else None,
        created_at=time_of(metadata.get("creationTimestamp")),
        node=node if isinstance(node := spec.get("nodeName"), str) else None,
        build=build,
        cause=pending_cause(message.get("reason"), message.get("message"))
        if stage == "pending"
        else None,
    )


def _stage(
    metadata: Mapping[str, Any],
    spec: Mapping[str, Any],
    status: Mapping[str, Any],
    conditions: Mapping[str, Mapping[str, Any]],
) -> Stage:
    if metadata.get("deletionTimestamp") or status.get("phase") in ("Succeeded", "Failed"):
        return "gone"
    if conditions.get("Ready", {}).get("status") == "True":
        return "ready"
    return "starting" if spec.get("nodeName") else "pending"


def pending_cause(reason: object, message: object) -> str:
    """Why a pod is not scheduled: `gated`, `insufficient_gpu on 3 nodes, taint on 2 nodes`, `not scheduled yet`.

    Reads the message of its PodScheduled condition (`0/5 nodes are available: 3 Insufficient
    nvidia.com/gpu, 2 node(s) had untolerated taint …. preemption: …`), up to the part on preemption.
    """
    if reason == "SchedulingGated":
        return "gated"
    if not isinstance(message, str) or not message:
        return "not scheduled yet"
    text = message[:MESSAGE_MAX].split("preemption:")[0]
    _, _, causes = text.partition(": ")
    found: Counter[str] = Counter()
    for part in (causes or text).split(", "):
        nodes = _NODES.match(part)
        found[_cause(part)] += int(nodes[1]) if nodes else 0
    return ", ".join(
        f"{cause} on {nodes} node{'s' if nodes > 1 else ''}" if nodes else cause
        for cause, nodes in found.most_common(CAUSES_MAX)
    )


def _cause(part: str) -> str:
    return next((name for name, pattern in _CAUSES if pattern.search(part)), "other")


def node_created_at(raw: Mapping[str, Any]) -> float | None:
    """When a node (core/v1) came into being, Unix seconds; None where that is not known."""
    return time_of(mapping(raw.get("metadata")).get("creationTimestamp"))


def target_of(raw: Mapping[str, Any]) -> ScaleTarget:
    """The facts of a Deployment, StatefulSet or the like (spec.replicas, spec.selector)."""
    spec = mapping(raw.get("spec"))
    return ScaleTarget(
        asked=_count(spec.get("replicas")), selector=selector_of(spec.get("selector"))
    )


def scale_of(raw: Mapping[str, Any]) -> ScaleTarget:
    """The facts of a scale subresource (autoscaling/v1 Scale: spec.replicas, status.selector)."""
    selector = mapping(raw.get("status")).get("selector")
    # The API server leaves out a count of 0 in a Scale's spec.
    replicas = mapping(raw.get("spec")).get("replicas", 0)
    return ScaleTarget(
        asked=_count(replicas),
        selector=parse_selector(selector) if isinstance(selector, str) else (),
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


# ---------------------------------------------------------------- selectors


def selector_of(raw: object) -> Selector:
    """A LabelSelector (matchLabels, matchExpressions) as requirements; empty for one that is not understood."""
    selector = mapping(raw)
    found = [
        Requirement(key=str(k), operator="in", values=frozenset({str(v)}))
        for k, v in mapping(selector.get("matchLabels")).items()
    ]
    operators: dict[object, Operator] = {
        "In": "in",
        "NotIn": "notin",
        "Exists": "exists",
        "DoesNotExist": "absent",
    }
    for expression in listed(selector.get("matchExpressions")):
        operator = operators.get(expression.get("operator"))
        values = expression.get("values")
        if operator is None:
            return ()
        given = values if isinstance(values, list) else []
        found.append(
            Requirement(
                key=str(expression.get("key")),
                operator=operator,
                values=frozenset(str(v) for v in given),
            )
        )
    return tuple(found) if len(found) <= REQUIREMENTS_MAX else ()


_REQUIREMENT = re.compile(
    r"\s*(?:(?P<key>[^\s,=!()]+)\s*(?:(?P<equal>==?|!=)\s*(?P<value>[^\s,=!()]*)"
    r"|\s(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?|!\s*(?P<absent>[^\s,=!()]+))\s*(?:,|$)"
)
"""One requirement of a selector in its text form: `a=b`, `a!=b`, `a in (b, c)`, `a notin (b)`, `a`, `!a`."""


def parse_selector(text: str) -> Selector:
    """A label selector in its text form, as a scale subresource shows it; empty for one that is not understood."""
    found: list[Requirement] = []
    at = 0
    while at < len(text):
        match = _REQUIREMENT.match(text, at)
        if match is None or len(found) == REQUIREMENTS_MAX:
            return ()
        found.append(_requirement(match))
        at = match.end()
    return tuple(found)


def _requirement(match: re.Match[str]) -> Requirement:
    if match["absent"]:
        return Requirement(key=match["absent"], operator="absent")
    key = match["key"]
    if match["equal"]:
        operator: Operator = "notin" if match["equal"] == "!=" else "in"
        return Requirement(key=key, operator=operator, values=frozenset({match["value"]}))
    if match["set"]:
        values = frozenset(v.strip() for v in match["values"].split(","))
        return Requirement(
            key=key, operator="in" if match["set"] == "in" else "notin", values=values
        )
    return Requirement(key=key, operator="exists")


def matches(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Whether the labels satisfy all of the selector; an empty selector matches nothing."""
    return bool(selector) and all(_holds(r, labels.get(r.key)) for r in selector)


def _holds(requirement: Requirement, value: str | None) -> bool:
    match requirement.operator:
        case "in":
            return value in requirement.values
        case "notin":
            return value not in requirement.values
        case "exists":
            return value is not None
        case _:
            return value is None


# ---------------------------------------------------------------- replicas


def replica_state(
    key: str,
    target: ScaleTarget,
    pods: Iterable[Pod],
    seen: frozenset[str] | None,
    nodes: Mapping[str, float] = NO_NODES,
) -> tuple[ReplicaState, frozenset[str]]:
    """The replicas of one workload from the pods that its target selects, and what to give as `seen` next time.

    `seen` are the pods (uids) that have been ready; None the first time, when a pod that is ready
    was not witnessed to become so: its Ready may be a later one. `nodes`: when each node came into
    being (Unix seconds), of those that are known.
    """
    mine = [p for p in pods if p.stage != "gone" and matches(target.selector, p.labels)]
    return state_of(key, target.asked, mine, seen, nodes)


def state_of(
    key: str,
    asked: int | None,
    mine: Sequence[Pod],
    seen: frozenset[str] | None,
    nodes: Mapping[str, float] = NO_NODES,
) -> tuple[ReplicaState, frozenset[str]]:
    """`replica_state` from the pods that are the workload's and not gone."""
    ready = [p for p in mine if p.stage == "ready"]
    pending = [p for p in mine if p.stage == "pending"] if len(ready) < len(mine) else []
    uids = frozenset([p.uid for p in ready])
    known = uids if seen is None else seen
    state = ReplicaState(
        key=key,
        asked=asked,
        ready=len(ready),
        starting=len(mine) - len(ready) - len(pending),
        pending=len(pending),
        endpoints=tuple(sorted([p.host for p in ready if p.host])),
        starts=() if seen is not None and uids <= known else _starts(ready, seen, nodes),
        pending_reason=_pending_reason(pending) if pending else None,
        build=_build(ready),
    )
    if known == uids:
        return state, known
    return state, uids | (known & {p.uid for p in mine})


def _starts(
    ready: Sequence[Pod], seen: frozenset[str] | None, nodes: Mapping[str, float]
) -> tuple[Start, ...]:
    """How those became ready that had not been seen ready, in that order."""
    new = [p for p in ready if p.start is not None and p.uid not in (seen or ())]
    new.sort(key=lambda p: p.ready_at or 0.0)
    starts = (
        provisioned(p.start, p.created_at, nodes.get(p.node or ""))
        for p in new
        if p.start is not None
    )
    return tuple(s if seen is not None else replace(s, witnessed=False) for s in starts)


def _build(ready: Sequence[Pod]) -> str:
    """The build of most ready pods, so that a rollout counts as a change once it is half done."""
    if not ready:
        return ""
    first = ready[0].build
    if all(p.build == first for p in ready):
        return first
    return Counter(p.build for p in ready).most_common(1)[0][0]


def _pending_reason(pending: list[Pod]) -> str | None:
    causes = Counter(p.cause for p in pending if p.cause)
    if not causes:
        return None
    cause, _ = causes.most_common(1)[0]
    pods = f"{len(pending)} pods are" if len(pending) > 1 else "1 pod is"
    return f"{pods} not scheduled ({cause})"
