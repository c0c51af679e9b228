"""How a pod started, by stages, and what it runs: read from its object as the API server shows it.

Objects come from other people: a missing, odd or oversized field is a fact that is not known, and
never an exception. Times in conditions are whole seconds.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from gpuscale.controller.domain import Start

START_MAX_S = 86_400.0
"""A start beyond a day was not a start: a pod that waited for a person."""
SCHEDULE_MAX_S = 15.0
"""Kubernetes schedules within a second or two what fits somewhere. A pod that took longer waited for
a node to fit, unless its node was made for it: that wait is a lack of GPUs."""
CONTAINERS_MAX = 32
"""Containers of a pod that are read; a pod of inference has one to four."""
BUILD_CHARS = 16
"""Of the hash that tells one build from another among the few of one workload."""

_OF_A_CONTAINER = ("name", "image", "command", "args", "resources")


def mapping(value: object) -> Mapping[str, Any]:
    """The value where it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def listed(value: object) -> list[Mapping[str, Any]]:
    """The value as a list of mappings."""
    return [mapping(v) for v in value] if isinstance(value, list) else []


def time_of(value: object) -> float | None:
    """Unix seconds of an RFC 3339 time."""
    if not isinstance(value, str):
        return None
    try:
        parsed = datetime.fromisoformat(value)
    except ValueError:
        return None
    return parsed.timestamp() if parsed.tzinfo is not None else None


def build_of(spec: Mapping[str, Any]) -> str:
    """A short hash of what decides how a pod starts and what it carries; empty for a pod without containers.

    Images, commands, arguments, environment, resources and node selector: model, batch settings and
    GPU are among them. Annotations are not, so that a restart of all pods is no other build.
    """
    containers = listed(spec.get("containers"))[:CONTAINERS_MAX]
    if not containers:
        return ""
    facts = [
        {name: container.get(name) for name in _OF_A_CONTAINER}
        | {"env": [(e.get("name"), e.get("value")) for e in listed(container.get("env"))]}
        for container in containers
    ]
    text = json.dumps([facts, spec.get("nodeSelector")], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:BUILD_CHARS]


def start_of(raw: Mapping[str, Any], *, build: str = "") -> Start | None:
    """How a ready pod (core/v1) started; None where that cannot be told."""
    status = mapping(raw.get("status"))
    containers = listed(status.get("containerStatuses"))[:CONTAINERS_MAX]
    if any(c.get("restartCount") for c in containers):
        return None  # a start that failed first, or a Ready that is not the first
    at = {str(c.get("type")): time_of(c.get("lastTransitionTime")) for c in listed(status.get("conditions"))}  # fmt: skip
    created = time_of(mapping(raw.get("metadata")).get("creationTimestamp"))
    ready = at.get("Ready")
    if created is None or ready is None or not 0 <= ready - created <= START_MAX_S:
        return None
    running = [
        time_of(mapping(mapping(c.get("state")).get("running")).get("startedAt"))
        for c in containers
    ]
    started = max((t for t in running if t is not None), default=None)
    stages, waited = _scheduling(created, at.get("PodScheduled"), ready)
    marks = [
        ("pull", at.get("PodScheduled"), started),
        ("load", started, at.get("ContainersReady", ready)),
        ("ready", at.get("ContainersReady"), ready),
    ]
    for name, begin, end in marks:
        if begin is not None and end is not None and created <= begin <= end <= ready:
            stages[name] = end - begin
    return Start(
        total_s=ready - created - waited, stages=stages, unschedulable_s=waited, build=build
    )


def _scheduling(
    created: float, scheduled: float | None, ready: float
) -> tuple[dict[str, float], float]:
    """(stages until a node was chosen, seconds in which none would take the pod)."""
    if scheduled is None or not created <= scheduled <= ready:
        return {}, 0.0
    wait = scheduled - created
    if wait <= SCHEDULE_MAX_S:
        return {"schedule": wait}, 0.0
    return {"schedule": 0.0}, wait


def provisioned(start: Start, created_at: float | None, node_created_at: float | None) -> Start:
    """The start with its wait as the provisioning of a node, where that node came while the pod waited."""
    waited = start.unschedulable_s
    if created_at is None or node_created_at is None or waited <= 0:
        return start
    if not created_at < node_created_at <= created_at + waited:
        return start
    return replace(
        start,
        total_s=start.total_s + waited,
        stages={**start.stages, "provision": waited},
        unschedulable_s=0.0,
    )
