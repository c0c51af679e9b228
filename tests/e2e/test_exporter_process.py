"""The exporter as a process: what an operator sees at the shell, on a node with and without a driver."""

import contextlib
import ctypes.util
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

ENVIRONMENT = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": "", "NODE_NAME": "node-from-env"}


class Process:
    """`gpuscale exporter` on a port that the system chose."""

    def __init__(self, *arguments: str, settings: Path | None = None) -> None:
        config = [] if settings is None else ["--config", str(settings)]
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "gpuscale",
                "exporter",
                *config,
                "--listen",
                "127.0.0.1:0",
                *arguments,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        self.listening = self._event("listening")
        self.url = f"http://{self.listening['host']}:{self.listening['port']}"

    def _event(self, name: str) -> dict[str, Any]:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            entry: dict[str, Any] = json.loads(line)
            if entry["event"] == name:
                return entry
        raise AssertionError(f"it ended without saying {name!r}")

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=5) as response:
            text: str = response.read().decode()
        return text

    def page_when_ready(self) -> str:
        until = time.monotonic() + 15
        while time.monotonic() < until:
            with contextlib.suppress(urllib.error.HTTPError):
                self.get("/readyz")
                return self.get("/metrics")
            time.sleep(0.05)
        raise AssertionError("it never became ready")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, float]:
        """(exit code, seconds until it ended)."""
        begun = time.monotonic()
        self._process.send_signal(number)
        self._process.communicate(timeout=10)
        return self._process.returncode, time.monotonic() - begun

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


@contextlib.contextmanager
def exporter(*arguments: str, settings: Path | None = None) -> Iterator[Process]:
    process = Process(*arguments, settings=settings)
    try:
        yield process
    finally:
        process.end()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run to the end something that must not keep running."""
    return subprocess.run(
        [sys.executable, "-m", "gpuscale", "exporter", *arguments],
        capture_output=True,
        text=True,
        timeout=20,
        env=ENVIRONMENT,
        check=False,
    )


@pytest.mark.skipif(
    ctypes.util.find_library("nvidia-ml") is not None,
    reason="this machine has an NVIDIA driver: run where there is none",
)
def test_without_a_driver_it_runs_says_why_and_leaves_in_order() -> None:
    with exporter() as process:
        page = process.page_when_ready()
        assert "gpuscale_nvml_up 0.0" in page
        assert "gpuscale_nvml_error_info{reason=" in page
        assert "gpuscale_gpu_" not in page
        assert "DCGM_FI_" not in page
        code, seconds = process.stop()
    assert code == 0
    assert seconds < 1.0


def test_simulated_gpus_are_published_under_the_name_of_the_node() -> None:
    with exporter("--nvml", "simulated:h100x2") as process:
        page = process.page_when_ready()
        assert "gpuscale_gpus_detected 2.0" in page
        assert 'node="node-from-env"' in page
        assert 'Hostname="node-from-env"' in page
        assert process.stop(signal.SIGINT)[0] == 0


def test_options_win_over_the_settings_file(tmp_path: Path) -> None:
    settings = tmp_path / "exporter.yaml"
    settings.write_text('nvml: "off"\nnode_name: from-file\ndcgm: {enabled: false}\n')
    with exporter("--node-name", "from-option", settings=settings) as process:
        assert process.listening["node"] == "from-option"
        assert "NVML is switched off" in process.page_when_ready()


HANGING = """
import sys, threading
from gpuscale.config import convert
from gpuscale.settings import ExporterSettings
from gpuscale.exporter import daemon
from gpuscale.runtime import exit_now
from tests.fakes.gpu import FakeDriver

driver = FakeDriver.of(1)
driver.gpus[0].hang = threading.Event()
settings = convert({"listen": "127.0.0.1:0"}, ExporterSettings, where="test")
exit_now(daemon.run(settings, {}, driver))
"""


def test_it_leaves_within_a_second_while_a_call_hangs_in_the_driver() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HANGING], stderr=subprocess.PIPE, text=True, cwd=Path.cwd()
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if "driver opened" in line:
                break
        begun = time.monotonic()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=10)
        assert time.monotonic() - begun < 1.0
        assert process.returncode == 0
        assert "driver left open" in said
    finally:
        process.kill()


def test_what_only_a_restart_cures_ends_the_process_with_an_error() -> None:
    mismatch = HANGING.replace("from tests.", "from gpuscale.errors import *\nfrom tests.").replace(
        "driver.gpus[0].hang = threading.Event()",
        "driver.open_fails = DriverRestartRequired('library and kernel module differ')",
    )
    ended = subprocess.run(
        [sys.executable, "-c", mismatch], capture_output=True, text=True, timeout=20, check=False
    )
    assert ended.returncode == 69
    assert "library and kernel module differ" in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


def test_a_busy_port_is_one_sentence_with_the_cure() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = "{}:{}".format(*taken.getsockname())
        ended = run("--listen", address, "--nvml", "off")
    assert ended.returncode == 69
    entry = json.loads(ended.stderr)
    assert address in entry["reason"]
    assert "choose another address (--listen" in entry["reason"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nmvl: auto\n", "unknown key `nmvl`"),
        ("periods: {fast_s: 0}\n", "periods.fast_s"),
        ("listen: 9400\n", "`listen`"),
        ("nvml: simulated\n", "`nvml`"),
        ("nvml: [\n", "not valid YAML"),
        ("pod_resources: {resources: ['(']}\n", "pod_resources.resources"),
        ('nvml: "simulated:toasterx2"\n', "toaster"),
    ],
)
def test_bad_settings_are_one_sentence_naming_the_key(tmp_path: Path, text: str, says: str) -> None:
    settings = tmp_path / "exporter.yaml"
    settings.write_text(text)
    ended = run("--config", str(settings), "--listen", "127.0.0.1:0")
    assert ended.returncode == 2, ended.stderr
    assert says in ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_a_missing_settings_file_is_named(tmp_path: Path) -> None:
    ended = run("--config", str(tmp_path / "none.yaml"))
    assert ended.returncode == 2
    assert "none.yaml" in ended.stderr


def test_a_bad_option_is_named_as_such() -> None:
    ended = run("--nvml", "on")
    assert ended.returncode == 2
    assert "command line: key `nvml`" in ended.stderr


def test_the_exporter_carries_neither_numpy_nor_the_cluster_client() -> None:
    """What a DaemonSet costs on every node is decided by what it imports."""
    listed = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, gpuscale.exporter.daemon, gpuscale.cli; print(*sys.modules)",
        ],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    ).stdout.split()
    assert "gpuscale.exporter.daemon" in listed
    heavy = {"numpy", "scipy", "kubernetes_asyncio", "plotly", "gpuscale.controller"}
    assert not heavy & set(listed)
