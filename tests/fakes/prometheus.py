"""Prometheus for tests: a query API that misbehaves on purpose, and the real server on loopback.

`FakePrometheus` answers every query with what it was told to. `RealPrometheus` runs the installed
binary on a free port with a temporary directory, scraping given addresses every second.
"""

import asyncio
import json
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from tests import tools

HANG_S = 3600.0
"""As good as for ever."""


def vector(values: Mapping[str, float]) -> dict[str, Any]:
    """An answer to an instant query: mark (`SIGNAL/KEY`) -> value."""
    return {
        "status": "success",
        "data": {
            "resultType": "vector",
            "result": [
                {"metric": {"gpuscale": mark}, "value": [0, str(value)]}
                for mark, value in values.items()
            ],
        },
    }


class FakePrometheus:
    """Answers every query with `status` and `body`; hangs for `hang_s` first, or for ever at some."""

    def __init__(self) -> None:
        self.status = 200
        self.body: bytes = json.dumps(vector({})).encode()
        self.hang_s = 0.0
        self.hangs_at: str | None = None
        """Queries that contain this text are never answered."""
        self.refused_text: str | None = None
        """Queries that contain this text are answered 400, as a parse error is."""
        self.queries: list[Mapping[str, str]] = []
        self.tokens: list[str | None] = []
        self.url = ""
        self._runner: web.AppRunner | None = None

    def answer(self, body: Any, status: int = 200) -> None:
        """Answer this from now on."""
        self.body, self.status = json.dumps(body).encode(), status

    async def start(self) -> None:
        """Listen on a free port of loopback."""

        async def query(request: web.Request) -> web.Response:
            form = {name: str(value) for name, value in (await request.post()).items()}
            self.queries.append(form)
            self.tokens.append(request.headers.get("Authorization"))
            hangs = self.hangs_at is not None and self.hangs_at in form["query"]
            await asyncio.sleep(HANG_S if hangs else self.hang_s)
            if self.refused_text is not None and self.refused_text in form["query"]:
                said = {"status": "error", "errorType": "bad_data", "error": "parse error"}
                return web.json_response(said, status=400)
            return web.Response(status=self.status, body=self.body)

        app = web.Application()
        app.router.add_post("/api/v1/query", query)
        app.router.add_post("/api/v1/query_range", query)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()


def free_port() -> int:
    """A port of loopback that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class RealPrometheus:
    """The installed Prometheus, scraping every second; it keeps its data over a stop and start."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._directory = directory
        self._config = directory / "prometheus.yml"
        self._process: asyncio.subprocess.Process | None = None

    def scrape(self, targets: Mapping[str, Sequence[tuple[str, str]]], namespace: str) -> None:
        """Write the configuration: job -> (pod, metrics page). Before `start`."""
        jobs = []
        for job, pods in targets.items():
            static = [
                {
                    "targets": [page.removeprefix("http://").removesuffix("/metrics")],
                    "labels": {"namespace": namespace, "pod": pod},
                }
                for pod, page in pods
            ]
            jobs.append({"job_name": job, "static_configs": static})
        interval = {"scrape_interval": "1s", "scrape_timeout": "1s"}
        # JSON is YAML.
        self._config.write_text(json.dumps({"global": interval, "scrape_configs": jobs}))

    async def start(self, patience_s: float = 30.0) -> None:
        """Start the server and wait until it is ready."""
        binary = tools.prometheus()
        assert binary is not None, "mark the test with tools.requires('prometheus')"
        with (self._directory / "log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                binary,
                f"--config.file={self._config}",
                f"--storage.tsdb.path={self._directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
                stdout=log,
                stderr=log,
            )
        until = time.monotonic() + patience_s
        async with aiohttp.ClientSession() as session:
            while time.monotonic() < until:
                try:
                    async with session.get(f"{self.url}/-/ready") as response:
                        if response.status == 200:
                            return
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(0.1)
        raise AssertionError((self._directory / "log").read_text()[-2000:])

    async def stop(self) -> None:
        """End the server that was started here."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(self._process.wait(), 10)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        self._process = None
