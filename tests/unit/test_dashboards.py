"""The dashboards: what they read exists, what they show has a name, a unit and an explanation."""

import json
import re
import subprocess
import sys
from itertools import combinations
from typing import Any

import pytest

from gpuscale import catalog
from tests import promql, tools

FOLDER = tools.REPOSITORY / "dashboards"
BOARDS: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))
}
BUILT_IN = {"__rate_interval": "5m", "__range": "1h", "__range_s": "3600"}
"""Variables that Grafana itself gives, with a value that parses."""
KNOWN = promql.RECORDED | {"ALERTS"}
"""What is not of the catalog: series that the rules record, and the alerts that Prometheus keeps itself."""

PANELS = [
    pytest.param(board, panel, id=f"{name}-{panel['title']}")
    for name, board in BOARDS.items()
    for panel in board["panels"]
    if panel["type"] != "row"
]
QUERIES = [
    pytest.param(board, target["expr"], id=f"{name}-{panel['title']}-{target['refId']}")
    for name, board in BOARDS.items()
    for panel in board["panels"]
    for target in panel.get("targets", ())
]


def variables(board: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {variable["name"]: variable for variable in board["templating"]["list"]}


def filled(text: str) -> str:
    """The expression with a value for each variable."""
    return re.sub(r"\$\{?([a-z_]\w*)\}?", lambda match: BUILT_IN.get(match.group(1), "x"), text)


def test_every_dashboard_is_there_with_an_identity_of_its_own() -> None:
    assert set(BOARDS) == {"fleet", "workloads", "gpus", "sharing", "cost", "health"}
    assert len({board["uid"] for board in BOARDS.values()}) == len(BOARDS)
    assert len({board["title"] for board in BOARDS.values()}) == len(BOARDS)


@pytest.mark.parametrize("name", BOARDS)
def test_panel_ids_are_unique_and_panels_do_not_overlap(name: str) -> None:
    panels = BOARDS[name]["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in combinations((panel["gridPos"] for panel in panels), 2):
        apart = (
            one["x"] + one["w"] <= other.get("x", 0)
            or other.get("x", 0) + other["w"] <= one.get("x", 0)
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)
        assert one["x"] + one["w"] <= 24


@pytest.mark.parametrize(("board", "panel"), PANELS)
def test_a_panel_explains_itself_and_asks_the_chosen_data_source(
    board: dict[str, Any], panel: dict[str, Any]
) -> None:
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert panel["targets"]
    references = [target["refId"] for target in panel["targets"]]
    assert len(set(references)) == len(references)
    for target in panel["targets"]:
        assert target["datasource"] == panel["datasource"]
    assert variables(board)["datasource"]["query"] == "prometheus"


@pytest.mark.parametrize(("board", "expr"), QUERIES)
def test_a_query_parses_and_reads_only_what_the_catalog_has(
    board: dict[str, Any], expr: str
) -> None:
    assert promql.faults(filled(expr), known=KNOWN) == []
    used = set(re.findall(r"\$\{?([a-z_]\w*)\}?", expr))
    assert used <= set(variables(board)) | set(BUILT_IN)
    assert 'cluster=~"$cluster"' in expr


@pytest.mark.parametrize(("board", "expr"), QUERIES)
def test_rates_follow_the_zoom_unless_a_window_is_meant(board: dict[str, Any], expr: str) -> None:
    assert board["uid"]
    assert set(re.findall(r"\[([^\]]+)\]", expr)) <= {
        "$__rate_interval",
        "$__range",
        "1h",
    }


@pytest.mark.parametrize("name", BOARDS)
def test_every_variable_is_asked_of_series_and_labels_that_exist(name: str) -> None:
    found = variables(BOARDS[name])
    assert {"datasource", "cluster"} <= set(found)
    asked = json.dumps(BOARDS[name]["panels"])
    for chosen in set(found) - {"datasource"}:
        assert f"${chosen}" in asked, f"nothing follows the choice of {chosen}"
    for variable in found.values():
        if variable["type"] != "query":
            continue
        match = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
        assert match is not None
        (selection,) = promql.selections(filled(match.group(1)))
        assert promql.faults(filled(match.group(1))) == []
        assert match.group(2) in promql.labels_of(selection.metric)
        # All must also match series that lack the label: most clusters set no `cluster`.
        if variable["includeAll"]:
            assert variable["allValue"] == ".*"


def test_every_family_that_an_operator_watches_is_shown_somewhere() -> None:
    shown = {
        selection.metric
        for board in BOARDS.values()
        for panel in board["panels"]
        for target in panel.get("targets", ())
        for selection in promql.selections(filled(target["expr"]))
    }
    watched = set(catalog.FAMILIES) - NOT_SHOWN
    assert watched <= shown, sorted(watched - shown)
    assert not NOT_SHOWN & shown, sorted(NOT_SHOWN & shown)


NOT_SHOWN = frozenset(
    {
        # Versions and reasons: looked up when an alert asks for them.
        "gpuscale_exporter_build_info",
        "gpuscale_controller_build_info",
        "gpuscale_driver_info",
        "gpuscale_nvml_error_info",
        "gpuscale_gpu_error_info",
        "gpuscale_gpu_unsupported_info",
        "gpuscale_attribution_error_info",
        "gpuscale_process_mapping_error_info",
        "gpuscale_gpu_claim_info",
        # Their meaning is an alert's, not a curve's.
        "gpuscale_controller_tick_seconds",
        "gpuscale_gpus_detected",
        "gpuscale_attribution_up",
        "gpuscale_attribution_unmatched_devices",
        "gpuscale_attribution_dropped_devices",
        "gpuscale_attribution_pods_known",
        "gpuscale_process_mapping_up",
        "gpuscale_audit_up",
        "gpuscale_unaccounted_gpu_processes",
        "gpuscale_kube_cache_synced",
        "gpuscale_exporter_cycles_total",
        "gpuscale_controller_ticks_total",
        "gpuscale_controller_workloads",
        "gpuscale_gpu_row_remap_pending",
        "gpuscale_gpu_row_remap_failed",
        "gpuscale_gpu_profile_suspect",
        # For those who run video, fans or shares of instances: looked up when needed.
        "gpuscale_gpu_encoder_utilization_ratio",
        "gpuscale_gpu_decoder_utilization_ratio",
        "gpuscale_gpu_fan_speed_ratio",
        "gpuscale_gpu_graphics_active_ratio",
        "gpuscale_gpu_memory_kind_info",
        "gpuscale_gpu_utilization_source_info",
        "gpuscale_mig_memory_free_bytes",
        "gpuscale_mig_memory_reserved_bytes",
        "gpuscale_mig_graphics_active_ratio",
        "gpuscale_mig_sm_occupancy_ratio",
        # Follow from what is shown: total less used, and the driver's own share.
        "gpuscale_gpu_memory_free_bytes",
        "gpuscale_gpu_memory_reserved_bytes",
        "gpuscale_gpu_memory_copy_utilization_ratio",
    }
)


def test_the_json_is_what_the_code_builds() -> None:
    done = subprocess.run(
        [sys.executable, "dashboards/build.py", "--check"],
        cwd=tools.REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
