"""The door to /proc: who owns a process that the driver names.

Only `/proc/<pid>/cgroup` and `/proc/<pid>/stat` are read, which are open to everybody; never the
command line or the environment, which hold secrets. NVML names processes by the host's ids, so this
works only in the host's PID namespace (`hostPID: true`); elsewhere it says so and gives nothing.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpuscale.exporter.cgroup import TEXT_CHARS_MAX, Owner, owner_of

PROCESSES_MAX = 4_096
"""Looked at per turn: MPS allows 48 clients per GPU; beyond this somebody forks without end."""

SCAN_MAX = 65_536
"""Ids of /proc looked at for living pods: twice the default pid_max."""

STAT_BYTES_MAX = 4_096
_STAT = re.compile(rb"(?s)\d+ \((?P<comm>.*)\) (?P<fields>[^)]*)")
_START_FIELD = 19
"""starttime is field 22 of proc_pid_stat(5); counted from the state, which is field 3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A living process; (pid, started) names it for ever, the pid alone does not."""

    pid: int
    started: int
    """Clock ticks after boot."""
    comm: str
    """Its name, at most 15 bytes, chosen by itself."""
    owner: Owner


class Processes:
    """Reads one /proc."""

    def __init__(self, root: str, *, own_pod_uid: str | None = None) -> None:
        """`own_pod_uid` is what the exporter's own processes are told as, where it is known."""
        self._root = Path(root)
        self._own_pod_uid = own_pod_uid

    def obstacle(self) -> str | None:
        """Why processes cannot be mapped here; None where they can."""
        if not self._root.is_dir():
            return f"there is no {self._root}: mount the host's /proc, or set processes.proc"
        kernel = self._stat(2)
        if kernel is None or kernel[1] != "kthreadd":
            return (
                f"{self._root} does not show the host's processes: set hostPID on the pod "
                "(the chart does where exporter.config.processes.enabled is set)"
            )
        return None

    def look(self, pids: Iterable[int]) -> dict[int, Process]:
        """The processes that are there now, by pid; one that ended, or ends meanwhile, is left out."""
        namespaced = self._namespaced()
        found: dict[int, Process] = {}
        for pid in sorted(set(pids))[:PROCESSES_MAX]:
            process = self._look(pid, namespaced=namespaced)
            if process is not None:
                found[pid] = process
        return found

    def living_pods(self) -> frozenset[str] | None:
        """UIDs of the pods that have a process (each running pod has at least its sandbox's); None if unknown."""
        namespaced = self._namespaced()
        try:
            entries = [entry.name for entry in self._root.iterdir() if entry.name.isdigit()]
        except OSError:
            return None
        uids = set()
        for name in entries[:SCAN_MAX]:
            text = self._read(f"{name}/cgroup", TEXT_CHARS_MAX)
            if text is None:
                continue
            owner = owner_of(
                text.decode(errors="replace"), own_pod_uid=self._own_pod_uid, namespaced=namespaced
            )
            if owner.pod_uid is not None:
                uids.add(owner.pod_uid)
        return frozenset(uids)

    def _look(self, pid: int, *, namespaced: bool) -> Process | None:
        before = self._stat(pid)
        text = self._read(f"{pid}/cgroup", TEXT_CHARS_MAX)
        after = self._stat(pid)
        if before is None or text is None or before != after:
            return None  # it ended between the reads, and its number may be another's by now
        started, comm = before
        owner = owner_of(
            text.decode(errors="replace"), own_pod_uid=self._own_pod_uid, namespaced=namespaced
        )
        return Process(pid=pid, started=started, comm=comm, owner=owner)

    def _stat(self, pid: int) -> tuple[int, str] | None:
        """(start time, name) of a process. The name may hold anything, parentheses and line feeds too."""
        raw = self._read(f"{pid}/stat", STAT_BYTES_MAX)
        found = _STAT.match(raw) if raw is not None else None
        if found is None:
            return None
        fields = found["fields"].split()
        if len(fields) <= _START_FIELD or not fields[_START_FIELD].isdigit():
            return None
        return int(fields[_START_FIELD]), found["comm"].decode(errors="replace")

    def _namespaced(self) -> bool:
        """Whether this process lives in a cgroup namespace of its own: its own cgroup is then `/`."""
        text = self._read("self/cgroup", TEXT_CHARS_MAX)
        if text is None:
            return False
        lines = text.decode(errors="replace").splitlines()
        return bool(lines) and all(line.split(":", 2)[-1] == "/" for line in lines)

    def _read(self, name: str, bytes_max: int) -> bytes | None:
        try:
            with (self._root / name).open("rb") as file:
                return file.read(bytes_max)
        except OSError:
            return None  # ended, or not ours to read
