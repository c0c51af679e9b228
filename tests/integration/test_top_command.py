"""`gpuscale top` on a real page and real exporters: what it shows, what it survives, what it refuses."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from gpuscale import top
from gpuscale.cli.top import STATES
from gpuscale.controller import rows
from gpuscale.controller.domain import Decision, Hold
from gpuscale.controller.eventstream import Ticks
from gpuscale.controller.gpumap import Gpu, GpuMap, Node
from gpuscale.controller.status import FleetStatus, Ring, Tally
from gpuscale.controller.web import Page
from gpuscale.errors import SourceUnreachable
from gpuscale.httpd import HttpServer
from tests.fakes.clock import ManualClock
from tests.fakes.cluster import replica_state
from tests.fakes.statuses import NOW, status_of, workload

HOSTILE = "[red]x[/red]\x1b[2J"
GPU = Gpu(
    gpu=0, uuid="GPU-1", product="NVIDIA H100 80GB HBM3", state="busy", why=None, utilization=0.93,
    memory_used_bytes=64 * 2**30, memory_total_bytes=80 * 2**30, power_watts=612.4,
    temperature_celsius=None, allocated=1.0, instances=(),
    holders=tuple({"namespace": "ml", "pod": f"p{i}", "container": "c", "instance": ""} for i in range(5)),
)  # fmt: skip


@dataclass
class Served:
    status: FleetStatus | None = None
    gpus: GpuMap = field(default_factory=lambda: GpuMap(configured=False))


@asynccontextmanager
async def serving(served: Served) -> AsyncIterator[str]:
    async def decision_at(key: str, at: float) -> Decision | Hold | None:
        return None

    async def gpus() -> GpuMap:
        return served.gpus

    app = web.Application()
    Page(
        audit=lambda: None, status=lambda: served.status, tally=Tally, ready=lambda: None,
        now=lambda: NOW, ring=Ring(), decision_at=decision_at, gpus=gpus, ticks=Ticks(),
    ).attach(app)  # fmt: skip
    server = await HttpServer.start(app, "127.0.0.1:0")
    try:
        yield "http://{}:{}".format(*server.address)
    finally:
        await server.close()


def a_fleet() -> Served:
    names = ("llama", "silent", "embed")
    fleet = [workload(name) for name in names]
    states = {w.key: replica_state(w.key, asked=6, ready=4) for w in fleet}
    demand = {"llama": 20.0, "silent": None, "embed": 1.0}
    nodes = (Node(node="n1", address="http://n1", at=NOW, problem=None, gpus=(GPU,)),)
    return Served(
        status=status_of(demand, workloads=fleet, replicas=states),
        gpus=GpuMap(configured=True, nodes=nodes),
    )


async def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        lambda: subprocess.run(
            [sys.executable, "-m", "gpuscale", "top", *map(str, arguments)],
            capture_output=True, text=True, timeout=60, check=False,
        )
    )  # fmt: skip


def drawn(view: top.View, now: float = NOW) -> str:
    console = Console(file=StringIO(), width=200, highlight=False)
    console.print(top.shown(view, now))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_the_states_to_choose_from_are_those_of_the_api() -> None:
    assert tuple(rows.STATES) == STATES


async def test_one_look_shows_the_fleet_and_its_gpus() -> None:
    async with serving(a_fleet()) as url:
        done = await run("--url", url, "--once", "--gpus")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    llama = next(line.split() for line in lines if "inference/llama" in line)
    assert "20.0" in llama
    silent = next(line.split() for line in lines if "inference/silent" in line)
    assert "–" in silent  # an unknown demand is no zero
    gpu = next(line for line in lines if "H100" in line)
    for words in ("n1", "busy", "93", "64.0", "80", "612", "–", "ml/p0, ml/p1, ml/p2 and 2 more"):
        assert words in gpu


async def test_json_is_one_look_with_everything() -> None:
    async with serving(a_fleet()) as url:
        done = await run("--url", url, "--format", "json", "--gpus", "-q", "llama")
    found = json.loads(done.stdout)
    assert [w["name"] for w in found["workloads"]] == ["llama"]
    assert (found["total"], found["status"]["workloads"]) == (1, 3)
    assert found["gpus"]["states"] == {"busy": 1}


async def test_what_is_not_shown_is_counted() -> None:
    async with serving(a_fleet()) as url:
        done = await run("--url", url, "--limit", 1)
    assert "2 more" in done.stdout


async def test_nothing_decided_yet_is_shown_as_such() -> None:
    async with serving(Served()) as url:
        done = await run("--url", url, "--gpus")
    assert done.returncode == 0
    assert "no exporter is named" in done.stdout


@pytest.mark.parametrize(
    ("url", "code", "reason"),
    [
        ("http://127.0.0.1:1", 1, "no controller answers"),
        ("ftp://x", 2, "write http://HOST:PORT"),
        ("http://[", 2, "write http://HOST:PORT"),
    ],
)
async def test_no_controller_is_one_sentence(url: str, code: int, reason: str) -> None:
    done = await run("--url", url, "--once")
    assert (done.returncode, done.stdout) == (code, "")
    assert reason in done.stderr
    assert done.stderr.count("\n") == 1


async def test_exporters_are_asked_alone_and_one_that_is_away_is_a_line() -> None:
    done = await run("--exporter", "http://127.0.0.1:1", "--once")
    assert done.returncode == 0
    assert "0 GPUs on 1 node\n" in done.stdout
    assert "127.0.0.1" in done.stdout


async def test_a_controller_that_goes_away_leaves_the_last_answer_with_its_age() -> None:
    clock = ManualClock()
    answers: list[top.View | SourceUnreachable] = [
        top.View(source="http://c", at=clock.wall(), status={"at": clock.wall()}, total=0),
        SourceUnreachable("no controller answers"),
    ]

    class Flaky:
        async def read(self) -> top.View:
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            if isinstance(answer, SourceUnreachable):
                raise answer
            return answer

        async def close(self) -> None:
            """Nothing is open."""

    screen = StringIO()
    console = Console(file=screen, force_terminal=True, width=120, height=20)
    task = asyncio.ensure_future(top.watch(Flaky(), console, clock, interval_s=5))
    for _ in range(3):
        await asyncio.sleep(0)
        await clock.advance(5)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "5 s old: no controller answers" in screen.getvalue()
    with pytest.raises(SourceUnreachable):
        await top.watch(Flaky(), console, clock, interval_s=5)


async def test_a_page_that_is_no_controllers_is_said_to_be_none() -> None:
    app = web.Application()

    async def answer(request: web.Request) -> web.Response:
        return web.Response(
            text="<html>sign in</html>", status=401 if "x" in request.query else 200
        )

    app.router.add_get("/{path:.*}", answer)
    server = await HttpServer.start(app, "127.0.0.1:0")
    try:
        done = await run("--url", "http://{}:{}".format(*server.address), "--once")
    finally:
        await server.close()
    assert done.returncode == 1
    assert "is no controller of gpuscale" in done.stderr


def test_a_long_reason_does_not_squeeze_the_numbers() -> None:
    gpu = {"gpu": 0, "product": "NVIDIA H100 80GB HBM3", "state": "unknown", "utilization": 0.5}
    node = {
        "node": "gpu-node-1",
        "gpus": [gpu | {"why": "there is no socket " * 20, "power_watts": 612}],
    }
    text = drawn(top.View(source="c", at=NOW, gpus={"gpus": 1, "total": 1, "items": [node]}))
    line = next(line for line in text.splitlines() if "H100" in line)
    assert line.split()[:8] == [
        "gpu-node-1",
        "0",
        "NVIDIA",
        "H100",
        "80GB",
        "HBM3",
        "unknown",
        "50",
    ]
    assert len(line) <= 200


def test_names_are_text_and_no_markup() -> None:
    view = top.View(
        source="c", at=NOW, status={}, total=1, workloads=[{"namespace": "a", "name": HOSTILE}]
    )
    assert "[red]x[/red]" in drawn(view)
    assert "\x1b" not in drawn(view)


JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "items",
                    "states",
                    "faults",
                    "gpus",
                    "problems",
                    "holders",
                    "name",
                    "node",
                    "at",
                    "ready",
                    "demand",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)
OBJECTS = st.dictionaries(
    st.sampled_from(["items", "states", "faults", "gpus", "problems", "at", "ready", "version"]),
    JSON,
)


@given(OBJECTS, OBJECTS, st.lists(OBJECTS, max_size=3))
def test_whatever_is_answered_is_drawn(
    status: dict[str, Any], gpus: dict[str, Any], workloads: list[dict[str, Any]]
) -> None:
    drawn(top.View(source="c", at=NOW, status=status, gpus=gpus, workloads=workloads, total=3))
