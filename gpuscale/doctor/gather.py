"""Gathers the facts: asks the API server, the exporters through it, a Prometheus, and this machine.

Only lists and gets. What may not be read, or does not answer, is a fact as well: `Unread`.
"""

import asyncio
import platform
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from gpuscale import __version__
from gpuscale.clock import Clock
from gpuscale.controller import gateway as api
from gpuscale.controller import inventory, listing
from gpuscale.controller.gateway import KubeGateway, Resource
from gpuscale.controller.gpumap import NodeReport
from gpuscale.controller.queryapi import QueryApi
from gpuscale.doctor.facts import (
    Cluster,
    Exporter,
    Here,
    Node,
    Pod,
    Prometheus,
    Unreachable,
    Unread,
)
from gpuscale.errors import ApiError, ApiNotFound, DriverError, SourceError
from gpuscale.lint.podspec import is_gpu, is_mistaken, listed, mapping, pods, quantity, text
from gpuscale.settings import PrometheusSettings

RUNTIME_CLASSES = Resource(group="node.k8s.io", version="v1", plural="runtimeclasses")
AUTOSCALERS = Resource(group="autoscaling", version="v2", plural="horizontalpodautoscalers")
QUOTAS = Resource(group="", version="v1", plural="resourcequotas")
SLICES = Resource(group="resource.k8s.io", version="v1", plural="resourceslices")
DRIVER = "gpu.nvidia.com"
"""Name of NVIDIA's DRA driver."""

EXPORTERS_MAX = 64
"""Exporters asked one by one: enough to see what is wrong with all of them."""
AT_ONCE = 8
KEPT_MAX = 20_000
"""Objects of one kind that are kept; pods only those that have to do with GPUs."""
QUERY_TIMEOUT_S = 10.0

T = TypeVar("T")

QUERIES: Mapping[str, str] = {
    "gpus": "count(count by (uuid) (gpuscale_gpu_info))",
    "nodes": "count(gpuscale_nvml_up)",
    "renamed": 'count(gpuscale_gpu_allocation_info{exported_pod!=""})',
    "dcgm": "count(DCGM_FI_DEV_GPU_UTIL)",
    "controllers": "count(gpuscale_controller_build_info)",
    "kube_state": "count(kube_pod_info)",
}
"""What a Prometheus is asked; each gives one value, or none where there is no such series."""


async def cluster(
    gateway: KubeGateway, namespaces: Sequence[str], *, ask_exporters: bool = True
) -> Cluster | Unread:
    """The cluster. Unread where the API server does not even tell its version."""
    try:
        version = text((await gateway.get("/version")).get("gitVersion"))
    except ApiError as error:
        return Unreachable(str(error))
    slices = await _tried(_slices(gateway))
    dra = slices if isinstance(slices, dict) else {}

    def lists(resource: Resource, keep: Callable[[Mapping[str, Any]], T | None]) -> Awaitable[Any]:
        return _tried(_kept(gateway, resource, namespaces, keep))

    nodes = await _tried(
        _kept(gateway, api.NODES, (), lambda raw: _node(raw, dra.get(_name(raw), 0)))
    )
    ports: dict[str, tuple[str, str, int]] = {}
    found = await lists(api.PODS, lambda raw: _pod(raw, ports))
    classes = await _tried(_kept(gateway, RUNTIME_CLASSES, (), _name))
    return Cluster(
        server=gateway.server,
        version=version,
        nodes=nodes,
        pods=found,
        runtime_classes=classes if isinstance(classes, Unread) else frozenset(classes),
        scaled_objects=await _optional(lists(api.SCALED_OBJECTS, _whole)),
        autoscalers=await lists(AUTOSCALERS, _whole),
        workloads=await _workloads(lists),
        quotas=await lists(QUOTAS, _whole),
        exporters=await _exporters(gateway, ports) if ask_exporters else {},
    )


class _Absent(Unread):
    """The server has no such type."""


async def _tried(read: Awaitable[T]) -> T | Unread:
    try:
        return await read
    except ApiNotFound as error:
        return _Absent(str(error))
    except ApiError as error:
        return Unread(str(error))


async def _optional(read: Awaitable[T | Unread]) -> T | Unread | None:
    """None where the server has no such type."""
    found = await read
    return None if isinstance(found, _Absent) else found


async def _kept(
    gateway: KubeGateway,
    resource: Resource,
    namespaces: Sequence[str],
    keep: Callable[[Mapping[str, Any]], T | None],
) -> tuple[T, ...]:
    """What `keep` makes of each object of a list; None is left out. Raises ApiError."""
    found: list[T] = []
    for namespace in namespaces or (None,):
        async for raw in listing.objects(gateway, resource, namespace):
            kept = keep(raw)
            if kept is not None and len(found) < KEPT_MAX:
                found.append(kept)
    return tuple(found)


# ---------------------------------------------------------------- objects


def _name(raw: Mapping[str, Any]) -> str:
    return text(mapping(raw.get("metadata")).get("name"))


def _whole(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    return raw


async def _workloads(
    lists: Callable[[Resource, Callable[[Mapping[str, Any]], Any]], Awaitable[Any]],
) -> tuple[Mapping[str, Any], ...] | Unread:
    """Deployments and StatefulSets whose pods hold GPUs."""
    found: list[Mapping[str, Any]] = []
    for resource, kind in ((api.DEPLOYMENTS, "Deployment"), (api.STATEFUL_SETS, "StatefulSet")):

        def keep(raw: Mapping[str, Any], kind: str = kind) -> Mapping[str, Any] | None:
            holds = any(pod.holds_gpu() for pod in pods(raw))
            return {**raw, "kind": kind} if holds else None

        part = await lists(resource, keep)
        if isinstance(part, Unread):
            return part
        found += part
    return tuple(found)


def _node(raw: Mapping[str, Any], dra_devices: int) -> Node:
    status, metadata = mapping(raw.get("status")), mapping(raw.get("metadata"))
    ready = [
        c.get("status") for _, c in listed(status.get("conditions")) if c.get("type") == "Ready"
    ]
    labels = mapping(metadata.get("labels"))
    return Node(
        name=_name(raw),
        ready=ready not in (["False"], ["Unknown"]),
        labels={
            str(k): str(v)
            for k, v in labels.items()
            if "nvidia.com" in str(k) or "gpu" in str(k) or "accelerator" in str(k)
        },
        capacity=_gpus(status.get("capacity")),
        allocatable=_gpus(status.get("allocatable")),
        dra_devices=dra_devices,
    )


def _gpus(amounts: object) -> dict[str, int]:
    found = {}
    for name, value in mapping(amounts).items():
        amount = quantity(value)
        if is_gpu(name) and amount is not None:
            found[name] = int(amount)
    return found


def _pod(raw: Mapping[str, Any], ports: dict[str, tuple[str, str, int]]) -> Pod | None:
    """A pod that asks for GPUs, or is KEDA's operator or gpuscale's; None for any other.

    Of an exporter that is ready its node, place and port are noted in `ports`.
    """
    metadata, status = mapping(raw.get("metadata")), mapping(raw.get("status"))
    spec = mapping(raw.get("spec"))
    labels = {str(k): str(v) for k, v in mapping(metadata.get("labels")).items()}
    resources, runtime_class = _asked(raw), text(spec.get("runtimeClassName"))
    ours = labels.get("app.kubernetes.io/name") == "gpuscale"
    keda = "keda-operator" in (labels.get("app"), labels.get("app.kubernetes.io/name"))
    if not (resources or runtime_class.startswith("nvidia") or ours or keda):
        return None
    kept = inventory.pod_of(raw)
    phase = text(status.get("phase"))
    pod = Pod(
        namespace=text(metadata.get("namespace")),
        name=_name(raw),
        phase=phase,
        ready=kept.stage == "ready",
        node=text(spec.get("nodeName")),
        images=tuple(text(c.get("image"))[:512] for _, c in listed(spec.get("containers"))),
        labels={
            k: v for k, v in labels.items() if k == "app" or k.startswith("app.kubernetes.io/")
        },
        runtime_class=runtime_class,
        resources=frozenset(resources) if phase not in ("Succeeded", "Failed") else frozenset(),
        pending=kept.cause or "" if phase == "Pending" else "",
        reason=text(status.get("reason")) if phase == "Failed" else "",
    )
    if ours and pod.ready and labels.get("app.kubernetes.io/component") == "exporter":
        ports[pod.node] = (pod.namespace, pod.name, _port(spec))
    return pod


def _asked(raw: Mapping[str, Any]) -> list[str]:
    return [
        name
        for pod in pods(raw)
        for container in pod.containers()
        for name in {**container.requests, **container.limits}
        if is_gpu(name) or is_mistaken(name)
    ]


def _port(spec: Mapping[str, Any]) -> int:
    for _, container in listed(spec.get("containers")):
        for _, port in listed(container.get("ports")):
            number = port.get("containerPort")
            if isinstance(number, int) and 0 < number < 65_536:
                return number
    return 9400


async def _slices(gateway: KubeGateway) -> dict[str, int]:
    """GPUs that NVIDIA's DRA driver offers, by node."""
    found: dict[str, int] = {}
    async for raw in listing.objects(gateway, SLICES):
        spec = mapping(raw.get("spec"))
        if spec.get("driver") == DRIVER:
            node = text(spec.get("nodeName"))
            found[node] = found.get(node, 0) + sum(1 for _ in listed(spec.get("devices")))
    return found


# ---------------------------------------------------------------- exporters


async def _exporters(
    gateway: KubeGateway, ports: Mapping[str, tuple[str, str, int]]
) -> Mapping[str, Exporter | Unread]:
    """What the exporters say, through the API server, which reaches every pod."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def ask(place: tuple[str, str, int]) -> Exporter | Unread:
        namespace, name, port = place
        path = f"/api/v1/namespaces/{namespace}/pods/{name}:{port}/proxy/api/v1/sample"
        async with gate:
            try:
                return _exporter(await gateway.get(path))
            except ApiError as error:
                return Unread(str(error))

    asked = sorted(ports)[:EXPORTERS_MAX]
    answers = await asyncio.gather(*(ask(ports[node]) for node in asked))
    return dict(zip(asked, answers, strict=True))


def _exporter(sample: Mapping[str, Any]) -> Exporter | Unread:
    try:
        report = msgspec.convert(sample, NodeReport, strict=False)
    except msgspec.ValidationError:
        return Unread("what answers on its port is no exporter of gpuscale")
    holders = report.attribution
    versions = mapping(mapping(sample.get("driver")).get("versions"))
    return Exporter(
        driver=text(versions.get("driver"))[:64],
        driver_up=report.driver.up,
        reason=report.driver.reason or "",
        gpus=len(report.devices),
        lost=sum(not device.up for device in report.devices),
        attribution=""
        if holders is None or holders.up
        else holders.reason or "it does not say why",
    )


# ---------------------------------------------------------------- Prometheus and here


async def prometheus(settings: PrometheusSettings | None, clock: Clock) -> Prometheus | Unread:
    """What a Prometheus knows of gpuscale."""
    if settings is None:
        return Unread("no Prometheus was looked at: name one with --prometheus URL")
    wanted = msgspec.structs.replace(settings, timeout_s=QUERY_TIMEOUT_S)
    client = QueryApi(wanted, clock, connections_max=1)
    try:
        values = {name: await _value(client, query, clock) for name, query in QUERIES.items()}
    except SourceError as error:
        return Unreachable(str(error))
    finally:
        await client.close()
    return Prometheus(address=client.shown, **values)


async def _value(client: QueryApi, query: str, clock: Clock) -> float | None:
    for series in await client.instant(query, clock.wall()):
        if series.value is not None:
            return float(series.value[1])
    return None


def here(clock: Clock) -> Here:
    """This machine. Asks the driver, which may take a second."""
    from gpuscale.exporter.nvml import NvmlDriver  # noqa: PLC0415 - a controller has no use for it

    driver: str | Unread
    gpus = 0
    session = NvmlDriver(clock)
    try:
        versions = session.open()
        gpus = len(session.devices())
        driver = versions.driver or "of an unknown version"
    except DriverError as error:
        driver = Unread(str(error))
    finally:
        session.close()
    return Here(
        version=__version__,
        python=platform.python_version(),
        driver=driver,
        gpus=gpus,
    )
