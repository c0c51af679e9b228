"""The command line starts fast and names every command."""

import json
import resource
import subprocess
import sys

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
