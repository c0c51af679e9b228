"""The ScaledObject that is printed: valid for KEDA, read back as the same workload, refused where it would be."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from gpuscale.cli import cli
from gpuscale.controller.declared import Declarations, Declared
from gpuscale.controller.scaledobject import declare, scaledobject
from gpuscale.errors import ConfigError, InputError
from gpuscale.settings import ControllerSettings, Policy, ScaleTarget, WorkloadSettings
from tests.tools import REPOSITORY


def declared(
    settings: ControllerSettings, objects: Iterable[Mapping[str, object]] = ()
) -> Declared:
    return Declarations(settings).read(objects)


CRD = REPOSITORY.parent / "shared" / "keda-crds" / "keda.sh_scaledobjects.yaml"
SETTINGS = ControllerSettings(
    policies={"chat": Policy(mode="act", capacity=4.0, start_time_s=700.0, max_replicas=12)}
)


def manifest(settings: ControllerSettings = SETTINGS, **options: Any) -> dict[str, Any]:
    printed = {k: options.pop(k) for k in ("address", "authentication") if k in options}
    workload, metadata = declare("llm", "llama", settings, **options)
    return scaledobject(workload, metadata, **printed)


def strict(schema: Any) -> Any:
    """The schema, with no key allowed that it does not name."""
    if isinstance(schema, list):
        return [strict(s) for s in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {k: strict(v) for k, v in schema.items()}
    if isinstance(closed.get("properties"), dict) and closed.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    return closed


def crd_schema() -> Any:
    if not CRD.exists():
        pytest.skip("KEDA's CRDs are missing: put them into shared/keda-crds beside the checkout")
    crd = yaml.safe_load(Path(CRD).read_text(encoding="utf-8"))
    schema = strict(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    return schema


MANIFESTS = {
    "plain": manifest(),
    "policy": manifest(policy="chat", authentication="gpuscale-mtls"),
    "fields": manifest(fields={"min_replicas": 0, "max_replicas": 300, "risk": 0.5, "mode": "act"}),
    "address": manifest(address="10.0.0.7:6000"),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_kedas_own_schema_accepts_it_and_knows_every_key(name: str) -> None:
    jsonschema.validate(MANIFESTS[name], crd_schema())


def test_the_schema_is_strict_enough_to_fail() -> None:
    for path, value in ((("spec", "minReplicaCont"), 1), (("spec", "pollingInterval"), "10")):
        broken = json.loads(json.dumps(MANIFESTS["plain"]))
        broken[path[0]][path[1]] = value
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, crd_schema())


@pytest.mark.parametrize("name", MANIFESTS)
def test_the_controller_reads_it_back_without_a_refusal(name: str) -> None:
    found = declared(SETTINGS, [MANIFESTS[name]])
    assert found.refusals == {}
    (workload,) = found.workloads
    assert workload.key == "llm/llama"
    assert workload.only_trigger


def test_what_was_asked_for_comes_back() -> None:
    (workload,) = declared(SETTINGS, [MANIFESTS["policy"]]).workloads
    assert workload.policy == SETTINGS.policies["chat"]
    fields = {
        "risk": 0.1 + 0.2,
        "capacity": 1e-6,
        "headroom": 0.25,
        "start_time_s": 90.5,
        "step_up_max": 3,
        "server": "triton",
        "mode": "act",
        "metrics_port": 9000,
    }
    (workload,) = declared(SETTINGS, [manifest(fields=fields)]).workloads
    for field, value in fields.items():
        assert getattr(workload.policy, field) == (
            pytest.approx(value) if isinstance(value, float) else value
        )


def test_the_hpa_is_told_to_follow() -> None:
    spec = manifest(policy="chat")["spec"]
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior["scaleUp"]["tolerance"] == behavior["scaleDown"]["tolerance"] == "0"
    assert behavior["scaleUp"]["stabilizationWindowSeconds"] == 0
    assert [p["value"] for p in behavior["scaleUp"]["policies"]] == [900, 20]
    assert [p["value"] for p in behavior["scaleDown"]["policies"]] == [2]
    (trigger,) = spec["triggers"]
    assert (trigger["type"], trigger["metricType"]) == ("external-push", "AverageValue")
    assert trigger["metadata"] == {
        "scalerAddress": "gpuscale-grpc.gpuscale.svc:6000",
        "policy": "chat",
    }
    assert spec["cooldownPeriod"] == 700
    assert spec["fallback"]["behavior"] == "currentReplicasIfHigher"
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (1, 12)


def test_a_large_fleet_may_rise_at_once_and_fall_by_a_tenth_a_minute() -> None:
    behavior = manifest(fields={"max_replicas": 300})["spec"]["advanced"][
        "horizontalPodAutoscalerConfig"
    ]["behavior"]
    assert behavior["scaleUp"]["policies"][1]["value"] == 300
    assert behavior["scaleDown"]["policies"][0]["value"] == 30


def test_an_address_that_does_not_name_gpuscale_gets_the_flag() -> None:
    metadata = manifest(address="10.0.0.7:6000")["spec"]["triggers"][0]["metadata"]
    assert metadata == {"scalerAddress": "10.0.0.7:6000", "gpuscale": "true"}


def test_a_workload_of_the_settings_file_is_printed_as_it_stands_there() -> None:
    settings = ControllerSettings(
        policies=SETTINGS.policies,
        workloads=(
            WorkloadSettings(
                namespace="llm",
                name="llama",
                policy="chat",
                overrides={"max_replicas": 7, "headroom": 0.1},
                target=ScaleTarget(kind="StatefulSet", name="llama-8b"),
            ),
        ),
    )
    spec = manifest(settings)["spec"]
    assert spec["scaleTargetRef"] == {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "name": "llama-8b",
    }
    assert spec["maxReplicaCount"] == 7
    assert spec["triggers"][0]["metadata"]["headroom"] == "0.1"


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"policy": "absent"}, ConfigError, "policy 'absent' is not defined"),
        ({"fields": {"risk": 2.0}}, ConfigError, "key `risk`"),
        (
            {"fields": {"selector": "x"}},
            ConfigError,
            "selector cannot be set in a trigger's metadata",
        ),
        ({"address": "http://x/"}, ConfigError, "metadata key scalerAddress is 'http://x/'"),
    ],
)
def test_what_the_controller_would_refuse_is_not_printed(
    options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        manifest(**options)


@pytest.mark.parametrize("name", ["Llama", "a_b", "x" * 64, "-a", ""])
def test_names_that_kubernetes_or_keda_does_not_take_are_refused(name: str) -> None:
    with pytest.raises(InputError):
        declare("llm", name, SETTINGS)


def test_the_command_prints_yaml_or_json(tmp_path: Path) -> None:
    config = tmp_path / "controller.yaml"
    config.write_text("policies: {chat: {capacity: 4, mode: act}}\n")
    arguments = [
        "scaledobject",
        "llm/llama",
        "--config",
        str(config),
        "--policy",
        "chat",
        "--max",
        "9",
    ]
    printed = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert printed.exit_code == 0
    found = yaml.safe_load(printed.stdout)
    assert found["spec"]["maxReplicaCount"] == 9
    as_json = CliRunner().invoke(cli, [*arguments, "--format", "json"], catch_exceptions=False)
    assert json.loads(as_json.stdout) == found


def test_the_command_says_what_is_no_workload() -> None:
    result = CliRunner().invoke(cli, ["scaledobject", "llama"])
    assert isinstance(result.exception, InputError)
    assert str(result.exception) == "'llama' is no workload: write NAMESPACE/NAME"


@pytest.mark.parametrize(
    ("kind", "api_version", "words"),
    [
        ("Foo/Bar", "apps/v1", "key `kind`: expected a kind, such as Deployment"),
        ("Deployment", "apps/", "key `api_version`: expected GROUP/VERSION or VERSION"),
    ],
)
def test_a_target_that_cannot_be_is_refused_with_the_cure(
    kind: str, api_version: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        declare("a", "b", ControllerSettings(), kind=kind, api_version=api_version)
