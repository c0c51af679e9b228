"""`gpuscale doctor` on a cluster that answers, one that refuses, and none at all."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from gpuscale.controller.eventstream import Ticks
from gpuscale.controller.gpumap import GpuMap
from gpuscale.controller.status import Ring, Tally
from gpuscale.controller.web import Page
from gpuscale.doctor.visit import FRESH_S, Visits
from gpuscale.httpd import HttpServer
from tests.fakes.clock import ManualClock
from tests.fakes.controllers import settings_of
from tests.fakes.kube import TYPES, FakeKube, Fault, Object, Type
from tests.unit.doctor.test_checks import hpa, ours

ALL_TYPES = (
    *(t for t in TYPES if t.plural not in ("horizontalpodautoscalers", "resourcequotas", "runtimeclasses", "resourceslices")),
    Type("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler"),
    Type("", "v1", "resourcequotas", "ResourceQuota"),
    Type("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass"),
    Type("resource.k8s.io", "v1", "resourceslices", "ResourceSlice"),
)  # fmt: skip
SAMPLE = {
    "at": 1.0,
    "node": "gpu-1",
    "driver": {"up": True, "versions": {"driver": "580.65.06"}},
    "attribution": {"up": False, "reason": "no_socket"},
}


class ProxyingKube(FakeKube):
    """Answers for the pods behind it, too: by NAME:PORT."""

    async def _object(
        self, request: web.Request, kind: Type, namespace: str, name: str, subresource: str | None
    ) -> web.Response:
        if subresource == "proxy":
            answer: Object | None = {"gpuscale-exporter-1:9401": SAMPLE}.get(name)
            return web.Response(status=503) if answer is None else web.json_response(answer)
        return await super()._object(request, kind, namespace, name, subresource)


def system_pod(name: str, component: str, port: int) -> Object:
    labels = {"app.kubernetes.io/name": "gpuscale", "app.kubernetes.io/component": component}
    return {
        "metadata": {"namespace": "gpuscale", "name": name, "labels": labels},
        "spec": {
            "nodeName": "gpu-1",
            "containers": [{"name": "a", "ports": [{"containerPort": port}]}],
        },
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }


def fill(server: FakeKube) -> None:
    gpus = {"nvidia.com/gpu": "8"}
    server.put("nodes", {
        "metadata": {"namespace": "", "name": "gpu-1", "labels": {"nvidia.com/gpu.present": "true"}},
        "status": {"capacity": gpus, "allocatable": {"nvidia.com/gpu": "7"}},
    })  # fmt: skip
    server.put("pods", system_pod("gpuscale-exporter-1", "exporter", 9401))
    server.put("pods", system_pod("gpuscale-controller-1", "controller", 8080))
    message = "0/1 nodes are available: 1 node(s) had untolerated taint {nvidia.com/gpu: present}."
    server.put("pods", {
        "metadata": {"namespace": "ml", "name": "waits"},
        "spec": {"runtimeClassName": "nvidia", "containers": [{"name": "a", "resources": {"limits": gpus}}]},
        "status": {"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        ]},
    })  # fmt: skip
    server.put("scaledobjects", ours())
    server.put("horizontalpodautoscalers", hpa(tolerance=None))
    server.put("resourcequotas", {
        "metadata": {"namespace": "ml", "name": "gpus"}, "spec": {"hard": {"limits.nvidia.com/gpu": "8"}},
    })  # fmt: skip


async def doctor(
    tmp_path: Path, *arguments: str, home: Path | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HOME": str(home or tmp_path)}
    environment.pop("KUBECONFIG", None)
    return await asyncio.to_thread(
        lambda: subprocess.run(
            [sys.executable, "-m", "gpuscale", "doctor", *arguments],
            capture_output=True, text=True, timeout=60, check=False, env=environment,
        )
    )  # fmt: skip


def results(done: subprocess.CompletedProcess[str]) -> set[tuple[str, str]]:
    found: list[dict[str, Any]] = json.loads(done.stdout)["results"]
    return {(r["check"], r["status"]) for r in found}


async def test_a_sick_cluster_is_told_what_is_wrong_with_it(tmp_path: Path) -> None:
    async with ProxyingKube(ALL_TYPES) as server:
        fill(server)
        config = tmp_path / "kubeconfig"
        config.write_text(server.kubeconfig())
        done = await doctor(tmp_path, "--kubeconfig", str(config), "--format", "json")
        table = await doctor(tmp_path, "--kubeconfig", str(config))
        written = [r for r in server.requests if not r.startswith("GET ")]
    assert done.returncode == 1, done.stderr
    assert results(done) >= {
        ("cluster", "ok"),
        ("unhealthy-gpus", "error"),
        ("pending-gpu-pods", "warning"),
        ("runtime-class", "error"),
        ("keda", "error"),
        ("hpa", "warning"),
        ("GPU-L04", "warning"),
        ("exporters", "warning"),
        ("controller", "ok"),
        ("drivers", "ok"),
        ("prometheus", "unknown"),
    }
    assert "the exporter on gpu-1 does not know who holds the GPUs: no_socket" in done.stdout
    assert written == []
    assert table.returncode == 1
    assert "taint" in table.stdout
    assert "installation" not in table.stdout  # what is well is shown with --all


async def test_a_cluster_that_refuses_is_no_sick_one(tmp_path: Path) -> None:
    async with ProxyingKube(ALL_TYPES) as server:
        fill(server)
        server.faults.append(Fault(r"GET /apis?/.*limit", status=403))
        config = tmp_path / "kubeconfig"
        config.write_text(server.kubeconfig())
        done = await doctor(tmp_path, "--kubeconfig", str(config), "--format", "json")
    assert done.returncode == 0, done.stdout
    found = results(done)
    assert {("gpu-nodes", "unknown"), ("gpu-pods", "unknown"), ("keda", "unknown")} <= found
    assert not {status for _, status in found} & {"error", "warning"}


async def test_without_a_cluster_it_runs_and_says_so(tmp_path: Path) -> None:
    done = await doctor(tmp_path, "--format", "json")
    assert done.returncode == 0, done.stderr
    assert {("cluster", "unknown"), ("prometheus", "unknown"), ("installation", "ok")} <= results(
        done
    )


async def test_a_cluster_that_was_named_and_is_not_there_is_an_error(tmp_path: Path) -> None:
    done = await doctor(tmp_path, "--kubeconfig", str(tmp_path / "none"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "no such file" in done.stderr


async def test_a_running_controller_answers_with_its_own_eyes_and_no_more_often_than_needed(
    tmp_path: Path,
) -> None:
    async with ProxyingKube(ALL_TYPES) as server:
        fill(server)
        config = tmp_path / "kubeconfig"
        config.write_text(server.kubeconfig())
        settings = settings_of({"kubernetes": {"enabled": "on", "kubeconfig": str(config)}})
        clock = ManualClock()
        visits = Visits(settings, clock)
        async with serving(visits.results) as url, aiohttp.ClientSession(url) as http:

            async def ask() -> dict[str, Any]:
                async with http.get("/api/v1/doctor") as answer:
                    assert answer.status == 200
                    body: dict[str, Any] = await answer.json()
                    return body

            first = await ask()
            lists = server.count("GET /api/v1/pods")
            assert await ask() == first
            assert server.count("GET /api/v1/pods") == lists
            await clock.advance(FRESH_S)
            assert (await ask())["at"] > first["at"]
            assert server.count("GET /api/v1/pods") > lists
    found = {(r["check"], r["status"]) for r in first["results"]}
    assert {("unhealthy-gpus", "error"), ("hpa", "warning"), ("prometheus", "unknown")} <= found
    assert "driver-here" not in {check for check, _ in found}
    assert server.count("/proxy/") == 0


async def test_without_a_doctor_the_api_says_where_to_find_one() -> None:
    async with (
        serving(None) as url,
        aiohttp.ClientSession(url) as http,
        http.get("/api/v1/doctor") as answer,
    ):
        assert answer.status == 404
        assert "gpuscale doctor" in (await answer.json())["error"]


async def test_a_cluster_that_is_gone_is_said_and_costs_no_more(tmp_path: Path) -> None:
    gone = FakeKube()
    gone.url = "http://127.0.0.1:1"
    config = tmp_path / "kubeconfig"
    config.write_text(gone.kubeconfig())
    settings = settings_of({"kubernetes": {"enabled": "on", "kubeconfig": str(config)}})
    found = await Visits(settings, ManualClock()).results()
    assert ("cluster", "error") in {(r["check"], r["status"]) for r in found["results"]}


@asynccontextmanager
async def serving(
    doctor: Callable[[], Awaitable[Mapping[str, Any]]] | None,
) -> AsyncIterator[str]:
    """A page with this doctor."""

    async def decision_at(key: str, at: float) -> None:
        return None

    async def gpus() -> GpuMap:
        return GpuMap(configured=False)

    app = web.Application()
    Page(
        audit=lambda: None, status=lambda: None, tally=Tally, ready=lambda: None, now=lambda: 0.0,
        ring=Ring(), decision_at=decision_at, gpus=gpus, ticks=Ticks(), doctor=doctor,
    ).attach(app)  # fmt: skip
    server = await HttpServer.start(app, "127.0.0.1:0")
    try:
        yield "http://{}:{}".format(*server.address)
    finally:
        await server.close()
