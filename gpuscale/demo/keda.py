"""KEDA and the HPA as the demo plays them: a real gRPC client in KEDA's call order, then the HPA's arithmetic.

Per ScaledObject: GetMetricSpec, GetMetrics, IsActive at every HPA sync, without a deadline of its
own as KEDA does it, and StreamIsActive held open. An error holds the replicas.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import grpc

from gpuscale.proto import (
    externalscaler_pb2,
    externalscaler_pb2_grpc,
    podresources_pb2,
    podresources_pb2_grpc,
)
from gpuscale.simulation.hpa import Hpa

STREAM_RETRY_S = 2.0
"""KEDA's first wait before it opens a stream again."""


@dataclass(slots=True, kw_only=True)
class Scaled:
    """One ScaledObject as KEDA knows it."""

    namespace: str
    name: str
    metadata: Mapping[str, str]
    hpa: Hpa
    asked: float | None = None
    """Last value of the metric; None while it fails."""
    error: str | None = None
    pushes: int = 0
    """Messages received on StreamIsActive."""
    active: bool = False
    calls: int = field(default=0)

    @property
    def key(self) -> str:
        """NAMESPACE/NAME."""
        return f"{self.namespace}/{self.name}"

    @property
    def ref(self) -> externalscaler_pb2.ScaledObjectRef:
        """As every call carries it."""
        return externalscaler_pb2.ScaledObjectRef(
            name=self.name, namespace=self.namespace, scalerMetadata=dict(self.metadata)
        )


class SimulatedKeda:
    """All ScaledObjects over one channel to the external scaler."""

    def __init__(self, address: str, objects: Sequence[Scaled]) -> None:
        """`address` is HOST:PORT of the external scaler."""
        self._channel = grpc.aio.insecure_channel(address)
        self._stub = externalscaler_pb2_grpc.ExternalScalerStub(self._channel)
        self.objects = {o.key: o for o in objects}

    async def evaluate(self, key: str) -> float | None:
        """One evaluation in KEDA's order; the value of the metric, None where any call failed."""
        scaled = self.objects[key]
        try:
            scaled.calls += 1
            spec = await self._stub.GetMetricSpec(scaled.ref)
            metric = spec.metricSpecs[0]
            values = await self._stub.GetMetrics(
                externalscaler_pb2.GetMetricsRequest(
                    scaledObjectRef=scaled.ref, metricName=metric.metricName
                )
            )
            active = await self._stub.IsActive(scaled.ref)
        except grpc.aio.AioRpcError as error:
            scaled.asked, scaled.error = None, error.details()
            return None
        # KEDA takes the float where it is above zero, else the deprecated integer, and the HPA
        # adds up every value returned.
        scaled.asked = sum(v.metricValueFloat or float(v.metricValue) for v in values.metricValues)
        scaled.active, scaled.error = active.result, None
        return scaled.asked

    async def sync(self, key: str, *, now: float, current: int) -> int:
        """One HPA sync: replicas of the scale target after it."""
        value = await self.evaluate(key)
        return self.objects[key].hpa.sync(now=now, current=current, value=value)

    async def listen(self, key: str) -> None:
        """Hold StreamIsActive open for ever; after an end or an error, open it again."""
        scaled = self.objects[key]
        while True:
            try:
                async for message in self._stub.StreamIsActive(scaled.ref):
                    scaled.pushes += 1
                    scaled.active = message.result
            except grpc.aio.AioRpcError as error:
                scaled.error = error.details()
            await asyncio.sleep(STREAM_RETRY_S)

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()


class SimulatedKubelet(podresources_pb2_grpc.PodResourcesListerServicer):
    """A node's kubelet: PodResources v1 over a real unix socket."""

    def __init__(self, socket: str, devices: Sequence[str]) -> None:
        """`devices`: uuids of the node's GPUs, each given out whole."""
        self._devices = tuple(devices)
        self._server = grpc.aio.server()
        self._server.add_insecure_port(f"unix:{socket}")
        podresources_pb2_grpc.add_PodResourcesListerServicer_to_server(self, self._server)
        self.holders: Sequence[tuple[str, str, Sequence[str]]] = ()
        """(namespace, pod, device uuids)."""

    async def List(  # noqa: N802 - the name is the wire's
        self, request: podresources_pb2.ListPodResourcesRequest, context: object
    ) -> podresources_pb2.ListPodResourcesResponse:
        """Every pod of the node that holds a GPU."""
        return podresources_pb2.ListPodResourcesResponse(
            pod_resources=[
                podresources_pb2.PodResources(
                    namespace=namespace,
                    name=pod,
                    containers=[
                        podresources_pb2.ContainerResources(
                            name="server",
                            devices=[
                                podresources_pb2.ContainerDevices(
                                    resource_name="nvidia.com/gpu", device_ids=uuids
                                )
                            ],
                        )
                    ],
                )
                for namespace, pod, uuids in self.holders
            ]
        )

    async def GetAllocatableResources(  # noqa: N802 - the name is the wire's
        self, request: podresources_pb2.AllocatableResourcesRequest, context: object
    ) -> podresources_pb2.AllocatableResourcesResponse:
        """Every GPU of the node."""
        return podresources_pb2.AllocatableResourcesResponse(
            devices=[
                podresources_pb2.ContainerDevices(
                    resource_name="nvidia.com/gpu", device_ids=self._devices
                )
            ]
        )

    async def start(self) -> None:
        """Listen."""
        await self._server.start()

    async def close(self) -> None:
        """Stop at once."""
        await self._server.stop(None)
