"""What README and docs/ tell somebody to type can be typed: commands, options and settings exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from gpuscale import cli, config
from gpuscale.settings import ControllerSettings

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))


def commands() -> Iterator[tuple[str, str]]:
    """(page, what follows `gpuscale`) wherever a page shows a command as code."""
    for page in PAGES:
        text = page.read_text()
        blocks = re.findall(r"(?ms)^```\w*\n(.*?)^```$", text)
        spans = re.findall(r"`([^`]+)`", re.sub(r"(?ms)^```.*?^```$", "", text))
        for code in (*blocks, *spans):
            for line in code.replace("\\\n", " ").splitlines():
                found = re.match(r"(?:\.venv/bin/)?gpuscale ([a-z].*)", line.strip())
                if found:
                    yield page.name, found[1].partition(" #")[0].strip()


SHOWN = sorted(set(commands()))


def test_there_are_commands_to_look_at() -> None:
    assert {page for page, _ in SHOWN} >= {"README.md", "operations.md"}
    assert len(SHOWN) >= 8


@pytest.mark.parametrize(("page", "line"), SHOWN)
def test_a_command_that_is_shown_exists_with_its_options(page: str, line: str) -> None:
    words = line.split()
    found: click.Command = cli.cli
    while isinstance(found, click.Group) and words:
        name = words.pop(0)
        assert name in found.commands, f"{page} shows `gpuscale {line}`: there is no {name}"
        found = found.commands[name]
    options = {name for parameter in found.params for name in parameter.opts}
    for word in words:
        if word.startswith("--"):
            option = word.partition("=")[0]
            assert option in options, f"{page} shows `gpuscale {line}`: there is no {option}"


def test_the_settings_of_the_readme_print_its_scaledobject(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "README.md").read_text()
    (settings,) = re.findall(r"(?ms)^```yaml\n(.*?)^```", text)
    (tmp_path / "controller.yaml").write_text(settings)
    read = config.load(tmp_path / "controller.yaml", ControllerSettings)
    assert read.journal.path is not None
    monkeypatch.chdir(tmp_path)
    (line,) = (line for page, line in SHOWN if page == "README.md" and "--policy" in line)
    done = CliRunner().invoke(cli.cli, line.split(), catch_exceptions=False)
    assert done.exit_code == 0
    assert yaml.safe_load(done.output)["kind"] == "ScaledObject"
