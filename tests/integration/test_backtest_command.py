"""`gpuscale backtest` as a person runs it: a process, files, two streams."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.traces import write_daily

TIMEOUT_S = 60


def backtest(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpuscale", "backtest", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, "COLUMNS": "120"},
        cwd=cwd,
        check=False,
    )


@pytest.fixture(scope="module")
def daily(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_daily(tmp_path_factory.mktemp("traces"))


def test_json_goes_to_standard_output_and_nothing_else_does(daily: Path) -> None:
    done = backtest(
        daily, "--cold-start", 60, "--to", 86_400 + 7200, "--format", "json", "--peak-replicas", 8
    )
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert document["trace"] == "generated_daily"
    names = [entry["policy"] for entry in document["runs"][0]["policies"]]
    assert names == ["gpuscale", "keda-rate", "hpa-util", "knative", "static-peak", "oracle"]


def test_a_table_per_cold_start_with_the_best_policy_first(daily: Path) -> None:
    done = backtest(daily, "--cold-start", "60,300", "--policy", "knative", "--policy", "oracle")
    assert done.returncode == 0
    assert "generated_daily: cold start 60 s" in done.stdout
    assert "cold start 300 s" in done.stdout
    assert done.stdout.index("oracle") < done.stdout.index("knative")


@pytest.mark.parametrize(
    "spelling",
    [
        ("--policy", "knative", "--policy", "keda-rate@0.8"),
        ("--policy", "knative,keda-rate@0.8"),
        ("--policy", "knative", "keda-rate@0.8"),
    ],
)
def test_policies_can_be_repeated_listed_or_follow_each_other(
    daily: Path, spelling: tuple[str, ...]
) -> None:
    done = backtest(
        *spelling, daily, "--cold-start", "60", "--format", "json", "--to", 86_400 + 7200
    )
    policies = json.loads(done.stdout)["runs"][0]["policies"]
    assert [entry["policy"] for entry in policies] == ["knative", "keda-rate@0.8"]


def test_a_timeline_has_a_row_per_tick_in_order_for_each_cold_start_and_policy(
    daily: Path, tmp_path: Path
) -> None:
    timeline, output = tmp_path / "ticks.csv", tmp_path / "scores.json"
    done = backtest(
        daily,
        *("--cold-start", "60,120", "--from", 100_800, "--to", 104_400, "--format", "json"),
        *("--policy", "gpuscale,oracle", "--capacity", 8, "--timeline", timeline, "-o", output),
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert json.loads(output.read_text())["runs"][0]["capacity_per_replica"] == 8
    with timeline.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [
        *("timestamp", "cold_start_s", "policy", "demand", "desired"),
        *("ready", "starting", "draining", "backlog"),
    ]
    ticks = 3600 // 15
    assert len(rows) == 2 * 2 * ticks
    first = rows[:ticks]
    assert [float(r["timestamp"]) for r in first] == [100_800 + 15.0 * i for i in range(ticks)]
    assert {(r["cold_start_s"], r["policy"]) for r in first} == {("60", "gpuscale")}
    # Minutes 1700 … 1711 are missing in the trace: empty, not zero.
    missing = [i for i, r in enumerate(first) if r["demand"] == ""]
    assert missing == list(range((1700 - 1680) * 4, (1712 - 1680) * 4))


@pytest.mark.parametrize("output", [None, "file"])
def test_a_dash_is_standard_output_and_never_a_file(
    daily: Path, tmp_path: Path, output: str | None
) -> None:
    where = () if output is None else ("-o", tmp_path / output)
    done = backtest(
        daily, "--cold-start", 60, "--policy", "oracle", "--timeline", "-", *where,
        *("--from", 100_800, "--to", 104_400), cwd=tmp_path,
    )  # fmt: skip
    rows = list(csv.DictReader(done.stdout.splitlines()))
    assert len(rows) == 3600 // 15
    table = done.stderr if output is None else (tmp_path / output).read_text()
    assert "generated_daily: cold start 60 s" in table
    assert not (tmp_path / "-").exists()

    plain = backtest(
        daily, "--cold-start", 60, "--policy", "oracle", "--format", "json", "-o", "-", cwd=tmp_path
    )
    assert json.loads(plain.stdout)["trace"] == "generated_daily"
    assert not (tmp_path / "-").exists()


def test_several_traces_give_a_list_and_a_short_window_a_note(daily: Path, tmp_path: Path) -> None:
    short = tmp_path / "short.csv"
    lines = ["timestamp,value", *(f"{i * 10},{5 + i % 3}" for i in range(300))]
    short.write_text("\n".join(lines) + "\n")
    done = backtest(
        daily, short, "--cold-start", "60,600", "--policy", "knative", "--format", "json"
    )
    assert done.returncode == 0
    assert [entry["trace"] for entry in json.loads(done.stdout)] == ["generated_daily", "short"]
    assert done.stderr == (
        "gpuscale: short: the window of 1500 s is shorter than six cold starts of 600 s and does not count\n"
    )


def test_what_a_person_gets_wrong_is_one_sentence_and_exit_code_2(
    daily: Path, tmp_path: Path
) -> None:
    gap = tmp_path / "gap.csv"
    gap.write_text("timestamp,value\n0,1\n60,1\n240,2\n")
    stories: list[tuple[tuple[object, ...], str]] = [
        ((tmp_path / "no.csv",), "no.csv cannot be read: No such file or directory"),
        ((gap,), "gap.csv, line 4: the timestamp 240 follows 60, but the step is 60 s"),
        ((daily, "--policy", "keda"), "there is no policy 'keda'"),
        ((daily, "--capacity", "1", "--peak-replicas", "2"), "exclude each other"),
        ((daily, "--cold-start", "fast"), "'fast' is not a list of seconds"),
        ((daily, "--from", "1e9"), "--from 1000000000 is outside the trace"),
        ((daily, "--min", "9", "--max", "3"), "--min 9 and --max 3 do not fit"),
        ((daily, daily, "--timeline", tmp_path / "t.csv"), "--timeline is for one trace"),
        ((daily, "--timeline", "-", "-o", "-"), "would mix on standard output"),
        ((daily, "--policy", "keda-rate@7"), "the target of 'keda-rate@7' must be a share"),
        (("--policy", "knative", "oracle"), "no trace was given"),
        (
            (daily, "--to", 93_600, "--policy", "oracle", "-o", tmp_path / "no" / "file"),
            "cannot be written: No such file or directory",
        ),
    ]
    for arguments, sentence in stories:
        done = backtest(*arguments)
        assert done.returncode == 2, arguments
        assert done.stdout == "", arguments
        assert sentence in done.stderr, arguments
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert done.stderr.startswith("gpuscale: ")
