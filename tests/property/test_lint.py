"""Whatever stands in a manifest, the rules say something or nothing, and never fail."""

import math
from typing import Any

import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gpuscale.controller import trigger
from gpuscale.errors import InputError
from gpuscale.lint import audit, bypass, lint, promql, sarif, source
from gpuscale.lint.podspec import quantity
from tests.unit.lint.cases import CASES

WORDS = st.sampled_from(
    sorted(
        {
            "apiVersion", "kind", "metadata", "name", "namespace", "spec", "template", "containers", "env",
            "initContainers", "resources", "limits", "requests", "nvidia.com/gpu", "nvidia.com/mig-1g.10gb",
            "value", "valueFrom", "NVIDIA_VISIBLE_DEVICES", "all", "securityContext", "privileged", "volumes",
            "hostPath", "path", "/dev/nvidia0", "volumeMounts", "mountPath", "annotations", "triggers", "type",
            "prometheus", "external", "query", "threshold", "metricType", "scaleTargetRef", "fallback",
            "replicas", "hard", "requests.nvidia.com/gpu", "data", "sharing", "timeSlicing", "advanced",
            "minReplicaCount", "maxReplicaCount", "tolerations", "key", "operator", "Exists", "ownerReferences",
            "strategy", "rollingUpdate", "maxSurge", "restartPolicy", "runtimeClassName", "nvidia",
            "avg(DCGM_FI_DEV_GPU_UTIL)", "endpoints", "honorLabels", "claims", "labels", "matchLabels",
        }
    )
)  # fmt: skip
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | WORDS
    | st.text(max_size=8)
    | st.just("\x1b[2J")
)
VALUES: Any = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(WORDS | st.text(max_size=4) | st.just("\x1b[2J"), inner, max_size=6)
    ),
    max_leaves=40,
)
KINDS = st.sampled_from(
    [
        ("v1", "Pod"), ("apps/v1", "Deployment"), ("keda.sh/v1alpha1", "ScaledObject"),
        ("autoscaling/v2", "HorizontalPodAutoscaler"), ("v1", "ResourceQuota"), ("v1", "ConfigMap"),
        ("monitoring.coreos.com/v1", "ServiceMonitor"), ("kubeflow.org/v1", "PyTorchJob"),
    ]
)  # fmt: skip


def judged(manifests: list[source.Manifest]) -> None:
    found = lint(manifests, trigger)
    found += audit(manifests, bypass.Allowed())
    for finding in found:
        assert len(finding.sentence) < 2_000
        assert finding.sentence.isprintable()
        assert finding.object.isprintable()
        assert finding.where.isprintable()
        assert finding.container.isprintable()
        assert len(finding.object) < 1_000
    sarif.document(found, version="1")


@given(st.tuples(KINDS, VALUES, VALUES))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_objects_of_any_shape_are_judged_without_failing(
    parts: tuple[tuple[str, str], Any, Any],
) -> None:
    (api_version, kind), metadata, spec = parts
    for pods in (spec, {"template": {"spec": spec}}):
        raw = {
            "apiVersion": api_version,
            "kind": kind,
            "metadata": metadata,
            "spec": pods,
            "data": spec,
        }
        judged([source.Manifest(raw)])


def _replaced(value: Any, path: list[Any], new: Any) -> Any:
    """`value` with what stands at the path replaced."""
    if not path:
        return new
    if isinstance(value, dict):
        return {**value, path[0]: _replaced(value[path[0]], path[1:], new)}
    return [_replaced(v, path[1:], new) if i == path[0] else v for i, v in enumerate(value)]


def _paths(value: Any, path: list[Any]) -> list[list[Any]]:
    found = [path]
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, child in items:
        found += _paths(child, [*path, key])
    return found


@given(st.data())
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_a_manifest_with_one_field_of_a_wrong_type_is_judged_without_failing(data: Any) -> None:
    case = data.draw(st.sampled_from(CASES))
    documents = list(yaml.safe_load_all(case.broken))
    raw = data.draw(st.sampled_from(documents))
    path = data.draw(st.sampled_from(_paths(raw, [])))
    changed = _replaced(raw, path, data.draw(LEAVES | VALUES))
    if isinstance(changed, dict):
        judged([source.Manifest(changed), *(source.Manifest(d) for d in documents)])


@given(st.text(alphabet=st.sampled_from(list("ab:-[]{}&*!|>'\"#%@`,?~\n \t01")), max_size=200))
@example("? [a]: b\n: c")
@example("<<: 1")
@example("a: &a {<<: *a}")
def test_any_text_is_read_or_refused_in_one_sentence(text: str) -> None:
    try:
        list(source.values(text))
    except InputError as error:
        assert "\n" not in str(error)


@given(VALUES)
def test_what_is_dumped_reads_back(value: Any) -> None:
    """Numbers that JSON lacks stay text; everything else is itself."""
    text = yaml.safe_dump(value)
    try:
        (read,) = source.values(text)
    except InputError:
        return
    assert _json(read) == _json(value)


_SPELLED = {math.inf: ".inf", -math.inf: "-.inf"}


def _json(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _json(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_json(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else _SPELLED.get(value, ".nan")
    return value


@given(st.text(max_size=300))
@example('avg(x{a="')
@example('"' * 4096)
@example("{" * 4096)
def test_any_query_is_read(query: str) -> None:
    read = promql.read(query)
    assert len(read.selectors) <= promql.SELECTORS_MAX


@given(st.text(max_size=40) | st.integers() | st.floats() | st.none())
@example("1e99")
@example("9" * 200)
def test_any_quantity_is_a_number_or_none(value: object) -> None:
    amount = quantity(value)
    assert amount is None or amount % 1 == 0 or amount % 1 != 0
