"""Rules of the repository itself: sizes, dead files, leftovers, generated pages and wire formats."""

import ast
import functools
import gc
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "gpuscale"
FILE_LINES_MAX = 420
FUNCTION_LINES_MAX = 70
SOURCES = sorted(p for p in PACKAGE.rglob("*.py") if "_pb2" not in p.name)
TESTS = sorted(p for p in (ROOT / "tests").rglob("*.py") if p.name != "test_tidy.py")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@functools.cache
def parsed(path: Path) -> ast.Module:
    """The tree of a file. CPython 3.11 fails where a collection amid the work makes another tree
    ("recursion depth mismatch", gh-106905), as Hypothesis' and others' callbacks may: none then."""
    text = path.read_text(encoding="utf-8")
    collecting = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        if collecting:
            gc.enable()


def test_files_are_read_whatever_is_called_when_garbage_is_collected() -> None:
    def nosy(*_: object) -> None:
        ast.parse("def f():\n    return [1, (2, 3)]")

    often = gc.get_threshold()
    gc.callbacks.append(nosy)
    try:
        gc.set_threshold(50)
        for path in SOURCES:
            parsed.__wrapped__(path)
    finally:
        gc.set_threshold(*often)
        gc.callbacks.remove(nosy)


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_a_file_is_one_room_not_a_warehouse(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= FILE_LINES_MAX, (
        f"{relative(path)} has {lines} lines: which part wants its own door?"
    )


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_a_function_fits_on_a_screen(path: Path) -> None:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= FUNCTION_LINES_MAX, f"{relative(path)}: {node.name} has {lines} lines"


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_every_file_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(parsed(path)), relative(path)


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_name(path: Path) -> str:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_no_file_is_dead() -> None:
    """Every module is imported by another one of the program; the two entries are the exception."""
    used = {name for path in SOURCES for name in imports_of(path) if name.startswith("gpuscale")}
    modules = {module_name(p) for p in SOURCES if p.name != "__init__.py"}
    assert modules - used <= {"gpuscale.__main__"}


LEFTOVERS = re.compile(r"\b(TODO|FIXME|XXX)\b|raise NotImplementedError")
STRANGE = re.compile(r"(?<![\w.])/(work|farm)/|unittest\.mock")


@pytest.mark.parametrize("path", [*SOURCES, *TESTS], ids=relative)
def test_nothing_is_left_over(path: Path) -> None:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        assert not LEFTOVERS.search(line), f"{relative(path)}:{number}: {line.strip()}"
        assert not STRANGE.search(line), f"{relative(path)}:{number}: {line.strip()}"


def test_the_generated_pages_equal_what_the_code_says() -> None:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    for name, page in generate.PAGES.items():
        text = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert text == page(), f"docs/{name} is out of date: run `make docs`"


def test_regenerating_the_wire_formats_changes_nothing(tmp_path: Path) -> None:
    protos = sorted((PACKAGE / "proto").glob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(ROOT)]
    command += [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    subprocess.run(
        [*command, *(str(p) for p in protos)], check=True, capture_output=True, timeout=60
    )
    made = sorted(p for p in tmp_path.rglob("*") if p.is_file())
    assert len(made) == 3 * len(protos)
    for path in made:
        committed = ROOT / path.relative_to(tmp_path)
        assert committed.read_text() == path.read_text(), f"{relative(committed)}: run `make proto`"
