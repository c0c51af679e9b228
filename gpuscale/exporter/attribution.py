"""From what the kubelet lists to who holds which GPU, and which share of it.

Pure. Many-to-many from the start: one container may hold several GPUs, and a shared GPU is held by
several containers. An id that names no device of this node is counted, never guessed. The shares of
one physical GPU never add up to more than the GPU, whatever the kubelet says.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from gpuscale.exporter.deviceid import Inventory, Target
from gpuscale.exporter.podresources import HeldDevice
from gpuscale.exporter.pods import Pod
from gpuscale.exporter.usage import Allocation

ALLOCATIONS_MAX = 4_096
"""Series of one page: sixteen GPUs with 256 shares each. What is beyond is counted as unmatched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributed:
    """The allocations that name a GPU of this node, and how many devices name none."""

    allocations: tuple[Allocation, ...]
    unmatched: int


def attribute(
    held: Iterable[HeldDevice],
    inventory: Inventory,
    resources: Iterable[str],
    *,
    replicas: Mapping[str, int] | None = None,
    pods: Mapping[tuple[str, str], Pod] | None = None,
    exclude: Iterable[str] = (),
) -> Attributed:
    """Match what containers hold against the devices of this node.

    `resources` are regular expressions, searched in the resource's name (of DRA: the driver's):
    what matches none of them (network cards, other vendors) is not ours to count. `replicas` is the
    number of shares of a device by its uuid, where it is known. `pods` are the pods of this node by
    (namespace, name). `exclude` are globs of NAMESPACE/POD that hold a device only to look at it.
    A kubelet may list the same id twice (once per NUMA node): it counts once.
    """
    patterns = [re.compile(pattern) for pattern in resources]
    ours: dict[str, bool] = {}
    globs = tuple(exclude)
    known = pods or {}
    found: dict[_Unit, dict[Allocation, None]] = {}
    unmatched: set[HeldDevice] = set()
    total = 0
    for device in held:
        resource = device.resource
        if resource not in ours:
            ours[resource] = any(pattern.search(resource) for pattern in patterns)
        if not ours[resource] or _excluded(device, globs):
            continue
        targets = _targets(device, inventory)
        if not targets or total >= ALLOCATIONS_MAX:
            unmatched.add(device)
            continue
        for target in targets:
            pod = known.get((device.namespace, device.pod))
            holders = found.setdefault((target.uuid, target.replica), {})
            before = len(holders)
            holders[_allocation(device, target, None if pod is None else pod.uid)] = None
            total += len(holders) - before
    current = {unit: _newest(holders, known) for unit, holders in found.items()}
    return Attributed(
        allocations=_shared_out(current, replicas or {}),
        unmatched=len(unmatched),
    )


_Unit = tuple[str, str]
"""(uuid, replica): what a device plugin gives to one container at a time."""


def _excluded(device: HeldDevice, globs: tuple[str, ...]) -> bool:
    name = f"{device.namespace}/{device.pod}"
    return any(fnmatchcase(name, glob) for glob in globs)


def _targets(device: HeldDevice, inventory: Inventory) -> tuple[Target, ...]:
    if device.claim is None:
        return inventory.find(device.device_id)
    target = inventory.find_claimed(device.device_id, device.cdi_names)
    return () if target is None else (target,)


def _allocation(device: HeldDevice, target: Target, pod_uid: str | None) -> Allocation:
    return Allocation(
        uuid=target.uuid,
        parent_uuid=target.parent_uuid,
        namespace=device.namespace,
        pod=device.pod,
        container=device.container,
        resource=device.resource,
        replica=target.replica,
        share=target.share,
        pod_uid=pod_uid,
        claim=device.claim,
    )


def _newest(
    holders: Iterable[Allocation], pods: Mapping[tuple[str, str], Pod]
) -> tuple[Allocation, ...]:
    """Who holds a unit now.

    A device plugin gives a unit to one container, so of two pods the older has ended and its device
    was given on: kubelets before 1.34 list both. A claim (DRA) may belong to several at once, and
    where the pods' times are not known, nobody can be told from the other: then all are kept.
    """
    held = tuple(holders)
    names = {(a.namespace, a.pod) for a in held}
    if len(names) < 2 or any(a.claim is not None for a in held) or not names <= pods.keys():
        return held
    last = max(names, key=lambda name: (pods[name].since, name))
    return tuple(a for a in held if (a.namespace, a.pod) == last)


def _shared_out(
    found: Mapping[_Unit, tuple[Allocation, ...]], replicas: Mapping[str, int]
) -> tuple[Allocation, ...]:
    """The allocations with the share of the physical GPU that each stands for."""
    counts = _replica_counts(found, replicas)
    shared: list[Allocation] = []
    sums: dict[str, float] = {}
    for (uuid, replica), holders in found.items():
        parts = len(holders) * (counts[uuid] if replica.isdigit() else 1)
        for allocation in holders:
            share = allocation.share / parts
            shared.append(replace(allocation, share=share))
            sums[allocation.gpu_uuid] = sums.get(allocation.gpu_uuid, 0.0) + share
    return tuple(replace(a, share=a.share / max(1.0, sums[a.gpu_uuid])) for a in shared)


def _replica_counts(found: Iterable[_Unit], replicas: Mapping[str, int]) -> dict[str, int]:
    """Shares that each device is divided into: as the kubelet says, and no fewer than are held."""
    counts: dict[str, int] = {}
    for uuid, replica in found:
        if replica.isdigit():
            least = max(replicas.get(uuid, 1), int(replica) + 1)
            counts[uuid] = max(counts.get(uuid, 1), least)
    return counts


def replicas_of(device_ids: Iterable[str], inventory: Inventory) -> dict[str, int]:
    """Number of shares of each shared device, by uuid, from all the ids that the kubelet could give out."""
    numbers: dict[str, set[str]] = {}
    for device_id in device_ids:
        for target in inventory.find(device_id):
            if target.replica:
                numbers.setdefault(target.uuid, set()).add(target.replica)
    return {uuid: len(replicas) for uuid, replicas in numbers.items()}


def single_holder(allocations: Iterable[Allocation], uuid: str) -> Allocation | None:
    """The one container that holds a device; None where there is none, or more than one."""
    holders = {(a.namespace, a.pod, a.container): a for a in allocations if a.uuid == uuid}
    return next(iter(holders.values())) if len(holders) == 1 else None
