"""docs/backtest.md is what happens: its commands are run on the demand that its figures are of."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.traces import write_daily

PAGE = (Path(__file__).parents[2] / "docs" / "backtest.md").read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(line)
    for block in re.findall(r"(?ms)^```\n(gpuscale .*?)^```$", PAGE)
    for line in block.replace("\\\n", " ").splitlines()
]
OFFLINE = [command for command in COMMANDS if "--prometheus" not in command]
TIMEOUT_S = 90
OURS = 0.15
"""By how much gpuscale's own figures may have moved since: the page shows what to expect, not a record."""


def run(command: list[str], folder: Path) -> str:
    write_daily(folder, "demand")
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        env={"COLUMNS": "120", "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(text: str, edge: str) -> dict[str, list[float]]:
    """Figures by policy, of a table whose columns are divided by `edge`."""
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip(f"{edge} ").split(edge)]
        if len(cells) == 7 and re.match(r"^[\d.]+$", cells[1]):
            found[cells[0]] = [float(cell.rstrip(" %")) for cell in cells[1:]]
    return found


def test_the_page_shows_commands_for_a_file_and_for_a_prometheus() -> None:
    assert len(OFFLINE) == 3
    assert len(COMMANDS) == 4


def test_the_figures_of_the_page_are_those_of_a_run(tmp_path: Path) -> None:
    shown, found = rows(PAGE, "|"), rows(run(OFFLINE[0], tmp_path), "│")
    ours, our_own = shown.pop("gpuscale"), found.pop("gpuscale")
    assert shown == found
    assert our_own[3] == pytest.approx(ours[3], rel=OURS)
    assert our_own[0] == pytest.approx(ours[0], rel=OURS)


@pytest.mark.parametrize("command", OFFLINE[1:], ids=lambda words: words[-1])
def test_what_the_page_tells_to_write_is_written(command: list[str], tmp_path: Path) -> None:
    run(command, tmp_path)
    assert (tmp_path / command[-1]).stat().st_size > 10_000
