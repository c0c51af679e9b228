"""A real scrape of a real server over loopback: every form of the page, health, the JSON snapshot."""

import asyncio
import gzip
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpuscale import httpd
from tests.fakes.exporter import exporting, settings_of, until
from tests.fakes.gpu import FakeDriver


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """What a hung call waits for; set at the end, so that no thread outlives its test."""
    event = threading.Event()
    yield event
    event.set()


@asynccontextmanager
async def scraping(driver: FakeDriver | None) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    async with exporting(driver) as exporter, aiohttp.ClientSession(auto_decompress=False) as http:
        host, port = exporter.address
        if driver is None or driver.hang is None:
            await until(lambda: exporter.sample is not None)
        yield http, f"http://{host}:{port}"


async def get(http: aiohttp.ClientSession, url: str, **headers: str) -> tuple[Any, bytes]:
    async with http.get(url, headers=headers) as response:
        assert response.status == 200
        return response.headers, await response.read()


async def test_a_scraper_gets_the_text_format_by_default() -> None:
    async with scraping(FakeDriver.of(2)) as (http, url):
        headers, body = await get(http, f"{url}/metrics", **{"Accept-Encoding": "identity"})
    assert headers["Content-Type"] == httpd.TEXT_TYPE
    names = {s.name for family in parse_text(body.decode()) for s in family.samples}
    assert {"gpuscale_gpu_power_watts", "DCGM_FI_DEV_GPU_UTIL"} <= names


async def test_a_scraper_that_asks_for_openmetrics_gets_it() -> None:
    async with scraping(FakeDriver.of(2)) as (http, url):
        headers, body = await get(
            http,
            f"{url}/metrics",
            **{
                "Accept-Encoding": "identity",
                "Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5",
            },
        )
    assert headers["Content-Type"] == httpd.OPENMETRICS_TYPE
    families = parse_openmetrics(body.decode())  # type: ignore[no-untyped-call]
    types = {family.name: family.type for family in families}
    assert types["gpuscale_gpu_busy_seconds"] == "counter"
    assert types["DCGM_FI_DEV_GPU_UTIL"] == "unknown"


async def test_a_compressed_page_is_the_same_page() -> None:
    async with scraping(FakeDriver.of(2)) as (http, url):
        headers, body = await get(http, f"{url}/metrics", **{"Accept-Encoding": "gzip"})
    assert headers["Content-Encoding"] == "gzip"
    assert b"gpuscale_gpu_power_watts" in gzip.decompress(body)


async def test_a_scrape_calls_nothing_in_the_driver() -> None:
    driver = FakeDriver.of(1)
    settings = settings_of(periods={"fast_s": 60.0, "medium_s": 60.0, "slow_s": 60.0})
    async with exporting(driver, settings) as exporter, aiohttp.ClientSession() as http:
        await until(lambda: driver.gpus[0].calls > 0)
        await asyncio.sleep(0.1)
        before = driver.gpus[0].calls
        for _ in range(20):
            host, port = exporter.address
            async with http.get(f"http://{host}:{port}/metrics") as response:
                assert response.status == 200
        assert driver.gpus[0].calls == before


async def test_the_snapshot_is_numbered_and_dated() -> None:
    async with scraping(FakeDriver.of(2)) as (http, url):
        first = json.loads((await get(http, f"{url}/api/v1/sample"))[1])
        await asyncio.sleep(0.2)
        second = json.loads((await get(http, f"{url}/api/v1/sample"))[1])
    assert second["sequence"] > first["sequence"]
    assert second["at"] > first["at"]
    assert [device["identity"]["index"] for device in second["devices"]] == [0, 1]
    assert second["devices"][0]["up"] is True


async def test_it_is_alive_but_not_ready_while_the_driver_is_first_asked(
    release: threading.Event,
) -> None:
    driver = FakeDriver.of(1)
    driver.hang = release
    async with scraping(driver) as (http, url):
        assert (await get(http, f"{url}/healthz"))[1] == b"ok\n"
        async with http.get(f"{url}/readyz") as response:
            assert response.status == 503
            assert "no collection cycle" in await response.text()
        async with http.get(f"{url}/api/v1/sample") as response:
            assert response.status == 503
        page = (await get(http, f"{url}/metrics", **{"Accept-Encoding": "identity"}))[1]
        assert b"gpuscale_nvml_up" not in page
        release.set()
        for _ in range(100):
            async with http.get(f"{url}/readyz") as response:
                if response.status == 200:
                    return
            await asyncio.sleep(0.05)
        pytest.fail("it never became ready")


async def test_switched_off_it_never_touches_the_driver_and_says_so() -> None:
    async with scraping(None) as (http, url):
        page = (await get(http, f"{url}/metrics", **{"Accept-Encoding": "identity"}))[1].decode()
        assert (await get(http, f"{url}/readyz"))[1] == b"ok\n"
    assert "gpuscale_nvml_up 0.0" in page
    assert 'gpuscale_nvml_error_info{reason="NVML is switched off' in page
    assert "gpuscale_gpu_" not in page
    assert "DCGM_FI" not in page
