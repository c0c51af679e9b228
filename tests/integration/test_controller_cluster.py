"""The controller on an API server: declarations come from it, replicas are written to it, refusals are survived."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from gpuscale import runtime
from gpuscale.clock import SystemClock
from gpuscale.controller.cluster import KubeCluster
from gpuscale.controller.daemon import Controller
from gpuscale.controller.gateway import DEPLOYMENTS
from tests.fakes.cluster import scaled_object
from tests.fakes.controllers import settings_of
from tests.fakes.kube import FakeKube, Fault
from tests.fakes.signal import FakeSignal

LLAMA = "inference/llama"


def deployment(name: str, replicas: int) -> dict[str, Any]:
    labels = {"app": name}
    return {
        "metadata": {"namespace": "inference", "name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}},
        "status": {"replicas": replicas},
    }


@asynccontextmanager
async def started(
    kubeconfig: Path, fields: dict[str, Any], signal: FakeSignal
) -> AsyncIterator[Controller]:
    """A controller that connects by itself, on the real clock; ticks are the test's."""
    settings = settings_of(
        {"kubernetes": {"enabled": "on", "kubeconfig": str(kubeconfig), "timeout_s": 1.0}, **fields}
    )
    controller = Controller(settings, SystemClock(), signal=signal)
    daemon = runtime.Daemon()
    up = asyncio.Event()

    async def start(owner: runtime.Daemon) -> None:
        await controller.start(owner, ticking=False)
        up.set()

    async def live() -> None:
        try:
            await daemon.live(start)
        except asyncio.CancelledError:
            if not daemon.stopping:
                raise

    async with asyncio.TaskGroup() as group:
        group.create_task(live())
        await up.wait()
        try:
            yield controller
        finally:
            daemon.stop()


async def until(condition: Callable[[], object], within_s: float = 5.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.01)


async def readiness(controller: Controller) -> tuple[int, str]:
    host, port = controller.http_address
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"http://{host}:{port}/readyz") as response,
    ):
        return response.status, await response.text()


async def test_a_scaled_object_is_decided_for_with_the_replicas_of_its_target(
    tmp_path: Path,
) -> None:
    async with FakeKube() as kube:
        kube.put("deployments", deployment("llama", 4))
        kube.put("scaledobjects", scaled_object("inference", "llama"))
        config = tmp_path / "kubeconfig"
        config.write_text(kube.kubeconfig())
        signal = FakeSignal(demand={LLAMA: 60.0})
        async with started(config, {}, signal) as controller:
            assert controller._cluster is not None
            await until(lambda: controller._cluster and controller._cluster.unsynced() is None)
            snapshot = await controller.tick()
            observation = controller.observation
            ready = await readiness(controller)

    assert observation is not None
    assert observation.keys == (LLAMA,)
    assert observation.asked.tolist() == [4.0]
    assert (snapshot.answers[LLAMA].desired or 0) >= 12
    assert ready[0] == 200


async def test_direct_mode_sets_the_replicas_of_a_deployment(tmp_path: Path) -> None:
    async with FakeKube() as kube:
        kube.put("deployments", deployment("llama", 4))
        config = tmp_path / "kubeconfig"
        config.write_text(kube.kubeconfig())
        workloads = [{"namespace": "inference", "name": "llama", "target": {"name": "llama"}}]
        signal = FakeSignal(demand={LLAMA: 60.0})
        async with started(config, {"workloads": workloads}, signal) as controller:
            await until(lambda: controller._cluster and controller._cluster.unsynced() is None)
            snapshot = await controller.tick()

    written = kube.objects["deployments", "inference", "llama"]["spec"]["replicas"]
    assert written == snapshot.answers[LLAMA].desired
    assert written >= 12


async def test_direct_mode_leaves_alone_what_a_person_scaled(tmp_path: Path) -> None:
    async with FakeKube() as kube:
        kube.put("deployments", deployment("llama", 4))
        config = tmp_path / "kubeconfig"
        config.write_text(kube.kubeconfig())
        workloads = [{"namespace": "inference", "name": "llama", "target": {"name": "llama"}}]
        signal = FakeSignal(demand={LLAMA: 60.0})
        async with started(config, {"workloads": workloads}, signal) as controller:
            assert isinstance(controller._cluster, KubeCluster)
            (targets,) = controller._cluster._targets[DEPLOYMENTS]

            async def asked_is_seen(count: int) -> None:
                await until(lambda: targets.objects["inference", "llama"].asked == count)

            await until(lambda: controller._cluster and controller._cluster.unsynced() is None)
            ours = (await controller.tick()).answers[LLAMA].desired
            assert ours is not None
            await asked_is_seen(ours)
            kube.merge("deployments", "inference", "llama", {"spec": {"replicas": 2}})
            await asked_is_seen(2)
            snapshot = await controller.tick()
            status = controller.status

    assert snapshot.answers[LLAMA].desired == 2
    assert kube.objects["deployments", "inference", "llama"]["spec"]["replicas"] == 2
    assert status is not None
    found = status.workload(LLAMA)
    assert found is not None
    assert found.workload.paused == "a person who set 2 replicas"


@pytest.mark.parametrize("how", ["refused", "unreachable"])
async def test_without_its_api_server_the_workloads_of_the_file_go_on(
    tmp_path: Path, how: str
) -> None:
    """One sentence with the server and the cure, not ready, and the rest works."""
    async with FakeKube() as kube:
        config = tmp_path / "kubeconfig"
        config.write_text(kube.kubeconfig())
        if how == "refused":
            kube.faults.append(Fault(r"/", status=403, message="cannot list pods"))
        else:
            await kube.stop()
        workloads = [{"namespace": "inference", "name": "llama"}]
        signal = FakeSignal(demand={LLAMA: 60.0})
        with capture_logs() as logs:
            async with started(config, {"workloads": workloads}, signal) as controller:
                cluster = controller._kube
                assert cluster is not None
                await until(lambda: cluster.problems)
                await asyncio.sleep(0.3)
                await controller.tick()
                await controller.tick()
                snapshot = await controller.tick()
                ready = await readiness(controller)
                status = controller.status

    assert (snapshot.answers[LLAMA].desired or 0) >= 12
    assert ready[0] == 503
    assert status is not None
    assert status.faults
    server = kube.url.removeprefix("http://")
    assert all(server in fault for fault in status.faults)
    said = [e["reason"] for e in logs if e["event"] == "fault began"]
    assert len(said) == len(set(said)), "each sentence once"
