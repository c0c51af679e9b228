"""Workloads from the settings file and from ScaledObjects: what is taken, what is refused, and in which words."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from gpuscale.controller.declared import Declarations, Declared, pause_of
from gpuscale.controller.domain import Target
from gpuscale.settings import ControllerSettings, Policy, ScaleTarget, WorkloadSettings


def declared(
    settings: ControllerSettings, objects: Iterable[Mapping[str, object]] = ()
) -> Declared:
    return Declarations(settings).read(objects)


HOST = "gpuscale-grpc.gpuscale.svc:6000"
SETTINGS = ControllerSettings(
    policies={
        "chat": Policy(mode="act", capacity=4.0, namespaces=("llm", "team-*")),
        "secret": Policy(namespaces=("board",)),
    }
)


def scaled_object(
    metadata: dict[str, Any] | None = None,
    *,
    name: str = "llama",
    namespace: str = "llm",
    annotations: dict[str, Any] | None = None,
    beside: tuple[dict[str, Any], ...] = (),
    trigger: dict[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    ours = {
        "type": "external-push",
        "metadata": {"scalerAddress": HOST, **(metadata or {})},
        **(trigger or {}),
    }
    return {
        "metadata": {"namespace": namespace, "name": name, "annotations": annotations or {}},
        "spec": {"scaleTargetRef": {"name": "llama-8b"}, "triggers": [ours, *beside], **spec},
    }


def read(*objects: dict[str, Any], settings: ControllerSettings = SETTINGS) -> Declared:
    return declared(settings, objects)


def refusal(*objects: dict[str, Any], key: str = "llm/llama") -> str:
    found = read(*objects)
    assert found.workloads == ()
    return found.refusals[key]


# ---------------------------------------------------------------- what names gpuscale


def test_a_scaledobject_that_names_gpuscale_is_a_workload_under_its_own_name() -> None:
    found = read(scaled_object({"policy": "chat", "risk": "0.8"}, maxReplicaCount=12))
    assert found.refusals == {}
    (workload,) = found.workloads
    assert workload.key == "llm/llama"
    assert workload.target == Target(api_version="apps/v1", kind="Deployment", name="llama-8b")
    assert workload.actuator == "keda"
    assert workload.policy_name == "chat"
    assert workload.only_trigger
    assert workload.paused is None
    assert workload.endpoints == ()
    policy = workload.policy
    assert (policy.mode, policy.capacity, policy.risk) == ("act", 4.0, 0.8)
    assert (policy.min_replicas, policy.max_replicas) == (1, 12)


@pytest.mark.parametrize(
    ("address", "flag", "ours"),
    [
        ("gpuscale-grpc.gpuscale.svc:6000", None, True),
        ("prod-gpuscale-grpc.ml.svc.cluster.local:6000", None, True),
        ("scaler.gpuscale.svc:6000", None, True),
        ("GPUSCALE:6000", None, True),
        ("keda-gpu-scaler.keda.svc:6000", None, False),
        ("gpuscaler.keda.svc:6000", None, False),
        ("mygpuscale.keda.svc:6000", None, False),
        ("10.0.0.7:6000", None, False),
        ("10.0.0.7:6000", "true", True),
        ("[::1]:6000", "true", True),
        ("gpuscale-grpc.gpuscale.svc:6000", "false", False),
    ],
)
def test_the_address_or_a_flag_says_whether_a_trigger_is_ours(
    address: str, flag: str | None, ours: bool
) -> None:
    metadata = {"scalerAddress": address} | ({} if flag is None else {"gpuscale": flag})
    found = read(scaled_object(metadata))
    assert (len(found.workloads) == 1) is ours
    assert found.refusals == {}


def test_other_triggers_and_other_types_are_none_of_our_business() -> None:
    prometheus = scaled_object(trigger={"type": "prometheus"})
    assert read(prometheus) == Declared(workloads=(), refusals={})
    (workload,) = read(
        scaled_object(beside=({"type": "cpu", "metadata": {"value": "80"}},))
    ).workloads
    assert not workload.only_trigger


# ---------------------------------------------------------------- metadata


@pytest.mark.parametrize(
    ("key", "value", "field", "expected"),
    [
        ("capacity", "3.5", "capacity", 3.5),
        ("headroom", "0.2", "headroom", 0.2),
        ("coverageMin", "0.5", "coverage_min", 0.5),
        ("startTime", "90", "start_time_s", 90.0),
        ("startTime", "90s", "start_time_s", 90.0),
        ("startTime", "3m", "start_time_s", 180.0),
        ("dwell", "0.5h", "dwell_s", 1800.0),
        ("hold", "10m", "hold_s", 600.0),
        ("staleAfter", "60", "stale_after_s", 60.0),
        ("stepUpMax", "4", "step_up_max", 4),
        ("stepDownMax", "2", "step_down_max", 2),
        ("metricsPort", "9000", "metrics_port", 9000),
        ("server", "triton", "server", "triton"),
        ("mode", "act", "mode", "act"),
    ],
)
def test_scalars_override_the_policy(key: str, value: str, field: str, expected: object) -> None:
    (workload,) = read(scaled_object({key: value})).workloads
    assert getattr(workload.policy, field) == expected


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"url": "http://169.254.169.254/"}, "unknown metadata key 'url': remove it"),
        (
            {"selector": 'a="b"'},
            "metadata key selector is not read from a trigger: ask the operator",
        ),
        ({"metricsPath": "/x"}, "metadata key metricsPath is not read from a trigger"),
        ({"minReplicas": "2"}, "metadata key minReplicas is not read from a trigger: set spec.min"),
        (
            {"riskFromEnv": "RISK"},
            "'riskFromEnv' names an environment variable, which is never read",
        ),
        ({"risk": "high"}, "metadata key risk is 'high': write a number such as 2.5"),
        ({"risk": "nan"}, "metadata key risk is 'nan': write a number"),
        ({"risk": "1e-3"}, "metadata key risk is '1e-3': write a number"),
        ({"risk": "-1"}, "metadata key risk is '-1': write a number"),
        ({"risk": "1"}, "key `risk`: expected `float` < 1.0"),
        ({"risk": 0.5}, "metadata key risk is 0.5: write a quoted string"),
        ({"risk": None}, "metadata key risk is None: write a quoted string"),
        ({"risk": ["x"]}, "metadata key risk is a list: write a quoted string"),
        ({"risk": ""}, "metadata key risk is '': write a quoted string"),
        ({"risk": "9" * 300}, "…: write a quoted string of 1 to 253 characters"),
        ({"capacity": "0"}, "key `capacity`: expected `float` > 0.0"),
        ({"startTime": "3 min"}, "metadata key startTime is '3 min': write seconds, or a duration"),
        ({"startTime": "48h"}, "key `start_time_s`: expected `float` <= 86400.0"),
        ({"stepUpMax": "1.5"}, "metadata key stepUpMax is '1.5': write a whole number"),
        ({"metricsPort": "70000"}, "key `metrics_port`: expected `int` <= 65535"),
        ({"server": "http://x"}, "metadata key server is 'http://x': write one lower-case word"),
        ({"server": "vllm2"}, "key `server`: 'vllm2' is not one of custom, "),
        ({"mode": "on"}, "key `mode`: 'on' is not one of act, shadow"),
        ({"gpuscale": "yes"}, 'metadata key gpuscale is \'yes\': write "true" or "false"'),
        ({"enableTLS": "1"}, 'metadata key enableTLS is \'1\': write "true" or "false"'),
        ({"policy": "a b"}, "metadata key policy is 'a b': write the name of a policy"),
        ({"hold": "10"}, "hold_s 10 is below stale_after_s 45"),
        (
            {"gpuscale": "true", "scalerAddress": "http://gpuscale:6000/x"},
            "metadata key scalerAddress is 'http://gpuscale:6000/x': write HOST:PORT",
        ),
    ],
)
def test_bad_metadata_is_refused_with_the_key_and_the_cure(
    metadata: dict[str, Any], said: str
) -> None:
    sentence = refusal(scaled_object(metadata))
    assert said in sentence
    assert "\n" not in sentence


def test_a_flag_without_an_address_says_what_is_missing() -> None:
    found = scaled_object({"gpuscale": "true"})
    del found["spec"]["triggers"][0]["metadata"]["scalerAddress"]
    assert refusal(found).startswith("metadata key scalerAddress is missing: set HOST:PORT")


# ---------------------------------------------------------------- policies and namespaces


def test_a_policy_is_open_to_the_namespaces_its_globs_name() -> None:
    (workload,) = read(scaled_object({"policy": "chat"}, namespace="team-a")).workloads
    assert workload.policy_name == "chat"


@pytest.mark.parametrize("name", ["secret", "absent"])
def test_a_closed_policy_looks_like_a_missing_one(name: str) -> None:
    assert refusal(scaled_object({"policy": name})) == (
        f"policy '{name}' is not open to namespace llm: name one that is (chat), or ask the operator "
        "to add the namespace to the policy's `namespaces`"
    )


def test_the_default_policy_can_be_closed_too() -> None:
    closed = ControllerSettings(defaults=Policy(namespaces=("ml",)))
    sentence = read(scaled_object(), settings=closed).refusals["llm/llama"]
    assert sentence.startswith(
        "the default policy is not open to namespace llm: name one that is (none)"
    )


# ---------------------------------------------------------------- bounds


@pytest.mark.parametrize(
    ("spec", "alone", "bounds"),
    [
        ({}, True, (1, 100)),
        ({}, False, (0, 100)),
        ({"minReplicaCount": 3, "maxReplicaCount": 9}, True, (3, 9)),
        ({"minReplicaCount": 0, "maxReplicaCount": 9}, True, (1, 9)),
        ({"minReplicaCount": 2, "idleReplicaCount": 0}, False, (0, 100)),
        ({"minReplicaCount": 2, "idleReplicaCount": 0}, True, (2, 100)),
    ],
)
def test_bounds_are_the_scaledobjects_and_zero_needs_somebody_who_wakes(
    spec: dict[str, Any], alone: bool, bounds: tuple[int, int]
) -> None:
    beside = () if alone else ({"type": "prometheus", "metadata": {}},)
    (workload,) = read(scaled_object(beside=beside, **spec)).workloads
    assert (workload.policy.min_replicas, workload.policy.max_replicas) == bounds


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            {"minReplicaCount": 9, "maxReplicaCount": 3},
            "spec.maxReplicaCount 3 is below 9: raise it",
        ),
        ({"maxReplicaCount": 0}, "spec.maxReplicaCount 0 is below 1: raise it"),
        ({"minReplicaCount": "2"}, "spec.minReplicaCount is '2': set a whole number"),
        ({"minReplicaCount": True}, "spec.minReplicaCount is True: set a whole number"),
        ({"maxReplicaCount": 10**9}, "spec.maxReplicaCount is 1000000000: set a whole number"),
        ({"scaleTargetRef": {}}, "spec.scaleTargetRef has None, which names no object"),
        ({"scaleTargetRef": {"name": "../x"}}, "spec.scaleTargetRef has '../x', which names no"),
    ],
)
def test_impossible_specs_are_refused(spec: dict[str, Any], said: str) -> None:
    assert said in refusal(scaled_object(**spec))


# ---------------------------------------------------------------- metric types


@pytest.mark.parametrize("kind", ["Value", "Utilization"])
def test_only_averagevalue_makes_the_hpa_take_the_answer(kind: str) -> None:
    sentence = refusal(scaled_object(trigger={"metricType": kind}))
    assert sentence.startswith(f"the trigger's metricType is '{kind}', by which the HPA multiplies")
    assert sentence.endswith("set AverageValue")


def test_a_formula_is_taken_in_act_mode_only() -> None:
    formula = {"scalingModifiers": {"formula": "max(gpuscale, 2)", "target": "1"}}
    assert "shadow mode cannot promise to move nothing" in refusal(scaled_object(advanced=formula))
    found = read(scaled_object({"mode": "act"}, advanced=formula))
    assert len(found.workloads) == 1
    formula["scalingModifiers"]["metricType"] = "Value"
    sentence = refusal(scaled_object({"mode": "act"}, advanced=formula))
    assert sentence.startswith("advanced.scalingModifiers.metricType is 'Value'")


def test_two_triggers_of_ours_in_one_object_are_refused() -> None:
    second = {"type": "external", "metadata": {"scalerAddress": HOST}}
    assert "in 2 triggers" in refusal(scaled_object(beside=(second,)))


# ---------------------------------------------------------------- pauses


@pytest.mark.parametrize(
    ("annotations", "paused"),
    [
        ({}, None),
        ({"autoscaling.keda.sh/paused": "true"}, "autoscaling.keda.sh/paused"),
        ({"autoscaling.keda.sh/paused": ""}, "autoscaling.keda.sh/paused"),
        ({"autoscaling.keda.sh/paused": "yes please"}, "autoscaling.keda.sh/paused"),
        ({"autoscaling.keda.sh/paused": "false"}, None),
        ({"autoscaling.keda.sh/paused": "F"}, None),
        ({"autoscaling.keda.sh/paused-replicas": "0"}, "autoscaling.keda.sh/paused-replicas"),
        ({"autoscaling.keda.sh/paused-scale-in": "true"}, None),
        ({"autoscaling.keda.sh/paused-scale-out": "true"}, None),
        (
            {
                "autoscaling.keda.sh/paused-scale-in": "true",
                "autoscaling.keda.sh/paused-scale-out": "true",
            },
            "autoscaling.keda.sh/paused-scale-in with autoscaling.keda.sh/paused-scale-out",
        ),
        ({"autoscaling.keda.sh/force-activation": "true"}, None),
    ],
)
def test_pauses_are_read_as_keda_reads_them(
    annotations: dict[str, str], paused: str | None
) -> None:
    assert pause_of(annotations) == paused
    (workload,) = read(scaled_object(annotations=annotations)).workloads
    assert workload.paused == paused


# ---------------------------------------------------------------- the settings file


def in_file(**fields: Any) -> ControllerSettings:
    entry: dict[str, Any] = {"namespace": "llm", "name": "llama", **fields}
    return ControllerSettings(workloads=(WorkloadSettings(**entry),))


def test_an_entry_with_a_target_is_scaled_directly_and_one_without_only_answers() -> None:
    target = ScaleTarget(kind="StatefulSet", name="llama-8b")
    (direct,) = declared(in_file(target=target)).workloads
    assert direct.actuator == "scale"
    assert direct.target == Target(api_version="apps/v1", kind="StatefulSet", name="llama-8b")
    (answered,) = declared(in_file(endpoints=("http://10.0.0.1:8000/metrics",))).workloads
    assert (answered.actuator, answered.target) == ("none", None)
    assert answered.endpoints == ("http://10.0.0.1:8000/metrics",)


def test_what_any_scaledobject_scales_is_never_scaled_directly_too() -> None:
    settings = in_file(target=ScaleTarget(name="llama-8b"))
    foreign = scaled_object(name="theirs", trigger={"type": "prometheus"})
    found = read(foreign, settings=settings)
    assert found.workloads == ()
    assert found.refusals["llm/llama"] == (
        "Deployment llama-8b is already scaled by ScaledObject llm/theirs: remove `target` from the "
        "settings file, or delete the ScaledObject"
    )
    elsewhere = scaled_object(name="theirs", namespace="b", trigger={"type": "prometheus"})
    assert len(read(elsewhere, settings=settings).workloads) == 1


def test_a_name_declared_twice_is_the_files() -> None:
    found = read(scaled_object(), settings=in_file())
    assert [w.actuator for w in found.workloads] == ["none"]
    assert "is declared in the settings file too, which stands" in found.refusals["llm/llama"]


def test_workloads_come_in_the_order_of_their_keys() -> None:
    found = read(*(scaled_object(name=n) for n in ("c", "a", "b")))
    assert [w.name for w in found.workloads] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"metadata": None, "spec": None},
        {"metadata": {"name": "x"}, "spec": {}},
        {"metadata": {"namespace": "a", "name": "B/../c"}, "spec": {}},
        {"metadata": {"namespace": "a", "name": "b"}, "spec": {"triggers": "external"}},
        {
            "metadata": {"namespace": "a", "name": "b"},
            "spec": {"triggers": [None, 3, {"type": {}}]},
        },
    ],
)
def test_what_is_no_scaledobject_is_passed_over(odd: dict[str, Any]) -> None:
    assert read(odd) == Declared(workloads=(), refusals={})


def test_objects_that_did_not_change_are_not_read_again_and_those_that_did_are() -> None:
    declarations = Declarations(SETTINGS)
    one, two = scaled_object(name="one"), scaled_object(name="two")
    first = declarations.read([one, two])
    assert declarations.read([one, two]) is first
    newer = scaled_object(name="two", maxReplicaCount=7)
    second = declarations.read([one, newer])
    assert second.workloads[0] is first.workloads[0]
    assert second.workloads[1].policy.max_replicas == 7
    assert [w.name for w in declarations.read([newer]).workloads] == ["two"]
    assert declarations.read([]) == Declared(workloads=(), refusals={})
