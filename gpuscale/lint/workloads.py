"""Rules on what asks for GPUs: pods, and whatever holds their templates."""

from collections.abc import Iterator

from gpuscale.lint.finding import Finding
from gpuscale.lint.podspec import (
    GPU,
    MIG,
    SHARED,
    Container,
    PodSpec,
    is_mistaken,
    listed,
    mapping,
    quantity,
)
from gpuscale.lint.subject import Subject, quoted

REPLICATED = ("Deployment", "StatefulSet", "ReplicaSet", "Rollout", "LeaderWorkerSet")
"""Kinds whose pods serve for ever."""
_NAMES_MAX = 1_000
"""Resources of one container that are looked at."""


def findings(subject: Subject) -> Iterator[Finding]:
    """What is wrong with the pods of an object."""
    for pod in subject.pods:
        for container in pod.containers():
            yield from _amounts(subject, container)
            yield from _kinds(subject, container)
        if any(container.gpus() for container in pod.containers()):
            yield from _pod(subject, pod)
    if subject.group == "kubeflow.org" and subject.kind == "PyTorchJob":
        yield from _pytorch_job(subject)


def _amounts(subject: Subject, container: Container) -> Iterator[Finding]:
    """GPU-L01, L02, L05: amounts that the API server refuses."""
    requests, limits = container.requests, container.limits
    path = (*container.path, "resources")
    for name in container.gpus():
        if is_mistaken(name):
            continue  # GPU-L03 says all that can be said of it
        both = [
            (key, given[name])
            for key, given in (("requests", requests), ("limits", limits))
            if name in given
        ]
        for key, value in both:
            amount = quantity(value)
            if amount is None or amount < 0 or amount % 1 != 0:
                yield subject.found(
                    "GPU-L05",
                    (*path, key, name),
                    f"{key} of {quoted(name)} is {quoted(value)}",
                    container=container.name,
                )
        if name not in limits:
            yield subject.found(
                "GPU-L01",
                (*path, "requests", name),
                f"{quoted(name)} is under requests and not under limits",
                container=container.name,
            )
        elif name in requests and quantity(requests[name]) != quantity(limits[name]):
            yield subject.found(
                "GPU-L02",
                (*path, "requests", name),
                f"{quoted(name)} is {quoted(requests[name])} under requests and "
                f"{quoted(limits[name])} under limits",
                container=container.name,
            )


def _kinds(subject: Subject, container: Container) -> Iterator[Finding]:
    """GPU-L03, L06, L10: resources that are not what was meant."""
    path = (*container.path, "resources", "limits")
    asked = list(dict.fromkeys([*container.limits, *container.requests]))[:_NAMES_MAX]
    for name in asked:
        if is_mistaken(name):
            key = "limits" if name in container.limits else "requests"
            yield subject.found(
                "GPU-L03",
                (*path[:-1], key, name),
                f"{quoted(name)} is no resource of NVIDIA's device plugin",
                container=container.name,
            )
    gpus = {
        name: amount for name, amount in container.gpus().items() if amount is None or amount > 0
    }
    whole = [name for name in gpus if name in ("nvidia.com/gpu", "nvidia.com/gpu.shared")]
    mig = [name for name in gpus if MIG.fullmatch(name)]
    if whole and mig:
        yield subject.found(
            "GPU-L06",
            path,
            f"it asks for {quoted(whole[0])} and for {quoted(mig[0])}",
            container=container.name,
        )
    for name, amount in gpus.items():
        if SHARED.fullmatch(name) and amount is not None and amount > 1:
            yield subject.found(
                "GPU-L10",
                (*path, name),
                f"it asks for {amount} of {quoted(name)}",
                container=container.name,
            )


def _pod(subject: Subject, pod: PodSpec) -> Iterator[Finding]:
    """GPU-L07, L08, L09, L11: how a pod with GPUs is run."""
    if not pod.tolerates("nvidia.com/gpu"):
        yield subject.found(
            "GPU-L07",
            (*pod.path, "tolerations"),
            "its pods do not tolerate the taint nvidia.com/gpu",
        )
    owners = mapping(subject.raw.get("metadata")).get("ownerReferences")
    restart = pod.spec.get("restartPolicy") or "Always"
    if subject.kind == "Pod" and not owners and restart == "Always":
        yield subject.found(
            "GPU-L08",
            (*pod.path, "restartPolicy"),
            "nothing owns the pod, and its restartPolicy is Always",
        )
    if subject.kind not in REPLICATED:
        return
    for container in pod.containers():
        serves = container.path[-2] == "containers" and container.gpus()
        if serves and not mapping(container.raw.get("readinessProbe")):
            yield subject.found(
                "GPU-L09",
                container.path,
                f"container {quoted(container.name)} holds a GPU and has no readinessProbe",
                container=container.name,
            )
    if subject.kind == "Deployment":
        yield from _rollout(subject)


def _rollout(subject: Subject) -> Iterator[Finding]:
    strategy = mapping(subject.spec.get("strategy"))
    if strategy.get("type") == "Recreate":
        return
    surge = mapping(strategy.get("rollingUpdate")).get("maxSurge", "25%")
    if surge not in (0, "0", "0%"):
        yield subject.found(
            "GPU-L11",
            ("spec", "strategy"),
            f"maxSurge is {quoted(surge)}, which takes at least one GPU more while it rolls out",
        )


def _pytorch_job(subject: Subject) -> Iterator[Finding]:
    for role, raw in list(mapping(subject.spec.get("pytorchReplicaSpecs")).items())[:16]:
        spec = mapping(mapping(mapping(raw).get("template")).get("spec"))
        names = [entry.get("name") for _, entry in listed(spec.get("containers"))]
        if names and "pytorch" not in names:
            yield subject.found(
                "GPU-L12",
                ("spec", "pytorchReplicaSpecs", str(role), "template", "spec", "containers"),
                f"the containers of {quoted(role)} are called {quoted(', '.join(map(str, names[:4])))}",
            )


def gpu_resources(subject: Subject) -> Iterator[tuple[Container, str]]:
    """(container, resource) of every resource of a GPU vendor that the object's pods ask for."""
    for pod in subject.pods:
        for container in pod.containers():
            for name in list(dict.fromkeys([*container.limits, *container.requests]))[:_NAMES_MAX]:
                if GPU.fullmatch(name):
                    yield container, name
