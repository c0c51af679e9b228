"""Manifests from files, directories and standard input, and findings to a terminal, a program or a code review."""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuscale.errors import InputError

if TYPE_CHECKING:
    from gpuscale.lint.finding import Finding
    from gpuscale.lint.source import Manifest

FILE_BYTES_MAX = 256 * 2**20
"""All pods of a cluster of fifteen thousand, as kubectl prints JSON."""
FILES_MAX = 20_000
"""Files of one run; a monorepo's manifests are some thousands."""
SUFFIXES = (".yaml", ".yml", ".json")
SKIPPED = frozenset({".git", ".venv", "node_modules", "__pycache__"})
TABLE_WIDTH = 120
"""Columns of a table that goes to a file or a pipe."""

severity_option = click.option(
    "--severity",
    type=click.Choice(["info", "warning", "error"]),
    default="warning",
    show_default=True,
    help="Exit code 1 where a finding is at least so grave.",
)
format_option = click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "sarif"]),
    default="table",
    show_default=True,
    help="sarif is for code review.",
)


def read(paths: Sequence[str]) -> "list[Manifest]":
    """The Kubernetes objects of files and directories; `-` is standard input.

    A file that is named must hold one; in a directory what is none (values, other YAML, templates of
    Helm) is passed over, the templates with a word on standard error. Raises InputError.
    """
    import gc

    from gpuscale.lint import source

    # Millions of values are made and kept: looking for cycles among them doubles the time.
    gc.disable()
    found: list[Manifest] = []
    templates = 0
    for path in paths:
        if path == "-":
            found += _named(
                source.objects(_decoded(sys.stdin.buffer.read(FILE_BYTES_MAX + 1), "-"), "-"), "-"
            )
        elif Path(path).is_dir():
            for file in _walk(path):
                text = _text(file)
                try:
                    found += source.objects(text, file)
                except InputError:
                    if "{{" not in text:
                        raise
                    templates += 1
        else:
            found += _named(source.objects(_text(path), path), path)
    if templates:
        click.echo(
            f"gpuscale: passed over {templates} templates of Helm: render them "
            "(helm template CHART | gpuscale lint -)",
            err=True,
        )
    return found


def _named(objects: "Iterator[Manifest]", path: str) -> "list[Manifest]":
    found = list(objects)
    if not found:
        name = "standard input" if path == "-" else path
        raise InputError(
            f"{name} holds no Kubernetes object (apiVersion and kind): name a manifest"
        )
    return found


def _walk(top: str) -> Iterator[str]:
    count = 0
    for directory, inner, names in os.walk(top):
        inner[:] = sorted(name for name in inner if name not in SKIPPED)
        for name in sorted(names):
            if name.endswith(SUFFIXES):
                count += 1
                if count > FILES_MAX:
                    raise InputError(
                        f"{top} has more than {FILES_MAX} manifests: name a directory in it"
                    )
                yield str(Path(directory) / name)


def _text(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}): check its name and rights"
        ) from error
    return _decoded(raw, path)


def _decoded(raw: bytes, path: str) -> str:
    name = "standard input" if path == "-" else path
    if len(raw) > FILE_BYTES_MAX:
        raise InputError(f"{name} has more than {FILE_BYTES_MAX >> 20} MiB: split it")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not UTF-8 (byte {error.start}): it is no manifest") from error


# ---------------------------------------------------------------- findings


def show(findings: "Sequence[Finding]", form: str, *, looked_at: str) -> None:
    """Print findings; `looked_at` says of what, for a person who sees none."""
    import json

    if form == "json":
        click.echo(json.dumps({"findings": [plain(f) for f in findings]}, indent=2))
    elif form == "sarif":
        from gpuscale import __version__
        from gpuscale.lint import sarif

        click.echo(json.dumps(sarif.document(findings, version=__version__), indent=2))
    elif not findings:
        click.echo(f"Nothing found in {looked_at}.")
    else:
        _table(findings, looked_at)


def plain(finding: "Finding") -> dict[str, Any]:
    """A finding as JSON has it."""
    return {
        "rule": finding.rule.id,
        "severity": finding.severity,
        "kind": finding.kind,
        "namespace": finding.namespace,
        "name": finding.name,
        "container": finding.container,
        "path": finding.where,
        "file": finding.file,
        "line": finding.line,
        "finding": finding.sentence,
        "why": finding.rule.why,
        "cure": finding.rule.cure,
    }


def exit_for(findings: "Sequence[Finding]", severity: str) -> None:
    """Exit code 1 where a finding is at least so grave."""
    from gpuscale.lint.finding import SEVERITIES

    grave = SEVERITIES[[str(s) for s in SEVERITIES].index(severity) :]
    if any(f.severity in grave for f in findings):
        sys.exit(1)


_STYLES = {"error": "bold red", "warning": "yellow", "info": "dim"}


def _table(findings: "Sequence[Finding]", looked_at: str) -> None:
    """Blocks, not columns: a sentence and its cure want the width of the screen."""
    from rich.console import Console
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else TABLE_WIDTH, highlight=False)
    cured: set[str] = set()
    for finding in findings:
        head = Text(f"{finding.severity:<7} ", style=_STYLES[finding.severity])
        head.append(f"{finding.rule.id}  ", style="bold")
        head.append(finding.object)
        console.print(head)
        place = f"{finding.file}:{finding.line}" if finding.file else ""
        console.print(
            Text(f"  {place}  {finding.where}" if place else f"  {finding.where}", style="dim")
        )
        console.print(Text(f"  {finding.sentence}."))
        if finding.rule.id not in cured:  # said once: the same fault stands in many objects
            cured.add(finding.rule.id)
            console.print(Text(f"  {finding.rule.why}"))
            console.print(Text(f"  Cure: {finding.rule.cure}", style="green"))
        console.print()
    counts = {s: sum(f.severity == s for f in findings) for s in _STYLES}
    said = ", ".join(
        f"{n} {s}{'s' if n > 1 and s != 'info' else ''}" for s, n in counts.items() if n
    )
    console.print(f"{said} in {looked_at}.")
