"""The whole loop with real processes: NVML, exporter, Prometheus, servers, controller, KEDA's calls.

The past is real too: Prometheus holds days in which demand rose every day at the same time, and the
test runs shortly before that time comes round again.
"""

import asyncio
import json
import math
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
import yaml

from gpuscale.clock import SystemClock
from gpuscale.proto import externalscaler_pb2 as pb
from tests import tools
from tests.e2e.history import write_blocks
from tests.fakes.keda import Keda, PushLog
from tests.fakes.nvml_library import LIBRARY_MARKS, FakeNvml
from tests.fakes.prometheus import RealPrometheus

pytestmark = [
    *LIBRARY_MARKS,
    pytest.mark.prometheus,
    tools.requires("prometheus"),
    pytest.mark.timeout(300),
]

LOW, HIGH, CAPACITY = 8.0, 64.0, 2.0
"""Requests per second before and in the rush, and what one replica carries: 4 replicas, then 32."""
RISE_S = 120.0
SIGHT_S = 45.0
"""From the start of the test until the rush comes into sight: begins to lie within the lead time."""
LEAD_S_MIN = 180.0
SEASON_S = 300.0
"""Past days are remembered in steps of this many seconds, so the rush begins with one."""
PATIENCE_S = 75.0
"""The answer must have risen this long after the rush came into sight …"""
RISEN = 1.8
"""… to this many times what it was before."""
HOLD_S, STALE_S = 12.0, 5.0
DAY_S = 86_400.0
ADDRESS = {"scalerAddress": "gpuscale-grpc.gpuscale.svc:6000"}
CHAT = pb.ScaledObjectRef(namespace="ai", name="chat", scalerMetadata={**ADDRESS, "policy": "chat"})
VISION = pb.ScaledObjectRef(
    namespace="ai", name="vision", scalerMetadata={**ADDRESS, "policy": "vision"}
)


@dataclass
class Process:
    """A child whose structured log lines are read as they come."""

    child: asyncio.subprocess.Process
    lines: list[dict[str, Any]]
    reader: asyncio.Task[None]

    @classmethod
    async def start(cls, *arguments: str, environ: Mapping[str, str] | None = None) -> "Process":
        child = await asyncio.create_subprocess_exec(
            sys.executable, *arguments,
            env={**os.environ, **(environ or {})},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        lines: list[dict[str, Any]] = []

        async def read() -> None:
            assert child.stderr is not None
            async for line in child.stderr:
                try:
                    lines.append(json.loads(line))
                except ValueError:
                    lines.append({"text": line.decode(errors="replace")})

        return cls(child, lines, asyncio.create_task(read()))

    async def listening(self, **where: str) -> int:
        """Port of the first `listening` line that has these values."""
        async with asyncio.timeout(30):
            while True:
                for line in self.lines:
                    if line.get("event") == "listening" and where.items() <= line.items():
                        return int(line["port"])
                assert self.child.returncode is None, self.lines
                await asyncio.sleep(0.05)

    async def terminate(self) -> int:
        if self.child.returncode is None:
            self.child.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            code = await self.child.wait()
        await self.reader
        return code


@dataclass
class Rig:
    """Everything that runs, and when the rush comes into sight and comes."""

    sight_at: float
    rush_at: float
    prometheus: RealPrometheus
    exporter: Process
    controller: Process
    keda: Keda
    page: str

    async def desired(self, ref: pb.ScaledObjectRef) -> float:
        (evaluation,) = await self.keda.evaluate(ref)
        assert (evaluation.metric, evaluation.target) == ("s0-desired-replicas", 1.0)
        return evaluation.value

    async def demand(self) -> float | None:
        """What the controller sees arriving at the chat model."""
        async with (
            aiohttp.ClientSession() as client,
            client.get(f"{self.page}/api/v1/workloads") as response,
        ):
            listed = (await response.json())["items"]
        demand: float | None = next(w["demand"] for w in listed if w["name"] == "chat")
        return demand


async def fleet(name: str, server: str, demand: str) -> tuple[Process, list[tuple[str, str]]]:
    process = await Process.start(
        "-m", "tests.fakes.inference", "--server", server, "--pods", "2",
        "--name", name, "--demand", demand, "--slots", "40", "--service-s", "0.2",
    )  # fmt: skip
    assert process.child.stdout is not None
    said = json.loads(await process.child.stdout.readline())
    return process, [(f"{name}-{i}", page) for i, page in enumerate(said["addresses"])]


def settings(prometheus: str, lead_s: float) -> dict[str, Any]:
    policy = {
        "mode": "act", "start_time_s": lead_s, "stale_after_s": STALE_S, "hold_s": HOLD_S,
        "dwell_s": 0, "max_replicas": 60,
    }  # fmt: skip
    return {
        "listen": "127.0.0.1:0",
        "listen_grpc": "127.0.0.1:0",
        "tick_s": 1,
        "prometheus": {"url": prometheus, "rate_window_s": 5, "backfill_s": 6 * DAY_S},
        "kubernetes": {"enabled": "off"},
        "policies": {
            "chat": {**policy, "server": "vllm", "capacity": CAPACITY},
            "vision": {**policy, "server": "triton", "capacity": 5.0},
        },
        "workloads": [
            {"namespace": "ai", "name": "chat", "policy": "chat"},
            {"namespace": "ai", "name": "vision", "policy": "vision"},
        ],
    }


async def until_scraped(prometheus: str, expression: str) -> list[dict[str, Any]]:
    """The series of an instant query, once there are any."""
    async with asyncio.timeout(30), aiohttp.ClientSession() as client:
        while True:
            async with client.get(
                f"{prometheus}/api/v1/query", params={"query": expression}
            ) as response:
                series: list[dict[str, Any]] = (await response.json())["data"]["result"]
            if series:
                return series
            await asyncio.sleep(0.2)


async def test_the_loop_asks_before_the_rush_holds_when_blind_and_leaves_in_order(
    tmp_path: Path,
) -> None:
    processes: list[Process] = []
    prometheus = RealPrometheus(tmp_path)
    keda: Keda | None = None
    try:
        rig = await start(tmp_path, prometheus, processes)
        keda = rig.keda
        log = PushLog()
        pushing = asyncio.create_task(keda.push(CHAT, log, SystemClock()))
        specs = keda.stub.StreamMetricSpec(CHAT)
        assert (await specs.read()).metricSpecs[0].metricName == "desired-replicas"

        before = await watch_the_rush_come(rig)
        await hold_when_blind(rig, before)

        assert await rig.controller.terminate() == 0
        assert await specs.read() is grpc.aio.EOF
        assert log.ends[:1] == [grpc.StatusCode.OK]
        assert True in log.states
        pushing.cancel()
        assert await rig.exporter.terminate() == 0
    finally:
        if keda is not None:
            await keda.close()
        for process in processes:
            await process.terminate()
        await prometheus.stop()


async def start(folder: Path, prometheus: RealPrometheus, processes: list[Process]) -> Rig:
    """Bring everything up; what is started is appended to `processes` at once, so that it is ended."""
    sight_at = time.time() + SIGHT_S
    rush_at = math.ceil((sight_at + LEAD_S_MIN) / SEASON_S) * SEASON_S
    nvml = FakeNvml(folder / "nvml", count=2)
    nvml.device(0, utilization=37)
    exporter = await Process.start(
        "-m", "gpuscale", "exporter", "--listen", "127.0.0.1:0", "--node-name", "node-1",
        environ=nvml.environment,
    )  # fmt: skip
    processes.append(exporter)
    vision, vision_pods = await fleet("vision", "triton", "constant:12")
    processes.append(vision)
    until_rush_s = rush_at - time.time()
    chat, chat_pods = await fleet("chat", "vllm", f"ramp:{LOW},{HIGH},{2 * until_rush_s},{RISE_S}")
    processes.append(chat)

    def demand(at: float) -> float:
        into = (at - rush_at) % DAY_S
        return LOW if into > 3600 else LOW + (HIGH - LOW) * min(1.0, into / RISE_S)

    promtool = tools.promtool()
    assert promtool is not None
    write_blocks(
        promtool, folder / "data", labels='namespace="ai",pod="chat-before",instance="before:1"',
        demand=demand, start=time.time() - 5 * DAY_S, end=time.time() - 60,
    )  # fmt: skip
    page = f"http://127.0.0.1:{await exporter.listening()}/metrics"
    prometheus.scrape(
        {"vllm": chat_pods, "triton": vision_pods, "gpuscale": [("exporter-0", page)]}, "ai"
    )
    await prometheus.start()
    scraped = await until_scraped(prometheus.url, "gpuscale_gpu_utilization_ratio")
    values = {s["metric"]["gpu"]: float(s["value"][1]) for s in scraped}
    assert values["0"] == pytest.approx(0.37, abs=0.01)

    config = folder / "controller.yaml"
    config.write_text(yaml.safe_dump(settings(prometheus.url, rush_at - sight_at)))
    controller = await Process.start("-m", "gpuscale", "controller", "--config", str(config))
    processes.append(controller)
    keda = Keda([("127.0.0.1", await controller.listening(service="grpc"))])
    return Rig(
        sight_at=sight_at,
        rush_at=rush_at,
        prometheus=prometheus,
        exporter=exporter,
        controller=controller,
        keda=keda,
        page=f"http://127.0.0.1:{await controller.listening(service='http')}",
    )


async def watch_the_rush_come(rig: Rig) -> float:
    """Ask as KEDA does: the answer rises when the rush comes into sight, while demand is still low."""
    seen: list[tuple[float, float]] = []
    while time.time() < rig.sight_at + PATIENCE_S:
        try:
            seen.append((time.time() - rig.sight_at, await rig.desired(CHAT)))
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE, error
            assert not seen, f"an answer was taken back: {error.details()}"
        if seen and seen[-1][0] > 0 and seen[-1][1] * CAPACITY >= HIGH / 2:
            break
        await asyncio.sleep(0.5)
    demand = await rig.demand()
    assert time.time() < rig.rush_at
    assert demand is not None
    assert demand == pytest.approx(LOW, rel=0.25), "the rush has not begun"
    assert seen, "nothing was answered before the rush"
    assert seen[0][0] < -5.0, f"nothing was answered before the rush came into sight: {seen}"
    # What is worth standing by for may be asked for earlier than that, and stays.
    assert seen[-1][1] >= RISEN * seen[0][1], seen
    assert seen[-1][1] * CAPACITY >= HIGH / 2, seen
    assert await rig.desired(VISION) >= 3
    return seen[-1][1]


async def hold_when_blind(rig: Rig, before: float) -> None:
    """Stop Prometheus: the answer stands, never smaller, until its time is over; then it is an error."""
    at_stop = await rig.desired(CHAT)
    assert at_stop >= before
    await rig.prometheus.stop()
    stopped = time.monotonic()
    held = []
    while True:
        try:
            value = await rig.desired(CHAT)
        except grpc.aio.AioRpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert error.details()
            break
        held.append(value)
        assert value >= at_stop
        assert time.monotonic() - stopped < HOLD_S + 15, "the answer stands for ever"
        await asyncio.sleep(0.25)
    assert held, "it failed at once instead of holding"
    assert time.monotonic() - stopped > STALE_S
