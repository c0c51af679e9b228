"""A controller in the test's own loop, moved tick by tick, with its page and its KEDA side reachable."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import grpc

from gpuscale import config, runtime
from gpuscale.controller.daemon import Cluster, Controller
from gpuscale.controller.domain import Scaler, Signal, Snapshot
from gpuscale.proto import externalscaler_pb2 as pb
from gpuscale.proto.externalscaler_pb2_grpc import ExternalScalerStub
from gpuscale.settings import ControllerSettings
from tests.fakes.clock import ManualClock
from tests.fakes.signal import FakeSignal

TICK_S = 15.0


def settings_of(fields: Mapping[str, Any]) -> ControllerSettings:
    """Settings on loopback ports of the system's choice, with these fields."""
    base = {
        "listen": "127.0.0.1:0",
        "listen_grpc": "127.0.0.1:0",
        "kubernetes": {"enabled": "off"},
        "defaults": {"mode": "act", "capacity": 5.0},
    }
    return config.convert({**base, **fields}, ControllerSettings, where="test")


@dataclass
class Running:
    """A started controller."""

    controller: Controller
    clock: ManualClock
    signal: Any  # what the test gave: its own fields are the test's to know
    http: aiohttp.ClientSession
    scaler: Any  # the generated stub is not typed for the asynchronous channel

    async def ticks(self, count: int = 1) -> Snapshot:
        """Let that many ticks pass; the last snapshot."""
        for _ in range(count - 1):
            await self.clock.advance(TICK_S)
            await self.controller.tick()
        await self.clock.advance(TICK_S)
        return await self.controller.tick()

    async def decide(self) -> Snapshot:
        """One tick without its page, for long lives."""
        loop = self.controller._loop
        assert loop is not None
        return (await loop.tick()).snapshot

    def url(self, path: str) -> str:
        host, port = self.controller.http_address
        return f"http://{host}:{port}{path}"

    async def get(self, path: str) -> tuple[int, Any]:
        """(status, JSON) of an API path."""
        async with self.http.get(self.url(path)) as response:
            return response.status, await response.json()

    async def text(self, path: str) -> tuple[int, str]:
        async with self.http.get(self.url(path)) as response:
            return response.status, await response.text()

    async def desired(self, namespace: str, name: str) -> float:
        """What KEDA is told. Raises grpc.aio.AioRpcError where it is told nothing."""
        reference = pb.ScaledObjectRef(
            namespace=namespace, name=name, scalerMetadata={"scalerAddress": "gpuscale:6000"}
        )
        request = pb.GetMetricsRequest(scaledObjectRef=reference, metricName="desired-replicas")
        answer = await self.scaler.GetMetrics(request, timeout=5)
        return float(answer.metricValues[0].metricValueFloat)


@asynccontextmanager
async def running(
    fields: Mapping[str, Any],
    *,
    signal: Signal | None = None,
    cluster: Cluster | None = None,
    scaler: Scaler | None = None,
    clock: ManualClock | None = None,
) -> AsyncIterator[Running]:
    """A controller that ticks when it is told to, and ends in order."""
    clock = clock or ManualClock()
    signal = signal or FakeSignal()
    controller = Controller(
        settings_of(fields), clock, signal=signal, cluster=cluster, scaler=scaler
    )
    daemon = runtime.Daemon()
    channel: grpc.aio.Channel | None = None
    try:
        await controller.start(daemon, ticking=False)
        host, port = controller.grpc_address
        channel = grpc.aio.insecure_channel(f"{host}:{port}")
        async with aiohttp.ClientSession() as http:
            yield Running(
                controller=controller,
                clock=clock,
                signal=signal,
                http=http,
                scaler=ExternalScalerStub(channel),
            )
    finally:
        if channel is not None:
            await channel.close()
        # Without ticking of its own the controller owns no task: there is only closing to do.
        await daemon._close()
