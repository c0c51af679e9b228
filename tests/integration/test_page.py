"""The page in a real browser: what it shows, what it refuses to run, and what it says when something is missing."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pytest
from aiohttp import web

from gpuscale.controller import decide
from gpuscale.controller.audit import AuditState, Look, PodFinding
from gpuscale.controller.domain import Decision, Hold
from gpuscale.controller.eventstream import Ticks
from gpuscale.controller.gpumap import Gpu, GpuMap, Node, State
from gpuscale.controller.status import FleetStatus, Ring, Tally
from gpuscale.controller.web import Page
from gpuscale.httpd import HttpServer
from gpuscale.lint.finding import Finding
from gpuscale.lint.rules import RULES
from gpuscale.settings import Policy
from tests.fakes.cluster import replica_state
from tests.fakes.statuses import NOW, TICK_S, status_of, workload
from tests.tools import chromium, requires

pytest.importorskip("playwright", reason="playwright is missing: pip install playwright")
from playwright.async_api import Page as Tab
from playwright.async_api import async_playwright

pytestmark = [pytest.mark.browser, requires("chromium")]

HOSTILE = "<img src=x onerror=window.ran=1><b>bold"
WAIT_MS = 10_000


@dataclass
class Served:
    """A page over values that a test sets."""

    status: FleetStatus | None = None
    ready: str | None = None
    ring: Ring = field(default_factory=Ring)
    outcomes: dict[str, Decision | Hold] = field(default_factory=dict)
    gpus: GpuMap = field(default_factory=lambda: GpuMap(configured=False))
    ticks: Ticks = field(default_factory=Ticks)
    audit: AuditState | None = None
    doctor: Callable[[], Awaitable[Mapping[str, Any]]] | None = None
    url: str = ""

    async def start(self, listen: str = "127.0.0.1:0") -> HttpServer:
        async def decision_at(key: str, at: float) -> Decision | Hold | None:
            return self.outcomes.get(key)

        async def gpus() -> GpuMap:
            return self.gpus

        self.ticks = Ticks()  # a server that was closed has closed its streams
        app = web.Application()
        Page(
            audit=lambda: None if self.audit is None else self.audit.as_dict(),
            status=lambda: self.status,
            tally=Tally,
            ready=lambda: self.ready,
            now=lambda: NOW,
            ring=self.ring,
            decision_at=decision_at,
            gpus=gpus,
            ticks=self.ticks,
            doctor=self.doctor,
        ).attach(app)
        server = await HttpServer.start(app, listen)
        self.url = "http://{}:{}".format(*server.address)
        return server

    def play(self, ticks: int, *names: str, begin: int = 0) -> None:
        """Let ticks pass, with demand that rises."""
        fleet = [workload(name) for name in names]
        keys = tuple(w.key for w in fleet)
        memory = decide.initial_memory(keys, TICK_S)
        replicas = {key: replica_state(key, asked=6, ready=4) for key in keys}
        for i in range(begin, begin + ticks):
            self.status = status_of(
                dict.fromkeys(names, 20.0 + i),
                now=NOW + i * TICK_S,
                number=i + 1,
                workloads=fleet,
                replicas=replicas,
                memory=memory,
            )
            self.ring.append(self.status)
            self.ticks.announce(i + 1)


@asynccontextmanager
async def serving(served: Served) -> AsyncIterator[Served]:
    server = await served.start()
    try:
        yield served
    finally:
        await server.close()


@dataclass
class Browser:
    page: Tab
    complaints: list[str]
    """What the browser's console reported as errors, and exceptions of scripts."""


@asynccontextmanager
async def browser(
    scheme: Literal["light", "dark"] = "light", width: int = 1200
) -> AsyncIterator[Browser]:
    """A fresh browser with one empty tab."""
    async with async_playwright() as driver:
        chrome = await driver.chromium.launch(
            executable_path=str(chromium()),
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        tab = await chrome.new_page(color_scheme=scheme, viewport={"width": width, "height": 900})
        tab.set_default_timeout(WAIT_MS)
        complaints: list[str] = []
        tab.on("pageerror", lambda error: complaints.append(str(error)))
        tab.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
        try:
            yield Browser(tab, complaints)
        finally:
            await chrome.close()


async def test_a_workload_named_with_markup_is_text() -> None:
    served = Served()
    served.play(5, HOSTILE, "llama")
    assert served.status is not None
    served.status = replace(
        served.status,
        faults=(f"{HOSTILE} does not answer",),
        refusals={"inference/wrong": HOSTILE},
        problems={f"inference/{HOSTILE}": HOSTILE},
    )
    async with serving(served), browser() as b:
        await b.page.goto(served.url)
        link = b.page.get_by_role("link", name=HOSTILE)
        await link.wait_for()
        await link.click()
        await b.page.get_by_role("heading", level=1).filter(has_text=HOSTILE).wait_for()
        await b.page.locator("#says li").first.wait_for()
        await b.page.locator(".chart .main-svg").first.wait_for()
        ran = await b.page.evaluate("window.ran")
        images = await b.page.locator("main img, #banners img, main b").count()
        banner = await b.page.locator("#banners").inner_text()

    assert ran is None
    assert images == 0
    assert HOSTILE in banner
    assert b.complaints == []


async def test_a_script_that_got_into_the_page_would_not_run() -> None:
    """The second wall: were markup inserted after all, the policy refuses its scripts."""
    served = Served()
    served.play(2, "llama")
    async with serving(served), browser() as b:
        await b.page.goto(served.url)
        await b.page.get_by_role("link", name="llama").wait_for()
        await b.page.evaluate(
            "document.body.insertAdjacentHTML('beforeend', '<img src=/nope onerror=window.ran=1>')"
        )
        await b.page.wait_for_timeout(500)
        ran = await b.page.evaluate("window.ran")

    assert ran is None
    assert any("Content Security Policy" in text for text in b.complaints)


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 1200), ("light", 380)])
async def test_what_was_decided_is_on_the_page(
    scheme: Literal["light", "dark"], width: int
) -> None:
    served = Served()
    served.play(30, "llama")
    assert served.status is not None
    decided = served.status.workload("inference/llama")
    assert decided is not None
    async with serving(served), browser(scheme, width) as b:
        await b.page.goto(f"{served.url}/#/w/inference/llama")
        await b.page.locator("#replica-chart .main-svg").first.wait_for()
        tiles = await b.page.locator("#tiles").inner_text()
        says = await b.page.locator("#says").inner_text()
        lines = await b.page.locator("#demand-chart .scatterlayer .trace").count()
        overflow = await b.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        theme = await b.page.evaluate("document.documentElement.dataset.theme")

    assert f"Asked for by gpuscale\n{decided.desired} replicas" in tiles
    assert re.search(rf"is to have {decided.desired} replicas", says)
    assert lines == 4, "two edges of the band, capacity, demand"
    assert overflow <= 0, "nothing is cut off at the side"
    assert theme == scheme
    assert b.complaints == []


async def test_the_page_moves_on_by_itself() -> None:
    served = Served()
    served.play(3, "llama")
    async with serving(served), browser() as b:
        await b.page.goto(served.url)
        await b.page.get_by_text("tick 3").wait_for()
        served.play(1, "llama", begin=3)
        await b.page.get_by_text("tick 4").wait_for()
        await b.page.get_by_role("cell", name="23", exact=True).wait_for()  # demand of tick 4


async def test_before_the_first_decision_the_page_says_what_it_waits_for() -> None:
    served = Served(ready="the list of pods is not complete yet")
    async with serving(served), browser() as b:
        await b.page.goto(served.url)
        await b.page.locator("#rows").get_by_text("the list of pods is not complete yet").wait_for()
        served.ready = None
        served.play(1, "llama")
        await b.page.get_by_role("link", name="llama").wait_for()

    assert b.complaints == []


async def test_no_workloads_says_how_to_declare_one() -> None:
    served = Served()
    served.play(1)
    async with serving(served), browser() as b:
        await b.page.goto(served.url)
        await b.page.get_by_text("No workload is declared").wait_for()


async def test_a_controller_that_goes_away_and_comes_back() -> None:
    """The last values stay, the page says since when; a restarted one, counting from 1 again, is followed."""
    served = Served()
    served.play(9, "llama")
    server = await served.start()
    listen = "{}:{}".format(*server.address)
    async with browser() as b:
        await b.page.goto(served.url)
        await b.page.get_by_text("tick 9").wait_for()
        await server.close()
        await b.page.get_by_text("does not answer since").wait_for()
        kept = await b.page.get_by_role("link", name="llama").count()
        served.ring = Ring()
        served.play(2, "mixtral")
        server = await served.start(listen)
        await b.page.get_by_text("tick 2").wait_for()
        await b.page.get_by_role("link", name="mixtral").wait_for()
        warned = await b.page.get_by_text("does not answer since").count()
    await server.close()

    assert kept == 1
    assert warned == 0


async def test_a_workload_that_is_not_there_is_said_so() -> None:
    served = Served()
    served.play(1, "llama")
    async with serving(served), browser() as b:
        await b.page.goto(f"{served.url}/#/w/inference/nobody")
        await b.page.get_by_text("no workload inference/nobody").wait_for()
        await b.page.get_by_role("link", name="All workloads").click()
        await b.page.get_by_role("link", name="llama").wait_for()


async def test_the_page_can_be_used_by_keyboard() -> None:
    served = Served()
    served.play(2, "llama", "mixtral")
    async with serving(served), browser() as b:
        await b.page.goto(served.url)
        await b.page.get_by_role("link", name="mixtral").wait_for()
        await b.page.keyboard.press("/")
        await b.page.keyboard.type("mix")
        await b.page.get_by_role("link", name="llama").wait_for(state="detached")
        await b.page.keyboard.press("Escape")
        await b.page.get_by_role("link", name="mixtral").focus()
        await b.page.keyboard.press("Enter")
        await b.page.locator("#says li").first.wait_for()
        await b.page.keyboard.press("Escape")
        await b.page.locator("#rows").wait_for()

    assert b.complaints == []


def gpu(number: int, state: State, **more: Any) -> Gpu:
    values: dict[str, Any] = {
        "product": "NVIDIA H100",
        "why": None,
        "utilization": 0.5 if state == "busy" else 0.0,
        "memory_used_bytes": 2.0**33,
        "memory_total_bytes": 2.0**36,
        "power_watts": 300.0,
        "temperature_celsius": 60.0,
        "allocated": 1.0 if state != "free" else 0.0,
        "instances": (),
        "holders": (),
    }
    return Gpu(gpu=number, uuid=f"GPU-{number}", state=state, **(values | more))


def two_nodes() -> GpuMap:
    holder = {"namespace": "chat", "pod": HOSTILE, "container": "server", "instance": ""}
    sick = gpu(1, "sick", why="fallen off the bus", utilization=None, memory_used_bytes=None)
    gpus = (gpu(0, "busy", holders=(holder,)), sick, gpu(2, "free"))
    a = Node(node="gpu-a", address="http://a:9400", at=NOW, problem=None, gpus=gpus)
    b = Node(node="gpu-b", address="http://b:9400", at=None, problem=f"no answer {HOSTILE}")
    return GpuMap(configured=True, nodes=(a, b), problems=())


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 380)])
async def test_the_map_shows_each_gpu_with_its_state_and_holder(
    scheme: Literal["light", "dark"], width: int
) -> None:
    served = Served(gpus=two_nodes())
    served.play(1, "llama")
    async with serving(served), browser(scheme, width) as b:
        await b.page.goto(f"{served.url}/#/gpus")
        await b.page.get_by_role("button", name="GPU 0: busy").click()
        details = await b.page.locator(".details").first.inner_text()
        await b.page.get_by_role("button", name="GPU 1: sick").press("Enter")
        reason = await b.page.locator(".details").first.inner_text()
        tiles = await b.page.locator("#gpu-tiles").inner_text()
        problem = await b.page.get_by_role("region", name="gpu-b").inner_text()
        overflow = await b.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        current = await b.page.locator("#views a[aria-current]").inner_text()
        markup = await b.page.locator("main img, main b b").count()
        ran = await b.page.evaluate("window.ran")

    assert f"chat/{HOSTILE} (server)" in details
    assert "50 %" in details
    assert "8 GiB of 64 GiB" in details
    assert "fallen off the bus" in reason
    assert "Memory used\n–" in reason
    assert "1 sick, 0 bypassed" in tiles
    assert f"no answer {HOSTILE}" in problem
    assert overflow <= 0
    assert current == "GPUs"
    assert (markup, ran) == (0, None)
    assert b.complaints == []


async def test_the_map_without_exporters_says_what_to_set() -> None:
    served = Served()
    served.play(1, "llama")
    async with serving(served), browser() as b:
        await b.page.goto(served.url)
        await b.page.get_by_role("link", name="GPUs", exact=True).first.click()
        await b.page.get_by_text("set exporters.urls").wait_for()
        await b.page.keyboard.press("Escape")
        await b.page.get_by_role("link", name="llama").wait_for()


async def test_a_tick_is_on_the_page_before_it_would_poll() -> None:
    """The page polls every two seconds at most without the stream, and every twenty with it."""
    served = Served()
    served.play(1, "llama")
    async with serving(served), browser() as b:
        await b.page.goto(served.url)
        await b.page.get_by_text("tick 1").wait_for()
        for number in range(2, 8):
            served.play(1, "llama", begin=number - 1)
            await b.page.get_by_text(f"tick {number}").wait_for(timeout=1500)


async def test_two_thousand_workloads_are_there_at_once_and_found_by_name() -> None:
    """A page of them at a time: the browser holds 100 rows, however many there are."""
    served = Served()
    names = [f"model-{i:04d}" for i in range(2_000)]
    served.play(2, *names)
    async with serving(served), browser() as b:
        await b.page.goto(served.url)
        await b.page.locator("#rows tr").nth(99).wait_for(timeout=3_000)
        rows = await b.page.locator("#rows tr").count()
        pager = await b.page.locator("#pager").inner_text()
        await b.page.get_by_role("button", name="next").click()
        await b.page.get_by_text("101–200 of 2,000").wait_for(timeout=3_000)
        await b.page.get_by_role("searchbox").fill("model-1999")
        await b.page.locator("#rows").get_by_role("link", name="model-1999").wait_for(timeout=3_000)
        found = await b.page.locator("#rows tr").count()
        slow = await b.page.evaluate(
            "Math.max(...performance.getEntriesByType('resource').map((e) => e.duration))"
        )

    assert rows == 100
    assert "1–100 of 2,000" in pager
    assert found == 1
    assert slow < 2_000
    assert b.complaints == []


async def test_what_is_late_or_in_shadow_is_seen_at_a_glance() -> None:
    served = Served()
    served.play(1, "llama", "mixtral")
    assert served.status is not None
    seen = served.status.observation
    demand = seen.demand.copy()
    demand[0], demand[1] = 1e6, np.nan  # more than can be carried; and unknown, which is not late
    shadow = replace(served.status.workloads[1], policy=Policy(mode="shadow"))
    served.status = replace(
        served.status,
        observation=replace(seen, demand=demand),
        workloads=(served.status.workloads[0], shadow),
    )
    async with serving(served), browser() as b:
        await b.page.goto(served.url)
        await b.page.get_by_role("link", name="llama").wait_for()
        tiles = await b.page.locator("#tiles").inner_text()

    assert "Short of capacity now\n1 requests wait" in tiles
    assert "Workloads\n2 1 in shadow mode" in tiles


def bypass(name: str) -> PodFinding:
    rule = RULES["GPU-A01"]
    finding = Finding(
        rule=rule, severity=rule.severity, kind="Deployment", namespace="dev", name=name,
        path=("spec", "containers", 0), sentence=f"{name} sees every GPU", container="notebook",
    )  # fmt: skip
    return PodFinding(
        finding=finding, pods=3, pod=f"{name}-1", node="gpu-a", first_seen=NOW, last_seen=NOW + 60
    )


async def test_what_needs_a_person_is_on_one_page_with_its_cure() -> None:
    served = Served()
    served.play(1, "llama")
    assert served.status is not None
    served.status = replace(served.status, refusals={"inference/wrong": f"{HOSTILE} is no policy"})
    look = Look(findings=(bypass(HOSTILE),), pods=40, nodes=2)
    served.audit = AuditState(reason=None, at=NOW, look=look)
    async with serving(served), browser("dark", 380) as b:
        await b.page.goto(f"{served.url}/#/findings")
        await b.page.get_by_text("GPU-A01").wait_for()
        await b.page.get_by_text("Details").click()
        shown = await b.page.locator("#audit").inner_text()
        refused = await b.page.locator("#refusals").inner_text()
        tiles = await b.page.locator("#finding-tiles").inner_text()
        overflow = await b.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        ran = await b.page.evaluate("window.ran")
        served.play(1, "llama", begin=1)  # an opened detail is not torn away by the next tick
        served.status = replace(served.status, refusals={})
        await b.page.get_by_text("None: every ScaledObject").wait_for()
        opened = await b.page.locator("#audit details[open]").count()

    assert f"dev/{HOSTILE} (Deployment)" in shown
    assert RULES["GPU-A01"].cure in shown
    assert f"3, such as {HOSTILE}-1" in shown
    assert "inference/wrong" in refused
    assert f"{HOSTILE} is no policy" in refused
    assert "Pods looked at\n40" in tiles
    assert overflow <= 0
    assert ran is None
    assert opened == 1
    assert b.complaints == []


async def test_without_a_cluster_the_audit_says_why_there_is_none() -> None:
    served = Served()
    served.play(1, "llama")
    async with serving(served), browser() as b:
        await b.page.goto(f"{served.url}/#/findings")
        await b.page.get_by_text("No audit: no cluster is connected").wait_for()
        tiles = await b.page.locator("#finding-tiles").inner_text()

    assert "Findings\n–" in tiles


async def test_the_doctor_looks_once_however_often_the_page_is_refreshed() -> None:
    visits = 0
    done = asyncio.Event()

    async def results() -> Mapping[str, Any]:
        nonlocal visits
        visits += 1
        await done.wait()
        wrong = {
            "check": "device-plugin",
            "status": "error",
            "sentence": HOSTILE,
            "cure": "mend it",
        }
        fine = {"check": "keda", "status": "ok", "sentence": "KEDA 2.18", "cure": ""}
        return {"at": NOW, "results": [wrong, fine]}

    served = Served(doctor=results)
    served.play(1, "llama")
    async with serving(served), browser("light", 380) as b:
        await b.page.goto(f"{served.url}/#/doctor")
        await b.page.get_by_text("The doctor is looking").wait_for()
        for i in range(1, 5):
            served.play(1, "llama", begin=i)
            await b.page.get_by_text(f"tick {i + 1}").wait_for()
        asked = visits
        done.set()
        await b.page.get_by_text("device-plugin").wait_for()
        shown = await b.page.locator("#doctor").inner_text()
        tiles = await b.page.locator("#doctor-tiles").inner_text()
        overflow = await b.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        ran = await b.page.evaluate("window.ran")

    assert asked == 1
    assert HOSTILE in shown
    assert "Cure: mend it" in shown
    assert "1 as they should be" in shown
    assert "Wrong\n1" in tiles
    assert overflow <= 0
    assert ran is None
    assert b.complaints == []
