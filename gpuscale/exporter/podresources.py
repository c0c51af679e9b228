"""The door to the kubelet's PodResources API (v1, gRPC on a unix socket): which container holds which device.

One persistent channel and one List per period: the kubelet allows bursts of ten calls and then
answers RESOURCE_EXHAUSTED. The kubelet recreates its socket when it restarts, so the channel
reconnects by itself. Whatever goes wrong here is a state that is published, never the end of the
exporter.
"""

import itertools
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from gpuscale.errors import SourceError, foreign
from gpuscale.exporter.usage import Trouble
from gpuscale.proto import podresources_pb2

ANSWER_BYTES_MAX = 16 * 1024 * 1024
"""The kubelet's own clients allow as much: every pod of a full node with its CPU lists fits many times."""

HELD_MAX = 16_384
"""Devices taken from one answer: a kubelet that lists more is out of order, and is named so."""

NAME_CHARS_MAX = 253
"""Of a name in a label: Kubernetes allows no longer one."""

CDI_NAMES_MAX = 16
"""Of one claimed device; NVIDIA's driver gives one or two."""

RECONNECT_MS_MAX = 5_000
"""A restarted kubelet is back within seconds, and gRPC's default of two minutes would hide that."""

_Method = Callable[..., Awaitable[bytes]]
"""A call that gives the answer undecoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldDevice:
    """One device that the kubelet has given to one container, as it spells it."""

    namespace: str
    pod: str
    container: str
    resource: str
    """Of a device plugin's device the resource, of a claimed one (DRA) the driver."""
    device_id: str
    """Of a claimed device its name in the driver's pool."""
    claim: str | None = None
    """NAMESPACE/NAME of the ResourceClaim; None for a device plugin's device."""
    cdi_names: tuple[str, ...] = ()


class KubeletTrouble(SourceError):
    """The kubelet gave no list; `trouble` is why, in one word."""

    def __init__(self, message: str, trouble: Trouble) -> None:
        super().__init__(message)
        self.trouble = trouble


class PodResources:
    """A client of one kubelet; belongs to the event loop that made it."""

    def __init__(self, socket: str, *, timeout_s: float) -> None:
        self._socket = socket
        self._timeout_s = timeout_s
        self._channel = grpc.aio.insecure_channel(
            "unix:" + quote(socket),
            options=(
                ("grpc.max_receive_message_length", ANSWER_BYTES_MAX),
                ("grpc.initial_reconnect_backoff_ms", 200),
                ("grpc.min_reconnect_backoff_ms", 200),
                ("grpc.max_reconnect_backoff_ms", RECONNECT_MS_MAX),
                # A proxy in the environment is meant for the network, not for a file.
                ("grpc.enable_http_proxy", 0),
                ("grpc.use_local_subchannel_pool", 1),
            ),
        )
        # Answers come as bytes and are decoded here: of one that cannot be decoded gRPC makes None,
        # and a traceback in the log at each period.
        self._list: _Method = self._channel.unary_unary(
            "/v1.PodResourcesLister/List",
            request_serializer=podresources_pb2.ListPodResourcesRequest.SerializeToString,
        )
        self._get_allocatable: _Method = self._channel.unary_unary(
            "/v1.PodResourcesLister/GetAllocatableResources",
            request_serializer=podresources_pb2.AllocatableResourcesRequest.SerializeToString,
        )

    async def held(self) -> tuple[HeldDevice, ...]:
        """Every device of every container on this node, of any vendor, in the kubelet's order.

        Raises KubeletTrouble where there is no answer in time, a refusal, or an answer beyond
        ANSWER_BYTES_MAX or HELD_MAX.
        """
        answer = podresources_pb2.ListPodResourcesResponse()
        await self._call(self._list, podresources_pb2.ListPodResourcesRequest(), answer)
        held = tuple(itertools.islice(_held(answer), HELD_MAX + 1))
        if len(held) > HELD_MAX:
            raise KubeletTrouble(
                f"kubelet at {self._socket} lists more than {HELD_MAX} devices: "
                "look at the device plugins of this node",
                "malformed",
            )
        return held

    async def allocatable(self) -> tuple[str, ...]:
        """Every device id that the kubelet can give out, held or free. Raises as `held` does."""
        answer = podresources_pb2.AllocatableResourcesResponse()
        await self._call(
            self._get_allocatable, podresources_pb2.AllocatableResourcesRequest(), answer
        )
        ids = (device_id for devices in answer.devices for device_id in devices.device_ids)
        return tuple(itertools.islice(ids, HELD_MAX))

    async def _call(
        self,
        method: _Method,
        request: Message,
        answer: Message,
    ) -> None:
        """Ask, and fill `answer`."""
        try:
            raw = await method(request, timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            raise self._meaning(error) from error
        try:
            answer.ParseFromString(raw)
        except DecodeError as error:
            raise KubeletTrouble(
                f"kubelet at {self._socket} answers what is not a list of pods: "
                "is another service on this socket?",
                "malformed",
            ) from error

    def _meaning(self, error: grpc.aio.AioRpcError) -> KubeletTrouble:
        code, text = error.code(), foreign(error.details() or "no details")
        kubelet = f"kubelet at {self._socket}"
        if code is grpc.StatusCode.UNAVAILABLE:
            return _unavailable(self._socket, text)
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return _exhausted(kubelet, text)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return KubeletTrouble(
                f"{kubelet} has not answered within {self._timeout_s:g} s: "
                "look at the kubelet, or raise pod_resources.timeout_s",
                "timeout",
            )
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return KubeletTrouble(
                f"{kubelet} has no PodResources API v1: "
                "Kubernetes 1.20 or later is needed, or set pod_resources.enabled to false",
                "unimplemented",
            )
        return KubeletTrouble(
            f"{kubelet} answered {code.name} ({text}): look at the kubelet's log", "refused"
        )

    async def close(self) -> None:
        """Close the channel; calls in flight are cancelled."""
        await self._channel.close(grace=None)


def _held(answer: podresources_pb2.ListPodResourcesResponse) -> Iterator[HeldDevice]:
    for pod in answer.pod_resources:
        for container in pod.containers:
            names = (_name(pod.namespace), _name(pod.name), _name(container.name))
            yield from _plugged(container, *names)
            yield from _claimed(container, *names)


def _plugged(
    container: podresources_pb2.ContainerResources, namespace: str, pod: str, name: str
) -> Iterator[HeldDevice]:
    for devices in container.devices:
        for device_id in devices.device_ids:
            yield HeldDevice(
                namespace=namespace,
                pod=pod,
                container=name,
                resource=_name(devices.resource_name),
                device_id=device_id,
            )


def _claimed(
    container: podresources_pb2.ContainerResources, namespace: str, pod: str, name: str
) -> Iterator[HeldDevice]:
    for claim in container.dynamic_resources:
        for resource in claim.claim_resources:
            yield HeldDevice(
                namespace=namespace,
                pod=pod,
                container=name,
                resource=_name(resource.driver_name),
                device_id=resource.device_name,
                claim=_name(f"{claim.claim_namespace}/{claim.claim_name}"),
                cdi_names=tuple(cdi.name for cdi in resource.cdi_devices[:CDI_NAMES_MAX]),
            )


def _name(text: str) -> str:
    return text if len(text) <= NAME_CHARS_MAX else text[: NAME_CHARS_MAX - 1] + "…"


def _unavailable(socket: str, text: str) -> KubeletTrouble:
    if not Path(socket).exists():
        return KubeletTrouble(
            f"there is no kubelet socket at {socket}: mount its directory, "
            "or set pod_resources.socket",
            "no_socket",
        )
    return KubeletTrouble(
        f"kubelet at {socket} cannot be reached ({text}): "
        "read its socket as root, and look whether it runs",
        "unreachable",
    )


def _exhausted(kubelet: str, text: str) -> KubeletTrouble:
    """gRPC has one code for two things: our limit on an answer, and the kubelet's on calls."""
    if "larger than max" in text:
        return KubeletTrouble(
            f"{kubelet} answers more than {ANSWER_BYTES_MAX} bytes: it is not a kubelet's list",
            "malformed",
        )
    return KubeletTrouble(
        f"{kubelet} limits the rate of its PodResources API ({text}): "
        "raise pod_resources.period_s, or that of another client on this node",
        "rate_limited",
    )
