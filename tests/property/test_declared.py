"""Whatever stands in a ScaledObject, reading it ends in a workload or a sentence, and never in an address to call."""

from collections.abc import Iterable, Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpuscale.controller import inventory, trigger
from gpuscale.controller.declared import Declarations, Declared
from gpuscale.settings import ControllerSettings, Policy


def declared(
    settings: ControllerSettings, objects: Iterable[Mapping[str, object]] = ()
) -> Declared:
    return Declarations(settings).read(objects)


SETTINGS = ControllerSettings(policies={"chat": Policy(namespaces=("llm",))})

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40)
anything: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4)
    ),
    max_leaves=12,
)
urls = st.sampled_from(
    ["http://169.254.169.254/latest", "https://x/y", "//x", "http:6000", "file:///etc/passwd"]
)
numbers = st.sampled_from(["0", "1", "0.5", "3m", "1e309", "nan", "-1", "9" * 12, "٣", "1\n", " 1"])
values = urls | numbers | st.sampled_from(["true", "act", "vllm", "chat", ""]) | anything
metadata = st.dictionaries(st.sampled_from(trigger.KEYS) | st.text(max_size=12), values, max_size=8)


def walk(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [s for k, v in value.items() for s in (*walk(k), *walk(v))]
    if isinstance(value, list | tuple):
        return [s for v in value for s in walk(v)]
    return []


@given(
    found=metadata,
    spec=st.dictionaries(
        st.sampled_from(
            ["minReplicaCount", "maxReplicaCount", "idleReplicaCount", "advanced", "scaleTargetRef"]
        ),
        anything,
        max_size=3,
    ),
    annotations=anything,
)
def test_metadata_ends_in_a_workload_without_a_url_or_in_one_sentence(
    found: dict[str, Any], spec: dict[str, Any], annotations: object
) -> None:
    address = {"scalerAddress": "gpuscale-grpc.gpuscale.svc:6000"}
    scaled_object = {
        "metadata": {"namespace": "llm", "name": "llama", "annotations": annotations},
        "spec": {
            "scaleTargetRef": {"name": "llama"},
            "triggers": [{"type": "external", "metadata": address | found}],
            **spec,
        },
    }
    result = declared(SETTINGS, [scaled_object])
    for workload in result.workloads:
        assert workload.endpoints == ()
        policy = workload.policy
        assert policy.selector == Policy().selector
        assert policy.metrics_path == Policy().metrics_path
        assert "/" not in policy.server + policy.mode + workload.policy_name
        assert workload.target is not None
        assert "/" not in workload.target.name + workload.target.kind
    for sentence in result.refusals.values():
        assert len(sentence) < 1_000
        assert "\n" not in sentence
    assert len(result.workloads) + len(result.refusals) <= 1


@given(objects=st.lists(anything.filter(lambda v: isinstance(v, dict)), max_size=3))
def test_no_object_of_any_shape_stops_the_reading(objects: list[dict[str, Any]]) -> None:
    declared(SETTINGS, objects)


@given(
    raw=st.fixed_dictionaries(
        {},
        optional={
            "metadata": st.dictionaries(
                st.sampled_from(
                    ["uid", "name", "labels", "creationTimestamp", "deletionTimestamp"]
                ),
                anything,
            )
            | anything,
            "spec": st.dictionaries(st.sampled_from(["nodeName", "replicas", "selector"]), anything)
            | anything,
            "status": st.dictionaries(
                st.sampled_from(["phase", "podIP", "conditions", "containerStatuses", "selector"]),
                st.lists(
                    st.dictionaries(st.sampled_from(["type", "status", "restartCount"]), anything)
                )
                | anything,
            )
            | anything,
        },
    )
)
def test_no_pod_or_target_of_any_shape_stops_the_reading(raw: dict[str, Any]) -> None:
    pod = inventory.pod_of(raw)
    target = inventory.target_of(raw)
    inventory.scale_of(raw)
    state, _ = inventory.replica_state("a/b", target, [pod], None)
    assert state.ready + state.starting + state.pending <= 1


@given(st.text(max_size=200))
def test_no_selector_stops_the_reading(text: str) -> None:
    inventory.matches(inventory.parse_selector(text), {"app": "x"})
