"""A daemon's life as a real process: signals, tasks that end, closers that hang."""

import signal
import subprocess
import sys
import time

import pytest

PROLOGUE = """
import asyncio
from gpuscale import log, runtime
from gpuscale.errors import ListenError
log.configure()
async def forever():
    await asyncio.Event().wait()
"""


def start(body: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROLOGUE + body],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_closes_in_reverse_order_and_exits_0(number: signal.Signals) -> None:
    process = start("""
async def main(d):
    async def close(name): print("closed", name, flush=True)
    d.own("loop", forever())
    d.close_with("first", lambda: close("first"))
    d.close_with("second", lambda: close("second"))
    print("up", flush=True)
raise SystemExit(runtime.run(main))
""")
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(number)
    out, _ = process.communicate(timeout=10)
    assert out == "closed second\nclosed first\n"
    assert process.returncode == 0


def test_a_loop_that_returns_is_a_failure() -> None:
    process = start("""
async def ends(): return None
async def main(d):
    d.own("loop", forever())
    d.own("short", ends())
raise SystemExit(runtime.run(main))
""")
    _, err = process.communicate(timeout=10)
    assert process.returncode == 70
    assert "task short returned, and it must run for ever" in err


def test_a_known_error_at_start_exits_with_its_own_code_and_one_sentence() -> None:
    process = start("""
async def main(d):
    raise ListenError("cannot listen on :1: choose another port")
raise SystemExit(runtime.run(main))
""")
    _, err = process.communicate(timeout=10)
    assert process.returncode == 69
    assert "cannot listen on :1: choose another port" in err
    assert "Traceback" not in err


def test_a_hung_closer_is_named_and_does_not_hold_the_others() -> None:
    process = start("""
runtime.CLOSE_DEADLINE_S = 0.2
async def main(d):
    async def close(): print("closed", flush=True)
    d.own("loop", forever())
    d.close_with("quick", close)
    d.close_with("stuck", forever)
    print("up", flush=True)
raise SystemExit(runtime.run(main))
""")
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    began = time.monotonic()
    process.terminate()
    out, err = process.communicate(timeout=10)
    assert time.monotonic() - began < 5
    assert out == "closed\n"
    assert "stuck" in err
    assert process.returncode == 0
