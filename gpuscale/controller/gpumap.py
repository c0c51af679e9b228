"""The map of GPUs, as values: what each exporter's snapshot says of its node, reduced to what is shown.

The snapshot is `/api/v1/sample` of an exporter. It is another process's word, perhaps of another
version: fields that are not known are passed over, and what is missing stays unknown.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

State = Literal["sick", "bypassed", "busy", "idle", "held", "fragmented", "free", "unknown"]
STATES: tuple[State, ...] = (
    "sick",
    "bypassed",
    "busy",
    "idle",
    "held",
    "fragmented",
    "free",
    "unknown",
)
"""Of a GPU, those that need a person first.

sick: lost, not answering, or to be replaced; bypassed: work on it that no allocation explains; busy,
idle: allocated, and its kernels run or not; held: allocated, and its use is not measured;
fragmented: a part of it is allocated and none of that works, so that the rest is free in slices
only; free: allocated to nobody; unknown: who holds it is not known.
"""
BUSY_FROM_RATIO = 0.02
"""Utilization from which an allocated GPU counts as busy: below it the driver's own window is noise."""
WHOLE_RATIO = 0.999
"""Shares are sums of sevenths: this much is all of a GPU."""
HOLDERS_MAX = 64
"""Holders told of one GPU: seven instances, or the shares of a time-sliced one."""
GPUS_MAX = 64
"""GPUs told of one node; the largest boards have 16."""
TEXT_MAX = 253
"""Characters of a name that a node tells; longer ones are no names."""


# ---------------------------------------------------------------- what an exporter says


class Mig(msgspec.Struct, frozen=True):
    """A MIG instance."""

    uuid: str
    profile: str = ""


class Value(msgspec.Struct, frozen=True):
    """One sample of a GPU, or of a MIG instance on it."""

    family: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()
    mig: Mig | None = None


class Identity(msgspec.Struct, frozen=True):
    """Which GPU."""

    index: int
    uuid: str
    product: str = ""


class Device(msgspec.Struct, frozen=True):
    """A GPU."""

    identity: Identity
    up: bool
    reason: str | None = None
    samples: tuple[Value, ...] = ()
    mig: tuple[Mig, ...] = ()


class Holder(msgspec.Struct, frozen=True):
    """A container that holds a GPU or a part of it."""

    uuid: str
    namespace: str
    pod: str
    container: str = ""
    parent_uuid: str | None = None
    share: float = 1.0


class Attribution(msgspec.Struct, frozen=True):
    """What the kubelet said."""

    up: bool
    fresh: bool = True
    reason: str | None = None
    allocations: tuple[Holder, ...] = ()


class Finding(msgspec.Struct, frozen=True):
    """Work that no allocation explains."""

    rule: str
    uuid: str
    evidence: str = ""


class Audit(msgspec.Struct, frozen=True):
    """The node audit."""

    findings: tuple[Finding, ...] = ()


class Usage(msgspec.Struct, frozen=True):
    """Whose the GPUs are."""

    audit: Audit = Audit()


class Driver(msgspec.Struct, frozen=True):
    """Whether the driver answers."""

    up: bool
    reason: str | None = None


class NodeReport(msgspec.Struct, frozen=True):
    """A snapshot of one exporter."""

    at: float
    node: str
    driver: Driver
    devices: tuple[Device, ...] = ()
    attribution: Attribution | None = None
    usage: Usage | None = None


# ---------------------------------------------------------------- what is shown of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU on the map; None where a value is not known."""

    gpu: int
    uuid: str
    product: str
    state: State
    why: str | None
    """One sentence behind `sick`, `bypassed` and `unknown`."""
    utilization: float | None
    memory_used_bytes: float | None
    memory_total_bytes: float | None
    power_watts: float | None
    temperature_celsius: float | None
    allocated: float | None
    """Share (0–1) of it that is allocated."""
    instances: tuple[str, ...]
    """Profiles of its MIG instances."""
    holders: tuple[Mapping[str, str], ...]
    """namespace, pod, container and instance (its MIG profile, or empty)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node on the map."""

    node: str
    """Its name; the address where the exporter has not answered."""
    address: str
    at: float | None
    """Wall time of the snapshot; None where there is none."""
    problem: str | None
    """Why nothing is known of it, or of its driver; one sentence."""
    gpus: tuple[Gpu, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMap:
    """Every node that was read, by name."""

    configured: bool
    """Whether any exporter is named."""
    nodes: tuple[Node, ...] = ()
    problems: tuple[str, ...] = ()
    """What kept exporters from being found, one sentence each."""


def node_of(report: NodeReport, address: str) -> Node:
    """What is shown of a node."""
    holders: dict[str, list[Holder]] = {}
    attribution = report.attribution
    for holder in attribution.allocations if attribution is not None else ():
        holders.setdefault(holder.parent_uuid or holder.uuid, []).append(holder)
    findings: dict[str, Finding] = {}
    for finding in report.usage.audit.findings if report.usage is not None else ():
        findings.setdefault(finding.uuid, finding)
    unknown = _unknown(attribution)
    gpus = tuple(
        _gpu(device, holders.get(device.identity.uuid, ()), findings.get(device.identity.uuid), unknown)
        for device in report.devices[:GPUS_MAX]
    )  # fmt: skip
    problem = None if report.driver.up else (report.driver.reason or "its driver does not answer")
    return Node(
        node=report.node[:TEXT_MAX], address=address, at=report.at, problem=problem,
        gpus=tuple(sorted(gpus, key=lambda each: each.gpu)),
    )  # fmt: skip


def _unknown(attribution: Attribution | None) -> str | None:
    """Why it is not known who holds a GPU; None while it is."""
    if attribution is None:
        return "its exporter does not ask the kubelet who holds it"
    if not attribution.fresh or (not attribution.up and not attribution.allocations):
        return attribution.reason or "the kubelet does not tell who holds it"
    return None


def _gpu(
    device: Device, holders: Sequence[Holder], finding: Finding | None, unknown: str | None
) -> Gpu:
    values = {
        (sample.family, dict(sample.labels).get("sensor", "")): sample.value
        for sample in device.samples
        if sample.mig is None and math.isfinite(sample.value)
    }

    def value(family: str, sensor: str = "") -> float | None:
        return values.get((f"gpuscale_gpu_{family}", sensor))

    allocated = None if unknown is not None else min(1.0, sum(h.share for h in holders))
    utilization = value("utilization_ratio")
    state: State
    why: str | None
    trouble = _trouble(device, value("row_remap_failed"), finding)
    if trouble is not None:
        state, why = trouble
    elif allocated is None:
        state, why = "unknown", unknown
    else:
        state, why = _held(allocated, utilization), None
    profiles = {instance.uuid: instance.profile for instance in device.mig}
    return Gpu(
        gpu=device.identity.index,
        uuid=device.identity.uuid,
        product=device.identity.product,
        state=state,
        why=why,
        utilization=utilization,
        memory_used_bytes=value("memory_used_bytes"),
        memory_total_bytes=value("memory_total_bytes"),
        power_watts=value("power_watts"),
        temperature_celsius=value("temperature_celsius", "gpu"),
        allocated=allocated,
        instances=tuple(profiles.values()),
        holders=tuple(
            {
                "namespace": h.namespace[:TEXT_MAX],
                "pod": h.pod[:TEXT_MAX],
                "container": h.container[:TEXT_MAX],
                "instance": profiles.get(h.uuid, ""),
            }
            for h in holders[:HOLDERS_MAX]
        ),
    )


def _trouble(
    device: Device, remap_failed: float | None, finding: Finding | None
) -> tuple[State, str] | None:
    """What is wrong with a GPU, and why; None where nothing is known to be."""
    if not device.up:
        return "sick", device.reason or "it does not answer"
    if remap_failed:
        return "sick", "a row of its memory could not be replaced: the board is to be replaced"
    if finding is not None:
        return "bypassed", f"{finding.rule}: {finding.evidence}"
    return None


def _held(allocated: float, utilization: float | None) -> State:
    """The state of a sound GPU whose holders are known."""
    if allocated <= 0:
        return "free"
    if utilization is not None and utilization >= BUSY_FROM_RATIO:
        return "busy"
    if allocated < WHOLE_RATIO:
        return "fragmented"
    return "held" if utilization is None else "idle"


def counts(nodes: Iterable[Node]) -> dict[str, int]:
    """GPUs by state, in the order of STATES; states that no GPU is in are left out."""
    found: dict[str, int] = dict.fromkeys(STATES, 0)
    for node in nodes:
        for gpu in node.gpus:
            found[gpu.state] += 1
    return {state: n for state, n in found.items() if n}


def as_dict(read: GpuMap, *, offset: int, limit: int) -> dict[str, Any]:
    """The map for the API: counts over all nodes, and the nodes from `offset` on, `limit` at most."""
    free = [sum(gpu.state == "free" for gpu in node.gpus) for node in read.nodes]
    return {
        "configured": read.configured,
        "total": len(read.nodes),
        "offset": offset,
        "limit": limit,
        "gpus": sum(len(node.gpus) for node in read.nodes),
        "states": counts(read.nodes),
        "largest_free_block": max(free, default=0),
        "problems": list(read.problems),
        "items": [msgspec.to_builtins(node) for node in read.nodes[offset : offset + limit]],
    }
