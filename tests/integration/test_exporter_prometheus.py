"""A real Prometheus scrapes a page of every kind of node: it takes each sample, and the queries in use answer.

The queries are those of Grafana's dashboard 12239, of common alerts, and of KEDA's Prometheus
trigger as its users write them, with honorLabels and without.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from gpuscale import httpd
from tests import tools
from tests.fakes.fleets import FLEETS
from tests.fakes.node import page
from tests.fakes.prometheus import RealPrometheus

pytestmark = [pytest.mark.prometheus, tools.requires("prometheus")]

PATIENCE_S = 30.0
SELF = ("monitoring", "gpuscale-exporter-x7k2p")
"""Namespace and pod of the exporter itself, which service discovery puts on every target."""

DASHBOARD_12239 = (
    'DCGM_FI_DEV_GPU_TEMP{instance=~".+", gpu=~"0|1"}',
    'avg(DCGM_FI_DEV_GPU_TEMP{instance=~".+", gpu=~"0|1"})',
    'DCGM_FI_DEV_POWER_USAGE{instance=~".+", gpu=~"0|1"}',
    'sum(DCGM_FI_DEV_POWER_USAGE{instance=~".+", gpu=~"0|1"})',
    'DCGM_FI_DEV_SM_CLOCK{instance=~".+", gpu=~"0|1"} * 1000000',
    'DCGM_FI_DEV_GPU_UTIL{instance=~".+", gpu=~"0|1"}',
    'DCGM_FI_DEV_FB_USED{instance=~".+", gpu=~"0|1"}',
    'DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{instance=~".+", gpu=~"0|1"}',
)
OTHERS = (
    'avg(DCGM_FI_DEV_GPU_UTIL{job="h100x8", namespace="inference", pod=~"vllm-.*"})',
    'sum by (pod) (DCGM_FI_DEV_GPU_UTIL{namespace="inference", pod=~"vllm-.*"})',
    'avg(avg_over_time(DCGM_FI_DEV_GPU_UTIL{Hostname="node-1"}[10s]))',
    "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE) * 100",
    "sum by (Hostname, modelName) (DCGM_FI_DEV_POWER_USAGE)",
    "rate(DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION[10s]) / 1000",
    "DCGM_FI_DEV_ROW_REMAP_FAILURE == 0",
    'count by (GPU_I_PROFILE) (DCGM_FI_DEV_FB_USED{GPU_I_PROFILE!=""})',
    'avg(DCGM_FI_DEV_GPU_UTIL{job="relabelled", exported_namespace="inference", exported_pod=~"vllm.*"})',
    'gpuscale_gpu_allocation_info{pod=~"vllm-.*"} * on (job, uuid) group_left gpuscale_gpu_busy_seconds_total',
    "gpuscale_gpu_allocation_info * on (job, uuid) group_left gpuscale_mig_sm_active_ratio",
    "sum by (job) (gpuscale_mig_memory_used_bytes) / on (job) group_left () sum by (job) (gpuscale_gpu_memory_total_bytes)",
)


@asynccontextmanager
async def pages() -> AsyncIterator[int]:
    """Every fleet's page at /NAME/metrics; the port."""
    rendered = {name: page(fleet.sample()) for name, fleet in FLEETS.items()}

    async def answer(request: web.Request) -> web.StreamResponse:
        return await httpd.metrics_response(request, rendered[request.match_info["fleet"]])

    application = web.Application()
    application.router.add_get("/{fleet}/metrics", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def configuration(port: int) -> str:
    """One job per fleet as the PodMonitor sets it, and one without honorLabels."""
    namespace, pod = SELF
    jobs = [
        {
            "job_name": name,
            "metrics_path": f"/{fleet}/metrics",
            "honor_labels": honor,
            "static_configs": [
                {
                    "targets": [f"127.0.0.1:{port}"],
                    "labels": {"namespace": namespace, "pod": pod},
                }
            ],
        }
        for name, fleet, honor in (
            *((name, name, True) for name in FLEETS),
            ("relabelled", "h100x8", False),
        )
    ]
    return json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs})


class Client:
    """Instant queries."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._session = session

    async def values(self, query: str) -> list[tuple[dict[str, str], float]]:
        async with self._session.get(f"{self._url}/api/v1/query", params={"query": query}) as got:
            answer = await got.json()
        assert answer["status"] == "success", f"{query}: {answer}"
        return [(one["metric"], float(one["value"][1])) for one in answer["data"]["result"]]

    async def soon(self, query: str, count: int = 1) -> list[tuple[dict[str, str], float]]:
        """The answer once it has `count` series."""
        until = time.monotonic() + PATIENCE_S
        while len(found := await self.values(query)) < count:
            assert time.monotonic() < until, f"no answer to {query}"
            await asyncio.sleep(0.2)
        return found


async def test_prometheus_takes_every_page_whole_and_the_queries_in_use_answer(
    tmp_path: Path,
) -> None:
    prometheus = RealPrometheus(tmp_path)
    async with pages() as port:
        (tmp_path / "prometheus.yml").write_text(configuration(port))
        await prometheus.start()
        try:
            # The session ends first: Prometheus waits for open connections when it stops.
            async with aiohttp.ClientSession() as session:
                client = Client(prometheus.url, session)
                await takes_every_page_whole(client)
                for query in (*DASHBOARD_12239, *OTHERS):
                    assert await client.soon(query)
                await what_must_hold(client)
        finally:
            await prometheus.stop()
    log = (tmp_path / "log").read_text()
    assert "duplicate" not in log
    assert "out of order" not in log


async def takes_every_page_whole(client: Client) -> None:
    """A sample that is there twice or out of order is dropped, and only the counts show it."""
    up = await client.soon("up == 1", len(FLEETS) + 1)
    assert {row["job"] for row, _ in up} == {*FLEETS, "relabelled"}
    dropped = await client.values("scrape_samples_scraped - scrape_samples_post_metric_relabeling")
    assert {value for _, value in dropped} == {0.0}
    for name, fleet in FLEETS.items():
        lines = page(fleet.sample()).text.decode().splitlines()
        ((_, scraped),) = await client.values(f'scrape_samples_scraped{{job="{name}"}}')
        assert scraped == sum(not line.startswith("#") for line in lines), name


async def what_must_hold(client: Client) -> None:
    """Values, and not only answers."""
    ((_, average),) = await client.values(
        'avg(DCGM_FI_DEV_GPU_UTIL{job="h100x8", namespace="inference", pod=~"vllm-.*"})'
    )
    ((_, ours),) = await client.values(
        '100 * avg(gpuscale_gpu_allocation_info{job="h100x8"} * on (job, uuid) group_left '
        "gpuscale_gpu_utilization_ratio)"
    )
    assert average == pytest.approx(ours, abs=1.0)
    by_pod = await client.values(
        'sum by (pod) (DCGM_FI_DEV_GPU_UTIL{job="h100x8", namespace="inference"})'
    )
    assert {row["pod"] for row, _ in by_pod} == {f"vllm-{n}" for n in range(7)}
    # Six pods share two GPUs, and the board's power is drawn once.
    ((_, shared),) = await client.values('sum(DCGM_FI_DEV_POWER_USAGE{job="t4-time-sliced"})')
    ((_, drawn),) = await client.values('sum(gpuscale_gpu_power_watts{job="t4-time-sliced"})')
    assert shared == pytest.approx(drawn)
    instances = await client.values('DCGM_FI_DEV_FB_USED{job="a100-mixed-mig"}')
    assert sorted(row["GPU_I_PROFILE"] for row, _ in instances) == [
        "1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb",
    ]  # fmt: skip
