"""A client that calls an external scaler as KEDA does (pkg/scalers/external_scaler.go, v2.20).

One channel with round_robin, no deadline, no keepalive, no waiting for readiness. One evaluation is
GetMetricSpec, then per spec GetMetrics and IsActive; any error fails it. A push stream is opened
again after a backoff that only a clean end resets. `OldKeda` is 2.16 and earlier, whose messages
have no float fields.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from gpuscale.clock import Clock
from gpuscale.proto import externalscaler_pb2 as pb
from gpuscale.proto.externalscaler_pb2_grpc import ExternalScalerStub

BACKOFF_FIRST_S = 2.0
BACKOFF_MAX_S = 60.0
SERVICE_CONFIG = '{"loadBalancingConfig":[{"round_robin":{}}]}'


@dataclass(frozen=True)
class Evaluation:
    """What one evaluation of a trigger yields."""

    metric: str
    """As the HPA knows it, with the trigger's index."""
    target: float
    value: float
    """What the HPA sees: the sum of all values, rounded to thousandths."""
    active: bool


@dataclass
class PushLog:
    """What a push loop went through."""

    states: list[bool] = field(default_factory=list)
    ends: list[grpc.StatusCode] = field(default_factory=list)
    pauses_s: list[float] = field(default_factory=list)


class Keda:
    """KEDA's operator towards one scalerAddress, which may resolve to several replicas."""

    def __init__(self, addresses: Sequence[tuple[str, int]]) -> None:
        target = "ipv4:" + ",".join(f"{host}:{port}" for host, port in addresses)
        options = [("grpc.service_config", SERVICE_CONFIG), ("grpc.enable_http_proxy", 0)]
        self.channel = grpc.aio.insecure_channel(target, options=options)
        self.stub = ExternalScalerStub(self.channel)

    async def close(self) -> None:
        await self.channel.close()

    async def evaluate(self, ref: pb.ScaledObjectRef, index: int = 0) -> list[Evaluation]:
        """One evaluation of the trigger; raises grpc.aio.AioRpcError, and ValueError for no specs."""
        specs = (await self.stub.GetMetricSpec(ref)).metricSpecs
        if not specs:
            raise ValueError("got empty metric spec")
        found = []
        for spec in specs:
            name = f"s{index}-{spec.metricName}"
            request = pb.GetMetricsRequest(scaledObjectRef=ref, metricName=spec.metricName)
            values = (await self.stub.GetMetrics(request)).metricValues
            active = (await self.stub.IsActive(ref)).result
            target = spec.targetSizeFloat if spec.targetSizeFloat > 0 else float(spec.targetSize)
            value = sum(_value(v) for v in values)
            found.append(Evaluation(name, target, value, active))
        return found

    async def push(self, ref: pb.ScaledObjectRef, log: PushLog, clock: Clock) -> None:
        """The loop of an external-push trigger, for ever; cancel it to end it."""
        backoff_s = BACKOFF_FIRST_S
        while True:
            code = await self._follow(ref, log)
            log.ends.append(code)
            if code is grpc.StatusCode.OK:
                backoff_s = BACKOFF_FIRST_S
            log.pauses_s.append(backoff_s)
            await clock.sleep(backoff_s)
            if code is not grpc.StatusCode.OK:
                backoff_s = min(BACKOFF_MAX_S, backoff_s * 2)

    async def _follow(self, ref: pb.ScaledObjectRef, log: PushLog) -> grpc.StatusCode:
        call = self.stub.StreamIsActive(ref)
        try:
            async for response in call:
                log.states.append(response.result)
        except grpc.aio.AioRpcError as error:
            return error.code()
        return grpc.StatusCode.OK


def _value(value: pb.MetricValue) -> float:
    """The float where it is above 0, else the int; NaN, infinite and negative count as 0."""
    number = value.metricValueFloat if value.metricValueFloat > 0 else float(value.metricValue)
    return round(number, 3) if math.isfinite(number) and number > 0 else 0.0


def hpa(value: float, target: float, current: int, tolerance: float) -> int:
    """What an HPA makes of an external metric of type AverageValue."""
    ratio = value / (target * current)
    if 1 - tolerance <= ratio <= 1 + tolerance:
        return current
    return math.ceil(value / target)


# ---------------------------------------------------------------- before the float fields

_STRING, _INT64, _MESSAGE = 9, 3, 11
_OLD_MESSAGES: Mapping[str, Sequence[tuple[str, int, int, str, bool]]] = {
    "MetadataEntry": (("key", 1, _STRING, "", False), ("value", 2, _STRING, "", False)),
    "ScaledObjectRef": (
        ("name", 1, _STRING, "", False),
        ("namespace", 2, _STRING, "", False),
        ("scalerMetadata", 3, _MESSAGE, "MetadataEntry", True),
    ),
    "MetricSpec": (("metricName", 1, _STRING, "", False), ("targetSize", 2, _INT64, "", False)),
    "GetMetricSpecResponse": (("metricSpecs", 1, _MESSAGE, "MetricSpec", True),),
    "GetMetricsRequest": (
        ("scaledObjectRef", 1, _MESSAGE, "ScaledObjectRef", False),
        ("metricName", 2, _STRING, "", False),
    ),
    "MetricValue": (("metricName", 1, _STRING, "", False), ("metricValue", 2, _INT64, "", False)),
    "GetMetricsResponse": (("metricValues", 1, _MESSAGE, "MetricValue", True),),
}
"""Message -> (field, number, type, message type, repeated)."""


def _old_messages() -> Mapping[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="externalscaler_2_16.proto", package="before", syntax="proto3"
    )
    for name, fields in _OLD_MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind, of, repeated in fields:
            added = message.field.add(
                name=field_name,
                number=number,
                type=kind,
                label=3 if repeated else 1,
            )
            if of:
                added.type_name = f".before.{of}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"before.{name}"))
        for name in _OLD_MESSAGES
    }


class OldKeda:
    """KEDA 2.16: it does not know the float fields."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._messages = _old_messages()
        options = [("grpc.enable_http_proxy", 0)]
        self.channel = grpc.aio.insecure_channel(f"{address[0]}:{address[1]}", options=options)

    async def close(self) -> None:
        await self.channel.close()

    async def target_and_value(self, namespace: str, name: str) -> tuple[int, int]:
        """(targetSize, metricValue) of the one metric."""
        of = self._messages
        ref = of["ScaledObjectRef"](name=name, namespace=namespace)
        specs = await self._call("GetMetricSpec", ref, of["GetMetricSpecResponse"])
        (spec,) = specs.metricSpecs
        request = of["GetMetricsRequest"](scaledObjectRef=ref, metricName=spec.metricName)
        values = await self._call("GetMetrics", request, of["GetMetricsResponse"])
        (value,) = values.metricValues
        return spec.targetSize, value.metricValue

    async def _call(self, method: str, request: Any, response: Any) -> Any:
        call = self.channel.unary_unary(
            f"/externalscaler.ExternalScaler/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )
        return await call(request)
