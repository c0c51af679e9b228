"""The map of GPUs read from real exporters over loopback, and what is said of those that cannot be read."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import bcrypt
import pytest
import trustme
from aiohttp import web

from gpuscale.clock import SystemClock
from gpuscale.config import convert
from gpuscale.controller.exporters import ANSWER_BYTES_MAX, Exporters
from gpuscale.exporter import simulated
from gpuscale.httpd import HttpServer
from gpuscale.settings import ExportersSettings
from tests.fakes.exporter import exporting, settings_of, until


def settings(*urls: str, **more: Any) -> ExportersSettings:
    return convert({"urls": list(urls), **more}, ExportersSettings, where="test")


@asynccontextmanager
async def answering(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    server = await HttpServer.start(app, "127.0.0.1:0")
    try:
        yield "http://{}:{}".format(*server.address)
    finally:
        await server.close()


async def test_a_real_exporter_is_on_the_map() -> None:
    driver = simulated.driver("h100x8", SystemClock().wall, seed=1)
    async with exporting(driver) as exporter:
        await until(lambda: exporter.sample is not None and len(exporter.sample.devices) == 8)
        url = "http://{}:{}".format(*exporter.address)
        read = await Exporters(settings(url), SystemClock()).map()

    (node,) = read.nodes
    assert node.node == "node-1"
    assert node.problem is None
    assert [gpu.gpu for gpu in node.gpus] == list(range(8))
    assert {gpu.state for gpu in node.gpus} == {"unknown"}  # no kubelet is asked here
    assert all(gpu.memory_total_bytes for gpu in node.gpus)


async def test_a_name_stands_for_every_address_that_it_has() -> None:
    """As that of a headless Service does: here localhost, in both families where there are both."""
    driver = simulated.driver("l4x1", SystemClock().wall, seed=1)
    async with exporting(driver, settings_of(listen="[::]:0")) as exporter:
        await until(lambda: exporter.sample is not None)
        url = f"http://localhost:{exporter.address[1]}"
        addresses = {
            info[4][0]
            for info in await asyncio.get_running_loop().getaddrinfo(
                "localhost", exporter.address[1]
            )
        }
        read = await Exporters(settings(url), SystemClock()).map()

    assert len(read.nodes) == len(addresses)
    assert all(node.problem is None for node in read.nodes)


async def test_no_exporter_named_reads_nothing() -> None:
    read = await Exporters(settings(), SystemClock()).map()
    assert not read.configured
    assert read.nodes == ()


async def test_a_name_that_has_no_address_is_said_with_the_cure() -> None:
    read = await Exporters(settings("http://exporters.invalid:9400"), SystemClock()).map()
    assert "exporters.invalid" in read.problems[0]
    assert "headless Service" in read.problems[0]


async def _garbage(_: web.Request) -> web.StreamResponse:
    return web.Response(text="<html>")


async def _another(_: web.Request) -> web.StreamResponse:
    return web.json_response({"at": "now", "node": 3})


async def _refusing(_: web.Request) -> web.StreamResponse:
    return web.Response(status=401)


async def _starting(_: web.Request) -> web.StreamResponse:
    return web.Response(status=503)


async def _redirecting(_: web.Request) -> web.StreamResponse:
    return web.Response(status=302, headers={"Location": "http://127.0.0.1:1/"})


async def _hanging(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(1.0)
    return web.Response()


async def _endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(ANSWER_BYTES_MAX // 2**20 + 8):
        await response.write(b" " * 2**20)
    return response


HOSTILE = {
    "did not answer as an exporter": _garbage,
    "upgrade both": _another,
    "asks for a password": _refusing,
    "has not finished a cycle": _starting,
    "answered 302": _redirecting,
    "did not answer within": _hanging,
    "answered more than": _endless,
}


@pytest.mark.parametrize("sentence", HOSTILE)
async def test_one_that_cannot_be_read_is_on_the_map_with_the_reason_beside_the_others(
    sentence: str,
) -> None:
    driver = simulated.driver("l4x1", SystemClock().wall, seed=1)
    async with answering(HOSTILE[sentence]) as bad, exporting(driver) as exporter:
        await until(lambda: exporter.sample is not None)
        good = "http://{}:{}".format(*exporter.address)
        read = await Exporters(settings(bad, good, timeout_s=0.5), SystemClock()).map()

    by_address = {node.address: node for node in read.nodes}
    assert sentence in (by_address[bad].problem or "")
    assert by_address[good].problem is None
    assert by_address[good].gpus


async def test_many_that_hang_are_given_up_together() -> None:
    async with answering(_hanging) as url:
        reader = Exporters(
            settings(*(f"{url}/{i}" for i in range(200))), SystemClock(), deadline_s=0.3
        )
        loop = asyncio.get_running_loop()
        began = loop.time()
        read = await reader.map()
        took = loop.time() - began

    assert took < 2.0
    assert len(read.nodes) == 200
    assert all("was not read within" in (node.problem or "") for node in read.nodes)


async def test_it_is_read_once_for_all_who_look_and_again_when_it_is_old() -> None:
    asked = 0

    async def count(_: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        return web.json_response({"at": float(asked), "node": "n", "driver": {"up": True}})

    async with answering(count) as url:
        reader = Exporters(settings(url, fresh_s=0.2), SystemClock())
        await asyncio.gather(*(reader.map() for _ in range(20)))
        assert asked == 1
        await asyncio.sleep(0.25)
        assert (await reader.map()).nodes[0].at == 2.0


async def test_a_password_file_that_is_not_there_is_said_and_nobody_is_asked() -> None:
    read = await Exporters(
        settings("http://127.0.0.1:1", username="u", password_file="/nowhere"), SystemClock()
    ).map()
    assert "exporters.password_file" in read.problems[0]
    assert read.nodes == ()


async def test_the_password_is_sent(tmp_path: Path) -> None:
    sent: list[str] = []

    async def guarded(request: web.Request) -> web.StreamResponse:
        sent.append(request.headers.get("Authorization", ""))
        return web.json_response({"at": 1.0, "node": "n", "driver": {"up": True}})

    file = tmp_path / "password"
    file.write_text("geheim\n")
    async with answering(guarded) as url:
        await Exporters(settings(url, username="u", password_file=str(file)), SystemClock()).map()
    assert sent == ["Basic dTpnZWhlaW0="]


async def test_exporters_under_mutual_tls_and_a_password_are_read_by_the_services_name(
    tmp_path: Path,
) -> None:
    """The certificate is the Service's, though each of its addresses is asked; a renewed one counts."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    for name, issued in (
        ("server", authority.issue_cert("localhost")),
        ("client", authority.issue_cert("controller.example")),
    ):
        issued.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.crt")
        issued.private_key_pem.write_to_path(tmp_path / f"{name}.key")
    hashed = bcrypt.hashpw(b"geheim", bcrypt.gensalt(4)).decode()
    (tmp_path / "web.yml").write_text(
        "tls_server_config: {cert_file: server.crt, key_file: server.key, client_ca_file: ca.crt, "
        "client_auth_type: RequireAndVerifyClientCert}\n"
        f"basic_auth_users: {{controller: {hashed}}}\n"
    )
    (tmp_path / "password").write_text("geheim\n")
    who = {
        "username": "controller",
        "password_file": str(tmp_path / "password"),
        "ca_file": str(tmp_path / "ca.crt"),
        "cert_file": str(tmp_path / "client.crt"),
        "key_file": str(tmp_path / "client.key"),
    }
    app = web.Application()

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response({"at": 1.0, "node": "n", "driver": {"up": True}})

    app.router.add_get("/api/v1/sample", answer)
    server = await HttpServer.start(app, "127.0.0.1:0", str(tmp_path / "web.yml"))
    try:
        port = server.address[1]
        told = Exporters(settings(f"https://localhost:{port}", **who), SystemClock())
        known = [node for node in (await told.map()).nodes if node.at is not None]
        nameless = Exporters(settings(f"https://127.0.0.1:{port}", **who), SystemClock())
        (refused,) = (await nameless.map()).nodes
        (tmp_path / "password").write_text("wrong\n")
        again = Exporters(settings(f"https://localhost:{port}", **who), SystemClock())
        denied = [node.problem for node in (await again.map()).nodes]
    finally:
        await server.close()

    assert [node.node for node in known] == ["n"]
    assert "certificate" in (refused.problem or "").lower()
    assert any("asks for a password" in (problem or "") for problem in denied)
