"""Whose the GPUs are, on a node with a real kubelet socket, a /proc of files and invented GPUs: mapped, judged, counted."""

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpuscale.exporter.daemon import Exporter
from gpuscale.exporter.simulated import SimulatedDriver, driver
from gpuscale.exporter.simulated.cards import Slice
from gpuscale.settings import ExporterSettings
from tests.fakes.exporter import exporting, settings_of, until
from tests.fakes.kubelet import Claimed, FakeKubelet
from tests.fakes.proc import FakeProc, pod_cgroup

GIB = 1 << 30
UIDS = {name: f"{number:08x}-5b7d-4e8f-9a0b-1c2d3e4f5a6b" for number, name in enumerate("abz")}


class Node:
    """Two H100, of which the first is shared by the pods a and b."""

    def __init__(self, folder: Path) -> None:
        self.gpus: SimulatedDriver = driver("h100x2", time.time)
        self.gpus.follow(lambda _: 0.8, lambda _: 0.5)
        self.kubelet = FakeKubelet(folder / "kubelet.sock")
        self.proc = FakeProc(folder / "proc")
        self.logs = folder / "pods"
        for name, uid in UIDS.items():
            (self.logs / f"inference_{name}_{uid}").mkdir(parents=True)
        self.folder = folder

    @property
    def shared(self) -> str:
        return self.gpus.device(0).identity.uuid

    def settings(self, *, processes_s: float = 0.1, **changes: Any) -> ExporterSettings:
        data: dict[str, Any] = {
            "periods": {
                "fast_s": 0.05,
                "medium_s": 0.05,
                "slow_s": 0.2,
                "processes_s": processes_s,
            },
            "pod_resources": {
                "socket": str(self.kubelet.socket),
                "period_s": 0.1,
                "timeout_s": 0.2,
                "pod_logs": str(self.logs),
            },
            "processes": {"enabled": True, "proc": str(self.proc.root)},
            "audit": {"persist_s": 0.2},
            "accounting": {"state_file": str(self.folder / "accounts.json"), "save_period_s": 0.2},
        }
        return settings_of(**(data | changes))

    def run(self, pid: int, cgroup: str, *, gpu: int = 0, sm: float = 0.0, gib: int = 1) -> None:
        self.proc.run(pid, cgroup=cgroup)
        self.gpus.device(gpu).processes.start(pid, used_memory_bytes=gib * GIB, sm_ratio=sm)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path)
    node.kubelet.allocatable = [f"{node.shared}::{n}" for n in range(4)]
    node.kubelet.held = [
        ("inference", "a", "server", "nvidia.com/gpu", [f"{node.shared}::0"]),
        ("inference", "b", "server", "nvidia.com/gpu", [f"{node.shared}::1"]),
    ]
    await node.kubelet.start()
    yield node
    await node.kubelet.stop()


async def page(exporter: Exporter) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Series to value, as a scraper reads them."""
    host, port = exporter.address
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{host}:{port}/metrics") as answer,
    ):
        text = await answer.text()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(
    series: dict[tuple[str, frozenset[tuple[str, str]]], float], name: str, label: str
) -> dict[str, float]:
    """Values of a family by one of its labels, added up."""
    found: dict[str, float] = {}
    for (family, labels), value in series.items():
        if family == name:
            key = dict(labels)[label]
            found[key] = found.get(key, 0.0) + value
    return found


def used(exporter: Exporter) -> dict[str, float | None]:
    usage = exporter.sample.usage if exporter.sample is not None else None
    return {} if usage is None else {row.pod: row.busy for row in usage.pods}


async def test_promise_7_each_pod_on_a_shared_gpu_is_seen_with_its_own_use(node: Node) -> None:
    node.run(10, pod_cgroup(UIDS["a"]), sm=0.3, gib=2)
    node.run(11, pod_cgroup(UIDS["b"]), sm=0.1, gib=3)
    # The invented driver takes a sample a second, so that each reading has one.
    async with exporting(node.gpus, node.settings(processes_s=1.1)) as exporter:
        await until(lambda: (used(exporter).get("a") or 0) > 0.29)
        series = await page(exporter)
    utilization = of(series, "gpuscale_pod_gpu_utilization_ratio", "pod")
    assert utilization == pytest.approx({"a": 0.3, "b": 0.1})
    memory = of(series, "gpuscale_pod_gpu_memory_used_bytes", "pod")
    assert memory == {"a": 2 * GIB, "b": 3 * GIB}
    assert series["gpuscale_process_mapping_up", frozenset()] == 1


async def test_promise_6_device_series_appear_once_however_many_pods_share_the_gpu(
    node: Node,
) -> None:
    node.run(10, pod_cgroup(UIDS["a"]), sm=0.3)
    async with exporting(node.gpus, node.settings()) as exporter:
        await until(lambda: len(used(exporter)) == 2)
        series = await page(exporter)
    for name in ("gpuscale_gpu_power_watts", "gpuscale_gpu_memory_used_bytes"):
        rows = [labels for family, labels in series if family == name]
        assert len(rows) == 2, name
        assert all(dict(labels).keys() == {"gpu", "uuid"} for labels in rows)
    held = of(series, "gpuscale_gpu_allocation_info", "pod")
    assert held == {"a": 1, "b": 1}


async def test_promise_2_a_pod_that_asked_for_no_gpu_is_named_and_reported(node: Node) -> None:
    node.run(10, pod_cgroup(UIDS["a"]))
    node.run(12, pod_cgroup(UIDS["z"]), sm=0.2, gib=4)
    node.run(13, f"/system.slice/docker-{'d' * 64}.scope", gpu=1)

    async with exporting(node.gpus, node.settings()) as exporter:
        await until(lambda: len(findings(exporter)) == 2)
        series = await page(exporter)
        host, port = exporter.address
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://{host}:{port}/api/v1/audit") as answer,
        ):
            told = await answer.json()
        assert of(series, "gpuscale_pod_gpu_memory_used_bytes", "pod")["z"] == 4 * GIB
        assert of(series, "gpuscale_node_audit_findings", "namespace") == {"inference": 1, "": 1}
        assert of(series, "gpuscale_unaccounted_gpu_processes", "owner_kind") == {
            "pod": 1,
            "docker": 1,
        }
        assert (told["node"], told["up"]) == ("node-1", True)
        assert {f["evidence"] for f in told["findings"]} == {
            "pod inference/z runs a process on GPU 0 and holds no GPU",
            "a Docker container (dddddddddddd) runs a process on GPU 1 outside Kubernetes",
        }
        node.gpus.device(0).processes.end(12)
        node.gpus.device(1).processes.end(13)
        await until(lambda: findings(exporter) == [])


def findings(exporter: Exporter) -> list[str]:
    usage = exporter.sample.usage if exporter.sample is not None else None
    return [] if usage is None else [finding.rule for finding in usage.audit.findings]


async def test_promise_44_without_hostpid_it_says_so_and_everything_else_works(
    node: Node, tmp_path: Path
) -> None:
    inside = FakeProc(tmp_path / "inside", host=False)
    settings = node.settings(processes={"enabled": True, "proc": str(inside.root)})
    async with exporting(node.gpus, settings) as exporter:
        await until(lambda: exporter.sample is not None and exporter.sample.cycles > 5)
        series = await page(exporter)
    assert series["gpuscale_process_mapping_up", frozenset()] == 0
    why = ("gpuscale_process_mapping_error_info", frozenset({("reason", "impossible")}))
    assert series[why] == 1
    assert series["gpuscale_audit_up", frozenset()] == 0
    assert not of(series, "gpuscale_pod_gpu_utilization_ratio", "pod")
    assert of(series, "gpuscale_gpu_allocation_info", "pod") == {"a": 1, "b": 1}


async def test_while_mapping_is_off_the_driver_is_not_asked_for_processes(node: Node) -> None:
    node.gpus.device(0).refuse("processes")
    async with exporting(node.gpus, node.settings(processes={"enabled": False})) as exporter:
        await until(lambda: exporter.sample is not None and exporter.sample.cycles > 5)
        series = await page(exporter)
    off = ("gpuscale_process_mapping_error_info", frozenset({("reason", "off")}))
    assert series[off] == 1
    assert "processes" not in of(series, "gpuscale_collector_errors_total", "collector")


async def test_promise_11_a_pod_without_a_process_has_ended_whatever_the_kubelet_lists(
    node: Node,
) -> None:
    """A finished Job keeps its log directory; its sandbox is gone."""
    node.run(10, pod_cgroup(UIDS["a"]))
    for directory in node.logs.iterdir():
        os.utime(directory, (1_000, 1_000))
    async with exporting(node.gpus, node.settings()) as exporter:
        await until(lambda: holders(exporter) == ["a"])
        assert exporter.sample is not None
        assert exporter.sample.attribution is not None
        assert exporter.sample.attribution.dropped == 1


def holders(exporter: Exporter) -> list[str]:
    attribution = exporter.sample.attribution if exporter.sample is not None else None
    return [] if attribution is None else [held.pod for held in attribution.allocations]


def seconds(exporter: Exporter) -> dict[str, float]:
    usage = exporter.sample.usage if exporter.sample is not None else None
    return {} if usage is None or usage.accounts is None else dict(usage.accounts.node)


async def test_the_accounts_go_on_where_the_last_process_left_them(node: Node) -> None:
    async with exporting(node.gpus, node.settings()) as exporter:
        await until(lambda: seconds(exporter).get("allocated", 0) > 0.2)
    async with exporting(node.gpus, node.settings()) as exporter:
        await until(lambda: exporter.sample is not None and bool(seconds(exporter)))
        first = seconds(exporter)
        assert first["allocated"] > 0.2
        assert first["unallocated"] > first["allocated"], "half a GPU of two is held"
        await until(lambda: seconds(exporter)["allocated"] > first["allocated"])


async def test_accounts_that_cannot_be_read_are_set_aside_and_counted_anew(node: Node) -> None:
    (node.folder / "accounts.json").write_text("{")
    async with exporting(node.gpus, node.settings()) as exporter:
        await until(lambda: seconds(exporter).get("allocated", 0) > 0)
        assert (node.folder / "accounts.json.unusable").read_text() == "{"
        await until((node.folder / "accounts.json").exists)


@pytest.fixture
def divided(node: Node) -> Node:
    node.gpus.device(1).divide(
        Slice(profile="3g.40gb", memory_bytes=40 * GIB, slices=3),
        Slice(profile="1g.10gb", memory_bytes=10 * GIB, slices=1),
    )
    return node


async def test_promise_9_the_holder_of_a_mig_instance_is_found_under_it_and_under_its_gpu(
    divided: Node,
) -> None:
    gpu = divided.gpus.device(1)
    instance = gpu.mig_instances()[0]
    divided.kubelet.held = [("inference", "a", "server", "nvidia.com/mig-3g.40gb", [instance.uuid])]
    async with exporting(divided.gpus, divided.settings()) as exporter:
        await until(lambda: holders(exporter) == ["a"])
        series = await page(exporter)
    held = of(series, "gpuscale_gpu_allocation_info", "uuid")
    assert held == {instance.uuid: 1, gpu.identity.uuid: 1}
    assert instance.uuid in of(series, "gpuscale_mig_memory_total_bytes", "uuid")


async def test_promise_13_under_dra_held_gpus_have_holders_and_free_ones_their_series(
    divided: Node,
) -> None:
    """No device plugin, no nvidia.com/gpu: the claims are all that the kubelet tells."""
    instance = divided.gpus.device(1).mig_instances()[1]
    divided.kubelet.held = []
    divided.kubelet.claimed = [
        Claimed(
            "inference",
            "a",
            "server",
            claim="small",
            device="gpu-1-mig-1g10gb-19-0",
            cdi=("k8s.gpu.nvidia.com/claim=0b1c-gpu-1-mig-1g10gb-19-0",),
        ),
        Claimed(
            "inference",
            "b",
            "fabric",
            claim="domain",
            device="channel-0",
            driver="compute-domain.nvidia.com",
        ),
    ]
    async with exporting(divided.gpus, divided.settings()) as exporter:
        await until(lambda: holders(exporter) == ["a"])
        series = await page(exporter)
    assert of(series, "gpuscale_gpu_claim_info", "claim") == {"inference/small": 1}
    assert of(series, "gpuscale_gpu_claim_info", "uuid") == {instance.uuid: 1}
    assert len(of(series, "gpuscale_gpu_power_watts", "uuid")) == 2
    assert series["gpuscale_attribution_unmatched_devices", frozenset()] == 0
