"""The exporter as a process beside a kubelet: who holds what, through a kubelet that dies and an exporter that is killed."""

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuscale.exporter.simulated import driver
from tests.e2e.test_exporter_process import Process
from tests.fakes.kubelet import FakeKubelet

GPUS = [gpu.identity.uuid for gpu in driver("h100x2", time.monotonic).devices()]
SETTINGS = """
nvml: "simulated:h100x2"
node_name: node-1
periods: {{fast_s: 0.1}}
stale_after_s: 1
pod_resources: {{socket: {folder}/kubelet.sock, period_s: 0.2, timeout_s: 0.5, pod_logs: {folder}/pods}}
accounting: {{state_file: {folder}/accounts.json, save_period_s: 0.2}}
"""


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[FakeKubelet]:
    fake = FakeKubelet(tmp_path / "kubelet.sock")
    (tmp_path / "pods").mkdir()
    (tmp_path / "exporter.yaml").write_text(SETTINGS.format(folder=tmp_path))
    fake.held = [("chat", "vllm-0", "server", "nvidia.com/gpu", [GPUS[0]])]
    await fake.start()
    yield fake
    await fake.stop()


async def started(folder: Path) -> Process:
    return await asyncio.to_thread(lambda: Process(settings=folder / "exporter.yaml"))


def values(process: Process) -> dict[str, float]:
    rows = (line.rsplit(" ", 1) for line in process.get("/metrics").splitlines())
    return {row[0]: float(row[1]) for row in rows if not row[0].startswith("#")}


async def until(process: Process, series: str, least: float) -> dict[str, float]:
    """The page once a series has come to a value."""
    async with asyncio.timeout(15):
        while True:
            page = await asyncio.to_thread(values, process)
            if page.get(series, -1.0) >= least:
                return page
            await asyncio.sleep(0.05)


def seconds(state: str) -> str:
    return f'gpuscale_node_gpu_seconds_total{{state="{state}"}}'


def holder(pod: str, uuid: str) -> str:
    labels = f'container="server",namespace="chat",pod="{pod}",replica="",resource="nvidia.com/gpu"'
    return f'gpuscale_gpu_allocation_info{{{labels},uuid="{uuid}"}}'


async def test_holders_survive_the_kubelet_and_accounts_survive_the_exporter(
    kubelet: FakeKubelet, tmp_path: Path
) -> None:
    process = await started(tmp_path)
    try:
        page = await until(process, holder("vllm-0", GPUS[0]), 1)
        assert page["gpuscale_attribution_up"] == 1
        await until(process, seconds("allocated"), 0.5)

        await kubelet.stop()
        page = await until(process, 'gpuscale_attribution_error_info{reason="no_socket"}', 1)
        assert page["gpuscale_attribution_up"] == 0
        page = await until(process, seconds("unknown"), 0.1)
        assert holder("vllm-0", GPUS[0]) not in page, "past its bound the answer is no answer"

        kubelet.held = [("chat", "vllm-1", "server", "nvidia.com/gpu", [GPUS[1]])]
        await kubelet.start()
        page = await until(process, holder("vllm-1", GPUS[1]), 1)
        assert page["gpuscale_attribution_up"] == 1
        last = {state: page[seconds(state)] for state in ("allocated", "unallocated", "unknown")}

        code, took_s = await asyncio.to_thread(process.stop)
        assert (code, took_s < 1.5) == (0, True)
    finally:
        process.end()

    process = await started(tmp_path)
    try:
        page = await until(process, seconds("allocated"), 0)
        assert all(page[seconds(state)] >= value for state, value in last.items())
        await until(process, seconds("allocated"), page[seconds("allocated")] + 0.5)
        page = await asyncio.to_thread(values, process)
        # Killed, it loses at most what it has not written down since the last period.
        await asyncio.to_thread(process.stop, signal.SIGKILL)
        saved = json.loads((tmp_path / "accounts.json").read_text())
        assert dict(saved["node"])["allocated"] > page[seconds("allocated")] - 0.5
    finally:
        process.end()


async def test_where_processes_are_not_mapped_the_page_and_the_audit_say_so(
    kubelet: FakeKubelet, tmp_path: Path
) -> None:
    process = await started(tmp_path)
    try:
        page = await until(process, holder("vllm-0", GPUS[0]), 1)
        assert page['gpuscale_process_mapping_error_info{reason="off"}'] == 1
        audit = json.loads(await asyncio.to_thread(process.get, "/api/v1/audit"))
        assert audit["up"] is False
        assert "processes.enabled" in audit["reason"]
        assert audit["findings"] == []
    finally:
        process.end()
    assert kubelet.calls > 0
