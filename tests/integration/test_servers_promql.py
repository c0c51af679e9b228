"""The tables' PromQL, evaluated by promtool on the series that the servers' pages would give."""

import re
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from gpuscale.controller.domain import SignalTarget
from gpuscale.controller.servers import SERVERS
from gpuscale.controller.servers.promql import (
    MODELS,
    Watch,
    expressions,
    gpu_busy,
    own,
    reading,
)
from gpuscale.settings import CustomQueries, Server
from tests import tools
from tests.fakes.serverpages import OLD, PAGES, Load

pytestmark = tools.requires("promtool")

WINDOW_S = 60.0
SELECTOR = 'namespace="ai",pod=~"chat-.+"'
LINE = re.compile(r"^([^\s{#]+)(?:\{(.*)\})? (\S+)$")


def load(step: int) -> Load:
    """A pod that ends 5 requests a second, while one more a second stays: 6 arrive."""
    s = 15.0 * step
    return Load(
        done=1000 + 4.5 * s, failed=20 + 0.5 * s, waiting=2 + 0.75 * s, running=6 + 0.25 * s,
        queue_s=50 + 3 * s, sojourn_s=900 + 40 * s, kv=0.5,
        prompt=90_000 + 1500 * s, generated=40_000 + 600 * s,
    )  # fmt: skip


def series(server: Server, page: Any, *, steps: int = 9) -> list[dict[str, str]]:
    """The page's series over `steps` scrapes of two pods, one of them collected by two jobs."""
    found: dict[str, list[str]] = {}
    for step in range(steps):
        for line in page(load(step)).decode().splitlines():
            match = LINE.match(line)
            if match:
                found.setdefault(f"{match[1]}|{(match[2] or '').rstrip(',')}", []).append(match[3])
    out = []
    for job, pod in (("pods", "chat-0"), ("again", "chat-0"), ("pods", "chat-1")):
        for name, values in found.items():
            metric, _, labels = name.partition("|")
            where = f'namespace="ai",pod="{pod}",instance="{pod}:80",job="{job}"'
            inside = ",".join(part for part in (labels, where) if part)
            shown = f'{{__name__="{metric}",{inside}}}'
            out.append({"series": shown, "values": " ".join(f"{float(v):f}" for v in values)})
    return out


def evaluate(folder: Path, asked: dict[str, str], given: list[dict[str, str]]) -> dict[str, float]:
    """Each expression at the last scrape, by promtool: as recorded values that are told to be wrong."""
    tests = [
        {"expr": expression, "eval_time": "120s", "exp_samples": [{"labels": "{}", "value": -1}]}
        for expression in asked.values()
    ]
    (folder / "none.yml").write_text("groups: []\n", encoding="utf-8")
    case = {"interval": "15s", "input_series": given, "promql_expr_test": tests}
    (folder / "test.yml").write_text(
        yaml.safe_dump({"rule_files": ["none.yml"], "tests": [case]}), encoding="utf-8"
    )
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yml"],
        cwd=folder, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    parts = said.split("expr: ")[1:]
    assert len(parts) == len(asked), said
    values = {}
    for name, part in zip(asked, parts, strict=True):
        assert "got:" in part, part[:900]
        got = part.split("got:", 1)[1]
        numbers = re.findall(r"(?:\d+\. )?(?:Labels:.*\n\s*Value: |\}\s+)([-+0-9.eE]+)", got)
        if numbers:
            values[name] = float(numbers[0])
    return values


def target(server: Server) -> SignalTarget:
    return SignalTarget(
        key="ai/chat", namespace="ai", name="chat", server=server, selector=SELECTOR,
        endpoints=(), pods_expected=2,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("server", "page"),
    [
        *((s, PAGES[s]) for s in SERVERS if s != "ray-serve"),
        *(o for o in OLD if o[0] != "ray-serve"),
    ],
)
def test_two_pods_and_a_doubled_job_are_read_as_two_pods(
    tmp_path: Path, server: Server, page: Any
) -> None:
    table = SERVERS[server]
    asked = dict(expressions(table, SELECTOR, WINDOW_S))
    asked.pop(MODELS)
    values = evaluate(tmp_path, asked, series(server, page))
    seen = reading(table, target(server), values, Watch(up_since=0.0), 120.0)
    assert (seen.pods_answered, seen.reason, seen.at) == (2, None, 120.0)
    gauges = b"running" in page(load(1)) or b"current_size" in page(load(1))
    if server == "llama-cpp":
        assert seen.throughput == pytest.approx(2 * 600)
        assert seen.arrivals == pytest.approx(2 * 600 * (1 + 92 / 36))
        return
    ended = 4.5 if server == "torchserve" else 5.0
    grown = 1.0 if gauges or server == "triton-trtllm" else 0.75 if server == "triton" else 0.0
    # Whoever gave up is demand, and not what the pods carried.
    given_up = 0.5 if table.unserved is not None else 0.0
    assert seen.throughput == pytest.approx(2 * (ended - given_up))
    assert seen.arrivals == pytest.approx(2 * (ended + grown))
    if server in ("torchserve", "tf-serving") or b"trtllm:" in page(load(1)):
        assert seen.waiting == pytest.approx(2 * 3)
        assert seen.in_flight == pytest.approx(2 * 40)
    elif server == "triton":
        assert [seen.waiting, seen.running] == [pytest.approx(184), 0.0]
    else:
        assert [seen.waiting, seen.running] == [pytest.approx(184), pytest.approx(72)]
    if table.sojourn_s is not None:
        assert seen.latency_s == pytest.approx(40 / ended)
    assert seen.kv_fraction == (
        0.5 if table.kv_fraction and b"trtllm:" not in page(load(1)) else None
    )


def test_ray_series_collected_from_every_node_count_once(tmp_path: Path) -> None:
    """Both pods of a Ray cluster show the same replicas: told apart by `replica`, not by node."""
    table = SERVERS["ray-serve"]
    asked = dict(expressions(table, SELECTOR, WINDOW_S))
    asked.pop(MODELS)
    values = evaluate(tmp_path, asked, series("ray-serve", PAGES["ray-serve"]))
    seen = reading(table, target("ray-serve"), values, Watch(up_since=0.0), 120.0)
    assert seen.throughput == pytest.approx(5.0)
    assert seen.arrivals == pytest.approx(6.0)
    assert [seen.waiting, seen.running] == [pytest.approx(92), pytest.approx(36)]


def test_the_operators_own_queries_are_filled_in_and_answered_as_one_sample(tmp_path: Path) -> None:
    queries = CustomQueries(
        arrivals='rate(tgi_request_count{{selector},container!="{name}"}[1m])',
        waiting='tgi_queue_size{namespace="{namespace}"}',
        kv_fraction="vector(0.5) or vector(0.7)",
        pods="count(count by (pod) (tgi_queue_size))",
    )
    asked = dict(own(queries, namespace="ai", name="chat", selector=SELECTOR))
    values = evaluate(tmp_path, asked, series("tgi", PAGES["tgi"]))
    one = msgspec.structs.asdict(queries)
    at = SignalTarget(
        key="ai/chat", namespace="ai", name="chat", server="custom", selector=SELECTOR,
        endpoints=(), pods_expected=2, queries={k: v for k, v in one.items() if v},
    )  # fmt: skip
    seen = reading(None, at, values, Watch(), 120.0)
    # They wrote a sum over both jobs: their query, their word.
    assert seen.arrivals == pytest.approx(3 * 6.0)
    assert (seen.pods_answered, seen.pods_expected, seen.reason) == (2, 2, None)
    assert reading(None, at, {}, Watch(), 120.0).arrivals is None


def test_busy_seconds_are_those_of_gpus_that_the_pods_hold_alone(tmp_path: Path) -> None:
    def gpu(uuid: str, share: float, pod: str, replica: str) -> list[dict[str, str]]:
        busy = f'gpuscale_gpu_busy_seconds_total{{gpu="0",uuid="{uuid}",node="a"}}'
        held = f'{{namespace="ai",pod="{pod}",container="s",uuid="{uuid}",replica="{replica}"}}'
        return [
            {"series": busy, "values": f"0+{15 * share}x8"},
            {"series": f"gpuscale_gpu_allocation_info{held}", "values": "1x8"},
        ]

    given = [
        *gpu("GPU-1", 0.5, "chat-0", ""),
        *gpu("GPU-2", 0.7, "chat-1", ""),
        *gpu("GPU-3", 1.0, "chat-2", "1"),
        *gpu("GPU-4", 1.0, "other-0", ""),
    ]
    values = evaluate(tmp_path, {"gpu_busy": gpu_busy(SELECTOR, WINDOW_S)}, given)
    assert values["gpu_busy"] == pytest.approx(0.6)
