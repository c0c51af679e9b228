"""Checks on nodes, the device plugin and the pods that ask for GPUs. Pure: facts in, results out."""

from collections import Counter
from collections.abc import Iterator, Mapping

from gpuscale.doctor.facts import Cluster, Exporter, Node, Pod, Result, Unread, number, some
from gpuscale.lint.podspec import is_mistaken

_STATE = "nvidia.com/mig.config.state"


def checks(cluster: Cluster) -> Iterator[Result]:
    """Every check on nodes and pods."""
    nodes, pods = cluster.nodes, cluster.pods
    if isinstance(nodes, Unread):
        yield Result(
            check="gpu-nodes",
            status="unknown",
            sentence=f"nodes cannot be read: {nodes.reason}",
            cure="Let this account list nodes.",
        )
    else:
        yield _gpu_nodes(nodes)
        yield _device_plugin(nodes)
        yield from _unhealthy(nodes)
        yield from _mig(nodes)
        yield from _shares(nodes)
        yield from _measured(nodes, cluster.exporters)
    if isinstance(pods, Unread):
        yield Result(
            check="gpu-pods",
            status="unknown",
            sentence=f"pods cannot be read: {pods.reason}",
            cure="Let this account list pods.",
        )
        return
    yield from _pending(pods)
    yield from _refused(pods)
    yield from _runtime_class(pods, cluster.runtime_classes)
    if not isinstance(nodes, Unread):
        yield from _resources(pods, nodes)


def _gpu_nodes(nodes: tuple[Node, ...]) -> Result:
    having = [n for n in nodes if n.has_gpu]
    if not having:
        return Result(
            check="gpu-nodes",
            status="warning",
            sentence=f"none of {number(len(nodes), 'node')} offers a GPU",
            cure="Install NVIDIA's GPU operator, or its device plugin, on the nodes with GPUs.",
        )
    totals: Counter[str] = Counter()
    for node in having:
        totals.update({name: count for name, count in node.capacity.items() if count})
        if node.dra_devices:
            totals["GPUs by DRA"] += node.dra_devices
    offered = ", ".join(f"{count} {name}" for name, count in sorted(totals.items()))
    away = [n.name for n in having if not n.ready]
    return Result(
        check="gpu-nodes",
        status="warning" if away else "ok",
        sentence=f"{number(len(having), 'node')} with GPUs: {offered}"
        + (f"; not ready: {some(away)}" if away else ""),
        cure="Look at the node's conditions: kubectl describe node NAME." if away else "",
    )


def _device_plugin(nodes: tuple[Node, ...]) -> Result:
    silent = [n.name for n in nodes if n.says_gpu and not n.has_gpu]
    if silent:
        return Result(
            check="device-plugin",
            status="error",
            sentence=f"{some(silent)} {'has' if len(silent) == 1 else 'have'} GPUs by label, and "
            "offer none: no device plugin runs there, or it does not see the driver",
            cure="Look at the plugin's pod on that node; where it runs, nvidia must be the runtime "
            "of the pod (nvidia-ctk runtime configure --set-as-default, or runtimeClassName nvidia).",
        )
    return Result(
        check="device-plugin", status="ok", sentence="every node whose labels name GPUs offers them"
    )


def _unhealthy(nodes: tuple[Node, ...]) -> Iterator[Result]:
    short = [
        f"{node.name} ({node.allocatable.get(name, 0)} of {count} {name})"
        for node in nodes
        for name, count in sorted(node.capacity.items())
        if node.allocatable.get(name, 0) < count
    ]
    if short:
        yield Result(
            check="unhealthy-gpus",
            status="error",
            sentence=f"the device plugin holds GPUs back as unhealthy: {some(short)}",
            cure="Look for XID errors of that GPU (gpuscale_gpu_xid_errors_total, dmesg), drain the "
            "node and reset it.",
        )


def _mig(nodes: tuple[Node, ...]) -> Iterator[Result]:
    failed = [
        node.name
        for node in nodes
        if node.labels.get(_STATE) == "failed"
        or node.labels.get("nvidia.com/gpu.product", "").endswith("MIG-INVALID")
    ]
    if failed:
        yield Result(
            check="mig",
            status="error",
            sentence=f"MIG could not be set up on {some(failed)}",
            cure="Read the log of the MIG manager there, and correct the profile in the label "
            "nvidia.com/mig.config.",
        )


def _shares(nodes: tuple[Node, ...]) -> Iterator[Result]:
    shared = [
        node.name
        for node in nodes
        if _count(node.labels.get("nvidia.com/gpu.replicas")) > 1
        and node.capacity.get("nvidia.com/gpu")
        and not node.capacity.get("nvidia.com/gpu.shared")
    ]
    if shared:
        yield Result(
            check="shares",
            status="warning",
            sentence=f"on {some(shared)} a share of a GPU is called nvidia.com/gpu, so quotas and "
            "bills count shares as GPUs",
            cure="Set renameByDefault: true in the device plugin's sharing settings, and ask for "
            "nvidia.com/gpu.shared.",
        )


def _count(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() and len(text) < 6 else 0


def _measured(
    nodes: tuple[Node, ...], exporters: Mapping[str, Exporter | Unread]
) -> Iterator[Result]:
    """What the plugin offers beside what the driver shows: they differ where one of them is wrong."""
    for node in nodes:
        seen = exporters.get(node.name)
        declared = _count(node.labels.get("nvidia.com/gpu.count"))
        if not isinstance(seen, Exporter) or not seen.driver_up or not declared:
            continue
        if seen.gpus != declared:
            yield Result(
                check="gpus-of-the-driver",
                status="error",
                sentence=f"on {node.name} the driver shows {number(seen.gpus, 'GPU')} and the label "
                f"nvidia.com/gpu.count says {declared}",
                cure="Restart the device plugin and GPU feature discovery there; a GPU that fell off "
                "the bus needs a reboot.",
            )


def _pending(pods: tuple[Pod, ...]) -> Iterator[Result]:
    waiting = [p for p in pods if p.pending and p.resources]
    causes = Counter(p.pending for p in waiting)
    for cause, count in causes.most_common(5):
        names = [p.key for p in waiting if p.pending == cause]
        yield Result(
            check="pending-gpu-pods",
            status="info" if cause == "gated" else "warning",
            sentence=f"{number(count, 'pod')} that ask{'s' if count == 1 else ''} for GPUs "
            f"{'waits' if count == 1 else 'wait'} ({cause}): {some(names)}",
            cure=_cure_for(cause),
        )


def _cure_for(cause: str) -> str:
    if "taint" in cause:
        return "Add the toleration {key: nvidia.com/gpu, operator: Exists} to the pods."
    if "insufficient_gpu" in cause:
        return "Free GPUs, or add nodes; gpuscale asks for no more than can be had once it acts."
    if "gated" in cause:
        return "Whoever gated them (Kueue, say) will let them go."
    return "Read the pod's condition: kubectl describe pod NAME."


def _refused(pods: tuple[Pod, ...]) -> Iterator[Result]:
    refused = [
        p.key
        for p in pods
        if p.reason.startswith("OutOf") or p.reason == "UnexpectedAdmissionError"
    ]
    if refused:
        yield Result(
            check="refused-pods",
            status="warning",
            sentence=f"the kubelet refused pods that were scheduled to it: {some(refused)}",
            cure="Delete them; where it goes on, the device plugin lost GPUs after they were counted.",
        )


def _runtime_class(pods: tuple[Pod, ...], classes: frozenset[str] | Unread) -> Iterator[Result]:
    used = sorted({p.runtime_class for p in pods if p.runtime_class})
    if isinstance(classes, Unread):
        if used:
            yield Result(
                check="runtime-class",
                status="unknown",
                sentence=f"runtime classes cannot be read: {classes.reason}",
                cure="Let this account list runtimeclasses of node.k8s.io.",
            )
        return
    missing = [name for name in used if name not in classes]
    if missing:
        yield Result(
            check="runtime-class",
            status="error",
            sentence=f"pods name the runtime class {some(missing)}, which does not exist",
            cure="Create the RuntimeClass (nvidia-ctk makes none), or remove runtimeClassName where "
            "nvidia is the default runtime.",
        )
    elif used:
        yield Result(
            check="runtime-class",
            status="ok",
            sentence=f"runtime classes in use exist: {some(used)}",
        )


def _resources(pods: tuple[Pod, ...], nodes: tuple[Node, ...]) -> Iterator[Result]:
    offered = {name for node in nodes for name, count in node.capacity.items() if count}
    by_dra = any(node.dra_devices for node in nodes)
    for name in sorted({r for p in pods for r in p.resources} - offered):
        if name == "nvidia.com/gpu" and by_dra:
            continue  # KEP-5004: DRA serves the resource, and no node counts it
        names = [p.key for p in pods if name in p.resources]
        yield Result(
            check="resource-names",
            status="error",
            sentence=f"no node has {name}, which {some(names)} ask{'s' if len(names) == 1 else ''} for",
            cure="Write a resource that a node has"
            + (
                f": {some(sorted(offered), 6)}."
                if offered and not is_mistaken(name)
                else ", as the device plugin names it."
            ),
        )
