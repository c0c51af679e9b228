"""For each rule a manifest that breaks it and the same one mended: what people write, and the cure."""

from typing import NamedTuple


class Case(NamedTuple):
    rule: str
    broken: str
    mended: str


def deployment(container: str, *, pod: str = "", spec: str = "") -> str:
    """A Deployment ml/llama whose container has these lines beside its name; in flow style."""
    return (
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: llama, namespace: ml}\n"
        f"spec: {{{spec} template: {{spec: {{{pod} containers: [{{name: server, {container}}}]}}}}}}\n"
    )


def scaled_object(trigger: str, *, spec: str = "minReplicaCount: 1, maxReplicaCount: 8,") -> str:
    """A ScaledObject ml/llama with one trigger."""
    return (
        "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nmetadata: {name: llama, namespace: ml}\n"
        f"spec: {{scaleTargetRef: {{name: llama}}, {spec} triggers: [{{{trigger}}}]}}\n"
    )


def prometheus(
    query: str, *, rest: str = 'threshold: "70", ignoreNullValues: "false"', more: str = ""
) -> str:
    """A trigger of KEDA's Prometheus scaler."""
    return f"type: prometheus, {more} metadata: {{query: '{query}', {rest}}}"


GPU = "resources: {limits: {nvidia.com/gpu: 1}}"
PROBE = "readinessProbe: {httpGet: {path: /health, port: 8000}}"
OURS = (
    "type: external-push, metricType: AverageValue, "
    'metadata: {scalerAddress: "gpuscale-grpc.gpuscale.svc:6000"}'
)
LOOSE = "minReplicaCount: 1, maxReplicaCount: 40,"
TIGHT = (
    f"{LOOSE} advanced: {{horizontalPodAutoscalerConfig: {{behavior: "
    '{scaleUp: {tolerance: "0"}, scaleDown: {tolerance: "0"}}}},'
)
MINE = 'avg(DCGM_FI_DEV_FB_USED{exported_namespace="ml", exported_pod=~"llama-.+"})'
SHARING = """
apiVersion: v1
kind: ConfigMap
metadata: {{name: device-plugin, namespace: gpu-operator}}
data:
  any: |
    version: v1
    sharing:
      timeSlicing:
        {options}
        resources: [{{name: nvidia.com/gpu, replicas: 4}}]
"""
MONITOR = (
    "apiVersion: monitoring.coreos.com/v1\nkind: ServiceMonitor\n"
    "metadata: {name: dcgm-exporter, namespace: gpu-operator}\n"
    "spec: {endpoints: [{port: metrics, interval: 15s%s}]}\n"
)
QUOTA = (
    "apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: gpus, namespace: ml}\n"
    "spec: {hard: {%s: 8, requests.cpu: 40, limits.memory: 1Ti}}\n"
)
HPA = (
    "---\napiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\n"
    "metadata: {name: other, namespace: ml%s}\n"
    "spec: {scaleTargetRef: {kind: Deployment, name: llama}, metrics: []}\n"
)
CPU = (
    "---\napiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\n"
    "metadata: {name: llama, namespace: ml}\n"
    "spec: {scaleTargetRef: {kind: Deployment, name: llama}, metrics: [{type: Resource, resource: {name: cpu}}]}\n"
)
PYTORCH = (
    "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: train, namespace: ml}\n"
    "spec: {pytorchReplicaSpecs: {Worker: {template: {spec: {containers: [{name: %s}]}}}}}\n"
)
POD = (
    "apiVersion: v1\nkind: Pod\nmetadata: {name: run, namespace: ml}\n"
    "spec: {%s containers: [{name: run, resources: {limits: {nvidia.com/gpu: 1}}}]}\n"
)

CASES = (
    Case(
        "GPU-L01",
        deployment("resources: {requests: {nvidia.com/gpu: 1}}"),
        deployment(GPU),
    ),
    Case(
        "GPU-L02",
        deployment("resources: {requests: {nvidia.com/gpu: 1}, limits: {nvidia.com/gpu: 2}}"),
        deployment('resources: {requests: {nvidia.com/gpu: "2"}, limits: {nvidia.com/gpu: 2}}'),
    ),
    Case(
        "GPU-L03",
        deployment('resources: {limits: {nvidia.com/mig-profile: "1g.10gb", nvidia.com/gpu: 1}}'),
        deployment("resources: {limits: {nvidia.com/mig-1g.10gb: 1}}"),
    ),
    Case("GPU-L04", QUOTA % "limits.nvidia.com/gpu", QUOTA % "requests.nvidia.com/gpu"),
    Case(
        "GPU-L05",
        deployment('resources: {limits: {nvidia.com/gpu: "0.5"}}'),
        deployment('resources: {limits: {nvidia.com/gpu: "1"}}'),
    ),
    Case(
        "GPU-L06",
        deployment("resources: {limits: {nvidia.com/gpu: 1, nvidia.com/mig-1g.10gb: 1}}"),
        deployment("resources: {limits: {nvidia.com/mig-1g.10gb: 1}}"),
    ),
    Case(
        "GPU-L07",
        deployment(GPU),
        deployment(GPU, pod="tolerations: [{key: nvidia.com/gpu, operator: Exists}],"),
    ),
    Case("GPU-L08", POD % "", POD % "restartPolicy: Never,"),
    Case("GPU-L09", deployment(GPU), deployment(f"{GPU}, {PROBE}")),
    Case(
        "GPU-L10",
        deployment("resources: {limits: {nvidia.com/gpu.shared: 2}}"),
        deployment("resources: {limits: {nvidia.com/gpu.shared: 1}}"),
    ),
    Case(
        "GPU-L11",
        deployment(GPU),
        deployment(GPU, spec="strategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 1}},"),
    ),
    Case("GPU-L12", PYTORCH % "trainer", PYTORCH % "pytorch"),
    Case(
        "GPU-L13",
        SHARING.format(options="failRequestsGreaterThanOne: true"),
        SHARING.format(options="renameByDefault: true"),
    ),
    Case(
        "GPU-L14",
        SHARING.format(options="renameByDefault: true"),
        SHARING.format(options="failRequestsGreaterThanOne: true"),
    ),
    Case("GPU-L15", MONITOR % "", MONITOR % ", honorLabels: true"),
    Case(
        "GPU-L20",
        scaled_object(prometheus('avg(DCGM_FI_DEV_FB_USED{job="dcgm-exporter"})')),
        scaled_object(prometheus(MINE)),
    ),
    Case(
        "GPU-L21",
        scaled_object(prometheus('avg(DCGM_FI_DEV_GPU_UTIL{exported_pod=~"llama-.+"})')),
        scaled_object(
            prometheus(
                'avg(DCGM_FI_DEV_GPU_UTIL{exported_pod=~"llama-.+"})', more="metricType: Value,"
            )
        ),
    ),
    Case(
        "GPU-L22",
        scaled_object(prometheus(MINE, rest='threshold: "70"')),
        scaled_object(prometheus(MINE)),
    ),
    Case(
        "GPU-L23",
        scaled_object(prometheus('avg(DCGM_FI_DEV_FB_USED{pod=~"llama-.+"})')),
        scaled_object(prometheus(MINE)),
    ),
    Case(
        "GPU-L24",
        scaled_object(prometheus('sum(DCGM_FI_DEV_GPU_UTIL{exported_pod=~"llama-.+"})')),
        scaled_object(prometheus('sum(vllm:num_requests_running{namespace="ml"})')),
    ),
    Case(
        "GPU-L25",
        scaled_object(prometheus('sum(vllm:num_requests_waiting{namespace="ml"})'), spec=""),
        scaled_object(
            prometheus('sum(vllm:num_requests_waiting{namespace="ml"})')
            + "}, {type: cron, metadata: {}",
            spec="",
        ),
    ),
    Case(
        "GPU-L26",
        scaled_object(
            OURS, spec="maxReplicaCount: 8, fallback: {failureThreshold: 3, replicas: 2},"
        ),
        scaled_object(
            OURS,
            spec="maxReplicaCount: 8, fallback: {replicas: 2, behavior: currentReplicasIfHigher},",
        ),
    ),
    Case("GPU-L27", scaled_object(OURS, spec=LOOSE), scaled_object(OURS, spec=TIGHT)),
    Case(
        "GPU-L28",
        scaled_object(OURS.replace("AverageValue", "Value")),
        scaled_object(OURS),
    ),
    Case(
        "GPU-L29",
        scaled_object(OURS.replace("metadata: {", "metadata: {serverUrl: 'http://me', ")),
        scaled_object(OURS),
    ),
    Case(
        "GPU-L30",
        scaled_object(OURS) + HPA % "",
        scaled_object(OURS) + HPA % ", ownerReferences: [{kind: ScaledObject, name: llama}]",
    ),
    Case("GPU-L31", deployment(GPU) + CPU, deployment("image: nginx") + CPU),
)
