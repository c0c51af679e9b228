"""Who runs on a GPU, and what each used: the two slow calls, as lists that are bounded and checked."""

from typing import Any

from gpuscale.errors import DriverError, NotSupported
from gpuscale.exporter import nvmlreturn
from gpuscale.exporter.device import ComputeProcess, ProcessUtilization
from gpuscale.exporter.nvml.call import Handle
from gpuscale.exporter.nvml.check import MEMORY_BYTES_MAX, share

PROCESSES_MAX = 1_024
"""Processes of one GPU that are read: a time-sliced or MPS node has some dozens."""
PID_MAX = 1 << 22
"""The kernel's own upper bound (PID_MAX_LIMIT); 0 and beyond it are no process."""
INSTANCE_ID_MAX = 64
"""Ids of GPU and compute instances are small; 0xffffffff says that there is none."""

_LISTS = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses")
"""Clients of an MPS server are in the second list only."""


def compute_processes(handle: Handle) -> tuple[ComputeProcess, ...]:
    """Compute processes and MPS clients, each pid and instance once."""
    found: dict[tuple[int, int | None, int | None], ComputeProcess] = {}
    failed: DriverError | None = None
    answered = False
    for function in _LISTS:
        try:
            raw = handle.ask(function)
        except NotSupported as error:
            failed = failed or error
            continue
        answered = True
        for one in raw[:PROCESSES_MAX]:
            process = _process(one)
            if process is not None:
                key = (process.pid, process.gpu_instance_id, process.compute_instance_id)
                found.setdefault(key, process)
    if failed is not None and not answered:
        raise failed
    return tuple(found.values())


def _process(raw: Any) -> ComputeProcess | None:
    pid, used = int(raw.pid or 0), raw.usedGpuMemory
    if not 0 < pid <= PID_MAX:
        return None
    if used is not None and not 0 <= used <= MEMORY_BYTES_MAX:
        used = None
    return ComputeProcess(
        pid=pid,
        used_memory_bytes=used,
        gpu_instance_id=instance_id(getattr(raw, "gpuInstanceId", None)),
        compute_instance_id=instance_id(getattr(raw, "computeInstanceId", None)),
    )


def instance_id(value: int | None) -> int | None:
    """A GPU or compute instance id; None for the driver's "none"."""
    return value if value is not None and 0 <= value <= INSTANCE_ID_MAX else None


def process_utilization(handle: Handle, since_us: int) -> tuple[ProcessUtilization, ...]:
    """Samples younger than `since_us`: the buffer holds those of ended and idle processes for long."""
    try:
        raw = handle.ask("nvmlDeviceGetProcessUtilization", since_us)
    except DriverError as error:
        # pynvml raises "success" where the size query finds nothing; the driver says NOT_FOUND.
        if error.code in (nvmlreturn.SUCCESS, nvmlreturn.NOT_FOUND):
            return ()
        raise
    samples: list[ProcessUtilization] = []
    for one in raw[:PROCESSES_MAX]:
        sm, memory = share(one.smUtil), share(one.memUtil)
        at_us, pid = int(one.timeStamp), int(one.pid)
        if sm is not None and memory is not None and at_us > since_us and 0 < pid <= PID_MAX:
            samples.append(
                ProcessUtilization(pid=pid, sm_ratio=sm, memory_ratio=memory, timestamp_us=at_us)
            )
    return tuple(samples)
