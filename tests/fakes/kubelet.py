"""A kubelet's PodResources API: a real gRPC server on a unix socket whose answers a test can change."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import grpc.aio

from gpuscale.proto import podresources_pb2

Held = tuple[str, str, str, str, list[str]]
"""(namespace, pod, container, resource, device ids)."""


@dataclass(frozen=True)
class Claimed:
    """A device of a ResourceClaim (DRA) that a container holds."""

    namespace: str
    pod: str
    container: str
    claim: str
    device: str
    driver: str = "gpu.nvidia.com"
    cdi: tuple[str, ...] = ()


class FakeKubelet:
    """Start it, stop it, start it again on the same socket; `held` is what List answers."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.held: list[Held] = []
        self.claimed: list[Claimed] = []
        self.allocatable: list[str] | None = None
        """Device ids of nvidia.com/gpu; None is a kubelet that has no such call."""
        self.error: grpc.StatusCode | None = None
        """List fails with this code while it is set."""
        self.delay_s = 0.0
        self.padding_bytes = 0
        """Makes the answer this much larger."""
        self.idle_pods = 0
        """Pods without any device in the answer."""
        self.raw: bytes | None = None
        """List answers with these bytes while they are set, whatever they mean."""
        self.calls = 0
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Listen; as the kubelet does, remove a socket that an earlier one left behind."""
        self.socket.unlink(missing_ok=True)
        self._server = grpc.aio.server()
        methods: dict[str, Any] = {
            "List": grpc.unary_unary_rpc_method_handler(
                self.List,
                request_deserializer=podresources_pb2.ListPodResourcesRequest.FromString,
                response_serializer=self.answering,
            ),
            "GetAllocatableResources": grpc.unary_unary_rpc_method_handler(
                self.GetAllocatableResources,
                request_deserializer=podresources_pb2.AllocatableResourcesRequest.FromString,
                response_serializer=podresources_pb2.AllocatableResourcesResponse.SerializeToString,
            ),
        }
        handler = grpc.method_handlers_generic_handler("v1.PodResourcesLister", methods)
        self._server.add_generic_rpc_handlers((handler,))
        self._server.add_insecure_port("unix:" + quote(str(self.socket)))
        await self._server.start()

    async def stop(self) -> None:
        """Stop, and take the socket away."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
        self.socket.unlink(missing_ok=True)

    def answering(self, answer: Any) -> bytes:
        """The bytes of an answer, or those that the test has put in its place."""
        encoded: bytes = answer.SerializeToString()
        return encoded if self.raw is None else self.raw

    async def List(self, request: Any, context: Any) -> podresources_pb2.ListPodResourcesResponse:  # noqa: N802 - the service's own spelling
        """Answer what the test has put here."""
        self.calls += 1
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if self.error is not None:
            await context.abort(self.error, "rejected by rate limit")
        response = answer(self.held, padding_bytes=self.padding_bytes)
        for claimed in self.claimed:
            response.pod_resources.append(_claimed(claimed))
        for number in range(self.idle_pods):
            response.pod_resources.append(
                podresources_pb2.PodResources(name=f"idle-{number}", namespace="web")
            )
        return response

    async def GetAllocatableResources(  # noqa: N802 - the service's own spelling
        self, request: Any, context: Any
    ) -> podresources_pb2.AllocatableResourcesResponse:
        """All that could be given out."""
        if self.allocatable is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown method")
        return podresources_pb2.AllocatableResourcesResponse(
            devices=[
                podresources_pb2.ContainerDevices(
                    resource_name="nvidia.com/gpu", device_ids=self.allocatable
                )
            ]
        )


def _claimed(held: Claimed) -> podresources_pb2.PodResources:
    return podresources_pb2.PodResources(
        name=held.pod,
        namespace=held.namespace,
        containers=[
            podresources_pb2.ContainerResources(
                name=held.container,
                dynamic_resources=[
                    podresources_pb2.DynamicResource(
                        claim_name=held.claim,
                        claim_namespace=held.namespace,
                        claim_resources=[
                            podresources_pb2.ClaimResource(
                                driver_name=held.driver,
                                pool_name="node-1",
                                device_name=held.device,
                                cdi_devices=[
                                    podresources_pb2.CDIDevice(name=name) for name in held.cdi
                                ],
                            )
                        ],
                    )
                ],
            )
        ],
    )


def answer(
    held: list[Held], *, padding_bytes: int = 0
) -> podresources_pb2.ListPodResourcesResponse:
    """What a kubelet says when these containers hold these devices."""
    response = podresources_pb2.ListPodResourcesResponse()
    for namespace, pod, container, resource, device_ids in held:
        response.pod_resources.append(
            podresources_pb2.PodResources(
                name=pod,
                namespace=namespace,
                containers=[
                    podresources_pb2.ContainerResources(
                        name=container,
                        devices=[
                            podresources_pb2.ContainerDevices(
                                resource_name=resource, device_ids=device_ids
                            )
                        ],
                    )
                ],
            )
        )
    if padding_bytes:
        response.pod_resources.append(podresources_pb2.PodResources(name="x" * padding_bytes))
    return response
