"""Rules on what lets a pod use GPUs that it was not given: GPU-A01 to GPU-A09.

They read specs, of manifests and of live pods. What a container really does, the exporter's node
audit sees (GPU-N01 to N03). How the NVIDIA container toolkit reads a container: CDI annotations go
before volume mounts, these before the environment, which unprivileged containers may use by default.
"""

import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from gpuscale.lint.finding import Finding
from gpuscale.lint.podspec import VISIBLE_DEVICES, Container, PodSpec, is_gpu, listed, mapping, text
from gpuscale.lint.subject import Subject, quoted

RUNTIME_CLASSES = ("nvidia", "nvidia-cdi", "nvidia-legacy", "nvidia-experimental")
MPS = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
_HIDES = ("", "void", "none")
_DEVICES = re.compile(
    r"/dev(/nvidia.*|/dri(/.*)?)?/?|/(usr|run|opt)/.*(libnvidia|libcuda|/nvidia)[^/]*.*|"
    r"/proc/driver/nvidia.*"
)
_MOUNTED = re.compile(r"/var/run/nvidia-container-devices(/.*)?")
_CDI = re.compile(r"(nvidia\.)?cdi\.k8s\.io(/.*)?")
_CDI_GPU = re.compile(r"(management\.)?nvidia\.com/(gpu|mig)[^=]*=")
_CUDA_IMAGE = re.compile(
    r"(^|/)(nvidia/cuda|nvcr\.io/|vllm/|pytorch/pytorch|lmsysorg/sglang|"
    r"huggingface/text-generation-inference|tensorflow/tensorflow:.*gpu|rayproject/.*(gpu|cu\d))"
)
_ANNOTATIONS_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What is expected to reach GPUs without holding one."""

    namespaces: tuple[str, ...] = ()
    """Globs: the GPU operator's."""
    pods: tuple[str, ...] = ()
    """Globs of NAMESPACE/NAME."""

    def has(self, namespace: str, name: str) -> bool:
        """Whether an object is on the list."""
        return any(fnmatchcase(namespace, glob) for glob in self.namespaces) or any(
            fnmatchcase(f"{namespace}/{name}", glob) for glob in self.pods
        )


def has_gpus(node: Mapping[str, Any]) -> bool:
    """Whether a node (core/v1) offers GPUs, or says by a label that it has some."""
    labels = mapping(mapping(node.get("metadata")).get("labels"))
    capacity = mapping(mapping(node.get("status")).get("capacity"))
    return labels.get("nvidia.com/gpu.present") == "true" or any(map(is_gpu, capacity))


def findings(
    subject: Subject, allowed: Allowed, gpu_nodes: AbstractSet[str] = frozenset()
) -> Iterator[Finding]:
    """What an object's pods may do to GPUs. `gpu_nodes`: names of nodes that have GPUs, as far as known."""
    if allowed.has(subject.namespace, subject.name):
        return
    for pod in subject.pods:
        near = pod.selects_gpu_nodes() or pod.spec.get("nodeName") in gpu_nodes
        for container in pod.containers():
            yield from _environment(subject, pod, container, near=near)
            yield from _privileges(subject, pod, container, near=near)
        yield from _mounts(subject, pod, near=near)
        yield from _pod(subject, pod, near=near)


def _environment(
    subject: Subject, pod: PodSpec, container: Container, *, near: bool
) -> Iterator[Finding]:
    """GPU-A01, A02, A05, A09."""
    found = container.env(VISIBLE_DEVICES)
    if found is None:
        if (
            near
            and not pod.holds_gpu()
            and _CUDA_IMAGE.search(text(container.raw.get("image"))[:512])
        ):
            yield subject.found(
                "GPU-A05",
                (*container.path, "image"),
                f"container {quoted(container.name)} runs {quoted(container.raw.get('image'))} on a GPU "
                f"node, holds no GPU, and does not set {VISIBLE_DEVICES} to void",
                container=container.name,
            )
    else:
        path, entry = found
        value = entry.get("value", "")
        if entry.get("valueFrom") is not None:
            yield subject.found(
                "GPU-A02",
                path,
                f"{VISIBLE_DEVICES} comes from elsewhere, so it cannot be told what it names",
                container=container.name,
                severity="info",
            )
        elif value == "all" and not container.holds_gpu():
            yield subject.found(
                "GPU-A01",
                path,
                f"container {quoted(container.name)} sets {VISIBLE_DEVICES}=all and holds no GPU",
                container=container.name,
            )
        elif value not in _HIDES:
            yield subject.found(
                "GPU-A02",
                path,
                f"container {quoted(container.name)} sets {VISIBLE_DEVICES} to {quoted(value)}",
                container=container.name,
            )
    by_hand = next((f for f in map(container.env, MPS) if f is not None), None)
    if by_hand is not None and (pod.spec.get("hostIPC") is True or _host_paths(pod)):
        yield subject.found(
            "GPU-A09",
            by_hand[0],
            f"container {quoted(container.name)} sets {quoted(by_hand[1].get('name'))} beside "
            f"{'hostIPC' if pod.spec.get('hostIPC') is True else 'a directory of the host'}",
            container=container.name,
        )


def _privileges(
    subject: Subject, pod: PodSpec, container: Container, *, near: bool
) -> Iterator[Finding]:
    """GPU-A03."""
    context = mapping(container.raw.get("securityContext"))
    added = mapping(context.get("capabilities")).get("add")
    names = [str(n).removeprefix("CAP_") for n in added] if isinstance(added, list) else []
    how = (
        "is privileged"
        if context.get("privileged") is True
        else "has SYS_ADMIN"
        if {"SYS_ADMIN", "ALL"} & set(names)
        else None
    )
    if how is not None and near and not container.holds_gpu():
        yield subject.found(
            "GPU-A03",
            (*container.path, "securityContext"),
            f"container {quoted(container.name)} {how}, is for GPU nodes, and holds no GPU",
            container=container.name,
        )


def _host_paths(pod: PodSpec) -> dict[str, tuple[int, str]]:
    """Volume -> (its position, the directory of the host)."""
    return {
        text(volume.get("name")): (i, path)
        for i, volume in listed(pod.spec.get("volumes"))
        if (path := text(mapping(volume.get("hostPath")).get("path")))
    }


def _mounts(subject: Subject, pod: PodSpec, *, near: bool) -> Iterator[Finding]:
    """GPU-A04. The whole of /dev is what many node agents mount: it counts where GPUs are."""
    if pod.holds_gpu():
        return
    paths = _host_paths(pod)
    for name, (i, path) in paths.items():
        if _DEVICES.fullmatch(path[:4096]) and (near or path.rstrip("/") != "/dev"):
            yield subject.found(
                "GPU-A04",
                (*pod.path, "volumes", i),
                f"volume {quoted(name)} is {quoted(path)} of the host, and the pod holds no GPU",
            )
    for container in pod.containers():
        for j, mount in listed(container.raw.get("volumeMounts")):
            if _MOUNTED.fullmatch(text(mount.get("mountPath"))[:4096]):
                yield subject.found(
                    "GPU-A04",
                    (*container.path, "volumeMounts", j),
                    f"container {quoted(container.name)} asks the toolkit for GPUs by a mount at "
                    f"{quoted(mount.get('mountPath'))}, and holds none",
                    container=container.name,
                )


def _pod(subject: Subject, pod: PodSpec, *, near: bool) -> Iterator[Finding]:
    """GPU-A06, A07, A08."""
    runtime = pod.spec.get("runtimeClassName")
    if runtime in RUNTIME_CLASSES and not pod.holds_gpu():
        yield subject.found(
            "GPU-A06",
            (*pod.path, "runtimeClassName"),
            f"runtimeClassName is {quoted(runtime)}, and no container holds a GPU",
        )
    annotations = list(mapping(pod.metadata.get("annotations")).items())[:_ANNOTATIONS_MAX]
    for key, value in annotations:
        if (
            _CDI.fullmatch(str(key)[:512])
            and _CDI_GPU.search(text(value)[:4096])
            and not pod.holds_gpu()
        ):
            yield subject.found(
                "GPU-A07",
                (*pod.path[:-1], "metadata", "annotations", str(key)),
                f"the annotation {quoted(key)} names {quoted(value)}, and no container holds a GPU",
            )
    if (
        pod.spec.get("hostPID") is True
        and pod.spec.get("hostIPC") is True
        and (near or pod.holds_gpu())
    ):
        yield subject.found(
            "GPU-A08", (*pod.path, "hostPID"), "the pod has hostPID and hostIPC, and is for GPUs"
        )
