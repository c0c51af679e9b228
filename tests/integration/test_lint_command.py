"""`gpuscale lint` as a person and a build run it: files, directories, a pipe; sentences, JSON, SARIF."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpuscale import cli
from gpuscale.errors import InputError
from tests.unit.lint.cases import CASES

GOLDEN = Path(__file__).parents[1] / "golden" / "lint"
RECIPE = GOLDEN / "recipe.yaml"


def lint(*arguments: object, text: str | None = None) -> Result:
    return CliRunner().invoke(cli.cli, ["lint", *map(str, arguments)], input=text)


def documents(result: Result) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(result.stdout)["findings"]
    return found


def test_the_usual_recipe_gives_the_findings_that_are_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To renew: gpuscale lint --format json tests/golden/lint/recipe.yaml, from the repository's root."""
    monkeypatch.chdir(GOLDEN.parents[2])
    result = lint("--format", "json", "tests/golden/lint/recipe.yaml")
    assert result.exit_code == 1
    expected = json.loads((GOLDEN / "recipe.json").read_text())
    assert json.loads(result.stdout) == expected


def test_a_person_reads_the_object_the_line_and_the_cure() -> None:
    result = lint(RECIPE)
    assert result.exit_code == 1
    assert "error   GPU-L21  ScaledObject inference/triton" in result.stdout
    assert f"{RECIPE}:" in result.stdout
    assert "never asks for more than 2 replicas" in result.stdout
    assert result.stdout.count("Cure: Set metricType: Value") == 1


def test_a_pipe_a_file_and_a_directory_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.yml").write_text(RECIPE.read_text())
    (tmp_path / "values.yaml").write_text("replicas: 1\n")
    (tmp_path / "package.json").write_text('{"name": "x"}')
    (tmp_path / "notes.txt").write_text("{{{")
    rules = [
        [f["rule"] for f in documents(result)]
        for result in (
            lint(RECIPE, "--format", "json"),
            lint(tmp_path, "--format", "json"),
            lint("-", "--format", "json", text=RECIPE.read_text()),
        )
    ]
    assert rules[0] == rules[1] == rules[2] != []


@pytest.mark.parametrize(("severity", "code"), [("info", 1), ("warning", 1), ("error", 0)])
def test_the_exit_code_follows_the_severity(tmp_path: Path, severity: str, code: int) -> None:
    case = next(c for c in CASES if c.rule == "GPU-L09")
    (tmp_path / "a.yaml").write_text(case.broken)
    assert lint(tmp_path, "--severity", severity).exit_code == code


def test_nothing_wrong_is_said_and_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("apiVersion: v1\nkind: Service\nmetadata: {name: a}\n")
    result = lint(tmp_path)
    assert (result.exit_code, result.stdout) == (0, "Nothing found in 1 object.\n")


def test_sarif_has_a_place_and_a_rule_for_every_finding() -> None:
    result = lint(RECIPE, "--format", "sarif")
    (run,) = json.loads(result.stdout)["runs"]
    described = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len(run["results"]) == len(documents(lint(RECIPE, "--format", "json")))
    for each in run["results"]:
        assert described[each["ruleIndex"]] == each["ruleId"]
        place = each["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == str(RECIPE)
        assert place["region"]["startLine"] > 1
        assert each["level"] in ("note", "warning", "error")


def test_templates_of_helm_in_a_directory_are_passed_over_with_a_word(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n")
    (tmp_path / "b.yaml").write_text("kind: {{ .Values.kind }}\n{{- if .x }}\na: b\n{{- end }}\n")
    result = lint(tmp_path)
    assert result.exit_code == 0
    assert "passed over 1 templates of Helm" in result.stderr


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a: [\n", "cannot be read as YAML"),
        (b"kind: {{ x }}\n{{- if y }}\n", "template of Helm"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"replicas: 1\n", "holds no Kubernetes object"),
        (b"", "holds no Kubernetes object"),
        (None, "cannot be read"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    file = tmp_path / "a.yaml"
    if content is not None:
        file.write_bytes(content)
    result = lint(file)
    assert isinstance(result.exception, InputError)
    assert result.exception.exit_code == 2
    assert reason in str(result.exception)
    assert str(file) in str(result.exception)


BYPASS = """
apiVersion: v1
kind: Pod
metadata: {name: p, namespace: ml}
spec: {containers: [{name: a, env: [{name: NVIDIA_VISIBLE_DEVICES, value: all}]}]}
"""


def audit(*arguments: object) -> Result:
    return CliRunner().invoke(cli.cli, ["audit", *map(str, arguments)])


def test_audit_of_manifests_needs_no_cluster_and_obeys_the_allow_list(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(BYPASS)
    result = audit("-f", tmp_path, "--format", "json")
    assert result.exit_code == 1
    (found,) = documents(result)
    assert (found["rule"], found["name"], found["line"]) == ("GPU-A01", "p", 5)
    settings = tmp_path / "controller.settings"
    settings.write_text("audit: {allow_pods: ['ml/p']}\n")
    assert audit("-f", tmp_path, "--config", settings).exit_code == 0


def test_the_gpuscale_that_is_shipped_is_no_finding_in_its_own_namespace() -> None:
    static = GOLDEN.parents[2] / "deploy" / "static" / "gpuscale.yaml"
    assert documents(audit("-f", static, "--format", "json")) == []
    assert documents(lint(static, "--format", "json")) == []
