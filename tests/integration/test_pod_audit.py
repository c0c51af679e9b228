"""The API audit on an API server: findings by owner, memory over passes, and an honest word when it cannot look."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gpuscale import runtime
from gpuscale.clock import SystemClock
from gpuscale.controller import kube
from gpuscale.controller.audit import STALE_PASSES, PodAudit
from gpuscale.controller.daemon import Controller
from gpuscale.controller.gateway import KubeGateway
from gpuscale.settings import ControllerSettings
from tests.fakes.clock import ManualClock
from tests.fakes.controllers import settings_of
from tests.fakes.kube import FakeKube, Fault
from tests.fakes.signal import FakeSignal

ALL = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
GIVEN = {"limits": {"nvidia.com/gpu": "1"}}


def pod(
    name: str,
    *,
    node: str = "cpu-1",
    hash_: str | None = None,
    phase: str = "Running",
    **container: Any,
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"namespace": "ml", "name": name}
    if hash_ is not None:
        metadata["labels"] = {"pod-template-hash": hash_}
        owner = {"kind": "ReplicaSet", "name": f"sneak-{hash_}", "controller": True}
        metadata["ownerReferences"] = [owner]
    return {
        "metadata": metadata,
        "spec": {"nodeName": node, "containers": [{"name": "main", **container}]},
        "status": {"phase": phase},
    }


def fill(server: FakeKube) -> None:
    for name, status in (("gpu-1", {"capacity": {"nvidia.com/gpu": "8"}}), ("cpu-1", {})):
        server.put("nodes", {"metadata": {"namespace": "", "name": name}, "status": status})
    server.put("pods", pod("honest", node="gpu-1", resources=GIVEN))
    for i in range(3):
        server.put("pods", pod(f"sneak-abc-{i}", hash_="abc", env=ALL))
    privileged = {"privileged": True}
    server.put("pods", pod("root-gpu", node="gpu-1", securityContext=privileged))
    server.put("pods", pod("root-cpu", securityContext=privileged))
    server.put("pods", pod("ended", env=ALL, phase="Succeeded"))


@asynccontextmanager
async def connected(
    server: FakeKube, tmp_path: Path, fields: dict[str, Any] | None = None
) -> AsyncIterator[tuple[KubeGateway, ControllerSettings]]:
    config = tmp_path / "kubeconfig"
    config.write_text(server.kubeconfig())
    settings = settings_of(
        {
            "kubernetes": {"enabled": "on", "kubeconfig": str(config), "timeout_s": 1.0},
            **(fields or {}),
        }
    )
    gateway = await kube.connect(settings.kubernetes, SystemClock())
    assert gateway is not None
    try:
        yield gateway, settings
    finally:
        await gateway.close()


async def test_pods_of_one_owner_are_one_finding_and_those_that_ended_none(tmp_path: Path) -> None:
    async with FakeKube() as server, connected(server, tmp_path) as (gateway, settings):
        fill(server)
        audit = PodAudit(gateway, ManualClock(), settings)
        await audit.pass_once()
        found = audit.state.as_dict()
    assert (found["up"], found["pods"], found["gpu_nodes"]) == (True, 7, 1)
    said = {(f["rule"], f["owner_kind"], f["owner"], f["pods"]) for f in found["findings"]}
    assert said == {("GPU-A01", "Deployment", "sneak", 3), ("GPU-A03", "Pod", "root-gpu", 1)}
    assert audit.state.counts() == {
        ("GPU-A01", "warning", "ml"): 1,
        ("GPU-A03", "warning", "ml"): 1,
    }


async def test_the_exporters_of_our_own_namespace_are_expected_to_see_every_gpu(
    tmp_path: Path,
) -> None:
    async with FakeKube() as server, connected(server, tmp_path) as (gateway, settings):
        for namespace in ("observability", "ml"):
            exporter = pod("x-exporter-1", env=ALL)
            exporter["metadata"]["namespace"] = namespace
            server.put("pods", exporter)
        (tmp_path / "namespace").write_text("observability\n")
        own = kube.own_namespace(tmp_path)
        audit = PodAudit(gateway, ManualClock(), settings, namespace=own)
        await audit.pass_once()
    assert [f["namespace"] for f in audit.state.as_dict()["findings"]] == ["ml"]
    assert kube.own_namespace(tmp_path / "nowhere") is None


async def test_many_pages_are_one_look_from_the_servers_cache(tmp_path: Path) -> None:
    async with FakeKube() as server, connected(server, tmp_path) as (gateway, settings):
        for i in range(1_203):
            server.put("pods", pod(f"sneak-abc-{i}", hash_="abc", env=ALL))
        audit = PodAudit(gateway, ManualClock(), settings)
        await audit.pass_once()
        (finding,) = audit.state.as_dict()["findings"]
        assert finding["pods"] == 1_203
        assert server.count(r"pods\?limit=500&resourceVersion=0") == 1
        assert server.count(r"pods\?.*continue=") == 2


async def test_a_finding_keeps_its_first_sight_until_it_is_gone(tmp_path: Path) -> None:
    async with FakeKube() as server, connected(server, tmp_path) as (gateway, settings):
        fill(server)
        clock = ManualClock()
        audit = PodAudit(gateway, clock, settings)
        began = clock.wall()
        for _ in range(2):
            await audit.pass_once()
            await clock.advance(300)
        first = audit.state.as_dict()["findings"][0]
        assert (first["first_seen"], first["last_seen"]) == (began, began + 300)
        for i in range(3):
            server.delete("pods", "ml", f"sneak-abc-{i}")
        await audit.pass_once()
        assert [f["rule"] for f in audit.state.as_dict()["findings"]] == ["GPU-A03"]


async def test_without_the_right_to_read_nodes_pods_are_judged_by_their_specs(
    tmp_path: Path,
) -> None:
    async with FakeKube() as server, connected(server, tmp_path) as (gateway, settings):
        fill(server)
        server.faults.append(Fault(r"GET /api/v1/nodes", status=403))
        audit = PodAudit(gateway, ManualClock(), settings)
        await audit.pass_once()
        found = audit.state.as_dict()
    assert (found["up"], found["gpu_nodes"]) == (True, None)
    assert [f["rule"] for f in found["findings"]] == ["GPU-A01"]


@pytest.mark.parametrize("status", [403, 500, 410])
async def test_a_failed_pass_says_so_and_old_findings_are_forgotten_in_time(
    tmp_path: Path, status: int
) -> None:
    async with FakeKube() as server, connected(server, tmp_path) as (gateway, settings):
        fill(server)
        clock = ManualClock()
        audit = PodAudit(gateway, clock, settings)
        assert audit.state.as_dict()["up"] is False
        await audit.pass_once()
        server.faults.append(Fault(r"GET /api/v1/pods", status=status))
        await audit.pass_once()
        state = audit.state
        assert state.reason is not None
        assert state.counts()  # what was seen a moment ago still holds
        await clock.advance((STALE_PASSES + 1) * settings.audit.period_s)
        assert audit.state.counts() == {}
        assert audit.state.at == state.at
        server.faults.clear()
        await audit.pass_once()
        assert audit.state.reason is None
        assert audit.state.counts()


async def test_only_the_named_namespaces_are_read(tmp_path: Path) -> None:
    async with FakeKube() as server:
        fill(server)
        config = tmp_path / "kubeconfig"
        config.write_text(server.kubeconfig())
        settings = settings_of(
            {"kubernetes": {"enabled": "on", "kubeconfig": str(config), "namespaces": ["other"]}}
        )
        gateway = await kube.connect(settings.kubernetes, SystemClock())
        assert gateway is not None
        audit = PodAudit(gateway, ManualClock(), settings)
        await audit.pass_once()
        await gateway.close()
        assert audit.state.as_dict()["pods"] == 0
        assert server.count("GET /api/v1/pods") == 0
        assert server.count("GET /api/v1/nodes") == 0


async def test_the_controller_serves_what_the_audit_found(tmp_path: Path) -> None:
    async with FakeKube() as server:
        fill(server)
        config = tmp_path / "kubeconfig"
        config.write_text(server.kubeconfig())
        settings = settings_of({"kubernetes": {"enabled": "on", "kubeconfig": str(config)}})
        controller = Controller(settings, SystemClock(), signal=FakeSignal({}))
        daemon = runtime.Daemon()
        up = asyncio.Event()

        async def start(owner: runtime.Daemon) -> None:
            await controller.start(owner, ticking=False)
            up.set()

        async def look() -> tuple[dict[str, Any], str]:
            host, port = controller.http_address
            async with aiohttp.ClientSession(f"http://{host}:{port}") as http:
                async with asyncio.timeout(10):
                    while True:
                        async with http.get("/api/v1/audit") as answer:
                            body: dict[str, Any] = await answer.json()
                        if body["up"]:
                            break
                        await asyncio.sleep(0.02)
                await controller.tick()
                async with http.get("/metrics") as answer:
                    return body, await answer.text()

        async def live() -> None:
            try:
                await daemon.live(start)
            except asyncio.CancelledError:
                if not daemon.stopping:
                    raise

        async with asyncio.TaskGroup() as group:
            group.create_task(live())
            await up.wait()
            body, page = await look()
            daemon.stop()
    assert {f["rule"] for f in body["findings"]} == {"GPU-A01", "GPU-A03"}
    line = 'gpuscale_audit_findings{rule="GPU-A01",severity="warning",namespace="ml"} 1.0'
    assert line in page.splitlines()
    assert "gpuscale_audit_last_pass_timestamp_seconds " in page


async def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        lambda: subprocess.run(
            [sys.executable, "-m", "gpuscale", *map(str, arguments)],
            capture_output=True, text=True, timeout=60, check=False,
        )
    )  # fmt: skip


async def test_the_command_looks_at_a_live_cluster(tmp_path: Path) -> None:
    async with FakeKube() as server:
        fill(server)
        config = tmp_path / "kubeconfig"
        config.write_text(server.kubeconfig())
        table = await command("audit", "--kubeconfig", config)
        plain = await command(
            "audit", "--kubeconfig", config, "--format", "json", "--severity", "error"
        )
        nowhere = await command("audit", "--kubeconfig", config, "-n", "other")
    assert table.returncode == 1
    assert "Deployment ml/sneak" in table.stdout
    assert "in 3 pods" in table.stdout
    assert "2 warnings in 7 pods" in table.stdout
    assert plain.returncode == 0
    assert {f["rule"] for f in json.loads(plain.stdout)["findings"]} == {"GPU-A01", "GPU-A03"}
    assert (nowhere.returncode, nowhere.stdout.strip()[:30]) == (
        0,
        "Nothing found in 0 pods (no no",
    )


async def test_a_cluster_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    missing = await command("audit", "--kubeconfig", tmp_path / "none")
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)
    config = tmp_path / "kubeconfig"
    server = FakeKube()
    server.url = "http://127.0.0.1:1"
    config.write_text(server.kubeconfig())
    gone = await command("audit", "--kubeconfig", config)
    assert (gone.returncode, gone.stderr.count("\n")) == (1, 1)
    assert "cannot be reached" in gone.stderr
