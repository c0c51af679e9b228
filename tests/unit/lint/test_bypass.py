"""Ways past the scheduler are found in specs, and ordinary GPU pods and the operator's own are not."""

import pytest

from gpuscale.lint import audit, source
from gpuscale.lint.bypass import Allowed
from gpuscale.lint.rules import BYPASS

GIVEN = "resources: {limits: {nvidia.com/gpu: 1}}"
CLAIMED = "resources: {claims: [{name: gpu}]}"
ALL = "env: [{name: NVIDIA_VISIBLE_DEVICES, value: all}]"
NEAR = "nodeSelector: {nvidia.com/gpu.present: 'true'},"


def pod(container: str = "", spec: str = "", *, meta: str = "", kind: str = "containers") -> str:
    other = "" if kind == "containers" else "containers: [{name: other}],"
    return (
        f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p, namespace: ml, {meta}}}\n"
        f"spec: {{{spec} {other} {kind}: [{{name: main, {container}}}]}}\n"
    )


def rules(text: str, *, allowed: Allowed | None = None) -> set[str]:
    return {f.rule.id for f in audit(source.objects(text), allowed or Allowed())}


def env(value: str) -> str:
    return f"env: [{{name: NVIDIA_VISIBLE_DEVICES, value: '{value}'}}]"


def mounted(path: str) -> str:
    return f"volumes: [{{name: v, hostPath: {{path: {path}}}}}],"


CASES: dict[str, list[tuple[str, str]]] = {
    "GPU-A01": [
        (pod(ALL), pod(f"{ALL.replace('all', 'void')}")),
        (pod(ALL, kind="initContainers"), pod(f"{env('none')}", kind="initContainers")),
        (pod(ALL, kind="ephemeralContainers"), pod("", kind="ephemeralContainers")),
    ],
    "GPU-A02": [
        (pod(env("0,1")), pod(env("none"))),
        (pod(f"{env('GPU-8f2a')}, {GIVEN}"), pod(GIVEN)),
        (pod(f"{ALL}, {GIVEN}"), pod(f"{env('void')}, {GIVEN}")),
        (
            pod("env: [{name: NVIDIA_VISIBLE_DEVICES, valueFrom: {configMapKeyRef: {name: a, key: b}}}]"),
            pod("env: [{name: OTHER, valueFrom: {configMapKeyRef: {name: a, key: b}}}]"),
        ),
    ],
    "GPU-A03": [
        (pod("securityContext: {privileged: true}", NEAR), pod("securityContext: {privileged: true}")),
        (
            pod("securityContext: {capabilities: {add: [SYS_ADMIN]}}", NEAR),
            pod("securityContext: {capabilities: {add: [NET_ADMIN]}}", NEAR),
        ),
        (
            pod("securityContext: {privileged: true}", "tolerations: [{key: nvidia.com/gpu}],"),
            pod(f"securityContext: {{privileged: true}}, {GIVEN}", NEAR),
        ),
    ],
    "GPU-A04": [
        (pod("", mounted("/dev/nvidia0")), pod("", mounted("/dev/shm"))),
        (pod("", mounted("/dev/dri")), pod("", mounted("/dev/disk"))),
        (pod("", NEAR + mounted("/dev")), pod("", mounted("/dev"))),
        (
            pod("", mounted("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")),
            pod("", mounted("/usr/lib/ssl")),
        ),
        (
            pod("volumeMounts: [{name: v, mountPath: /var/run/nvidia-container-devices/all}]"),
            pod("volumeMounts: [{name: v, mountPath: /var/run/nvidia}]"),
        ),
    ],
    "GPU-A05": [
        (pod("image: nvidia/cuda:12.4", NEAR), pod("image: nvidia/cuda:12.4")),
        (pod("image: nvcr.io/nvidia/pytorch", NEAR), pod("image: nginx", NEAR)),
        (pod("image: vllm/vllm-openai", NEAR), pod(f"image: vllm/vllm-openai, {env('void')}", NEAR)),
        (pod("image: vllm/vllm-openai", NEAR), pod(f"image: vllm/vllm-openai, {GIVEN}", NEAR)),
    ],
    "GPU-A06": [
        (pod("", "runtimeClassName: nvidia,"), pod("", "runtimeClassName: gvisor,")),
        (pod("", "runtimeClassName: nvidia,"), pod(GIVEN, "runtimeClassName: nvidia,")),
        (pod("", "runtimeClassName: nvidia,"), pod(CLAIMED, "runtimeClassName: nvidia,")),
    ],
    "GPU-A07": [
        (
            pod(meta="annotations: {cdi.k8s.io/a: 'nvidia.com/gpu=all'}"),
            pod(meta="annotations: {cdi.k8s.io/a: 'vendor.com/nic=0'}"),
        ),
        (
            pod(meta="annotations: {nvidia.cdi.k8s.io/c: 'management.nvidia.com/gpu=all'}"),
            pod(meta="annotations: {example.com/c: 'nvidia.com/gpu=all'}"),
        ),
    ],
    "GPU-A08": [
        (
            pod(GIVEN, "hostPID: true, hostIPC: true,"),
            pod(GIVEN, "hostPID: true,"),
        ),
        (pod("", f"{NEAR} hostPID: true, hostIPC: true,"), pod("", "hostPID: true, hostIPC: true,")),
    ],
    "GPU-A09": [
        (
            pod(f"env: [{{name: CUDA_MPS_PIPE_DIRECTORY, value: /mps}}], {GIVEN}", "hostIPC: true,"),
            pod(f"env: [{{name: CUDA_MPS_PIPE_DIRECTORY, value: /mps}}], {GIVEN}"),
        ),
        (
            pod("env: [{name: CUDA_MPS_PIPE_DIRECTORY, value: /mps}]", mounted("/run/mps")),
            pod("env: [{name: OTHER, value: /mps}]", mounted("/run/mps")),
        ),
    ],
}  # fmt: skip
PAIRS = [(rule, broken, mended) for rule, cases in CASES.items() for broken, mended in cases]


def test_every_way_past_the_scheduler_has_a_case() -> None:
    assert CASES.keys() == {rule.id for rule in BYPASS}


@pytest.mark.parametrize(("rule", "broken", "mended"), PAIRS, ids=[p[0] for p in PAIRS])
def test_a_way_past_the_scheduler_is_found_and_its_cure_is_not(
    rule: str, broken: str, mended: str
) -> None:
    assert rule in rules(broken)
    assert rule not in rules(mended)


def test_a_live_pod_is_judged_by_the_node_that_it_runs_on() -> None:
    text = pod("securityContext: {privileged: true}", "nodeName: gpu-1,")
    assert rules(text) == set()
    node = "---\napiVersion: v1\nkind: Node\nmetadata: {{name: {}}}\nstatus: {{capacity: {}}}\n"
    assert rules(text + node.format("gpu-1", "{nvidia.com/gpu: 8}")) == {"GPU-A03"}
    assert rules(text + node.format("gpu-2", "{nvidia.com/gpu: 8}")) == set()
    assert rules(text + node.format("gpu-1", "{cpu: 8}")) == set()


def test_templates_are_judged_like_pods() -> None:
    text = (
        "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: d, namespace: ml}\nspec: {template: "
        "{metadata: {annotations: {cdi.k8s.io/a: 'nvidia.com/gpu=all'}}, spec: {containers: [{name: a}]}}}\n"
    )
    (found,) = audit(source.objects(text), Allowed())
    assert (found.rule.id, found.object) == ("GPU-A07", "DaemonSet ml/d")
    assert found.where == "spec.template.metadata.annotations['cdi.k8s.io/a']"
    assert found.line == 4


def test_an_unknown_source_is_only_worth_a_look() -> None:
    text = pod("env: [{name: NVIDIA_VISIBLE_DEVICES, valueFrom: {fieldRef: {fieldPath: a}}}]")
    (found,) = audit(source.objects(text), Allowed())
    assert found.severity == "info"


def test_who_is_expected_to_reach_gpus_is_no_finding() -> None:
    text = pod(ALL)
    assert rules(text, allowed=Allowed(namespaces=("m*",))) == set()
    assert rules(text, allowed=Allowed(pods=("ml/p*",))) == set()
    assert rules(text, allowed=Allowed(pods=("other/p*",), namespaces=("other",))) == {"GPU-A01"}


def test_an_ordinary_inference_pod_is_no_finding() -> None:
    assert (
        rules(pod(f"{GIVEN}, image: vllm/vllm-openai", NEAR + "runtimeClassName: nvidia,")) == set()
    )
