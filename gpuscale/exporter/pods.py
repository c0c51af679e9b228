"""Which pods are on this node, by the names of the kubelet's log directories: namespace, name and UID.

The PodResources API names no UID, and lists pods that have ended (before Kubernetes 1.34). The
kubelet makes `/var/log/pods/<namespace>_<name>_<uid>` when a pod starts and removes it with the
pod; only names and times of directories are read, never a log.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

PODS_MAX = 4_096
"""Directories read: a kubelet runs at most a few hundred pods; the rest are left-overs."""

_NAME = re.compile(
    r"(?P<namespace>[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)_"
    r"(?P<name>[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?)_"
    r"(?P<uid>[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32})"
)
"""The UID of a static pod is the 32 hex digits that its cgroup carries too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod of this node, running or ended."""

    namespace: str
    name: str
    uid: str
    since: float
    """Wall time at which its last container was made."""


def pods_in(directory: str) -> tuple[Pod, ...] | None:
    """The pods with a log directory; None where the directory cannot be read."""
    found: list[Pod] = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                match = _NAME.fullmatch(entry.name)
                if match is None:
                    continue
                try:
                    since = entry.stat(follow_symlinks=False).st_mtime
                except OSError:
                    continue  # removed meanwhile
                found.append(Pod(**match.groupdict(), since=since))
                if len(found) >= PODS_MAX:
                    break
    except OSError:
        return None
    return tuple(found)


def newest(pods: Iterable[Pod]) -> dict[tuple[str, str], Pod]:
    """By (namespace, name): of a StatefulSet's recreated pod the newest, the one that runs."""
    found: dict[tuple[str, str], Pod] = {}
    for pod in pods:
        key = (pod.namespace, pod.name)
        if key not in found or pod.since > found[key].since:
            found[key] = pod
    return found
