"""`gpuscale cost` and the doctor's look at Prometheus, against a real one with a generated past."""

import asyncio
import json
import math
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests import tools
from tests.fakes.prometheus import RealPrometheus

pytestmark = [
    pytest.mark.prometheus,
    tools.requires("prometheus"),
    tools.requires("promtool"),
    pytest.mark.asyncio(loop_scope="module"),
]

H100, A100, B200 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "NVIDIA B200"
STEP_S = 120.0
DAYS = 3.0
SINCE_H = 48.0

Series = tuple[str, str, Callable[[float], float]]
"""(name, labels, value by the seconds since the past began)."""


def counter(rate: float) -> Callable[[float], float]:
    return lambda t: rate * t


def constant(value: float) -> Callable[[float], float]:
    return lambda _: value


def held(
    instance: str, namespace: str, resource: str, product: str, **gpus: float
) -> Iterator[Series]:
    for state, count in gpus.items():
        labels = f'instance="{instance}",namespace="{namespace}",resource="{resource}",product="{product}",state="{state}"'
        yield "gpuscale_namespace_gpu_seconds_total", labels, counter(count)


def node(instance: str, name: str, product: str, gpus: int, **states: float) -> Iterator[Series]:
    for state, count in states.items():
        yield (
            "gpuscale_node_gpu_seconds_total",
            f'instance="{instance}",state="{state}"',
            counter(count),
        )
    for i in range(gpus):
        labels = f'instance="{instance}",node="{name}",uuid="GPU-{name}-{i}",gpu="{i}",product="{product}"'
        yield "gpuscale_gpu_info", labels, constant(1)
    yield "gpuscale_nvml_up", f'instance="{instance}",node="{name}"', constant(1)


def pod(namespace: str, name: str, uuid: str) -> Series:
    labels = f'instance="a",namespace="{namespace}",pod="{name}",container="c",resource="nvidia.com/gpu",uuid="{uuid}"'
    return "gpuscale_gpu_allocation_info", labels, constant(1)


def past() -> Iterator[Series]:
    """Eight H100 on n1, of which chat holds 4 and train 2; four A100 on n2, of which chat holds half a one."""
    yield from node("a", "n1", H100, 8, allocated=6, unallocated=2)
    yield from node("b", "n2", A100, 4, allocated=0.5, unallocated=3, unknown=0.5)
    yield from held("a", "chat", "nvidia.com/gpu", H100, active=3, idle=1)
    yield from held("a", "train", "nvidia.com/gpu", H100, active=2, idle=0)
    yield from held("b", "chat", "nvidia.com/mig-3g.20gb", A100, unmeasured=0.5)
    for namespace, watts in (("chat", 2_000.0), ("train", 1_000.0), ("", 300.0)):
        yield (
            "gpuscale_namespace_gpu_energy_joules_total",
            f'instance="a",namespace="{namespace}"',
            counter(watts),
        )
    yield "kube_namespace_labels", 'namespace="chat",label_cost_center="retail"', constant(1)
    yield "kube_pod_info", 'namespace="chat",pod="x"', constant(1)
    yield "node_gpu_hourly_cost", 'node="n1"', constant(4)
    yield "node_gpu_hourly_cost", 'node="n2"', constant(2)
    other = 'cluster="other",instance="z"'
    labels = f'{other},namespace="chat",resource="nvidia.com/gpu",product="{B200}",state="active"'
    yield "gpuscale_namespace_gpu_seconds_total", labels, counter(7)
    yield "gpuscale_node_gpu_seconds_total", f'{other},state="allocated"', counter(7)
    yield (
        "gpuscale_gpu_info",
        f'{other},node="z",uuid="GPU-z",gpu="0",product="{B200}"',
        constant(1),
    )
    yield "node_gpu_hourly_cost", 'cluster="other",node="z"', constant(9)
    for i, name in enumerate(
        ("llama-7d9f8b6c5d-x2x4z", "llama-7d9f8b6c5d-bbbbb", "embed-0", "my-model")
    ):
        yield pod("chat", name, f"GPU-n1-{i}")
        used = 1.0 if name.startswith("llama") else 0.5
        labels = f'instance="a",uuid="GPU-n1-{i}",gpu="{i}"'
        yield "gpuscale_gpu_utilization_ratio", labels, constant(used)
        yield "gpuscale_gpu_power_watts", labels, constant(600 * used)


def write_past(promtool: Path, folder: Path) -> None:
    # Up to now, and not to when the tests were collected: an old past has left an instant query.
    end_s = math.floor(time.time() / STEP_S) * STEP_S
    start_s = end_s - DAYS * 86_400
    found: dict[str, list[str]] = {}
    for name, given, value in past():
        labels = given if given.startswith("cluster=") else f'cluster="mine",{given}'
        lines = found.setdefault(name, [])
        for i in range(int((end_s - start_s) / STEP_S) + 1):
            at = start_s + i * STEP_S
            lines.append(f"{name}{{{labels}}} {value(at - start_s):.3f} {at:.0f}")
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "past.om"
    with text.open("w") as file:
        for name, lines in found.items():
            counts = name.endswith("_total")
            file.write(f"# TYPE {name.removesuffix('_total')} {'counter' if counts else 'gauge'}\n")
            file.write("\n".join(lines) + "\n")
        file.write("# EOF\n")
    subprocess.run(
        [str(promtool), "tsdb", "create-blocks-from", "--max-block-duration=36h", "openmetrics", str(text), str(folder)],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    text.unlink()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def real(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RealPrometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    promtool = tools.promtool()
    assert promtool is not None
    await asyncio.to_thread(write_past, promtool, folder / "data")
    server = RealPrometheus(folder)
    server.scrape({}, "ml")
    await server.start()
    yield server
    await server.stop()


async def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        lambda: subprocess.run(
            [sys.executable, "-m", "gpuscale", *map(str, arguments)],
            capture_output=True, text=True, timeout=120, check=False,
        )
    )  # fmt: skip


async def cost(real: RealPrometheus, *arguments: object, cluster: str = "mine") -> dict[str, Any]:
    done = await run(
        "cost", "--prometheus", real.url, "--cluster", cluster, "--since", f"{SINCE_H:g}h",
        "--format", "json", *arguments,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def hours(found: dict[str, Any], name: str) -> tuple[float, ...]:
    """GPUs held, active, idle and unmeasured, to a twentieth: hours over the window's.

    The past ends up to a step and a query before now, so that the window is never all full.
    """
    row = next(r for r in found["rows"] if r["name"] == name)
    keys = ("allocated_h", "active_h", "idle_h", "unmeasured_h")
    return tuple(round(20 * row[key] / SINCE_H) / 20 for key in keys)


async def test_namespaces_get_their_hours_energy_and_money(
    real: RealPrometheus, tmp_path: Path
) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("currency: EUR\nproducts: {'*H100*': 3, '*A100*': 1}\n")
    found = await cost(real, "--price", prices)
    assert found["currency"] == "EUR"
    assert hours(found, "chat") == (4.5, 3.0, 1.0, 0.5)
    assert hours(found, "train") == (2.0, 2.0, 0.0, 0.0)
    chat = next(r for r in found["rows"] if r["name"] == "chat")
    assert chat["cost"] == pytest.approx(SINCE_H * (4 * 3 + 0.5), rel=0.01)
    assert chat["idle_cost"] == pytest.approx(SINCE_H * 3, rel=0.01)
    assert chat["energy_kwh"] == pytest.approx(2.0 * SINCE_H, rel=0.01)
    free = found["unallocated"]
    assert free["allocated_h"] == pytest.approx(5 * SINCE_H, rel=0.01)
    assert free["cost"] == pytest.approx(SINCE_H * (2 * 3 + 3), rel=0.01)
    gpus = (found["total"]["allocated_h"] + found["unknown_h"]) / SINCE_H
    assert gpus == pytest.approx(12, rel=0.01)  # eight and four: nothing is lost


async def test_a_label_of_the_namespace_is_what_is_billed(real: RealPrometheus) -> None:
    found = await cost(real, "--by", "label:cost-center")
    assert hours(found, "retail")[0] == 4.5
    assert hours(found, "(no label)")[0] == 2.0
    assert all(row["cost"] is None for row in found["rows"])


async def test_workloads_divide_what_their_namespace_held(real: RealPrometheus) -> None:
    found = await cost(real, "--by", "workload")
    # Of chat's three active GPUs two thirds are llama's, whose two replicas work all the time.
    assert hours(found, "chat/llama") == (2.0, 2.0, 0.0, 0.0)
    assert hours(found, "chat/embed") == (1.0, 0.5, 0.5, 0.0)
    assert hours(found, "chat/my-model") == (1.0, 0.5, 0.5, 0.0)
    assert hours(found, "chat/(others)") == (0.5, 0.0, 0.0, 0.5)
    assert hours(found, "train/(others)")[0] == 2.0


async def test_one_cluster_of_many_is_billed_alone(real: RealPrometheus) -> None:
    found = await cost(real, "--by", "workload", "--price", "opencost", cluster="other")
    assert {row["name"] for row in found["rows"]} == {"chat/(others)"}
    assert found["total"]["allocated_h"] == pytest.approx(7 * SINCE_H, rel=0.01)
    assert found["total"]["cost"] == pytest.approx(7 * 9 * SINCE_H, rel=0.01)
    done = await run("cost", "--prometheus", real.url, "--cluster", 'no"such\\')
    assert done.returncode == 2
    assert "no accounts" in done.stderr


async def test_opencost_says_what_the_nodes_cost(real: RealPrometheus) -> None:
    found = await cost(real, "--price", "opencost")
    train = next(r for r in found["rows"] if r["name"] == "train")
    assert train["cost"] == pytest.approx(2 * 4 * SINCE_H, rel=0.01)
    assert found["total"]["unpriced_h"] == 0


async def test_the_table_is_read_by_people_and_names_what_it_lacks(
    real: RealPrometheus, tmp_path: Path
) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("products: {'*H100*': 3}\n")
    done = await run("cost", "--prometheus", real.url, "--since", "6d", "--price", prices)
    assert done.returncode == 0
    for words in ("chat", "train", "(unallocated)", "total", "have no price", "the accounts begin"):
        assert words in done.stdout


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--by", "team"), "write namespace, workload or label:NAME"),
        (("--by", "label:team"), "--metric-labels-allowlist=namespaces=[team]"),
        (("--by", 'label:a"}'), "no label of Kubernetes"),
        (("--since", "soon"), "write a duration"),
        (("--price", "/nowhere.yaml"), "no such file"),
    ],
)
async def test_what_cannot_be_answered_is_one_sentence(
    real: RealPrometheus, arguments: tuple[str, ...], reason: str
) -> None:
    done = await run("cost", "--prometheus", real.url, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1


async def test_a_prometheus_without_accounts_is_told_so(tmp_path: Path) -> None:
    server = RealPrometheus(tmp_path)
    server.scrape({}, "ml")
    await server.start()
    try:
        done = await run("cost", "--prometheus", server.url)
        seen = await run("doctor", "--prometheus", server.url, "--format", "json")
    finally:
        await server.stop()
    assert done.returncode == 2
    assert "has no accounts of gpuscale" in done.stderr
    results = {(r["check"], r["status"]) for r in json.loads(seen.stdout)["results"]}
    assert {("prometheus", "error"), ("kube-state-metrics", "warning")} <= results


async def test_the_doctor_reads_what_reaches_a_prometheus(real: RealPrometheus) -> None:
    done = await run("doctor", "--prometheus", real.url, "--format", "json")
    results = json.loads(done.stdout)["results"]
    (found,) = [r for r in results if (r["check"], r["status"]) == ("prometheus", "ok")]
    assert "13 GPUs on 2 nodes" in found["sentence"]
    assert not [r for r in results if r["check"] in ("honor-labels", "kube-state-metrics", "dcgm")]
