"""Every rule on manifests finds what it is for, and is silent once that is mended."""

import pytest

from gpuscale.controller import trigger
from gpuscale.lint import lint, source
from gpuscale.lint.finding import Finding
from gpuscale.lint.rules import BYPASS, RULES
from tests.unit.lint.cases import (
    CASES,
    GPU,
    OURS,
    PROBE,
    Case,
    deployment,
    prometheus,
    scaled_object,
)


def findings(text: str) -> tuple[Finding, ...]:
    return lint(source.objects(text, "a.yaml"), trigger)


def rules(text: str) -> set[str]:
    return {f.rule.id for f in findings(text)}


def test_every_rule_on_manifests_has_a_case() -> None:
    assert {case.rule for case in CASES} == RULES.keys() - {rule.id for rule in BYPASS}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_a_rule_finds_the_fault_and_not_its_cure(case: Case) -> None:
    assert case.rule in rules(case.broken)
    assert case.rule not in rules(case.mended)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_a_finding_names_a_field_that_is_there_or_should_be(case: Case) -> None:
    for finding in findings(case.broken):
        assert finding.file == "a.yaml"
        assert finding.line is not None
        assert finding.where
        assert not finding.sentence.endswith(".")
        assert "\n" not in finding.sentence


def test_the_recipe_that_everybody_starts_from_has_its_faults_named() -> None:
    recipe = scaled_object(
        prometheus('avg(DCGM_FI_DEV_GPU_UTIL{job="dcgm-exporter"})', rest='threshold: "70"')
    )
    assert rules(recipe) == {"GPU-L20", "GPU-L21", "GPU-L22", "GPU-L24"}
    narrowed = recipe.replace('job="dcgm-exporter"', 'pod=~"llama-.+"')
    assert rules(narrowed) == {"GPU-L21", "GPU-L22", "GPU-L23", "GPU-L24"}


def test_what_gpuscale_prints_to_commit_breaks_no_rule() -> None:
    import yaml

    from gpuscale.controller import scaledobject
    from gpuscale.settings import ControllerSettings

    workload, metadata = scaledobject.declare(
        "ml", "llama", ControllerSettings(), fields={"max_replicas": 64, "risk": 0.9}
    )
    assert rules(yaml.safe_dump(scaledobject.scaledobject(workload, metadata))) == set()


def test_an_inference_deployment_done_well_breaks_no_rule() -> None:
    good = deployment(
        f"{GPU}, {PROBE}",
        pod="tolerations: [{key: nvidia.com/gpu, operator: Exists}],",
        spec="strategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 1}},",
    )
    assert rules(good + "---\n" + scaled_object(OURS)) == set()


@pytest.mark.parametrize(
    ("query", "threshold", "most"),
    [
        ('avg(DCGM_FI_DEV_GPU_UTIL{exported_pod=~"a.+"})', "70", 2),
        ('100 * avg(gpuscale_gpu_utilization_ratio{uuid="a"})', "25", 4),
        ('max by (pod) (vllm:kv_cache_usage_perc{namespace="ml"})', "0.5", 2),
        ('avg(avg_over_time(DCGM_FI_DEV_GPU_UTIL{exported_pod=~"a.+"}[5m]))', "50", 2),
        ('sum(DCGM_FI_DEV_GPU_UTIL{exported_pod=~"a.+"})', "70", None),
        ('sum(rate(vllm:request_success_total{namespace="ml"}[1m]))', "5", None),
        ('avg(vllm:num_requests_running{namespace="ml"})', "5", None),
        ('avg(DCGM_FI_DEV_GPU_UTIL{exported_pod="a"}) * count(up{job="ml"})', "70", None),
        ('avg(DCGM_FI_DEV_GPU_UTIL{exported_pod="a"})', "5", None),  # 20 is more than it may have
    ],
)
def test_a_bounded_value_is_told_from_one_that_grows(
    query: str, threshold: str, most: int | None
) -> None:
    text = scaled_object(
        prometheus(query, rest=f'threshold: "{threshold}", ignoreNullValues: "false"')
    )
    said = [f.sentence for f in findings(text) if f.rule.id == "GPU-L21"]
    assert len(said) == (most is not None)
    if most is not None:
        assert f"more than {most} replicas" in said[0]


@pytest.mark.parametrize(
    ("kind", "target", "expected"),
    [
        ("external", 'type: AverageValue, averageValue: "70"', {"GPU-L21", "GPU-L24"}),
        ("object", 'type: AverageValue, averageValue: "70"', {"GPU-L21", "GPU-L24"}),
        ("external", 'type: Value, value: "70"', {"GPU-L24"}),
        ("pods", 'type: AverageValue, averageValue: "70"', {"GPU-L24"}),  # of each pod: it may grow
    ],
)
def test_an_hpa_on_a_metric_of_an_adapter_has_the_same_faults(
    kind: str, target: str, expected: set[str]
) -> None:
    text = (
        "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: a, namespace: ml}\n"
        "spec: {scaleTargetRef: {kind: Deployment, name: llama}, maxReplicas: 8, metrics: ["
        f"{{type: {kind.capitalize()}, {kind}: {{metric: {{name: DCGM_FI_DEV_GPU_UTIL}}, target: {{{target}}}}}}}]}}\n"
    )
    assert rules(text) == expected
    assert rules(text.replace("DCGM_FI_DEV_GPU_UTIL", "http_requests")) == set()


def test_the_gravest_comes_first_and_lines_follow_in_a_file() -> None:
    text = "\n---\n".join(case.broken for case in CASES)
    found = findings(text)
    order = [("error", "warning", "info").index(f.severity) for f in found]
    assert order == sorted(order)
    lines = [f.line or 0 for f in found if f.severity == "error"]
    assert lines == sorted(lines)


def test_pods_are_found_wherever_an_object_holds_them() -> None:
    pod = "{spec: {containers: [{name: a, resources: {requests: {nvidia.com/gpu: 1}}}]}}"
    for kind, spec in {
        "CronJob": f"jobTemplate: {{spec: {{template: {pod}}}}}",
        "LeaderWorkerSet": f"leaderWorkerTemplate: {{workerTemplate: {pod}}}",
        "RayCluster": f"workerGroupSpecs: [{{template: {pod}}}]",
        "JobSet": f"replicatedJobs: [{{template: {{spec: {{template: {pod}}}}}}}]",
    }.items():
        text = f"apiVersion: a/v1\nkind: {kind}\nmetadata: {{name: a}}\nspec: {{{spec}}}\n"
        assert "GPU-L01" in rules(text), kind


def test_a_finding_is_on_the_line_where_it_is_to_be_mended() -> None:
    text = """# first
apiVersion: v1
kind: Pod
metadata:
  name: a
spec:
  restartPolicy: Never
  containers:
    - name: a
      resources:
        requests:
          cpu: 1
          nvidia.com/gpu: 1
"""
    (found,) = [f for f in findings(text) if f.rule.id == "GPU-L01"]
    assert found.line == 13
    assert found.where == "spec.containers[0].resources.requests['nvidia.com/gpu']"
    assert found.object == "Pod a"
