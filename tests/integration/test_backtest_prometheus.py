"""`gpuscale backtest --prometheus` against a real Prometheus with a real past, and one that misbehaves."""

import asyncio
import base64
import json
import math
import os
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
import trustme
from aiohttp import web
from click.testing import CliRunner

from gpuscale.cli import cli
from gpuscale.clock import SystemClock
from gpuscale.config import convert
from gpuscale.errors import GpuscaleError, InputError, SourceRefused, SourceUnreachable
from gpuscale.settings import PrometheusSettings
from gpuscale.simulation import recorded
from gpuscale.simulation.trace import Trace
from tests import tools
from tests.e2e.history import write_blocks
from tests.fakes.prometheus import FakePrometheus, RealPrometheus, free_port

QUERY = 'sum(rate(vllm:request_success_total{namespace="ml"}[2m]))'
DAYS = 8.0
"""Beyond 10,000 steps of a minute: the trace comes in two pieces."""
END_S = math.floor(time.time() / 60) * 60 - 600.0
HOLE_S = (END_S - 36_000, END_S - 32_400)


def demand(at: float) -> float:
    return 20.0 + 15.0 * math.sin(at / 86_400 * 2 * math.pi)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def real(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RealPrometheus]:
    """A Prometheus with eight days of a pod's counters, of which an hour is missing."""
    folder = tmp_path_factory.mktemp("prometheus")
    promtool = tools.promtool()
    assert promtool is not None
    start = END_S - DAYS * 86_400
    labels = 'namespace="ml",pod="llama-0"'
    for begin, end in ((start, HOLE_S[0]), (HOLE_S[1], END_S)):
        await asyncio.to_thread(
            write_blocks,
            promtool,
            folder / "data",
            labels=labels,
            demand=demand,
            start=begin,
            end=end,
        )
    server = RealPrometheus(folder)
    server.scrape({}, "ml")
    await server.start()
    yield server
    await server.stop()


async def read(url: str, query: str = QUERY, since_s: float = 9 * 86_400.0, **more: str) -> Trace:
    return await recorded.read(
        convert({"url": url, **more}, PrometheusSettings, where="test"),
        query,
        since_s=since_s,
        step_s=60.0,
        clock=SystemClock(),
    )


def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "gpuscale", "backtest", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "NO_COLOR": "1"},
    )


@pytest.mark.prometheus
@tools.requires("prometheus")
@tools.requires("promtool")
@pytest.mark.asyncio(loop_scope="module")
async def test_a_recorded_past_becomes_a_trace_with_its_gap(real: RealPrometheus) -> None:
    trace = await read(real.url)

    ends = trace.start_s + trace.step_s * np.arange(1, len(trace.values) + 1)
    inside = (ends > HOLE_S[0] + 180) & (ends < HOLE_S[1])
    assert len(trace.values) > recorded.POINTS_PER_QUERY
    assert trace.start_s > END_S - DAYS * 86_400 - 600, "what was never there is no gap"
    assert np.isnan(trace.values[inside]).all()
    known = ~np.isnan(trace.values)
    assert known[~inside & (ends < END_S)].mean() > 0.99
    # The rate at a bin's end speaks of the two minutes before it; beside a gap, of less.
    edges = (END_S - DAYS * 86_400, *HOLE_S, END_S)
    known &= np.all([np.abs(ends - edge) > 180 for edge in edges], axis=0)
    true = np.array([demand(at - 60.0) for at in ends])
    np.testing.assert_allclose(trace.values[known], true[known], rtol=0.02)


@pytest.mark.prometheus
@tools.requires("prometheus")
@tools.requires("promtool")
@pytest.mark.asyncio(loop_scope="module")
async def test_the_command_judges_what_was_recorded(real: RealPrometheus) -> None:
    done = await asyncio.to_thread(
        run,
        *("--prometheus", real.url, "--query", QUERY, "--since", "2d", "--step", "5m"),
        *("--cold-start", "60", "--policy", "keda-rate,oracle", "--format", "json"),
    )

    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert document["trace"] == "prometheus"
    assert document["runs"][0]["to_s"] - document["runs"][0]["from_s"] == 86_400


@pytest.mark.prometheus
@tools.requires("prometheus")
@tools.requires("promtool")
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("vllm:num_requests_running", "the query gives 1 series|two"),
        ("sum(", "--query cannot be answered: .*parse error"),
        ("sum(nothing_of_this_name)", "the query gives nothing over the last"),
        ("-1 * sum(vllm:num_requests_running)", "demand cannot be negative"),
        ('{__name__=~"vllm:num.+"}', r"gives 2 series \(.*write sum"),
    ],
)
async def test_a_query_that_gives_no_demand_is_told_so(
    real: RealPrometheus, query: str, sentence: str
) -> None:
    if query == "vllm:num_requests_running":
        assert len((await read(real.url, query, 86_400.0)).values) > 1000  # a gauge is as good
        return
    with pytest.raises(InputError, match=sentence):
        await read(real.url, query, 86_400.0)


def test_options_that_do_not_fit_are_one_sentence(tmp_path: Path) -> None:
    config = tmp_path / "settings.yaml"
    config.write_text("tick_s: 15\n")
    url = ("--prometheus", "http://127.0.0.1:9")
    stories: list[tuple[tuple[object, ...], str]] = [
        ((), "or --prometheus URL and --query PROMQL"),
        (url, "--prometheus needs --query"),
        (("--query", "up"), "--query needs --prometheus URL"),
        ((*url, "--query", "up", "trace.csv"), "files and --prometheus exclude each other"),
        ((*url, "--query", "up", "--since", "long"), "--since is 'long'; write a duration"),
        ((*url, "--query", "up", "--since", "10y", "--step", "1s"), "choose another --step"),
        (("--prometheus", "ftp://x", "--query", "up"), "--prometheus: key `url`"),
        (("--config", config, "--query", "up"), "names no Prometheus"),
        ((*url, "--query", "up"), "cannot be reached"),
    ]
    for arguments, sentence in stories:
        done = CliRunner().invoke(cli, ["backtest", *map(str, arguments)])
        assert isinstance(done.exception, GpuscaleError), arguments
        assert sentence in str(done.exception), arguments
        assert "\n" not in str(done.exception)


class Guarded:
    """A query API over TLS that wants a client's certificate, a user and a tenant."""

    def __init__(self) -> None:
        self.ca = trustme.CA()
        self.seen: list[tuple[str | None, str | None]] = []

    async def start(self) -> str:
        async def answer(request: web.Request) -> web.Response:
            headers = request.headers
            self.seen.append((headers.get("Authorization"), headers.get("X-Scope-OrgID")))
            form = await request.post()
            first, last, step = (float(str(form[key])) for key in ("start", "end", "step"))
            count = round((last - first) / step) + 1
            values = [[first + i * step, "3"] for i in range(count)]
            body = {"resultType": "matrix", "result": [{"metric": {}, "values": values}]}
            return web.json_response({"status": "success", "data": body})

        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.ca.issue_cert("127.0.0.1").configure_cert(context)
        self.ca.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
        app = web.Application()
        app.router.add_post("/api/v1/query_range", answer)
        self.runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self.runner.setup()
        port = free_port()
        await web.TCPSite(self.runner, "127.0.0.1", port, ssl_context=context).start()
        return f"https://127.0.0.1:{port}"


async def test_tls_a_client_certificate_a_user_and_a_tenant_are_as_the_settings_say(
    tmp_path: Path,
) -> None:
    guarded = Guarded()
    url = await guarded.start()
    ours = guarded.ca.issue_cert("gpuscale")
    guarded.ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    ours.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    ours.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    (tmp_path / "password").write_text("pässword\n")
    files = {
        "ca_file": str(tmp_path / "ca.pem"),
        "cert_file": str(tmp_path / "cert.pem"),
        "key_file": str(tmp_path / "key.pem"),
        "username": "reader",
        "password_file": str(tmp_path / "password"),
        "tenant": "team-a",
    }
    try:
        trace = await read(url, since_s=7200.0, **files)
        with pytest.raises(SourceUnreachable, match="certificate"):
            await read(url, since_s=7200.0)  # the system's authorities do not know it
        with pytest.raises(SourceRefused, match=r"check prometheus\.ca_file"):
            await read(url, since_s=7200.0, **{**files, "ca_file": str(tmp_path / "password")})
        with pytest.raises(SourceRefused, match=r"check prometheus\.ca_file"):
            await read(url, since_s=7200.0, ca_file=str(tmp_path / "nowhere.pem"))
    finally:
        await guarded.runner.cleanup()

    assert trace.values.tolist() == [3.0] * 120
    expected = f"Basic {base64.b64encode('reader:pässword'.encode()).decode()}"
    assert guarded.seen == [(expected, "team-a")]


async def test_a_prometheus_that_refuses_or_lies_is_one_sentence(tmp_path: Path) -> None:
    fake = FakePrometheus()
    await fake.start()
    token = tmp_path / "token"
    token.write_text("secret\n")
    try:
        fake.answer({"status": "error", "error": "no such user"}, 401)
        with pytest.raises(SourceRefused, match=r"answered 401 .*bearer_token_file"):
            await read(fake.url, since_s=7200.0, bearer_token_file=str(token))
        assert fake.tokens == ["Bearer secret"]
        matrix = {"resultType": "matrix", "result": [{"metric": {}, "values": [[0, "x"]]}]}
        fake.answer({"status": "success", "data": matrix})
        with pytest.raises(Exception, match="is no number"):
            await read(fake.url, since_s=7200.0)
    finally:
        await fake.close()
