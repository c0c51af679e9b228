"""Processes that run on an invented GPU, as a caller put them there."""

from collections.abc import Callable

from gpuscale.exporter.device import ComputeProcess, ProcessUtilization

SAMPLES_MAX = 100
"""Of one process and call: the driver's own buffer holds about as many."""


class Processes:
    """Who runs, and what share of the time of each second its kernels ran."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._running: dict[int, tuple[ComputeProcess, float, float]] = {}

    def start(
        self,
        pid: int,
        *,
        used_memory_bytes: int | None = None,
        sm_ratio: float = 0.0,
        memory_ratio: float = 0.0,
        gpu_instance_id: int | None = None,
    ) -> None:
        """Put a process there, or change what it does."""
        process = ComputeProcess(
            pid=pid,
            used_memory_bytes=used_memory_bytes,
            gpu_instance_id=gpu_instance_id,
            compute_instance_id=None if gpu_instance_id is None else 0,
        )
        self._running = {**self._running, pid: (process, sm_ratio, memory_ratio)}

    def end(self, pid: int) -> None:
        """Take it away."""
        self._running = {other: what for other, what in self._running.items() if other != pid}

    def running(self) -> tuple[ComputeProcess, ...]:
        """All of them."""
        return tuple(process for process, _, _ in self._running.values())

    def samples(self, since_us: int) -> tuple[ProcessUtilization, ...]:
        """One a second and process, after `since_us`."""
        newest_s = int(self._now())
        oldest_s = max(since_us // 1_000_000, newest_s - SAMPLES_MAX) + 1
        return tuple(
            ProcessUtilization(
                pid=pid, sm_ratio=sm, memory_ratio=memory, timestamp_us=at_s * 1_000_000
            )
            for at_s in range(oldest_s, newest_s + 1)
            for pid, (_, sm, memory) in self._running.items()
        )
