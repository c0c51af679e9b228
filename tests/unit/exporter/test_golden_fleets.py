"""The whole page of every kind of node, letter by letter; and what must hold on each of them.

After a change that is meant, write the files anew and read the difference before committing it:

    GPUSCALE_GOLDEN=write pytest tests/unit/exporter/test_golden_fleets.py
"""

import os
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpuscale import httpd
from gpuscale.exporter import exposition
from gpuscale.exporter.dcgmfields import DEFAULT
from tests import tools
from tests.fakes.fleets import FLEETS
from tests.fakes.node import AT, page

GOLDEN = Path(__file__).parents[2] / "golden" / "fleets"

JOINS = ("gpuscale_gpu_allocation_info", "gpuscale_gpu_claim_info")
"""Who holds what, many-to-many: to be joined by uuid, and to be summed by nobody."""

every_fleet = pytest.mark.parametrize("fleet", sorted(FLEETS))


def series(fleet: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """(labels, value) by the name of the series, as a scraper reads the page."""
    found = defaultdict(list)
    for family in parse_text(page(FLEETS[fleet].sample()).text.decode()):
        for sample in family.samples:
            name = sample.name
            if name.startswith("DCGM_"):
                name = name.removesuffix("_total")  # this parser's own addition to counters
            found[name].append((sample.labels, sample.value))
    return found


@every_fleet
def test_the_page_of_a_fleet_is_as_it_was(fleet: str) -> None:
    path = GOLDEN / f"{fleet}.prom"
    now = page(FLEETS[fleet].sample()).text
    if os.environ.get("GPUSCALE_GOLDEN") == "write":
        path.write_bytes(now)
    assert now.decode() == path.read_text(encoding="utf-8"), f"{fleet}: see the head of this file"


@every_fleet
def test_the_openmetrics_page_of_a_fleet_parses_to_the_same_values(fleet: str) -> None:
    text = series(fleet)
    body = page(FLEETS[fleet].sample()).openmetrics.decode()
    families = parse_openmetrics(body)  # type: ignore[no-untyped-call]
    openmetrics = defaultdict(list)
    for family in families:
        for sample in family.samples:
            openmetrics[sample.name].append((sample.labels, sample.value))
    assert openmetrics == text


@every_fleet
def test_a_sum_over_any_device_family_counts_no_gpu_twice(fleet: str) -> None:
    """One series of a GPU per set of its own labels, whoever shares it; its instances are elsewhere."""
    sample = FLEETS[fleet].sample()
    for name, rows in series(fleet).items():
        if name.startswith("gpuscale_gpu_") and name not in JOINS:
            labels = [tuple(sorted(row.items())) for row, _ in rows]
            assert len(labels) == len(set(labels)), name
            assert {row["uuid"] for row, _ in rows} <= {d.identity.uuid for d in sample.devices}
            assert not {"namespace", "pod"} & {label for row, _ in rows for label in row}, name


@every_fleet
def test_memory_sums_to_what_the_boards_have(fleet: str) -> None:
    rows = series(fleet)
    total = sum(value for _, value in rows["gpuscale_gpu_memory_total_bytes"])
    parts = ("used", "free", "reserved")
    assert total == sum(
        value for part in parts for _, value in rows[f"gpuscale_gpu_memory_{part}_bytes"]
    )
    instances = sum(value for _, value in rows["gpuscale_mig_memory_total_bytes"])
    assert instances <= total


@every_fleet
def test_a_compatible_field_shows_a_gpu_or_its_instances_and_never_both(fleet: str) -> None:
    for name, rows in series(fleet).items():
        if name.startswith("DCGM_"):
            of_instances = [row for row, _ in rows if "GPU_I_ID" in row]
            assert len(of_instances) in (0, len(rows)), name
            keys = [(row["UUID"], row.get("GPU_I_ID")) for row, _ in rows]
            assert len(keys) == len(set(keys)), name


@every_fleet
def test_what_is_announced_as_unsupported_is_absent_and_the_rest_is_there(fleet: str) -> None:
    rows = series(fleet)
    for labels, _ in rows["gpuscale_gpu_unsupported_info"]:
        given = [row for row, _ in rows.get(labels["metric"], ())]
        assert labels["uuid"] not in [row.get("parent_uuid", row["uuid"]) for row in given]


def test_an_h100_node_shows_every_default_field_but_what_it_cannot_have() -> None:
    """No error was announced, and no board is a vGPU."""
    missing = {field.name for field in DEFAULT} - series("h100x8").keys()
    assert missing == {"DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_VGPU_LICENSE_STATUS"}


def test_an_a100_says_of_its_instances_what_they_hold_and_not_how_busy_they_are() -> None:
    """Hardware counters per instance came with Hopper: absent, announced, and never 0."""
    rows = series("a100-mixed-mig")
    assert len(rows["gpuscale_mig_memory_used_bytes"]) == 4
    assert "gpuscale_mig_sm_active_ratio" not in rows
    assert "DCGM_FI_DEV_GPU_UTIL" not in rows
    lacking = {row["metric"] for row, _ in rows["gpuscale_gpu_unsupported_info"]}
    assert {"gpuscale_mig_sm_active_ratio", "gpuscale_gpu_utilization_ratio"} <= lacking


def test_an_instance_of_hopper_has_hardware_counters_of_its_own() -> None:
    rows = series("h100-mig-7x1g")
    assert len(rows["gpuscale_mig_sm_active_ratio"]) == 7
    assert len(rows["DCGM_FI_PROF_GR_ENGINE_ACTIVE"]) == 7
    assert len(rows["gpuscale_gpu_power_watts"]) == len(rows["DCGM_FI_DEV_POWER_USAGE"]) == 1


def test_a_consumer_card_has_what_it_has() -> None:
    rows = series("geforce")
    assert [value for _, value in rows["gpuscale_gpu_fan_speed_ratio"]] != []
    assert "DCGM_FI_PROF_DRAM_ACTIVE" not in rows
    assert "gpuscale_gpu_ecc_errors_total" not in rows
    assert "gpuscale_gpu_utilization_ratio" in rows


def test_a_machine_with_one_memory_says_so_and_counts_its_energy_from_power() -> None:
    rows = series("jetson")
    assert [row["kind"] for row, _ in rows["gpuscale_gpu_memory_kind_info"]] == ["unified"]
    assert "gpuscale_gpu_memory_reserved_bytes" not in rows
    ((_, joules),) = rows["gpuscale_gpu_energy_joules_total"]
    assert joules > 0


def test_time_slices_share_one_series_of_their_gpu() -> None:
    rows = series("t4-time-sliced")
    assert len(rows["gpuscale_gpu_allocation_info"]) == 6
    assert len(rows["gpuscale_gpu_power_watts"]) == 2
    assert all("pod" not in row for row, _ in rows["DCGM_FI_DEV_POWER_USAGE"])


def test_promise_8_clients_of_mps_are_on_the_gpu_that_their_id_names_each_with_its_number() -> None:
    rows = series("l4-mps")
    first, second = (row["uuid"] for row, _ in rows["gpuscale_gpu_info"])
    held = [(r["pod"], r["uuid"], r["replica"]) for r, _ in rows["gpuscale_gpu_allocation_info"]]
    assert sorted(held) == [
        ("embed-0", first, "9"),
        ("embed-1", second, "10"),
        ("embed-2", first, "11"),
        ("embed-3", second, "12"),
        ("embed-4", first, "13"),
    ]
    assert all("pod" not in row for row, _ in rows["DCGM_FI_DEV_FB_USED"]), "it is nobody's alone"


def test_promise_13_claimed_gpus_name_their_claim_and_one_that_nobody_claims_is_there() -> None:
    rows = series("h100-dra")
    assert len(rows["gpuscale_gpu_power_watts"]) == 3
    uuids = [row["uuid"] for row, _ in rows["gpuscale_gpu_info"]]
    claimed = {
        (row["uuid"], row["pod"], row["claim"]) for row, _ in rows["gpuscale_gpu_claim_info"]
    }
    assert claimed == {
        (uuids[0], "vllm-0", "inference/shared"),
        (uuids[0], "vllm-1", "inference/shared"),
        (uuids[1], "batch-0", "inference/batch-0-gpu"),
    }
    holders = {row["UUID"]: row.get("pod") for row, _ in rows["DCGM_FI_DEV_GPU_UTIL"]}
    assert holders == {uuids[0]: None, uuids[1]: "batch-0", uuids[2]: None}


def test_promise_13_a_claimed_instance_is_attributed_and_not_its_gpu() -> None:
    rows = series("h100-dra-mig")
    info = [row["uuid"] for row, _ in rows["gpuscale_mig_info"]]
    claims = {row["uuid"]: row["pod"] for row, _ in rows["gpuscale_gpu_claim_info"]}
    assert claims == {uuid: f"vllm-{place}" for place, uuid in enumerate(info[:4])}
    pods = [row.get("pod") for row, _ in rows["DCGM_FI_DEV_FB_USED"]]
    assert pods == ["vllm-0", "vllm-1", "vllm-2", "vllm-3", None, None, None]


@pytest.mark.prometheus
@tools.requires("promtool")
@every_fleet
def test_promtool_finds_nothing_to_say_about_a_fleet(fleet: str) -> None:
    promtool = tools.promtool()
    assert promtool is not None
    ours = httpd.render(exposition.families(FLEETS[fleet].sample(), AT)).text
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=ours, capture_output=True, timeout=30, check=False
    )
    assert checked.returncode == 0, checked.stderr.decode() + checked.stdout.decode()
