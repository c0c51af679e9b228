"""The demo, as somebody who has just cloned the repository runs it."""

import json
import subprocess
import sys

import pytest

HOUR = ("--duration", "6", "--speed", "600")


def demo(*arguments: str, timeout_s: float = 100.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpuscale", "demo", "--headless", *arguments],
        capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip


def announced(line: str) -> bool:
    """Whether this is one of the lines that the demo prints at its start."""
    return line.startswith(("page and API", "external scaler", "exporter gpu-", "one second is"))


def test_an_hour_in_seconds_tells_what_each_workload_was_asked_got_and_why() -> None:
    done = demo(*HOUR, "--format", "json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["simulated_s"] >= 3000
    workloads = {w["workload"]: w for w in report["workloads"]}
    assert set(workloads) == {"chat/llama-8b", "search/embedder", "images/diffusion"}
    for workload in workloads.values():
        assert workload["asked"] >= 1
        assert workload["got"]["ready"] >= 1
        assert workload["why"]
        assert workload["scaler_calls"] >= 200
        assert workload["scaler_error"] is None

    chat = workloads["chat/llama-8b"]
    # The office opens at twenty minutes with a rush that the past foretells: nobody waits.
    assert chat["late_ratio"] < 0.005
    assert chat["got"]["ready"] >= 8
    assert any("forecast" in sentence for sentence in chat["why"])
    # The burst of images has no precedent: replicas follow it, and are given back.
    assert workloads["images/diffusion"]["peak_replicas"] >= 4
    assert workloads["images/diffusion"]["asked"] <= 4
    # Its owner declared 60 requests/s and 30 s; the first rush shows 40 and 75 (and 30 s until the
    # pods exist), and what is said is what was found.
    embedder = workloads["search/embedder"]
    capacity, start = embedder["capacity"], embedder["start"]
    assert (capacity["source"], capacity["declared"]) == ("learned", 60)
    assert capacity["value"] == pytest.approx(40, rel=0.05)
    assert (start["source"], start["declared_s"], start["delay_s"]) == ("observed", 30, 30)
    assert start["p50_s"] == pytest.approx(75 + 30, rel=0.15)
    assert list(start["stages"]) == ["pull", "load"]
    said = " ".join(embedder["why"])
    assert "learned from loads beyond which requests queue" in said
    assert "The policy declares 60." in said
    assert "The policy declares 30 s." in said
    assert [e["gpus"] for e in report["exporters"]] == [8, 8, 8, 8]
    # Nothing is wrong in the demo, so nothing is logged: only addresses stand on standard error.
    assert [line for line in done.stderr.splitlines() if not announced(line)] == []


def test_the_table_is_for_people_and_stands_alone_on_standard_output() -> None:
    done = demo("--duration", "1", "--speed", "600")
    assert done.returncode == 0, done.stderr
    assert "simulated minutes" in done.stdout.splitlines()[0]
    assert "chat/llama-8b" in done.stdout
    assert "listening" not in done.stdout
    assert "page and API" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--speed", "0"), "--speed"),
        (("--duration", "soon"), "--duration"),
        (("--listen", "nowhere"), "listen"),
    ],
)
def test_a_bad_option_is_named(arguments: tuple[str, ...], words: str) -> None:
    done = demo(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
