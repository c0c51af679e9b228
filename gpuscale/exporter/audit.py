"""Work on a GPU that no allocation explains: rules GPU-N01, GPU-N02 and GPU-N03.

Pure. GPU-N01: a process of a pod that holds no GPU, of a container beside Kubernetes, or of the host.
GPU-N02: a process of a pod on a GPU that is not its own. GPU-N03: memory in use on a GPU on which no
process can be seen (a VM, a hidden container, a leaked context). A finding counts once it has been
seen in every collection for `persist_s`: an allocation may lag behind a container's start, and
an ended pod may linger. Nothing is ever stopped or changed; what cannot be judged is no finding.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from gpuscale.exporter.cgroup import Kind, Owner
from gpuscale.exporter.device import ComputeProcess
from gpuscale.exporter.pods import Pod
from gpuscale.exporter.processes import Process
from gpuscale.exporter.sample import DeviceSample
from gpuscale.exporter.usage import Allocation, Finding, Rule

FINDINGS_MAX = 256
"""Kept at once: a node full of strays needs no longer list to be looked at."""

PIDS_MAX = 16
"""Process ids listed of one finding."""

MEMORY_SHARE = 0.05
MEMORY_BYTES = 1 << 30
"""GPU-N03: what the driver itself keeps on an idle GPU stays below both."""

HOST_KINDS = frozenset({Kind.SERVICE, Kind.SESSION, Kind.HOST})
"""Where a name on the allow-list is believed: in a container anybody can call a process anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What is expected to use GPUs without holding one."""

    namespaces: tuple[str, ...] = ()
    """Globs: the GPU operator's daemons."""
    pods: tuple[str, ...] = ()
    """Globs of NAMESPACE/POD."""
    commands: tuple[str, ...] = ()
    """Names of processes of the host: the driver's own daemons."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One collection, as the rules see it."""

    at: float
    """Wall time."""
    devices: tuple[DeviceSample, ...]
    processes: Mapping[int, Process]
    pods_by_uid: Mapping[str, Pod] | None
    """None where the pods of this node are not known: then no pod can be judged."""
    allocations: tuple[Allocation, ...] | None
    """None where the kubelet has not answered: then no pod can be judged."""


class Audit:
    """Findings over time. `look` at each collection, in order."""

    def __init__(self, allowed: Allowed, *, persist_s: float) -> None:
        self._allowed = allowed
        self._persist_s = persist_s
        self._open: dict[tuple[str, str, str], Finding] = {}
        """By (rule, uuid, whose), as of the last collection."""

    def look(self, seen: Seen) -> tuple[Finding, ...]:
        """The findings that have lasted, oldest first."""
        found: dict[tuple[str, str, str], Finding] = {}
        for key, finding in _findings(seen, self._allowed):
            if len(found) >= FINDINGS_MAX:
                break
            before = self._open.get(key, finding)
            found[key] = replace(finding, first_seen=before.first_seen)
        self._open = found
        lasting = [
            finding
            for finding in found.values()
            if finding.last_seen - finding.first_seen >= self._persist_s
        ]
        return tuple(sorted(lasting, key=lambda finding: finding.first_seen))


def _findings(seen: Seen, allowed: Allowed) -> Iterator[tuple[tuple[str, str, str], Finding]]:
    for device in seen.devices:
        reading = device.processes
        if reading is None:
            continue
        strays: dict[tuple[Rule, str], list[tuple[ComputeProcess, Process]]] = {}
        for compute in reading.processes:
            process = seen.processes.get(compute.pid)
            if process is None:
                continue  # it has ended since
            rule = _rule(process, device, seen, allowed)
            if rule is not None:
                strays.setdefault((rule, _whose(process)), []).append((compute, process))
        for (rule, whose), group in strays.items():
            yield (rule, device.identity.uuid, whose), _stray(rule, device, group, seen)
        if not reading.processes:
            hidden = _hidden(device, seen)
            if hidden is not None:
                yield ("GPU-N03", device.identity.uuid, ""), hidden


def _rule(process: Process, device: DeviceSample, seen: Seen, allowed: Allowed) -> Rule | None:
    """The rule that a process breaks; None where it breaks none, or cannot be judged."""
    owner = process.owner
    if owner.kind is Kind.OWN:
        return None
    if owner.kind is not Kind.POD:
        known = owner.kind in HOST_KINDS and process.comm in allowed.commands
        return None if known else "GPU-N01"
    if seen.allocations is None or seen.pods_by_uid is None:
        return None
    pod = seen.pods_by_uid.get(owner.pod_uid or "")
    if pod is None or _is_allowed(pod, allowed):
        return None
    mine = [a for a in seen.allocations if (a.namespace, a.pod) == (pod.namespace, pod.name)]
    if not mine:
        return "GPU-N01"
    return None if any(a.gpu_uuid == device.identity.uuid for a in mine) else "GPU-N02"


def _is_allowed(pod: Pod, allowed: Allowed) -> bool:
    if any(fnmatchcase(pod.namespace, glob) for glob in allowed.namespaces):
        return True
    return any(fnmatchcase(f"{pod.namespace}/{pod.name}", glob) for glob in allowed.pods)


def _whose(process: Process) -> str:
    """One finding per owner: all processes of a pod together, of the host by their name."""
    owner = process.owner
    return owner.pod_uid or owner.container_id or f"{owner.kind}/{owner.unit or ''}/{process.comm}"


def _stray(
    rule: Rule,
    device: DeviceSample,
    group: list[tuple[ComputeProcess, Process]],
    seen: Seen,
) -> Finding:
    owner = group[0][1].owner
    pod = (seen.pods_by_uid or {}).get(owner.pod_uid or "")
    memory = [compute.used_memory_bytes for compute, _ in group]
    taken = any(a.gpu_uuid == device.identity.uuid for a in seen.allocations or ())
    outside = owner.kind is not Kind.POD
    return Finding(
        rule=rule,
        # On a GPU that is somebody's, or on a node whose GPUs are given out, it takes what was promised.
        severity="critical" if taken or (outside and seen.allocations) else "warning",
        gpu=device.identity.index,
        uuid=device.identity.uuid,
        owner_kind=str(owner.kind),
        namespace="" if pod is None else pod.namespace,
        pod="" if pod is None else pod.name,
        container_id=owner.container_id,
        unit=owner.unit,
        comm=group[0][1].comm,
        pids=tuple(sorted(compute.pid for compute, _ in group)[:PIDS_MAX]),
        processes=len(group),
        memory_bytes=None if None in memory else sum(used or 0 for used in memory),
        first_seen=seen.at,
        last_seen=seen.at,
        evidence=_sentence(rule, device, owner, pod, len(group)),
    )


def _sentence(
    rule: str, device: DeviceSample, owner: Owner, pod: Pod | None, processes: int
) -> str:
    count = "a process" if processes == 1 else f"{processes} processes"
    where = f"on GPU {device.identity.index}"
    if pod is not None:
        holds = "holds no GPU" if rule == "GPU-N01" else "holds another one"
        return f"pod {pod.namespace}/{pod.name} runs {count} {where} and {holds}"
    names = {
        Kind.SESSION: "a login session",
        Kind.SERVICE: "a service of the host",
        Kind.HOST: "the host",
        Kind.SLURM: "a Slurm job",
        Kind.VM: "a virtual machine",
        Kind.CONTAINER: "a container",
        Kind.DOCKER: "a Docker container",
        Kind.PODMAN: "a Podman container",
        Kind.NERDCTL: "a container of containerd",
    }
    who = names.get(owner.kind, str(owner.kind))
    detail = owner.unit or (owner.container_id or "")[:12]
    return f"{who}{f' ({detail})' if detail else ''} runs {count} {where} outside Kubernetes"


def _hidden(device: DeviceSample, seen: Seen) -> Finding | None:
    """Memory that is used and no process accounts for. Not judged with MIG, where lists are partial."""
    if device.mig:
        return None
    used = device.value("gpuscale_gpu_memory_used_bytes")
    total = device.value("gpuscale_gpu_memory_total_bytes")
    if used is None or total is None or used <= max(MEMORY_SHARE * total, MEMORY_BYTES):
        return None
    index, uuid = device.identity.index, device.identity.uuid
    return Finding(
        rule="GPU-N03",
        severity="warning",
        gpu=index,
        uuid=uuid,
        owner_kind="",
        namespace="",
        pod="",
        container_id=None,
        unit=None,
        comm="",
        pids=(),
        processes=0,
        memory_bytes=int(used),
        first_seen=seen.at,
        last_seen=seen.at,
        evidence=f"{used / (1 << 30):.1f} GiB of GPU {index} are in use and no process is seen on it",
    )


def counts(findings: Iterable[Finding]) -> dict[tuple[str, str, str], int]:
    """Findings by (rule, severity, namespace)."""
    counted: dict[tuple[str, str, str], int] = {}
    for finding in findings:
        key = (finding.rule, finding.severity, finding.namespace)
        counted[key] = counted.get(key, 0) + 1
    return counted
