"""The shared HTTP server, scraped for real: formats, compression, readiness, a busy port."""

import gzip

import aiohttp
import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpuscale import httpd
from gpuscale.errors import ListenError


def page() -> httpd.Exposition:
    counter = CounterMetricFamily("gpuscale_test", "A counter.", labels=["name"])
    counter.add_metric(['a "quoted"\nname'], 3.0)
    extra = b"# HELP EXTRA Help.\n# TYPE EXTRA gauge\nEXTRA 1\n"
    return httpd.render(
        [GaugeMetricFamily("gpuscale_up", "Up.", value=1.0), counter],
        extra_text=lambda: extra,
        extra_openmetrics=lambda: extra.replace(b"gauge", b"unknown"),
    )


async def test_each_format_is_answered_as_asked_and_parses() -> None:
    server = await httpd.HttpServer.start(
        httpd.application(page=page, ready=lambda: None), "127.0.0.1:0"
    )
    url = f"http://127.0.0.1:{server.address[1]}/metrics"
    try:
        async with aiohttp.ClientSession(auto_decompress=False) as client:
            async with client.get(url, headers={"Accept-Encoding": "identity"}) as r:
                text = (await r.read()).decode()
                assert r.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                names = {f.name for f in parse_text(text)}
                assert names == {"gpuscale_up", "gpuscale_test", "EXTRA"}
            accept = {
                "Accept": "application/openmetrics-text;version=1.0.0",
                "Accept-Encoding": "gzip",
            }
            async with client.get(url, headers=accept) as r:
                assert r.headers["Content-Encoding"] == "gzip"
                om = gzip.decompress(await r.read()).decode()
                assert om.endswith("# EOF\n")
                assert {f.name for f in parse_openmetrics(om)} == names  # type: ignore[no-untyped-call]
            refused = {"Accept": "application/openmetrics-text;q=0", "Accept-Encoding": "gzip;q=0"}
            async with client.get(url, headers=refused) as r:
                assert "Content-Encoding" not in r.headers
                assert (await r.read()).decode() == text
    finally:
        await server.close()


async def test_not_ready_says_why_while_healthz_stays_ok() -> None:
    reason: list[str | None] = ["no cycle yet"]
    server = await httpd.HttpServer.start(
        httpd.application(page=page, ready=lambda: reason[0]), "127.0.0.1:0"
    )
    base = f"http://127.0.0.1:{server.address[1]}"
    try:
        async with aiohttp.ClientSession() as client:
            async with client.get(f"{base}/readyz") as r:
                assert (r.status, await r.text()) == (503, "no cycle yet\n")
            async with client.get(f"{base}/healthz") as r:
                assert r.status == 200
            reason[0] = None
            async with client.get(f"{base}/readyz") as r:
                assert r.status == 200
    finally:
        await server.close()


async def test_a_busy_port_is_one_sentence_with_the_cure() -> None:
    first = await httpd.HttpServer.start(
        httpd.application(page=page, ready=lambda: None), "127.0.0.1:0"
    )
    try:
        with pytest.raises(
            ListenError, match=r"cannot listen on 127\.0\.0\.1:\d+ .*another address"
        ):
            await httpd.HttpServer.start(
                httpd.application(page=page, ready=lambda: None), f"127.0.0.1:{first.address[1]}"
            )
    finally:
        await first.close()
