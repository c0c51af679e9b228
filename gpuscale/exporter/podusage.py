"""What each pod used of each GPU, from the driver's process list and its samples per process.

Pure. Pods that hold a GPU and did nothing have a true 0; a GPU whose processes could not be read has
no row. What the pods of a GPU used together never exceeds what the GPU itself says: the two are read
at different moments, so a small excess is scaled away.
"""

from collections.abc import Iterable, Mapping

from gpuscale.exporter.cgroup import Kind
from gpuscale.exporter.pods import Pod
from gpuscale.exporter.processes import Process
from gpuscale.exporter.sample import DeviceSample, ProcessReading
from gpuscale.exporter.usage import Allocation, PodUsage

UTILIZATION = "gpuscale_gpu_utilization_ratio"
MEMORY_USED = "gpuscale_gpu_memory_used_bytes"

WINDOW_US_MAX = 10_000_000
"""Samples older than this before the newest one are not of this period."""


def busy_by_pid(reading: ProcessReading) -> dict[int, float] | None:
    """Mean share (0–1) of the GPU's time by process over the reading; None where it gives none.

    The driver stamps samples at about one instant per period. A process that has none in some of
    the periods did nothing in them, so the sum is divided by the periods of the busiest process.
    """
    if reading.utilization is None:
        return None
    sums: dict[int, float] = {}
    counts: dict[int, int] = {}
    newest = max((s.timestamp_us for s in reading.utilization), default=0)
    for sample in reading.utilization:
        if sample.timestamp_us < newest - WINDOW_US_MAX:
            continue
        sums[sample.pid] = sums.get(sample.pid, 0.0) + sample.sm_ratio
        counts[sample.pid] = counts.get(sample.pid, 0) + 1
    periods = max(counts.values(), default=1)
    return {pid: total / periods for pid, total in sums.items()}


def usage(
    device: DeviceSample,
    processes: Mapping[int, Process],
    pods_by_uid: Mapping[str, Pod],
    allocations: Iterable[Allocation],
) -> tuple[PodUsage, ...]:
    """Rows of one GPU: every pod that holds it or runs on it; empty where its processes are not known.

    `processes` are those that /proc knows, `allocations` those of this GPU (its instances too).
    """
    reading = device.processes
    if reading is None:
        return ()
    holders = tuple(allocations)
    busy = busy_by_pid(reading)
    memory: dict[tuple[str, str], float | None] = {
        (holder.namespace, holder.pod): 0.0 for holder in holders
    }
    ratio: dict[tuple[str, str], float] = dict.fromkeys(memory, 0.0)
    for process in reading.processes:
        pod = _pod_of(processes.get(process.pid), pods_by_uid)
        if pod is None:
            continue
        held = memory.get(pod, 0.0)
        used = process.used_memory_bytes
        memory[pod] = None if held is None or used is None else held + used
        ratio.setdefault(pod, 0.0)
    for pid, share in (busy or {}).items():
        pod = _pod_of(processes.get(pid), pods_by_uid)
        if pod is not None:
            ratio[pod] = ratio.get(pod, 0.0) + share
    known = {pod: used for pod, used in memory.items() if used is not None}
    known = _within(known, device.value(MEMORY_USED))
    limit = device.value(UTILIZATION)
    ratio = _within(ratio, 1.0 if limit is None else limit)
    containers = _containers(holders)
    return tuple(
        PodUsage(
            uuid=device.identity.uuid,
            namespace=pod[0],
            pod=pod[1],
            container=containers.get(pod, ""),
            busy=None if busy is None else ratio.get(pod, 0.0),
            memory_bytes=known.get(pod),
        )
        for pod in sorted({*memory, *ratio})
    )


def _pod_of(process: Process | None, pods_by_uid: Mapping[str, Pod]) -> tuple[str, str] | None:
    if process is None or process.owner.kind is not Kind.POD or process.owner.pod_uid is None:
        return None
    pod = pods_by_uid.get(process.owner.pod_uid)
    return None if pod is None else (pod.namespace, pod.name)


def _within(
    values: dict[tuple[str, str], float], limit: float | None
) -> dict[tuple[str, str], float]:
    total = sum(values.values())
    if limit is None or total <= limit:
        return values
    return {pod: value * limit / total for pod, value in values.items()}


def _containers(holders: Iterable[Allocation]) -> dict[tuple[str, str], str]:
    """The container of each pod that has just one on this GPU."""
    found: dict[tuple[str, str], set[str]] = {}
    for holder in holders:
        found.setdefault((holder.namespace, holder.pod), set()).add(holder.container)
    return {pod: next(iter(names)) for pod, names in found.items() if len(names) == 1}
