"""Every rule on manifests: what it finds, what follows from it, and the cure. docs/rules.md is made of it.

GPU-L: what is wrong with a manifest by itself. GPU-A: what lets a pod use GPUs that it was not given.
"""

from gpuscale.lint.finding import Rule, Severity


def _rule(id_: str, severity: Severity, title: str, why: str, cure: str) -> Rule:
    return Rule(id=id_, severity=severity, title=title, why=why, cure=cure)


PODS: tuple[Rule, ...] = (
    _rule(
        "GPU-L01",
        "error",
        "a GPU is requested without a limit",
        "The API server refuses the pod: a resource that cannot be overcommitted must have a limit.",
        "Write the amount under resources.limits; the request follows from it.",
    ),
    _rule(
        "GPU-L02",
        "error",
        "request and limit of a GPU differ",
        "The API server refuses the pod: they must be equal.",
        "Write the limit alone.",
    ),
    _rule(
        "GPU-L03",
        "error",
        "a GPU resource that no device plugin has",
        "No node ever has it, so the pod waits for ever.",
        "Write nvidia.com/gpu, or a MIG resource as the plugin names it, such as nvidia.com/mig-1g.10gb.",
    ),
    _rule(
        "GPU-L05",
        "error",
        "an amount of GPUs that is no whole number",
        "The API server refuses the pod: a share of a GPU is a resource of its own (MIG, time-slicing).",
        "Write a whole number of nvidia.com/gpu, or 1 of a MIG or shared resource.",
    ),
    _rule(
        "GPU-L06",
        "warning",
        "a whole GPU and a MIG instance in one container",
        "It gets both, on a node that has both, and CUDA uses one of them.",
        "Ask for the MIG resource alone (strategy mixed), or for nvidia.com/gpu alone (strategy single).",
    ),
    _rule(
        "GPU-L07",
        "info",
        "no toleration of the GPU nodes' taint",
        "Where GPU nodes carry the usual taint nvidia.com/gpu, the pod is never scheduled, unless "
        "the cluster adds the toleration by itself (GKE does).",
        "Add the toleration {key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}.",
    ),
    _rule(
        "GPU-L08",
        "warning",
        "a bare Pod that restarts for ever and holds a GPU",
        "A run that ends begins again, and nothing puts it elsewhere when its node goes.",
        "Make it a Job where it ends, a Deployment where it serves.",
    ),
    _rule(
        "GPU-L09",
        "warning",
        "a replica that is ready before its model is loaded",
        "Without a readiness probe requests reach it at once, and whoever scales counts it as capacity.",
        "Add a readinessProbe on the server's health page, and a startupProbe as long as a start takes.",
    ),
    _rule(
        "GPU-L10",
        "warning",
        "more than one share of a shared GPU",
        "Two shares may be of the same GPU and give no more of it; a plugin with "
        "failRequestsGreaterThanOne refuses them.",
        "Ask for one share, or for whole GPUs.",
    ),
    _rule(
        "GPU-L11",
        "info",
        "a roll-out that needs a free GPU",
        "The default maxSurge starts the new replica before the old one goes: where every GPU is "
        "taken, the roll-out stands still.",
        "Keep GPUs free for it, or set maxSurge: 0 and maxUnavailable: 1.",
    ),
    _rule(
        "GPU-L12",
        "error",
        "a PyTorchJob without a container named pytorch",
        "The operator refuses the job.",
        "Name the training container pytorch.",
    ),
)

CLUSTER: tuple[Rule, ...] = (
    _rule(
        "GPU-L04",
        "warning",
        "a quota on GPUs that counts nothing",
        "Of extended resources a ResourceQuota counts requests.NAME only; the key is accepted and never matches.",
        "Write requests.nvidia.com/gpu, and a key of its own for each MIG or shared resource.",
    ),
    _rule(
        "GPU-L13",
        "warning",
        "shares under the name of whole GPUs",
        "Without renameByDefault a share is called nvidia.com/gpu: quotas and bills count shares as GPUs, "
        "and a pod that needs a whole one gets a tenth.",
        "Set sharing.timeSlicing.renameByDefault: true, and ask for nvidia.com/gpu.shared.",
    ),
    _rule(
        "GPU-L14",
        "warning",
        "more shares may be asked for than one",
        "Who asks for two shares expects twice the GPU, and gets the same.",
        "Set failRequestsGreaterThanOne: true.",
    ),
    _rule(
        "GPU-L15",
        "warning",
        "a GPU exporter scraped without honorLabels",
        "Its labels namespace, pod and container become exported_*, and queries that name them read "
        "the exporter's own pod.",
        "Set honorLabels: true on the endpoint.",
    ),
)

SCALING: tuple[Rule, ...] = (
    _rule(
        "GPU-L20",
        "error",
        "a trigger on every GPU of the cluster",
        "The query names no pod, namespace or container: other people's load scales this workload.",
        "Name the workload's pods in the query, or scale on what its server says of its requests.",
    ),
    _rule(
        "GPU-L21",
        "error",
        "a bounded value that can never ask for more",
        "With metricType AverageValue (the default) the HPA asks for value / threshold replicas, and "
        "takes replicas away when more run.",
        "Set metricType: Value, or sum over the replicas what each of them does.",
    ),
    _rule(
        "GPU-L22",
        "error",
        "no data is read as no load",
        "ignoreNullValues is true unless set: when the exporter or the server is not scraped, the "
        "value is 0 and replicas are taken away.",
        'Set ignoreNullValues: "false"; the HPA then holds until data comes back.',
    ),
    _rule(
        "GPU-L23",
        "info",
        "labels that may be those of the exporter's pod",
        "Unless the exporter is scraped with honorLabels, pod and namespace of a dcgm-exporter "
        "series name the exporter; the workload's stand in exported_pod and exported_namespace.",
        "Scrape with honorLabels: true, or name exported_pod and exported_namespace.",
    ),
    _rule(
        "GPU-L24",
        "warning",
        "GPU utilization as the measure of load",
        "It is the share of time in which any kernel ran: one request makes it 100 %, and a hundred "
        "make it no more.",
        "Scale on requests that arrive, run and wait; gpuscale does (gpuscale scaledobject NAMESPACE/NAME).",
    ),
    _rule(
        "GPU-L25",
        "error",
        "scaled to zero it cannot come back",
        "minReplicaCount is 0 unless set, and every trigger reads what the workload's own pods say: "
        "without pods there is no value, and nothing ever starts one.",
        "Set minReplicaCount: 1, or add a trigger that has a value at zero (a gateway's queue).",
    ),
    _rule(
        "GPU-L26",
        "warning",
        "a fallback that takes replicas away",
        "With the behavior static, the default, replicas go to fallback.replicas when the source is "
        "away, however many are busy.",
        "Set fallback.behavior: currentReplicasIfHigher.",
    ),
    _rule(
        "GPU-L27",
        "warning",
        "small steps that the HPA ignores",
        "The HPA's tolerance of 10 % swallows a step from 10 to 11 replicas, for ever.",
        'Set tolerance: "0" under behavior.scaleUp and behavior.scaleDown (KEDA 2.18, Kubernetes 1.34).',
    ),
    _rule(
        "GPU-L28",
        "error",
        "gpuscale's answer multiplied with the pods that run",
        "gpuscale answers how many replicas are needed; metricType Value multiplies that with those that run.",
        "Set metricType: AverageValue.",
    ),
    _rule(
        "GPU-L29",
        "error",
        "a trigger that gpuscale refuses",
        "Its metadata cannot be used, and every call of KEDA is answered with an error.",
        "Correct the metadata; docs/configuration.md lists the keys.",
    ),
    _rule(
        "GPU-L30",
        "error",
        "two autoscalers on one workload",
        "Each undoes what the other did.",
        "Keep one of them; triggers of one ScaledObject stand beside each other.",
    ),
    _rule(
        "GPU-L31",
        "warning",
        "a GPU workload scaled by CPU or memory",
        "An inference server waits for its GPU: CPU says nothing of its load, and memory is taken at the start.",
        "Scale on requests that arrive, run and wait.",
    ),
)

BYPASS: tuple[Rule, ...] = (
    _rule(
        "GPU-A01",
        "warning",
        "every GPU of the node by NVIDIA_VISIBLE_DEVICES=all",
        "The container sees and may use all GPUs of its node, and was given none: the scheduler gives "
        "the same GPUs to others.",
        "Ask for a GPU under resources.limits and remove the variable; void hides all of them.",
    ),
    _rule(
        "GPU-A02",
        "warning",
        "GPUs chosen by hand in NVIDIA_VISIBLE_DEVICES",
        "What the pod spec says goes before what the device plugin injects: the container uses GPUs "
        "that may be somebody else's.",
        "Remove the variable; the device plugin sets it.",
    ),
    _rule(
        "GPU-A03",
        "warning",
        "a privileged container on GPU nodes",
        "Privileged, or with SYS_ADMIN, it reaches every device of the node, and was given none.",
        "Take the privilege away, or ask for the GPUs that it uses.",
    ),
    _rule(
        "GPU-A04",
        "warning",
        "GPU devices mounted from the host",
        "Device files, the toolkit's directory of volume mounts or the driver's libraries reach GPUs "
        "around the scheduler.",
        "Remove the mount and ask for a GPU under resources.limits.",
    ),
    _rule(
        "GPU-A05",
        "info",
        "a CUDA image on a GPU node without a GPU",
        "Such images set NVIDIA_VISIBLE_DEVICES=all themselves: where nvidia is the default runtime, "
        "the container sees every GPU. The node audit (GPU-N01) proves whether it uses one.",
        'Set NVIDIA_VISIBLE_DEVICES to "void", or ask for a GPU.',
    ),
    _rule(
        "GPU-A06",
        "warning",
        "the runtime class of GPUs without a GPU",
        "With it the toolkit injects what the image or the environment asks for, and nobody was given a GPU.",
        "Remove runtimeClassName, or ask for a GPU under resources.limits.",
    ),
    _rule(
        "GPU-A07",
        "warning",
        "GPUs injected by a CDI annotation",
        "The annotation names devices past the scheduler, and goes before every other way.",
        "Remove the annotation and ask for a GPU under resources.limits, or by a ResourceClaim.",
    ),
    _rule(
        "GPU-A08",
        "warning",
        "the host's processes and memory in a GPU pod",
        "With hostPID and hostIPC it sees, and can disturb, every process on the node's GPUs.",
        "Remove hostPID and hostIPC; NCCL within a pod needs a larger /dev/shm, and neither of them.",
    ),
    _rule(
        "GPU-A09",
        "warning",
        "MPS set up by hand",
        "Clients of a hand-made MPS daemon share a GPU of which the scheduler knows nothing.",
        "Let the device plugin do it (sharing.mps), and ask for its resource.",
    ),
)

RULES: dict[str, Rule] = {
    rule.id: rule for rule in sorted((*PODS, *CLUSTER, *SCALING, *BYPASS), key=lambda rule: rule.id)
}
