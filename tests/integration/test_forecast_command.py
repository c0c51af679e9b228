"""`gpuscale forecast` as a person runs it: a process, a file, two streams."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.traces import DAYS, write_daily

TIMEOUT_S = 60


def forecast(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gpuscale", "forecast", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, "COLUMNS": "120"},
        check=False,
    )


@pytest.fixture(scope="module")
def daily(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_daily(tmp_path_factory.mktemp("traces"))


def test_a_forecast_from_the_end_of_a_trace(daily: Path) -> None:
    done = forecast(daily, "--horizon", 600, "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    quantiles = document.pop("quantiles")
    assert document == {
        "trace": "generated_daily",
        "at_s": DAYS * 86_400,
        "horizon_s": 600,
        "target": "peak",
    }
    assert list(quantiles) == ["0.5", "0.9", "0.95"]
    assert 0 < quantiles["0.5"] <= quantiles["0.9"] <= quantiles["0.95"]


def test_scores_have_the_documented_fields(daily: Path) -> None:
    done = forecast(
        *(daily, "--horizon", 300, "--evaluate", "--target", "value", "--quantiles", "0.9,0.5"),
        *("--origins", 50, "--from", 90_000, "--format", "json"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert list(document) == [
        *("trace", "horizon_s", "target", "origins", "mase", "wape", "relative_mae"),
        *("pinball", "coverage", "seconds_per_update"),
    ]
    assert list(document["pinball"]) == list(document["coverage"]) == ["0.9", "0.5"]
    assert 0 < document["origins"] <= 50
    assert document["seconds_per_update"] > 0


def test_tables_say_what_was_asked(daily: Path) -> None:
    scores = forecast(daily, "--horizon", 600, "--evaluate")
    assert "generated_daily: peak at 600 s" in scores.stdout
    assert "coverage" in scores.stdout
    one = forecast(daily, "--horizon", 600, "--to", 90_000)
    assert "from 90000 s" in " ".join(one.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--horizon", 30_000, "--evaluate"), "a quarter of generated_daily's window"),
        (("--horizon", 600, "--from", 3), "--from says which window --evaluate judges"),
        (("--horizon", 600, "--quantiles", "half"), "is not a list of levels"),
        (("--horizon", 600, "--to", -5), "outside the trace"),
    ],
)
def test_bad_input_is_one_sentence(
    daily: Path, arguments: tuple[object, ...], sentence: str
) -> None:
    done = forecast(daily, *arguments)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""
