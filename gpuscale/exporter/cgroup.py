"""From the text of /proc/<pid>/cgroup to whoever owns the process: a pod, a container beside Kubernetes, the host.

Pure. The shapes come from cgroup v1 and v2, the systemd and cgroupfs drivers, containerd, CRI-O,
Docker, Podman, nerdctl, LXC, Slurm and libvirt. Nothing is anchored at the root of a path: in a
private cgroup namespace (the default on v2) paths are relative to the reader, and `/kubepods.slice`
may be cut off in front (cgroup_namespaces(7)).
"""

import re
from dataclasses import dataclass
from enum import StrEnum

TEXT_CHARS_MAX = 64 * 1024
"""Of one file: v1 has some fifteen lines of at most 4096 characters; the rest is not looked at."""

UNIT_CHARS_MAX = 64
"""Of a unit or job name that is kept: enough to recognise it."""


class Kind(StrEnum):
    """What owns a process; the label `owner_kind`."""

    POD = "pod"
    OWN = "own"
    """The exporter's own pod or container."""
    DOCKER = "docker"
    PODMAN = "podman"
    NERDCTL = "nerdctl"
    CONTAINER = "container"
    """A container of another runtime, outside every pod: containerd's ctr, CRI-O, LXC."""
    SLURM = "slurm"
    VM = "vm"
    SESSION = "session"
    """A person's login."""
    SERVICE = "service"
    HOST = "host"
    """The root cgroup, or a shape that nobody knows: no container at all events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who a process belongs to."""

    kind: Kind
    pod_uid: str | None = None
    """metadata.uid with dashes; of a static pod the 32 hex digits of its configuration's hash."""
    container_id: str | None = None
    unit: str | None = None
    """The systemd unit, login session or job, where there is one."""


_UUID = r"[0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}"
_POD = re.compile(rf"[/-]pod(?P<uid>{_UUID}|[0-9a-f]{{32}})(?=\.slice|[/:]|$)")
_ID = r"(?P<id>[0-9a-f]{64})"
_IN_POD = re.compile(
    rf"(?::[a-z-]+)?[/:](?:(?:cri-containerd|crio|docker)-)?{_ID}(?=\.scope|[/:]|$)"
)
_MONITOR = re.compile(r"(?:crio|libpod)-conmon-[0-9a-f]+")
_SELF = re.compile(rf"/\.\./(?:(?:cri-containerd|crio|docker)-)?{_ID}(?:\.scope)?(?:/.*)?")
"""A sibling of the reader's own container: one step up, then a container, and no pod by name."""

_OUTSIDE: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    (Kind.SLURM, re.compile(r"/(?P<unit>(?:slurm\w*(?:\.scope|\.slice)?/).*?job_\d+)")),
    (Kind.DOCKER, re.compile(rf"/docker[-/]{_ID}(?=\.scope|/|$)")),
    (Kind.PODMAN, re.compile(rf"/libpod-{_ID}(?=\.scope|/|$)")),
    (Kind.PODMAN, re.compile(rf"/libpod_parent/(?:.*/)?libpod-{_ID}")),
    (Kind.NERDCTL, re.compile(rf"/nerdctl-{_ID}(?=\.scope|/|$)")),
    (Kind.CONTAINER, re.compile(rf"/(?:cri-containerd|crio)-{_ID}(?=\.scope|/|$)")),
    (Kind.VM, re.compile(r"/(?P<unit>machine-qemu[^/]*)\.scope")),
    (Kind.CONTAINER, re.compile(r"/(?P<unit>lxc(?:\.payload)?[./][^/]+)")),
    # containerd's own cgroup driver: /<containerd namespace>/<id>, as nerdctl and ctr make it.
    (Kind.NERDCTL, re.compile(rf"^(?:/\.\.)*/[a-z0-9][a-z0-9._-]*/{_ID}(?=/|$)")),
    (Kind.CONTAINER, re.compile(rf"^(?:/\.\.)+/{_ID}(?=/|$)")),
    (Kind.SESSION, re.compile(r"/user-\d+\.slice/(?:.*/)?(?P<unit>session-[^/]+\.scope)")),
    (Kind.SESSION, re.compile(r"/(?P<unit>user@\d+\.service)")),
    (Kind.SERVICE, re.compile(r"/(?P<unit>[^/]+\.service)(?=/|$)")),
)
"""In this order: a container started by a person's service is a container first."""


def owner_of(text: str, *, own_pod_uid: str | None = None, namespaced: bool = False) -> Owner:
    """The owner that /proc/<pid>/cgroup names; HOST where it names nobody.

    `namespaced` says that the reader lives in a cgroup namespace of its own, in which its own
    cgroup is `/`. The outermost pod counts: what a container writes into its own subtree (Docker in
    Docker, or a name made up to look like another pod) comes after it.
    """
    paths = _paths(text[:TEXT_CHARS_MAX])
    for path in paths:
        pod = _POD.search(path)
        if pod:
            return _of_pod(pod, path)
    if namespaced and any(_is_own(path, own_pod_uid) for path in paths):
        return Owner(kind=Kind.OWN, pod_uid=own_pod_uid)
    for kind, pattern in _OUTSIDE:
        for path in paths:
            found = None if _MONITOR.search(path) else pattern.search(path)
            if found:
                return _outside(kind, found)
    return Owner(kind=Kind.HOST)


def _is_own(path: str, own_pod_uid: str | None) -> bool:
    """Whether the reader's own container; or, where the reader is a pod, a container of that pod.

    Beside a reader that is no pod (started by Docker), a sibling is anybody's.
    """
    return path == "/" or (own_pod_uid is not None and _SELF.fullmatch(path) is not None)


def _paths(text: str) -> list[str]:
    """The paths of all lines: `HIERARCHY:CONTROLLERS:PATH`, and the path may hold colons."""
    lines = (line.split(":", 2) for line in text.splitlines())
    return [fields[2] for fields in lines if len(fields) == 3]


def _of_pod(pod: re.Match[str], path: str) -> Owner:
    inside = _IN_POD.match(path, _after_slice(path, pod.end()))
    return Owner(
        kind=Kind.POD,
        pod_uid=pod["uid"].replace("_", "-"),
        container_id=inside["id"] if inside else None,
    )


def _after_slice(path: str, at: int) -> int:
    return at + len(".slice") if path.startswith(".slice", at) else at


def _outside(kind: Kind, found: re.Match[str]) -> Owner:
    groups = found.groupdict()
    unit = groups.get("unit")
    return Owner(
        kind=kind,
        container_id=groups.get("id"),
        unit=None if unit is None else unit[:UNIT_CHARS_MAX],
    )
