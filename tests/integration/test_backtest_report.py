"""The HTML report in a real browser: one file, no network, and every decision explained under the cursor."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from gpuscale.controller import decide
from gpuscale.simulation import backtest as backtests
from gpuscale.simulation import htmlreport, trace
from gpuscale.simulation.backtest import Outcomes
from gpuscale.simulation.options import Options
from gpuscale.simulation.report import Price
from tests.fakes.traces import write_daily
from tests.tools import chromium, requires

pytest.importorskip("playwright", reason="playwright is missing: pip install playwright")
from playwright.async_api import Page as Tab
from playwright.async_api import async_playwright

pytestmark = [pytest.mark.browser, requires("chromium")]

HOSTILE = "</script><img src=x onerror=window.ran=1><b>x"
DAY_S = 86_400


@dataclass(frozen=True)
class Made:
    file: Path
    outcomes: Outcomes


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A report on two hours of a day, at two cold starts, under a hostile name."""
    folder = tmp_path_factory.mktemp("report")
    recorded = trace.load(write_daily(folder))
    recorded = trace.Trace(
        name=HOSTILE, start_s=recorded.start_s, step_s=recorded.step_s, values=recorded.values
    )
    options = Options(
        cold_starts_s=(60.0, 300.0),
        policies=("gpuscale", "keda-rate", "oracle"),
        from_s=1.25 * DAY_S,
        to_s=1.25 * DAY_S + 4 * 3600,
        peak_replicas=8,
    )
    outcomes = backtests.backtest([recorded], htmlreport.drawn(options, 1), decide)
    file = folder / "report.html"
    with file.open("w", encoding="utf-8") as out:
        htmlreport.write(outcomes.details, Price(per_gpu_hour=2.0), HOSTILE, out)
    return Made(file, outcomes)


@dataclass
class Opened:
    tab: Tab
    requests: list[str]
    complaints: list[str]


@asynccontextmanager
async def opened(
    made: Made, scheme: Literal["light", "dark"] = "light", width: int = 1280
) -> AsyncIterator[Opened]:
    async with async_playwright() as driver:
        chrome = await driver.chromium.launch(
            executable_path=str(chromium()),
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        tab = await chrome.new_page(color_scheme=scheme, viewport={"width": width, "height": 1000})
        tab.set_default_timeout(10_000)
        seen = Opened(tab, [], [])
        tab.on("request", lambda request: seen.requests.append(request.url))
        tab.on("pageerror", lambda error: seen.complaints.append(str(error)))
        tab.on("console", lambda m: seen.complaints.append(m.text) if m.type == "error" else None)
        try:
            await tab.goto(made.file.as_uri())
            await tab.locator("#time .main-svg").first.wait_for()
            await tab.locator("#curve .main-svg").first.wait_for()
            yield seen
        finally:
            await chrome.close()


async def point_at(tab: Tab, share: float) -> None:
    """The cursor on the replicas, at a share of the width."""
    plot = tab.locator("#time .nsewdrag").last
    await plot.scroll_into_view_if_needed()
    box = await plot.bounding_box()
    assert box is not None
    await tab.mouse.move(box["x"] + share * box["width"] - 2, box["y"] + box["height"] / 2)
    await tab.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2)


async def test_the_decision_under_the_cursor_is_explained_in_its_own_words(made: Made) -> None:
    explained = made.outcomes.details[0].digest.explained
    told: list[list[str]] = []
    async with opened(made) as seen:
        for share in (0.2, 0.8):
            await point_at(seen.tab, share)
            at = seen.tab.locator("#why-at")
            await at.filter(has_text=re.compile(r"day 2, (06|07|09|10)")).wait_for()
            if told:
                await seen.tab.locator("#why li").first.filter(has_text="replica").wait_for()
            told.append(await seen.tab.locator("#why li").all_inner_texts())
            clock = (await at.inner_text()).removeprefix("day 2, ")
            hours, minutes, seconds = (int(part) for part in clock.split(":"))
            moment = DAY_S + hours * 3600 + minutes * 60 + seconds
            (mine,) = [e for e in explained if e.at_s == moment]
            assert told[-1] == list(mine.sentences)
    assert told[0] != told[1]
    assert seen.complaints == []


async def test_nothing_is_fetched_and_a_name_with_markup_is_text(made: Made) -> None:
    async with opened(made) as seen:
        await point_at(seen.tab, 0.5)
        await seen.tab.wait_for_timeout(300)
        ran = await seen.tab.evaluate("window.ran")
        images = await seen.tab.locator("main img, header img, main b").count()
        title = await seen.tab.locator("#verdict").inner_text()
        blocked = await seen.tab.evaluate(
            "fetch('http://127.0.0.1:9/').then(() => 'answered', () => 'refused')"
        )
    assert seen.requests == [made.file.as_uri()]
    assert (ran, images, blocked) == (None, 0, "refused")
    assert title.startswith(HOSTILE)


async def test_arrow_keys_walk_through_the_decisions_and_the_run_can_be_chosen(made: Made) -> None:
    async with opened(made, "dark", 390) as seen:
        tab = seen.tab
        first = await tab.locator("#why-at").inner_text()
        await tab.locator("#at").focus()
        await tab.keyboard.press("ArrowRight")
        second = await tab.locator("#why-at").inner_text()
        verdict = await tab.locator("#verdict").inner_text()
        await tab.locator("#run").select_option("1")
        other = await tab.locator("#verdict").inner_text()
        wide = await tab.evaluate("document.documentElement.scrollWidth")
        theme = await tab.evaluate("document.documentElement.dataset.theme")
        money = await tab.locator("#costs thead").inner_text()
    assert first < second
    assert "cold start 60 s" in verdict
    assert "cold start 5 minutes" in other
    assert (wide, theme) == (390, "dark"), "nothing is cut off or pushed aside"
    assert "money" in money
    assert seen.complaints == []


def test_the_curve_has_other_risks_and_the_peers_and_changes_no_figure(made: Made) -> None:
    detail = made.outcomes.details[0]
    names = [score.policy for score in detail.curve]
    assert {"gpuscale@0.8", "gpuscale@0.95", "keda-rate@0.8", "knative@0.9"} <= set(names)
    more = [s.replica_hours for s in detail.curve if s.policy in {"gpuscale@0.7", "gpuscale@0.98"}]
    assert more[0] < more[1], "who minds late requests more has more replicas"


def test_an_explanation_is_kept_for_every_stretch_and_comes_back_word_for_word(made: Made) -> None:
    text = made.file.read_text(encoding="utf-8")
    found = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    pieces = data["sentences"]
    for detail, run in zip(made.outcomes.details, data["runs"], strict=True):
        for mine, (at_s, packed) in zip(detail.digest.explained, run["explained"], strict=True):
            words = []
            for part in packed.split("|"):
                which, *numbers = part.split(" ")
                gaps = pieces[int(which)]
                words.append("".join(a + b for a, b in zip(gaps, [*numbers, ""], strict=True)))
            assert (at_s, tuple(words)) == (mine.at_s, mine.sentences)
        digest = detail.digest
        edges = [digest.start_s + i * digest.bin_s for i in range(len(digest.demand))]
        times = [e.at_s for e in digest.explained]
        for edge in edges:
            assert any(edge <= t < edge + digest.bin_s for t in times), edge
