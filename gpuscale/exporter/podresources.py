"""The door to the kubelet's PodResources API (v1, gRPC on a unix socket): which container holds which device.

One persistent channel and one List per period: the kubelet allows bursts of ten calls and then
answers RESOURCE_EXHAUSTED. The kubelet recreates its socket when it restarts, so the channel
reconnects by itself. Whatever goes wrong here is a state that is published, never the end of the
exporter.
"""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import grpc
import grpc.aio

from gpuscale.errors import SourceMalformed, SourceRefused, SourceUnreachable, foreign
from gpuscale.proto import podresources_pb2, podresources_pb2_grpc

ANSWER_BYTES_MAX = 16 * 1024 * 1024
"""The kubelet's own clients allow as much: every pod of a full node with its CPU lists fits many times."""

RECONNECT_MS_MAX = 5_000
"""A restarted kubelet is back within seconds, and gRPC's default of two minutes would hide that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldDevice:
    """One device id that the kubelet has given to one container, as it spells it."""

    namespace: str
    pod: str
    container: str
    resource: str
    device_id: str


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
        self._stub = podresources_pb2_grpc.PodResourcesListerStub(self._channel)

    async def held(self) -> tuple[HeldDevice, ...]:
        """Every device of every container on this node, of any vendor, in the kubelet's order.

        Raises SourceUnreachable where nobody answers in time, SourceRefused where the kubelet says
        no, SourceMalformed for an answer above ANSWER_BYTES_MAX.
        """
        request = podresources_pb2.ListPodResourcesRequest()
        try:
            answer = await self._stub.List(request, timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            raise self._meaning(error) from error
        return tuple(
            HeldDevice(
                namespace=pod.namespace,
                pod=pod.name,
                container=container.name,
                resource=devices.resource_name,
                device_id=device_id,
            )
            for pod in answer.pod_resources
            for container in pod.containers
            for devices in container.devices
            for device_id in devices.device_ids
        )

    def _meaning(
        self, error: grpc.aio.AioRpcError
    ) -> SourceUnreachable | SourceRefused | SourceMalformed:
        code, text = error.code(), foreign(error.details() or "no details")
        kubelet = f"kubelet at {self._socket}"
        if code is grpc.StatusCode.UNAVAILABLE:
            return _unavailable(self._socket, text)
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return _exhausted(kubelet, text)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return SourceUnreachable(
                f"{kubelet} has not answered within {self._timeout_s:g} s: "
                "look at the kubelet, or raise pod_resources.timeout_s"
            )
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return SourceRefused(
                f"{kubelet} has no PodResources API v1: "
                "Kubernetes 1.20 or later is needed, or set pod_resources.enabled to false"
            )
        return SourceRefused(f"{kubelet} answered {code.name} ({text}): look at the kubelet's log")

    async def close(self) -> None:
        """Close the channel; calls in flight are cancelled."""
        await self._channel.close(grace=None)


def _unavailable(socket: str, text: str) -> SourceUnreachable:
    if not Path(socket).exists():
        return SourceUnreachable(
            f"there is no kubelet socket at {socket}: mount its directory, "
            "or set pod_resources.socket"
        )
    return SourceUnreachable(
        f"kubelet at {socket} cannot be reached ({text}): "
        "read its socket as root, and look whether it runs"
    )


def _exhausted(kubelet: str, text: str) -> SourceRefused | SourceMalformed:
    """gRPC has one code for two things: our limit on an answer, and the kubelet's on calls."""
    if "larger than max" in text:
        return SourceMalformed(
            f"{kubelet} answers more than {ANSWER_BYTES_MAX} bytes: it is not a kubelet's list"
        )
    return SourceRefused(
        f"{kubelet} limits the rate of its PodResources API ({text}): "
        "raise pod_resources.period_s, or that of another client on this node"
    )
