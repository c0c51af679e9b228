"""The command line starts fast and names every command."""

import json
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

RUNS = 7
HEAVY = ("numpy", "scipy", "kubernetes_asyncio", "grpc", "aiohttp", "prometheus_client", "pynvml")


def seconds(*arguments: str) -> float:
    """Processor time of the fastest of a few runs: what the program costs, whoever else runs here."""
    best = float("inf")
    for _ in range(RUNS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True, timeout=30)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        best = min(best, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return best


def test_help_takes_less_than_150_ms_over_an_empty_program() -> None:
    assert seconds("-m", "gpuscale", "--help") - seconds("-c", "pass") < 0.150


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, json\n"
        "sys.argv = ['gpuscale', '--help']\n"
        "try:\n"
        "    from gpuscale.cli import main; main()\n"
        "except SystemExit: pass\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=30
    )
    loaded = {name.split(".")[0] for name in json.loads(done.stderr)}
    assert not loaded & set(HEAVY)


@pytest.mark.parametrize(
    "command",
    [
        "exporter",
        "controller",
        "demo",
        "backtest",
        "explain",
        "scaledobject",
        "config",
        "lint",
        "audit",
        "doctor",
        "cost",
        "top",
        "completion",
        "forecast",
        "replay",
    ],
)
def test_every_command_is_listed_and_explains_itself(command: str) -> None:
    listing = subprocess.run(
        [sys.executable, "-m", "gpuscale", "--help"],
        check=True, capture_output=True, text=True, timeout=30,
    ).stdout  # fmt: skip
    line = next(line for line in listing.splitlines() if line.startswith(f"  {command} "))
    assert line.endswith("."), f"cut short in the list: {line}"
    own = subprocess.run(
        [sys.executable, "-m", "gpuscale", command, "--help"],
        check=True, capture_output=True, text=True, timeout=30,
    ).stdout  # fmt: skip
    assert "Usage:" in own


def _heeds(process: int) -> bool:
    """Whether a process handles SIGTERM (proc(5), SigCgt); SIGINT Python handles from its beginning."""
    status = Path(f"/proc/{process}/status").read_text()
    mask = next(line for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(mask.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("command", ["exporter --nvml off", "controller", "demo --headless"])
def test_a_daemon_that_is_stopped_while_it_starts_has_not_failed(
    command: str, number: signal.Signals
) -> None:
    """Whenever the signal comes: while libraries load, before the loop runs, while it listens."""
    for delay_s in (0.0, 0.1, 0.25, 0.4, 0.7):
        child = subprocess.Popen(
            [sys.executable, "-m", "gpuscale", *command.split(), "--listen", "127.0.0.1:0"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            while not _heeds(child.pid):
                assert child.poll() is None
                time.sleep(0.002)
            if delay_s == 0.0:
                maps = Path(f"/proc/{child.pid}/maps").read_text()
                assert "numpy" not in maps, "it is heeded only after the libraries are loaded"
                assert "grpc" not in maps
            time.sleep(delay_s)
            child.send_signal(number)
            _, said = child.communicate(timeout=20)
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
        assert child.returncode == 0, (command, delay_s, said)
        assert "Traceback" not in said
