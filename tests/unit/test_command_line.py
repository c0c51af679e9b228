"""Every command shows what to type, and what it shows can be typed; shells complete it."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from gpuscale import cli
from gpuscale.cli.examples import EXAMPLES


def commands(group: click.Group, before: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


COMMANDS = dict(commands(cli.cli))
LINES = [(name, line) for name, lines in EXAMPLES.items() for line in lines]


def test_every_command_has_examples_and_every_example_a_command() -> None:
    assert EXAMPLES.keys() == COMMANDS.keys()


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_the_examples_as_they_are_typed(name: str) -> None:
    text = COMMANDS[name].get_help(click.Context(COMMANDS[name], info_name=name))
    for line in EXAMPLES[name]:
        assert line.partition("\n")[0] in text
    assert text.count("Examples:") == 1


@pytest.mark.parametrize(("name", "line"), LINES)
def test_an_example_is_of_its_command_and_its_options_exist(name: str, line: str) -> None:
    typed = re.search(rf"gpuscale {name}( [^|>]*)?", line.replace("\\\n", " "))
    assert typed is not None
    options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    for word in (typed[1] or "").split():
        if re.fullmatch(r"--?[a-z][-a-z]*", word):
            assert word in options, f"{line}: there is no {word}"


def complete(*words: str) -> list[str]:
    """What bash is offered for the last word."""
    environment = {
        **os.environ,
        "_GPUSCALE_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-m", "gpuscale"],
        capture_output=True, text=True, timeout=30, check=True, env=environment,
    )  # fmt: skip
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


def test_commands_options_and_their_values_are_completed() -> None:
    assert complete("gpuscale", "do") == ["doctor"]
    assert "--severity" in complete("gpuscale", "lint", "--s")
    assert complete("gpuscale", "lint", "--format", "sar") == ["sarif"]
    assert set(complete("gpuscale", "config", "s")) == {"show", "schema"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_of_a_shell_is_printed(shell: str) -> None:
    if shell == "bash" and shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "gpuscale", "completion", shell],
        capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    assert "_GPUSCALE_COMPLETE" in done.stdout
    assert "gpuscale" in done.stdout
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=True, timeout=30)
