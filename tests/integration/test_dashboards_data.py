"""Every panel shows something: all dashboards against a real Prometheus that scrapes real pages."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web

from gpuscale import httpd
from gpuscale.controller import decide, metrics
from gpuscale.controller.domain import ReplicaState
from gpuscale.controller.status import FleetStatus, Tally
from gpuscale.settings import Policy
from tests import promql, tools
from tests.fakes import statuses
from tests.fakes.kubelet import FakeKubelet
from tests.fakes.prometheus import RealPrometheus, free_port

CARDS = {"gpu-a": "h100x2", "gpu-b": "h100-migx2"}
"""Node and what it has."""
VALUES = {
    "cluster": ".*",
    "node": ".*",
    "namespace": ".*",
    "workload": "llama",
    "__rate_interval": "10s",
    "__range": "1m",
    "__range_s": "60",
}
"""What Grafana would put for the variables; the window spans many scrapes of one second."""
PATIENCE_S = 40.0
PRICES = [
    {"record": promql.PRICE, "expr": "vector(3.2)", "labels": {"product": "NVIDIA H100 80GB HBM3"}}
]
"""As the chart renders prometheusRule.gpuHourPrices."""

pytestmark = [pytest.mark.prometheus, tools.requires("prometheus")]


def panels() -> Iterator[tuple[str, str]]:
    """(board / panel / query, expression) of every query."""
    for path in sorted((tools.REPOSITORY / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                yield f"{path.stem} / {panel['title']} / {target['refId']}", target["expr"]


def filled(text: str) -> str:
    return re.sub(r"\$\{?([a-z_]\w*)\}?", lambda match: VALUES[match.group(1)], text)


@contextmanager
def exporters(directory: Path, kubelet: Path) -> Iterator[dict[str, int]]:
    """The exporter's own process on simulated cards, one per node: node -> port."""
    ports, processes = {}, []
    settings = directory / "exporter.yaml"
    # JSON is YAML.
    settings.write_text(
        json.dumps(
            {"pod_resources": {"socket": str(kubelet), "period_s": 1}, "periods": {"medium_s": 1}}
        )
    )
    try:
        for node, cards in CARDS.items():
            ports[node] = free_port()
            command = [sys.executable, "-m", "gpuscale", "exporter", "--config", str(settings)]
            options = ["--listen", f"127.0.0.1:{ports[node]}", "--node-name", node]
            processes.append(
                subprocess.Popen(
                    [*command, *options, "--nvml", f"simulated:{cards}"],
                    env={"PATH": os.environ["PATH"]},
                    stderr=subprocess.DEVNULL,
                )
            )
        yield ports
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            process.wait(10)


def status() -> FleetStatus:
    """What a controller knows after two hours, enough for a forecast to be scored: one workload that is followed, one that is held."""
    fleet = (
        statuses.workload("llama"),
        statuses.workload("silent", policy=Policy(mode="shadow")),
        # Its demand leaps at the end, and it may add one replica at a time: a guard has its say.
        statuses.workload("leaping", policy=Policy(mode="act", capacity=5.0, step_up_max=1)),
    )
    keys = tuple(w.key for w in fleet)
    memory = decide.initial_memory(keys, statuses.TICK_S)
    replicas = {
        fleet[0].key: ReplicaState(
            key=fleet[0].key, asked=4, ready=3, starting=1, pending=0, endpoints=(), starts=()
        )
    }
    ticks = 480
    last = None
    for i in range(ticks):
        last = statuses.status_of(
            {"llama": 10.0 + i % 7, "silent": None, "leaping": 10.0 if i < ticks - 2 else 40.0},
            now=time.time() - (ticks - 1 - i) * statuses.TICK_S,
            number=i + 1,
            workloads=fleet,
            replicas=replicas,
            memory=memory,
        )
    assert last is not None
    return last


def tally(begun: float) -> Tally:
    """Counters that grow, so that their rates are there to be shown."""
    n = int(10 * (time.monotonic() - begun)) + 1
    return Tally(
        ticks=n,
        step_s={"observe": 0.1, "decide": 0.02},
        signal_errors={"prometheus": n},
        scale_events={"inference/llama": (n, n)},
        actuator_writes={"written": n, "refused": n},
        scaler_requests={("GetMetrics", "OK"): n, ("IsActive", "UNAVAILABLE"): n},
        scaler_streams={"StreamIsActive": 2},
        cache_synced={"pods": True},
        cache_age_s={"pods": 3.0},
    )


def sick_page() -> bytes:
    """What a healthy simulated fleet does not show: a node with a GPU that ails, and processes by pod."""
    gpu, growing = 'gpu="0",uuid="GPU-sick"', time.time() % 1e6
    pod = 'uuid="GPU-sick",namespace="lab",pod="notebook",container="main"'
    rows = {
        f'gpuscale_gpu_info{{{gpu},pci_bus_id="0",device="nvidia0",product="NVIDIA T4",node="gpu-c"}}': 1,
        f'gpuscale_gpu_allocation_info{{{pod},resource="nvidia.com/gpu",replica=""}}': 1,
        f"gpuscale_gpu_busy_seconds_total{{{gpu}}}": 7,
        f'gpuscale_gpu_throttle_seconds_total{{{gpu},reason="hw_thermal"}}': growing / 2,
        f'gpuscale_gpu_xid_errors_total{{{gpu},xid="79"}}': int(growing),
        f'gpuscale_gpu_xid_last_timestamp_seconds{{{gpu},xid="79"}}': time.time(),
        f"gpuscale_pod_gpu_utilization_ratio{{{pod}}}": 0.5,
        f"gpuscale_pod_gpu_memory_used_bytes{{{pod}}}": 1e9,
        'gpuscale_node_audit_findings{rule="GPU-N01",severity="critical",namespace=""}': 1,
        'gpuscale_audit_findings{rule="GPU-A01",severity="warning",namespace="lab"}': 2,
        "gpuscale_audit_last_pass_timestamp_seconds": time.time() - 30,
        'gpuscale_collector_errors_total{collector="power",error="timeout"}': int(growing),
    }
    return "".join(f"{series} {value}\n" for series, value in rows.items()).encode()


@asynccontextmanager
async def page_of(render: Callable[[], bytes]) -> AsyncIterator[int]:
    """Some bytes at /metrics; the port."""
    app = web.Application()

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=render(), content_type="text/plain")

    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def controller_page() -> AsyncIterator[int]:
    """The controller's families over HTTP; the port."""
    known, begun = status(), time.monotonic()
    app = httpd.application(page=lambda: metrics.render(known, tally(begun)), ready=lambda: None)
    server = await httpd.HttpServer.start(app, "127.0.0.1:0")
    try:
        yield server.address[1]
    finally:
        await server.close()


async def simulated_uuids(ports: Sequence[int]) -> list[str]:
    """The GPUs that the exporters show, once they show them all."""
    async with aiohttp.ClientSession() as session:
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            found: list[str] = []
            for port in ports:
                try:
                    async with session.get(f"http://127.0.0.1:{port}/metrics") as response:
                        page = await response.text()
                except aiohttp.ClientError:
                    page = ""
                found += re.findall(r'gpuscale_gpu_info\{.*?uuid="([^"]+)"', page)
            if len(found) == 2 * len(ports):
                return found
            await asyncio.sleep(0.2)
    raise AssertionError("the exporters did not show their GPUs")


async def ask(session: aiohttp.ClientSession, url: str, expr: str) -> list[Any]:
    """The series of an instant query; a query that the server refuses fails the test."""
    async with session.post(f"{url}/api/v1/query", data={"query": expr}) as response:
        answer = await response.json()
    assert answer["status"] == "success", (expr, answer.get("error"))
    result: list[Any] = answer["data"]["result"]
    return result


async def test_every_panel_shows_data_of_a_running_fleet(tmp_path: Path) -> None:
    kubelet = FakeKubelet(tmp_path / "kubelet.sock")
    prometheus = RealPrometheus(tmp_path)
    await kubelet.start()
    try:
        with exporters(tmp_path, kubelet.socket) as ports:
            uuids = await simulated_uuids(list(ports.values()))
            assert len(set(uuids)) == len(uuids)
            # A whole GPU, and one shared by two pods: the joins must bear many to many.
            kubelet.held = [
                ("inference", "llama-1", "vllm", "nvidia.com/gpu", [uuids[0]]),
                ("inference", "llama-2", "vllm", "nvidia.com/gpu", [f"{uuids[1]}::0"]),
                ("batch", "embed-1", "main", "nvidia.com/gpu", [f"{uuids[1]}::1"]),
            ]
            async with controller_page() as page, page_of(sick_page) as sick:
                write_configuration(tmp_path, {**ports, "gpu-c": sick}, page)
                await prometheus.start()
                missing = await empty_panels(prometheus.url)
    finally:
        await prometheus.stop()
        await kubelet.stop()
    assert missing == []


def write_configuration(directory: Path, ports: dict[str, int], page: int) -> None:
    """Jobs, labels and honor_labels as the chart's monitors give them."""
    jobs = {"gpuscale-exporter": ports, "gpuscale-controller": {"cpu-a": page}}
    rules = yaml.safe_load((tools.REPOSITORY / "alerts" / "recording.yaml").read_text())
    rules["groups"].append({"name": "prices", "rules": PRICES})
    (directory / "recording.yaml").write_text(yaml.safe_dump(rules))
    configuration = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [
            str(directory / "recording.yaml"),
            str(tools.REPOSITORY / "alerts" / "exporter.yaml"),
        ],
        "scrape_configs": [
            {
                "job_name": job,
                "honor_labels": True,
                "static_configs": [
                    {
                        "targets": [f"127.0.0.1:{port}"],
                        "labels": {"node": node, "namespace": "gpuscale", "pod": f"{job}-{node}"},
                    }
                    for node, port in targets.items()
                ],
            }
            for job, targets in jobs.items()
        ],
    }
    (directory / "prometheus.yml").write_text(json.dumps(configuration))


async def empty_panels(url: str) -> list[str]:
    """Names of the queries that still show nothing when patience ends."""
    async with aiohttp.ClientSession() as session:
        until = time.monotonic() + PATIENCE_S
        waiting = dict(panels())
        while waiting and time.monotonic() < until:
            await asyncio.sleep(1)
            waiting = {
                name: expr
                for name, expr in waiting.items()
                if not await ask(session, url, filled(expr))
            }
    return sorted(waiting)
