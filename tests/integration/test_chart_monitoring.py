"""What the chart gives to Prometheus and Grafana, and that the packed chart gives the same."""

import json
from pathlib import Path

import pytest
import yaml

from tests import promql, tools
from tests.chart import CHART, MATRIX, helm, one, render

pytestmark = tools.requires("helm")


@pytest.mark.parametrize(
    ("case", "kind"), [("service-monitor", "ServiceMonitor"), ("pod-monitor", "PodMonitor")]
)
def test_scraping_keeps_the_workloads_labels_and_gives_the_jobs_that_alerts_name(
    case: str, kind: str
) -> None:
    objects = render(*MATRIX[case])
    monitors = [o for o in objects if o["kind"] == kind]
    assert len(monitors) == 2
    jobs = set()
    for monitor in monitors:
        spec = monitor["spec"]
        (endpoint,) = spec["endpoints" if kind == "ServiceMonitor" else "podMetricsEndpoints"]
        assert endpoint["honorLabels"] is True
        jobs |= {r["replacement"] for r in endpoint["relabelings"] if r["targetLabel"] == "job"}
        carriers = [
            o["metadata"] if kind == "ServiceMonitor" else o["spec"]["template"]["metadata"]
            for o in objects
            if o["kind"]
            in (["Service"] if kind == "ServiceMonitor" else ["DaemonSet", "Deployment"])
        ]
        wanted = spec["selector"]["matchLabels"].items()
        assert sum(wanted <= carrier["labels"].items() for carrier in carriers) == 1
    assert jobs == {"gpuscale-exporter", "gpuscale-controller"}


def test_alerts_come_whole_less_what_is_switched_off() -> None:
    rule = one(render(*MATRIX["alerts-and-dashboards"]), "PrometheusRule")
    *groups, prices = rule["spec"]["groups"]
    shipped = [r for group in groups for r in group["rules"]]
    assert prices["rules"] == [
        {
            "record": promql.PRICE,
            "expr": "vector(3.2)",
            "labels": {"product": "NVIDIA H100 80GB HBM3"},
        }
    ]
    original = [
        r
        for path in sorted((tools.REPOSITORY / "alerts").glob("*.yaml"))
        for group in yaml.safe_load(path.read_text())["groups"]
        for r in group["rules"]
        if r.get("alert") != "GpuscaleGpuHot"
    ]
    assert len(shipped) == len(original) > 0
    for ours, theirs in zip(shipped, original, strict=True):
        assert ours["expr"].split() == theirs["expr"].split()
        if "record" in theirs:
            assert ours.keys() == theirs.keys()
            continue
        assert ours["labels"] == theirs["labels"] | {"team": "ml"}
        assert ours["annotations"] == theirs["annotations"] | {
            "runbook_url": "https://wiki.example/gpuscale/" + theirs["annotations"]["runbook_url"]
        }


def test_dashboards_come_byte_for_byte() -> None:
    maps = [
        o for o in render(*MATRIX["alerts-and-dashboards"]) if "dashboard" in o["metadata"]["name"]
    ]
    shipped = {name: text for o in maps for name, text in o["data"].items()}
    originals = {p.name: p for p in (tools.REPOSITORY / "dashboards").glob("*.json")}
    assert shipped.keys() == originals.keys()
    assert originals
    for name, path in originals.items():
        assert json.loads(shipped[name]) == json.loads(path.read_text())
    assert all(o["metadata"]["labels"]["grafana_dashboard"] == "1" for o in maps)


def test_the_chart_packs_with_all_it_needs(tmp_path: Path) -> None:
    done = helm("package", str(CHART), "--destination", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.glob("*.tgz")
    flags = [part for s in MATRIX["alerts-and-dashboards"] for part in ("--set", s)]
    packed = helm("template", "gpuscale", str(archive), "--namespace", "gpu-system", *flags)
    assert packed.returncode == 0, packed.stderr
    objects = tuple(document for document in yaml.safe_load_all(packed.stdout) if document)
    assert objects == render(*MATRIX["alerts-and-dashboards"])
