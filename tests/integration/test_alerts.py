"""The alert rules: they parse, fire and keep quiet as their unit tests say, and lead to a runbook."""

import re
import subprocess
from typing import Any

import pytest
import yaml

from gpuscale.controller.actuators.keda import STALE_AFTER_S
from gpuscale.controller.daemon import STALE_TICKS
from gpuscale.settings import Policy
from tests import promql, tools

FOLDER = tools.REPOSITORY / "alerts"
RULE_FILES = sorted(FOLDER.glob("*.yaml"))
TEST_FILES = sorted((FOLDER / "tests").glob("*.yaml"))
RUNBOOK = tools.REPOSITORY / "docs" / "operations.md"
ALL: list[dict[str, Any]] = [
    rule
    for path in RULE_FILES
    for group in yaml.safe_load(path.read_text())["groups"]
    for rule in group["rules"]
]
RULES = [rule for rule in ALL if "alert" in rule]
RECORDED = [rule for rule in ALL if "record" in rule]

STATE_METRICS = frozenset(
    {
        "kube_node_info",
        "kube_node_labels",
        "kube_node_status_allocatable",
        "kube_node_status_capacity",
        "kube_pod_container_status_waiting_reason",
        "kube_pod_owner",
        "kube_pod_status_unschedulable",
    }
)
"""What the rules read of kube-state-metrics; docs/operations.md names them too."""
FOREIGN = STATE_METRICS | {"up"} | promql.RECORDED
"""Metrics that are not of the catalog: Prometheus's own, kube-state-metrics', and recorded ones."""


def name_of(rule: dict[str, Any]) -> str:
    return f"{rule['alert']}-{rule['labels']['severity']}"


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    binary = tools.promtool()
    assert binary is not None
    return subprocess.run(
        [binary, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.prometheus
@tools.requires("promtool")
def test_promtool_accepts_every_rule() -> None:
    done = promtool("check", "rules", "--lint-fatal", *map(str, RULE_FILES))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.prometheus
@tools.requires("promtool")
@pytest.mark.parametrize("path", TEST_FILES, ids=lambda path: path.stem)
def test_alerts_fire_and_keep_quiet_as_their_unit_tests_say(path: Any) -> None:
    done = promtool("test", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_seen_firing_and_seen_quiet() -> None:
    firing: set[tuple[str, str]] = set()
    quiet: set[str] = set()
    for path in TEST_FILES:
        for story in yaml.safe_load(path.read_text())["tests"]:
            for check in story.get("alert_rule_test", ()):
                expected = check["exp_alerts"]
                firing |= {(check["alertname"], e["exp_labels"]["severity"]) for e in expected}
                quiet |= set() if expected else {check["alertname"]}
    assert firing == {(rule["alert"], rule["labels"]["severity"]) for rule in RULES}
    assert quiet == {rule["alert"] for rule in RULES}


def test_every_recorded_series_is_computed_in_a_test() -> None:
    tested = {
        sample["labels"].partition("{")[0]
        for path in TEST_FILES
        for story in yaml.safe_load(path.read_text())["tests"]
        for check in story.get("promql_expr_test", ())
        for sample in check["exp_samples"]
    }
    assert tested == {rule["record"] for rule in RECORDED}


@pytest.mark.parametrize("rule", RECORDED, ids=lambda rule: rule["record"])
def test_a_recorded_series_says_its_labels_its_metric_and_how_it_was_made(
    rule: dict[str, Any],
) -> None:
    assert re.fullmatch("[a-z_]+:gpuscale_[a-z_]+:[a-z0-9_]+", rule["record"])
    assert "by (cluster" in rule["expr"], "clusters stay apart"


def test_the_runbook_names_what_is_read_of_kube_state_metrics() -> None:
    named = set(re.findall(r"`(kube_\w+)`", RUNBOOK.read_text()))
    assert named == STATE_METRICS


@pytest.mark.parametrize("rule", ALL, ids=lambda r: name_of(r) if "alert" in r else r["record"])
def test_a_rule_reads_only_what_the_catalog_has(rule: dict[str, Any]) -> None:
    assert promql.faults(rule["expr"], known=FOREIGN) == []


def test_a_metric_that_is_not_there_would_be_noticed() -> None:
    assert promql.faults("gpuscale_gpu_tempreature_celsius > 1")
    assert promql.faults('gpuscale_gpu_up{workload="x"} == 0')
    assert promql.faults("gpuscale_signal_errors_total > 0")
    assert promql.faults("rate(gpuscale_gpu_up[5m])")


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_a_rule_says_how_bad_how_long_what_and_what_to_do(rule: dict[str, Any]) -> None:
    assert re.fullmatch("Gpuscale[A-Z][A-Za-z]+", rule["alert"])
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert re.fullmatch("[0-9]+[mh]", rule["for"])
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    for text in (rule["annotations"]["summary"], rule["annotations"]["description"]):
        assert text.endswith(".")
        assert "\n" not in text


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_a_rule_leads_to_its_section_of_the_runbook(rule: dict[str, Any]) -> None:
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert tools.REPOSITORY / page == RUNBOOK
    assert anchor == rule["alert"].lower()
    assert f"\n### {rule['alert']}\n" in RUNBOOK.read_text()


def test_the_runbook_describes_no_alert_that_is_gone() -> None:
    described = set(re.findall(r"^### (Gpuscale\w+)$", RUNBOOK.read_text(), re.MULTILINE))
    assert described == {rule["alert"] for rule in RULES}


def test_numbers_in_the_rules_agree_with_the_default_settings() -> None:
    """Stale and held are told apart: the alert comes after the one and before the other."""
    default = Policy()
    (stale,) = (rule for rule in RULES if rule["alert"] == "GpuscaleSignalStale")
    limit_s = float(stale["expr"].rpartition(">")[2])
    assert default.stale_after_s < limit_s < limit_s + 60 < default.hold_s
    (coverage,) = (rule for rule in RULES if rule["alert"] == "GpuscaleSignalCoverageLow")
    assert float(coverage["expr"].rpartition("<")[2]) == default.coverage_min
    (late,) = (rule for rule in RULES if rule["alert"] == "GpuscaleTicksLate")
    fresh = f"clamp_min({STALE_TICKS} * max(gpuscale_controller_tick_seconds), {STALE_AFTER_S:g})"
    assert late["expr"].rpartition("> ")[2] == fresh, "as long as KEDA is answered"
