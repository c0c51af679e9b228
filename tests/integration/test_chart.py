"""The Helm chart: every rendering is valid Kubernetes, least-privileged, and carries settings that the daemons accept."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from gpuscale.config import load
from gpuscale.controller import scaledobject
from gpuscale.settings import (
    AccountingSettings,
    ControllerSettings,
    ExporterSettings,
    JournalSettings,
)
from tests import manifests, tools
from tests.chart import CHART, MATRIX, container, helm, one, render

pytestmark = tools.requires("helm")


@pytest.mark.parametrize("case", MATRIX)
def test_lints_without_a_warning(case: str) -> None:
    flags = [part for setting in MATRIX[case] for part in ("--set", setting)]
    done = helm("lint", "--strict", str(CHART), *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize("case", MATRIX)
def test_every_object_is_valid_in_strict_schemas(case: str) -> None:
    for document in render(*MATRIX[case]):
        assert not manifests.unknown(document), document["kind"]
        # Claims of a container are newer than the oldest release: the mode is for those that have them.
        manifests.check(document, since="1.35" if case == "dra" else manifests.KUBERNETES[0])
        assert re.fullmatch("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", document["metadata"]["name"])


def test_a_typing_error_would_not_pass_the_strict_schemas() -> None:
    broken = json.loads(json.dumps(one(render(), "Deployment")))
    broken["spec"]["template"]["spec"]["containers"][0]["imagePullPolice"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError):
        manifests.check(broken)


@pytest.mark.parametrize("kind", sorted(manifests.KINDS))
def test_nor_would_one_in_a_custom_resource(kind: str) -> None:
    found = {
        o["kind"]: o
        for case in ("tls-by-cert-manager", "pod-monitor", "alerts-and-dashboards")
        for o in render(*MATRIX[case])
    }
    broken = json.loads(json.dumps(found[kind]))
    broken["spec"]["intervall"] = "15s"
    with pytest.raises(jsonschema.ValidationError):
        manifests.check(broken)


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("controller.replicas=2", "replicas"),
        ("exporter.tolerationz=1", "tolerationz"),
        ("exporter.config.periods.fast_ms=1", "fast_ms"),
        ("exporter.config.periods.fast_s=0", "fast_s"),
        ("controller.config.defaults.mode=live", "mode"),
        ("exporter.config.listen=:0", "port 0"),
        ("controller.config=a: [", "not YAML"),
        ("controller.config.listen=:6000", "listen_grpc"),
        ("prometheusRule.runbookBaseUrl=wiki", "runbookBaseUrl"),
        ("prometheusRule.gpuHourPrices.L4=cheap", "L4"),
        ("exporter.gpuAccess.mode=magic", "mode"),
        ("runtimeClass.create=true", "exporter.runtimeClassName"),
    ],
)
def test_values_that_cannot_work_are_refused_by_name(setting: str, named: str) -> None:
    done = helm("template", "gpuscale", str(CHART), "--set", setting)
    assert done.returncode != 0
    assert named in done.stderr


def test_two_monitors_at_once_are_refused() -> None:
    flags = ("--set", "serviceMonitor.enabled=true", "--set", "podMonitor.enabled=true")
    done = helm("template", "gpuscale", str(CHART), *flags)
    assert done.returncode != 0
    assert "enable one" in done.stderr


def test_default_settings_are_the_documented_defaults(tmp_path: Path) -> None:
    """Only the places of the journal and the accounts differ: a pod has a volume for each."""
    assert settings_of(render(), "exporter", tmp_path) == ExporterSettings(
        accounting=AccountingSettings(state_file="/var/lib/gpuscale/accounts.json")
    )
    assert settings_of(render(), "controller", tmp_path) == ControllerSettings(
        journal=JournalSettings(path="/var/lib/gpuscale/journal.sqlite")
    )


def test_settings_arrive_as_they_were_written(tmp_path: Path) -> None:
    """Whole numbers stay whole, quotes and comparison signs in PromQL stay what they are."""
    selector = 'namespace="{namespace}",pod!~"<x>&.+"'
    values = tmp_path / "values.yaml"
    values.write_text(
        yaml.safe_dump(
            {
                "exporter": {
                    "config": {
                        "stale_after_s": 12.5,
                        "pod_resources": {"socket": "/run/kubelet/kubelet.sock"},
                    }
                },
                "controller": {
                    "config": {
                        "scrape": {"bytes_max": 16_777_216},
                        "journal": {"keep_s": 1_000_000},
                        "kubernetes": {"enabled": "off"},
                        "defaults": {"selector": selector},
                        "workloads": [
                            {
                                "namespace": "models",
                                "name": "llama",
                                "overrides": {"max_replicas": 7},
                            }
                        ],
                    }
                },
            }
        )
    )
    done = helm("template", "gpuscale", str(CHART), "--values", str(values))
    assert done.returncode == 0, done.stderr
    objects = tuple(document for document in yaml.safe_load_all(done.stdout) if document)
    exporter = settings_of(objects, "exporter", tmp_path)
    assert isinstance(exporter, ExporterSettings)
    assert exporter.stale_after_s == 12.5
    mounts = {
        m["name"]: m["mountPath"] for m in container(one(objects, "DaemonSet"))["volumeMounts"]
    }
    assert mounts["pod-resources"] == "/run/kubelet"
    controller = settings_of(objects, "controller", tmp_path)
    assert isinstance(controller, ControllerSettings)
    assert controller.scrape.bytes_max == 16_777_216
    assert controller.journal.keep_s == 1_000_000
    assert controller.kubernetes.enabled == "off"
    assert controller.defaults.selector == selector
    assert controller.policy_of(controller.workloads[0]).max_replicas == 7


def test_settings_may_be_the_text_of_a_file(tmp_path: Path) -> None:
    """It is mounted letter by letter, comments too, and ports and rights still follow it."""
    text = '# of the platform team\nlisten: ":8088"\nkubernetes: {namespaces: [chat]}\n'
    (tmp_path / "mine.yaml").write_text(text)
    done = helm(
        "template", "g", str(CHART), "--set-file", f"controller.config={tmp_path / 'mine.yaml'}"
    )
    assert done.returncode == 0, done.stderr
    objects = tuple(document for document in yaml.safe_load_all(done.stdout) if document)
    assert one(objects, "ConfigMap", "-controller")["data"]["controller.yaml"] == text
    (port,) = one(objects, "Service", "-gpuscale-controller")["spec"]["ports"]
    assert port["port"] == 8088
    assert one(objects, "Role")["metadata"]["namespace"] == "chat"


def settings_of(
    objects: tuple[dict[str, Any], ...], daemon: str, folder: Path
) -> ExporterSettings | ControllerSettings:
    """The settings that the daemon would load from the ConfigMap that its pod mounts."""
    workload = one(objects, {"exporter": "DaemonSet", "controller": "Deployment"}[daemon])
    data = one(objects, "ConfigMap", f"-{daemon}")["data"]
    (name,) = data
    arguments = container(workload)["args"]
    assert arguments[:3] == [daemon, "--config", f"/etc/gpuscale/{name}"]
    (folder / name).write_text(data[name])
    if daemon == "exporter":
        return load(folder / name, ExporterSettings)
    return load(folder / name, ControllerSettings)


PRIVILEGED = {"privileged"}
"""Access modes in which the exporter sees all devices for want of a runtime that gives them."""


@pytest.mark.parametrize("case", MATRIX)
def test_no_pod_has_a_right_it_does_not_need(case: str) -> None:
    for workload in render(*MATRIX[case]):
        if workload["kind"] not in {"DaemonSet", "Deployment"}:
            continue
        pod = workload["spec"]["template"]["spec"]
        security = container(workload)["securityContext"]
        assert security["readOnlyRootFilesystem"] is True
        if workload["kind"] == "DaemonSet" and case in PRIVILEGED:
            assert security["privileged"] is True
        else:
            assert "privileged" not in security
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert security["allowPrivilegeEscalation"] is False
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostIPC"} & pod.keys()
        # The host's processes are seen where their mapping was asked for, and nowhere else.
        asked = workload["kind"] == "DaemonSet" and case == "processes"
        assert pod.get("hostPID", False) is asked
        assert "nvidia.com/gpu" not in json.dumps(container(workload)["resources"])
        for volume in pod["volumes"]:
            if "hostPath" in volume:
                (mount,) = (
                    m for m in container(workload)["volumeMounts"] if m["name"] == volume["name"]
                )
                assert mount.get("readOnly", False) or volume["name"] == "accounts"
        if workload["kind"] == "Deployment":
            assert pod["securityContext"]["runAsNonRoot"] is True
            assert all("hostPath" not in volume for volume in pod["volumes"])
        else:
            assert pod["automountServiceAccountToken"] is False


def test_what_the_exporter_reads_and_keeps_is_mounted_where_its_settings_say() -> None:
    def mounted(case: str) -> dict[str, tuple[str, dict[str, Any]]]:
        workload = one(render(*MATRIX[case]), "DaemonSet")
        volumes = {v["name"]: v for v in workload["spec"]["template"]["spec"]["volumes"]}
        return {
            m["name"]: (m["mountPath"], volumes[m["name"]])
            for m in container(workload)["volumeMounts"]
        }

    default = mounted("defaults")
    assert default["pod-logs"][0] == "/var/log/pods"
    assert default["accounts"][0] == "/var/lib/gpuscale"
    assert "emptyDir" in default["accounts"][1]
    assert mounted("processes")["accounts"][1]["hostPath"]["path"] == "/var/lib/gpuscale"
    assert not {"pod-logs", "accounts"} & mounted("nothing-but-gpus").keys()
    assert not {"pod-logs", "pod-resources"} & mounted("no-attribution").keys()


def rules(*settings: str) -> list[dict[str, Any]]:
    return [
        rule
        for o in render(*settings)
        if o["kind"] in {"ClusterRole", "Role"}
        for rule in o["rules"]
    ]


@pytest.mark.parametrize("case", MATRIX)
def test_no_secret_is_read_and_no_pod_is_executed_into(case: str) -> None:
    for rule in rules(*MATRIX[case]):
        assert not {"secrets", "pods/exec", "*"} & set(rule["resources"])
        assert "*" not in rule["verbs"] + rule["apiGroups"]


def test_nothing_may_be_written_unless_direct_mode_is_on() -> None:
    reading = {"get", "list", "watch"}
    assert all(set(rule["verbs"]) <= reading for rule in rules())
    written = [r for r in rules(*MATRIX["direct"]) if not set(r["verbs"]) <= reading]
    assert written
    for rule in written:
        assert rule["verbs"] == ["patch"]
        assert all(resource.endswith("/scale") for resource in rule["resources"])


def test_watching_some_namespaces_needs_no_right_in_the_others() -> None:
    objects = render(*MATRIX["some-namespaces"])
    assert not [o for o in objects if o["kind"].startswith("ClusterRole")]
    roles = {o["metadata"]["namespace"] for o in objects if o["kind"] == "Role"}
    bindings = {o["metadata"]["namespace"] for o in objects if o["kind"] == "RoleBinding"}
    assert roles == bindings == {"models", "chat"}


@pytest.mark.parametrize("case", ["defaults", "other-ports"])
def test_the_map_of_gpus_is_read_from_this_charts_exporters(case: str, tmp_path: Path) -> None:
    objects = render(*MATRIX[case], "networkPolicy.enabled=true")
    exporter = settings_of(objects, "exporter", tmp_path)
    service = one(objects, "Service", "-exporter")["metadata"]
    port = exporter.listen.rpartition(":")[2]
    arguments = container(one(objects, "Deployment"))["args"]
    assert arguments[3:] == [
        "--exporters",
        f"http://{service['name']}.{service['namespace']}.svc:{port}",
    ]
    labels = one(objects, "Deployment")["spec"]["selector"]["matchLabels"]
    admitted = one(objects, "NetworkPolicy", "-exporter")["spec"]["ingress"][0]["from"]
    assert {"podSelector": {"matchLabels": labels}} in admitted
    exporters = one(objects, "DaemonSet")["spec"]["selector"]["matchLabels"]
    let_out = one(objects, "NetworkPolicy", "-controller")["spec"]["egress"]
    assert {
        "to": [{"podSelector": {"matchLabels": exporters}}], "ports": [{"port": "metrics"}]
    } in let_out  # fmt: skip


@pytest.mark.parametrize(
    "settings",
    [
        ("exporter.enabled=false",),
        ("controller.config.exporters.urls[0]=https://exporters:9400",),
        ("exporter.config.web.config_file=/etc/web/web.yaml",),
    ],
)
def test_exporters_that_are_named_protected_or_not_there_are_not_named_again(
    settings: tuple[str, ...],
) -> None:
    assert len(container(one(render(*settings), "Deployment"))["args"]) == 3


@pytest.mark.parametrize("case", ["defaults", "other-ports"])
def test_services_probes_and_monitors_reach_the_port_of_the_settings(
    case: str, tmp_path: Path
) -> None:
    objects = render(*MATRIX[case])
    exporter = settings_of(objects, "exporter", tmp_path)
    controller = settings_of(objects, "controller", tmp_path)
    assert isinstance(controller, ControllerSettings)
    wanted = {
        "-exporter": int(exporter.listen.rpartition(":")[2]),
        "-controller": int(controller.listen.rpartition(":")[2]),
        "-grpc": int(controller.listen_grpc.rpartition(":")[2]),
    }
    named = {
        port["name"]: port["containerPort"]
        for kind in ("DaemonSet", "Deployment")
        for port in container(one(objects, kind))["ports"]
    }
    for suffix, number in wanted.items():
        (port,) = one(objects, "Service", suffix)["spec"]["ports"]
        assert port["port"] == number
        assert named[port["targetPort"]] == number
    for kind in ("DaemonSet", "Deployment"):
        probed = container(one(objects, kind))
        assert probed["livenessProbe"]["httpGet"]["path"] == "/healthz"
        assert probed["readinessProbe"]["httpGet"]["path"] == "/readyz"
        assert probed["readinessProbe"]["httpGet"]["port"] in named


def test_the_printed_scaledobject_names_the_service_of_a_default_install() -> None:
    """`gpuscale scaledobject` and deploy/static/gpuscale.yaml speak of the same address."""
    objects = tuple(
        document
        for document in yaml.safe_load_all(
            (tools.REPOSITORY / "deploy" / "static" / "gpuscale.yaml").read_text()
        )
        if document
    )
    service = one(objects, "Service", "-grpc")
    (port,) = service["spec"]["ports"]
    name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
    assert f"{name}.{namespace}.svc:{port['port']}" == scaledobject.ADDRESS


def test_the_scaler_service_leaves_out_pods_that_could_only_answer_errors() -> None:
    service = one(render(), "Service", "-grpc")["spec"]
    assert service["clusterIP"] == "None"
    assert not service.get("publishNotReadyAddresses", False)


def test_selectors_of_services_and_workloads_find_their_pods() -> None:
    objects = render()
    for kind, services in (("DaemonSet", ["-exporter"]), ("Deployment", ["-controller", "-grpc"])):
        workload = one(objects, kind)
        labels = workload["spec"]["template"]["metadata"]["labels"].items()
        assert workload["spec"]["selector"]["matchLabels"].items() <= labels
        for suffix in services:
            assert one(objects, "Service", suffix)["spec"]["selector"].items() <= labels


def test_what_is_derived_in_deploy_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, "deploy/build.py", "--check"],
        cwd=tools.REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
