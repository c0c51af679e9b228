"""Programs that some tests drive and that pip does not install: where they are, and how to get them.

A finder gives the program's path, or None where it is missing. `requires(name)` is the mark that
skips a test, with the cure in its reason, so that a machine without the program stays green and
says what it left out.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
TOOLS = REPOSITORY / ".tools"
"""Where `make tools` puts programs that no package manager of the machine offers."""


def promtool() -> Path | None:
    """Prometheus's checker of rules and metrics."""
    return _find("promtool", "PROMTOOL")


def prometheus() -> Path | None:
    """The Prometheus server."""
    return _find("prometheus", "PROMETHEUS")


def chromium() -> Path | None:
    """Chromium or Chrome, whichever is installed."""
    return _find("chromium", "CHROMIUM", "chromium-browser", "google-chrome", "chrome")


def helm() -> Path | None:
    """Helm, from HELM, PATH or `.tools/helm`."""
    return _find("helm", "HELM")


def compiler() -> Path | None:
    """A C compiler, from CC or PATH."""
    return _find("cc", "CC", "gcc", "clang")


FINDERS: dict[str, tuple[Callable[[], Path | None], str]] = {
    "promtool": (promtool, "promtool is missing: apt-get install prometheus, or set PROMTOOL"),
    "prometheus": (
        prometheus,
        "prometheus is missing: apt-get install prometheus, or set PROMETHEUS",
    ),
    "chromium": (chromium, "Chromium is missing: apt-get install chromium, or set CHROMIUM"),
    "helm": (helm, "helm is missing: make tools (or python deploy/get_helm.py), or set HELM"),
    "compiler": (compiler, "a C compiler is missing: apt-get install gcc, or set CC"),
}


def requires(name: str) -> pytest.MarkDecorator:
    """The mark that skips a test where the program `name` is missing; its reason says how to get it."""
    find, cure = FINDERS[name]
    return pytest.mark.skipif(find() is None, reason=cure)


def _find(name: str, variable: str, *aliases: str) -> Path | None:
    """A program named by an environment variable, on PATH, or in `.tools`; in that order."""
    named = os.environ.get(variable)
    if named:
        found = shutil.which(named.split()[0])
        return Path(found) if found else None
    for candidate in (name, *aliases):
        found = shutil.which(candidate)
        if found:
            return Path(found)
    kept = TOOLS / name
    return kept if os.access(kept, os.X_OK) and kept.is_file() else None
