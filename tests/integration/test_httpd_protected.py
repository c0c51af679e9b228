"""The HTTP server under a web config, asked by real clients: TLS, certificates, passwords, limits, rotation."""

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import bcrypt
import pytest
import trustme

from gpuscale import httpd
from gpuscale.settings import WebSettings

TLS = "tls_server_config: {cert_file: tls.crt, key_file: tls.key}\n"
MUTUAL = (
    "tls_server_config: {cert_file: tls.crt, key_file: tls.key, client_ca_file: ca.crt, "
    "client_auth_type: RequireAndVerifyClientCert, client_allowed_sans: [prometheus.example]}\n"
)
BIG = httpd.render([], extra_text=lambda: b"# HELP x X.\n# TYPE x gauge\n" + b"x 1\n" * 8_000_000)


def user(name: str, password: str) -> str:
    hashed = bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()
    return f"basic_auth_users: {{{name}: {hashed}}}\n"


class Site:
    """A folder with a web config, the CA behind it, and the server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = trustme.CA()
        self.server: httpd.HttpServer | None = None
        self.renew(self.ca)
        self.ca.cert_pem.write_to_path(folder / "ca.crt")

    def renew(self, ca: trustme.CA) -> None:
        issued = ca.issue_cert("127.0.0.1")
        issued.cert_chain_pems[0].write_to_path(self.folder / "tls.crt")
        issued.private_key_pem.write_to_path(self.folder / "tls.key")

    def write(self, text: str) -> str:
        path = self.folder / "web.yml"
        path.write_text(text)
        return str(path)

    def trusting(self, ca: trustme.CA, client: str | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context()
        ca.configure_trust(context)
        if client is not None:
            ca.issue_cert(client).configure_cert(context)
        return context

    def url(self, path: str = "/metrics", scheme: str = "https") -> str:
        assert self.server is not None
        return f"{scheme}://127.0.0.1:{self.server.address[1]}{path}"


@asynccontextmanager
async def serving(
    site: Site,
    text: str,
    page: Callable[[], httpd.Exposition] = lambda: httpd.render([]),
    scrapes_max: int = WebSettings().max_scrapes_in_flight,
) -> AsyncIterator[Site]:
    app = httpd.application(page=page, ready=lambda: None, scrapes_max=scrapes_max)
    site.server = await httpd.HttpServer.start(app, "127.0.0.1:0", site.write(text))
    try:
        yield site
    finally:
        await site.server.close()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def status(url: str, tls: ssl.SSLContext | None = None, **given: str) -> int:
    headers = (
        {"Authorization": aiohttp.encode_basic_auth(given["user"], given["password"])}
        if given
        else {}
    )
    async with (
        aiohttp.ClientSession() as http,
        http.get(url, ssl=tls if tls is not None else True, headers=headers) as response,
    ):
        await response.read()
        return response.status


async def test_plain_http_gets_nothing_where_tls_is_on(site: Site) -> None:
    async with serving(site, TLS):
        assert await status(site.url(), site.trusting(site.ca)) == 200
        with pytest.raises(aiohttp.ClientError):
            await status(site.url(scheme="http"))


async def test_only_clients_with_an_allowed_certificate_may_scrape_and_probes_still_work(
    site: Site,
) -> None:
    """A kubelet has no certificate to show: its probes must not kill the pod."""
    async with serving(site, MUTUAL):
        assert await status(site.url(), site.trusting(site.ca, "prometheus.example")) == 200
        assert await status(site.url(), site.trusting(site.ca, "somebody.example")) == 403
        assert await status(site.url(), site.trusting(site.ca)) == 403
        assert await status(site.url("/healthz"), site.trusting(site.ca)) == 200
        assert await status(site.url("/readyz"), site.trusting(site.ca)) == 200
        stranger = site.trusting(site.ca)
        trustme.CA().issue_cert("prometheus.example").configure_cert(stranger)
        with pytest.raises(aiohttp.ClientError):
            await status(site.url(), stranger)


async def test_a_password_is_asked_for_and_never_accepted_by_its_beginning(site: Site) -> None:
    long = "p" * 72
    async with serving(site, user("ops", long)):
        url = site.url(scheme="http")
        assert await status(url) == 401
        assert await status(url, user="ops", password=long) == 200
        assert await status(url, user="ops", password=long + "q") == 401
        assert await status(url, user="ops", password="wrong") == 401
        assert await status(url, user="who", password=long) == 401
        assert await status(site.url("/healthz", scheme="http")) == 200


@pytest.mark.parametrize(
    "header", ["Bearer x", "Basic", "Basic ???", "Basic bm9jb2xvbg==", "Basic gIA6eA=="]
)
async def test_a_malformed_authorization_is_a_401(site: Site, header: str) -> None:
    async with (
        serving(site, user("ops", "p")),
        aiohttp.ClientSession() as http,
        http.get(site.url(scheme="http"), headers={"Authorization": header}) as response,
    ):
        assert response.status == 401
        assert response.headers["WWW-Authenticate"].startswith("Basic")


async def test_the_headers_of_the_web_config_are_on_every_answer(site: Site) -> None:
    text = "http_server_config: {headers: {X-Frame-Options: deny}}\n" + user("ops", "p")
    async with serving(site, text), aiohttp.ClientSession() as http:
        for path in ("/metrics", "/healthz", "/nowhere"):
            async with http.get(site.url(path, scheme="http")) as response:
                assert response.headers["X-Frame-Options"] == "deny", path


async def test_a_rate_limit_lets_the_burst_through_and_refuses_the_rest(site: Site) -> None:
    async with serving(site, "rate_limit: {interval: 1h, burst: 3}"):
        url = site.url(scheme="http")
        assert [await status(url) for _ in range(5)] == [200, 200, 200, 429, 429]


async def test_a_renewed_certificate_is_served_and_no_connection_is_lost(site: Site) -> None:
    async with serving(site, TLS):
        assert site.server is not None
        old = site.trusting(site.ca)
        async with aiohttp.ClientSession() as kept:
            async with kept.get(site.url(), ssl=old) as response:
                assert response.status == 200
            renewed = trustme.CA()
            site.renew(renewed)
            await site.server.reload()
            assert await status(site.url(), site.trusting(renewed)) == 200
            async with kept.get(site.url(), ssl=old) as response:
                assert response.status == 200  # over the connection of before
        with pytest.raises(aiohttp.ClientError):
            await status(site.url(), old)


async def test_a_faulty_new_config_leaves_the_old_one_in_force_and_is_cured_in_place(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving(site, user("ops", "one")):
        assert site.server is not None
        url = site.url(scheme="http")
        site.write("basic_auth_users: {ops: plain}")
        await site.server.reload()
        await site.server.reload()
        assert await status(url) == 401
        assert await status(url, user="ops", password="one") == 200
        site.write(user("ops", "two"))
        await site.server.reload()
        assert await status(url, user="ops", password="one") == 401
        assert await status(url, user="ops", password="two") == 200


async def test_a_flood_of_passwords_does_not_keep_out_who_was_in(site: Site) -> None:
    slow = bcrypt.hashpw(b"right", bcrypt.gensalt(9)).decode()
    async with serving(site, f"basic_auth_users: {{ops: {slow}}}\n"):
        url = site.url(scheme="http")
        assert await status(url, user="ops", password="right") == 200
        flood = [
            asyncio.ensure_future(status(url, user="ops", password=f"wrong {i}")) for i in range(60)
        ]
        await asyncio.sleep(0.05)
        begun = time.monotonic()
        assert await status(url, user="ops", password="right") == 200
        assert time.monotonic() - begun < 1.0
        assert set(await asyncio.gather(*flood)) == {401, 503}


async def test_scrapes_over_the_limit_are_refused_at_once(site: Site) -> None:
    """Readers that take nothing hold their place until they are cut off."""
    async with serving(site, "", page=lambda: BIG, scrapes_max=2):
        assert site.server is not None
        idle = []
        for _ in range(2):
            reader = socket.create_connection(site.server.address)
            reader.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            idle.append(reader)
        await asyncio.sleep(0.2)
        assert await status(site.url(scheme="http")) == 503
        assert await status(site.url("/healthz", scheme="http")) == 200
        for reader in idle:
            reader.close()
        await asyncio.sleep(0.2)
        assert await status(site.url(scheme="http")) == 200


async def test_a_reader_that_takes_nothing_is_cut_off(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(httpd, "SCRAPE_WRITE_S", 0.2)
    async with serving(site, "", page=lambda: BIG, scrapes_max=1):
        assert site.server is not None
        with socket.create_connection(site.server.address) as reader:
            reader.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            await asyncio.sleep(0.6)
            assert await status(site.url(scheme="http")) == 200


async def test_connections_that_never_ask_keep_nobody_out(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(httpd, "CONNECTIONS_MAX", 20)
    async with serving(site, ""):
        assert site.server is not None
        silent = [socket.create_connection(site.server.address) for _ in range(60)]
        await asyncio.sleep(0.1)
        assert await status(site.url(scheme="http")) == 200
        closed = 0
        for each in silent:
            each.settimeout(0.01)
            with suppress(TimeoutError):
                closed += each.recv(1) == b""
            each.close()
        assert closed >= 40
