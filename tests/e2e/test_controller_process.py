"""The controller as a process: what an operator sees at the shell."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
COMMAND = [sys.executable, "-m", "gpuscale"]
WORKLOADS = "defaults: {mode: act, capacity: 5}\nworkloads: [{namespace: inference, name: llama}]\n"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        env=ENVIRONMENT,
        check=False,
    )


class Process:
    """`gpuscale controller` on ports that the system chose; its log is kept."""

    def __init__(self, settings: Path) -> None:
        self._log = settings.with_suffix(".log")
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*COMMAND, "controller", "--config", str(settings),
                 "--listen", "127.0.0.1:0", "--listen-grpc", "127.0.0.1:0"],
                stderr=log, env=ENVIRONMENT,
            )  # fmt: skip
        http = self.wait_for(lambda e: e["event"] == "listening" and e["service"] == "http")
        self.url = f"http://{http['host']}:{http['port']}"

    def entries(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    def wait_for(self, wanted: Any, within_s: float = 20.0) -> dict[str, Any]:
        until = time.monotonic() + within_s
        while time.monotonic() < until:
            for entry in self.entries():
                if wanted(entry):
                    return entry
            assert self._process.poll() is None, self._log.read_text()
            time.sleep(0.05)
        raise AssertionError(f"it never said it: {self._log.read_text()}")

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=5) as response:
            text: str = response.read().decode()
        return text

    def wait_until_ready(self) -> None:
        until = time.monotonic() + 20
        while True:
            try:
                self.get("/readyz")
            except urllib.error.HTTPError:
                assert time.monotonic() < until, "it never became ready"
                time.sleep(0.05)
            else:
                return

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout=15)

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """A Prometheus that is not there, a quick tick, a journal."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    file = tmp_path / "controller.yaml"
    file.write_text(
        f"tick_s: 1\nprometheus: {{url: 'http://127.0.0.1:{port}'}}\n"
        f"journal: {{path: {tmp_path / 'journal.db'}}}\n" + WORKLOADS
    )
    return file


@pytest.fixture
def process(settings: Path) -> Iterator[Process]:
    started = Process(settings)
    yield started
    started.end()


def test_an_unreachable_prometheus_is_said_once_and_the_daemon_goes_on(
    process: Process, settings: Path
) -> None:
    """It is ready, answers an explained error, and leaves on SIGTERM with exit code 0."""
    process.wait_until_ready()
    process.wait_for(lambda e: e["event"] == "fault began" and e["topic"] == "signal")
    time.sleep(3.5)  # more ticks with the same fault

    said = [e for e in process.entries() if e["event"] == "fault began" and e["topic"] == "signal"]
    status = json.loads(process.get("/api/v1/status"))
    explained = run("explain", "inference/llama", "--url", process.url)
    code = process.stop()
    later = run("explain", "inference/llama", "--journal", str(settings.parent / "journal.db"))

    address = settings.read_text().split("'")[1].removeprefix("http://")
    assert len(said) == 1
    assert address in said[0]["reason"]
    assert status["ticks"] >= 3
    assert any(address in fault for fault in status["faults"])
    assert explained.returncode == 0, explained.stderr
    assert "inference/llama gets no answer" in explained.stdout
    assert code == 0
    assert later.returncode == 0, later.stderr
    assert "inference/llama gets no answer" in later.stdout


def test_an_explanation_can_be_had_as_json(process: Process) -> None:
    process.wait_until_ready()

    done = run("explain", "inference/llama", "--url", process.url, "--format", "json")
    unknown = run("explain", "inference/nobody", "--url", process.url)

    assert json.loads(done.stdout)["key"] == "inference/llama"
    assert unknown.returncode == 1
    assert unknown.stderr.count("\n") == 1
    assert "inference/nobody" in unknown.stderr


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("tick_seconds: 15\n", "tick_seconds"),
        ("tick_s: soon\n", "tick_s"),
        ("tick_s: 0\n", "tick_s"),
        ("defaults: {hold_s: 1}\n", "hold_s"),
        ("prometheus: {url: prometheus}\n", "prometheus.url"),
        ("workloads: [{namespace: a}]\n", "name"),
        ("workloads: [{namespace: a, name: b, policy: gold}]\n", "gold"),
        ("workloads: [\n", "line 2"),
        ("kubernetes: {kubeconfig: /nonexistent/kubeconfig}\n", "/nonexistent/kubeconfig"),
        (None, "no such file"),
    ],
)
def test_bad_settings_are_one_sentence_and_exit_code_2(
    tmp_path: Path, text: str | None, named: str
) -> None:
    file = tmp_path / "controller.yaml"
    if text is not None:
        file.write_text(text + "log: {format: console}\n" if text != "workloads: [\n" else text)

    done = run("controller", "--config", str(file), "--listen", "127.0.0.1:0")

    assert done.returncode == 2
    assert named in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert "Traceback" not in done.stderr


def test_a_busy_port_is_one_sentence_and_exit_code_69(tmp_path: Path) -> None:
    file = tmp_path / "controller.yaml"
    file.write_text("log: {format: console}\n" + WORKLOADS)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run(
            "controller", "--config", str(file),
            "--listen", f"127.0.0.1:{port}", "--listen-grpc", "127.0.0.1:0",
        )  # fmt: skip

    assert done.returncode == 69
    assert str(port) in done.stderr
    assert "--listen, or `listen` in the settings" in done.stderr
    assert "Traceback" not in done.stderr


def test_settings_can_be_checked_shown_and_described(tmp_path: Path) -> None:
    file = tmp_path / "controller.yaml"
    file.write_text(
        "policies: {gold: {risk: 0.99}}\n"
        "workloads: [{namespace: a, name: b, policy: gold, overrides: {max_replicas: 7}}]\n"
    )

    good = run("config", "check", str(file))
    own = run("config", "show", str(file), "--workload", "a/b")
    whole = run("config", "show", str(file))
    again = tmp_path / "again.yaml"
    again.write_text(whole.stdout)
    reread = run("config", "show", str(again))
    bad = run("config", "show", str(file), "--policy", "silver")
    schema = run("config", "schema", "--for", "exporter")

    assert good.returncode == 0
    assert "risk: 0.99" in own.stdout
    assert "max_replicas: 7" in own.stdout
    assert whole.stdout == reread.stdout
    assert bad.returncode == 2
    assert "gold" in bad.stderr
    assert "ExporterSettings" in json.loads(schema.stdout)["$defs"]
