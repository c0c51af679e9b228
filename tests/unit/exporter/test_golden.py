"""The whole page of one node, letter by letter: what dashboards, alerts and queries rest on.

After a change that is meant, write the files anew and read the difference before committing it:

    GPUSCALE_GOLDEN=write pytest tests/unit/exporter/test_golden.py
"""

import dataclasses
import os
import subprocess
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from gpuscale import catalog, httpd
from gpuscale.exporter import exposition
from gpuscale.exporter.sample import CollectorStats, NodeSample, Unsupported
from tests import tools
from tests.fakes.gpu import FakeDriver, instance
from tests.fakes.node import AT, allocation, attribution, node_of, usage
from tests.fakes.node import page as page_of

GOLDEN = Path(__file__).parents[2] / "golden"


def node() -> NodeSample:
    """One GPU held whole, one shared by two pods and a MIG instance of it claimed, one that hangs and lacks its energy counter."""
    driver = FakeDriver.of(3)
    driver.gpus[1].mig = (instance(driver.gpus[1].identity.uuid),)
    whole, shared, _ = (gpu.identity.uuid for gpu in driver.gpus)
    sample = node_of(driver)
    hung = dataclasses.replace(
        sample.devices[2],
        up=False,
        reason="power_watts has not returned within 5 s",
        samples=(),
        unsupported=(
            Unsupported(family="gpuscale_gpu_energy_joules_total", reason="not_supported"),
        ),
    )
    held = attribution(
        [
            allocation(whole),
            allocation(shared, pod="triton-0", replica="0"),
            allocation(shared, pod="triton-1", replica="1"),
            dataclasses.replace(
                allocation(instance(shared).uuid, pod="mig-0"),
                parent_uuid=shared,
                resource="gpu.nvidia.com",
                claim="inference/small",
            ),
        ],
        unmatched=1,
    )
    failed = CollectorStats(name="power", duration_s=0.002, errors=(("driver_error_999", 2),))
    return dataclasses.replace(
        sample,
        devices=(*sample.devices[:2], hung),
        attribution=held,
        usage=usage(whole),
        collectors=tuple(failed if c.name == "power" else c for c in sample.collectors),
    )


def page(*, with_dcgm: bool = True) -> httpd.Exposition:
    return page_of(node()) if with_dcgm else httpd.render(exposition.families(node(), AT))


def compare(name: str, now: bytes) -> None:
    path = GOLDEN / name
    if os.environ.get("GPUSCALE_GOLDEN") == "write":
        path.write_bytes(now)
    assert now.decode() == path.read_text(encoding="utf-8"), f"{name}: see the head of this file"


def test_the_text_page_is_as_it_was() -> None:
    compare("exporter.prom", page().text)


def test_the_openmetrics_page_is_as_it_was() -> None:
    compare("exporter.openmetrics", page().openmetrics)


def test_the_golden_node_shows_every_family_that_a_healthy_driver_gives() -> None:
    families = parse_openmetrics(page().openmetrics.decode())  # type: ignore[no-untyped-call]
    shown = {sample.name for family in families for sample in family.samples}
    missing = {family.name for family in catalog.EXPORTER} - shown
    assert missing == {
        "gpuscale_attribution_error_info",
        "gpuscale_nvml_error_info",
        "gpuscale_process_mapping_error_info",
        "gpuscale_gpu_xid_errors_total",
        "gpuscale_gpu_xid_last_timestamp_seconds",
    }


@pytest.mark.prometheus
@tools.requires("promtool")
def test_promtool_finds_nothing_to_say_about_our_families() -> None:
    """The compatible series keep dcgm-exporter's names, of which promtool would not approve."""
    promtool = tools.promtool()
    assert promtool is not None
    checked = subprocess.run(
        [promtool, "check", "metrics"],
        input=page(with_dcgm=False).text,
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr.decode() + checked.stdout.decode()
