"""From the kubelet's device ids to the GPUs of this node: who holds which GPU, or which share of it.

Pure. Many-to-many from the start: one container may hold several GPUs, and a time-sliced GPU is
held by several containers. An id that names no GPU of this node is counted, never guessed.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gpuscale.exporter.device import Identity
from gpuscale.exporter.podresources import HeldDevice
from gpuscale.exporter.sample import Allocation

ALLOCATIONS_MAX = 4_096
"""Series of one page: sixteen GPUs with 256 shares each. What is beyond is counted as unmatched."""

_SHARE = re.compile(r"(?P<device>.+)::(?P<replica>\d{1,6})")
"""`GPU-<uuid>::3`: the fourth share that NVIDIA's device plugin made of a GPU (time-slicing, MPS)."""

_MINOR = re.compile(r"nvidia(?P<minor>\d{1,4})(?:/vgpu(?P<replica>\d{1,6}))?")
"""`nvidia0` or `nvidia0/vgpu2`: the device plugin of GKE names the device file, and the share of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributed:
    """The allocations that name a GPU of this node, and how many device ids name none."""

    allocations: tuple[Allocation, ...]
    unmatched: int


def attribute(
    held: Iterable[HeldDevice], gpus: Iterable[Identity], resources: Iterable[str]
) -> Attributed:
    """Match what containers hold against the GPUs of this node.

    `resources` are regular expressions, searched in the resource name: what matches none of them
    (network cards, other vendors) is not ours to count. A kubelet may list the same id twice (once
    per NUMA node): it counts once.
    """
    patterns = [re.compile(pattern) for pattern in resources]
    known = tuple(gpus)
    by_uuid = {gpu.uuid: gpu for gpu in known}
    by_minor = {gpu.minor: gpu for gpu in known if gpu.minor is not None}
    ours: dict[str, bool] = {}
    allocations: dict[Allocation, None] = {}
    unmatched: set[HeldDevice] = set()
    for device in held:
        resource = device.resource
        if resource not in ours:
            ours[resource] = any(pattern.search(resource) for pattern in patterns)
        if not ours[resource]:
            continue
        found = _find(device.device_id, by_uuid, by_minor)
        if found is None or len(allocations) >= ALLOCATIONS_MAX:
            unmatched.add(device)
            continue
        uuid, replica = found
        allocation = Allocation(
            uuid=uuid,
            namespace=device.namespace,
            pod=device.pod,
            container=device.container,
            resource=resource,
            replica=replica,
        )
        allocations[allocation] = None
    return Attributed(allocations=tuple(allocations), unmatched=len(unmatched))


def _find(
    device_id: str, by_uuid: dict[str, Identity], by_minor: dict[int, Identity]
) -> tuple[str, str] | None:
    """(uuid, replica) of the GPU that an id names; replica is empty for a whole GPU."""
    share = _SHARE.fullmatch(device_id)
    device, replica = (share["device"], share["replica"]) if share else (device_id, "")
    if device in by_uuid:
        return device, replica
    minor = _MINOR.fullmatch(device)
    if minor and int(minor["minor"]) in by_minor:
        return by_minor[int(minor["minor"])].uuid, minor["replica"] or replica
    return None


def single_holder(allocations: Iterable[Allocation], uuid: str) -> Allocation | None:
    """The one container that holds a GPU; None where there is none, or more than one."""
    holders = {(a.namespace, a.pod, a.container): a for a in allocations if a.uuid == uuid}
    return next(iter(holders.values())) if len(holders) == 1 else None
