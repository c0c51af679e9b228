"""The dashboard "MIG and sharing": instances, who holds which GPU, and what each pod uses of it."""

from grafana_foundation_sdk.models import dashboard
from panels import Board, Query
from queries import BUSY, CLUSTER, HOLDERS, of_nodes


def board() -> dashboard.Dashboard:
    """Build it."""
    page = Board(
        uid="gpuscale-sharing",
        title="gpuscale / MIG and sharing",
        description="Instances of divided GPUs, the pods that hold GPUs whole or in part, and what works on them unasked.",
    )
    page.cluster("gpuscale_nvml_up")
    page.nodes()
    page.namespaces(f"gpuscale_gpu_allocation_info{{{CLUSTER}}}")
    _mig(page)
    _shared(page)
    _holders(page)
    _usage(page)
    return page.done()


def _mig(page: Board) -> None:
    page.row("MIG instances")
    legend = "{{profile}} {{uuid}}"
    used = f"max by (uuid, profile) (gpuscale_mig_memory_used_bytes{{{CLUSTER}}})"
    total = f"max by (uuid, profile) (gpuscale_mig_memory_total_bytes{{{CLUSTER}}})"
    page.series(
        "Memory of instances",
        "Share of an instance's memory that is allocated.",
        [Query(expr=f"{used} / {total}", legend=legend)],
        unit="percentunit",
        bounds=(0, 1),
    )
    page.series(
        "SMs of instances",
        "Share of an instance's SMs that had work (Hopper and later; before, nobody can tell).",
        [
            Query(
                expr=f"max by (uuid, profile) (gpuscale_mig_sm_active_ratio{{{CLUSTER}}})",
                legend=legend,
            )
        ],
        unit="percentunit",
        bounds=(0, 1),
    )
    for title, text, metric in (
        (
            "Tensor pipes of instances",
            "Share of cycles in which an instance's tensor pipes were busy (Hopper and later).",
            "gpuscale_mig_tensor_active_ratio",
        ),
        (
            "Bandwidth of instances",
            "Share of an instance's memory bandwidth in use (Hopper and later).",
            "gpuscale_mig_dram_active_ratio",
        ),
    ):
        page.series(
            title,
            text,
            [Query(expr=f"max by (uuid, profile) ({metric}{{{CLUSTER}}})", legend=legend)],
            unit="percentunit",
            bounds=(0, 1),
        )
    instances = f"max by (cluster, uuid, parent_uuid, profile) (gpuscale_mig_info{{{CLUSTER}}})"
    part = f"sum by (cluster, parent_uuid) (gpuscale_mig_memory_total_bytes{{{CLUSTER}}})"
    whole = (
        f"label_replace(max by (cluster, uuid) (gpuscale_gpu_memory_total_bytes{{{CLUSTER}}}), "
        '"parent_uuid", "$1", "uuid", "(.+)")'
    )
    page.series(
        "Instances by profile",
        "How many there are, held or not.",
        [Query(expr=f"count by (profile) ({instances})", legend="{{profile}}")],
        unit="short",
        stacked=True,
    )
    page.series(
        "Divided GPUs: memory in instances",
        "Share of a GPU's memory that its instances have. Nobody can use the rest; the usual partitions have 70 % and more.",
        [
            Query(
                expr=f"{part} / on (cluster, parent_uuid) {whole}",
                legend="{{parent_uuid}}",
            )
        ],
        unit="percentunit",
        bounds=(0, 1),
    )


def _shared(page: Board) -> None:
    page.row("Shared GPUs")
    pods = (
        "count by (cluster, uuid) (max by (cluster, uuid, namespace, pod) "
        f"(gpuscale_gpu_allocation_info{{{CLUSTER}}}))"
    )
    shared = f"({pods} > 1)"
    page.series(
        "Pods on shared GPUs",
        "Pods that hold a share of the same GPU by time-slicing or MPS, or an instance of it.",
        [Query(expr=f"max by (node, uuid) ({of_nodes(shared)})", legend="{{node}} / {{uuid}}")],
        unit="short",
    )
    used = f"max by (cluster, uuid) (gpuscale_gpu_memory_used_bytes{{{CLUSTER}}})"
    total = f"max by (cluster, uuid) (gpuscale_gpu_memory_total_bytes{{{CLUSTER}}})"
    full = f"({used} / {total} and on (cluster, uuid) {shared})"
    page.series(
        "Memory of shared GPUs",
        "Nothing isolates it under time-slicing and MPS: near 100 % whoever allocates next fails.",
        [Query(expr=f"max by (node, uuid) ({of_nodes(full)})", legend="{{node}} / {{uuid}}")],
        unit="percentunit",
        bounds=(0, 1),
    )


def _holders(page: Board) -> None:
    page.row("Who holds them")
    busy_gpu = f"max by (cluster, uuid) ({BUSY})"
    page.series(
        "Busy GPUs by pod",
        "How busy the GPUs are that a pod holds, their mean. Pods that share a GPU show the same: the GPU's.",
        [
            Query(
                expr=f"avg by (namespace, pod) ({HOLDERS} * on (cluster, uuid) group_left () {busy_gpu})",
                legend="{{namespace}}/{{pod}}",
            )
        ],
        unit="percentunit",
        bounds=(0, 1),
    )
    page.series(
        "GPUs by namespace",
        "Physical GPUs of which a namespace holds at least a share. A shared GPU counts for each of its holders.",
        [
            Query(
                expr=f"count by (namespace) (max by (cluster, namespace, uuid) ({of_nodes(HOLDERS)}))",
                legend="{{namespace}}",
            )
        ],
        unit="short",
    )


def _usage(page: Board) -> None:
    page.row("Use by pod (needs processes.enabled)")
    of_pods = f'{{{CLUSTER},namespace=~"$namespace"}}'
    page.series(
        "GPU time by pod",
        "Share of its GPUs' time in which kernels of the pod ran: also where pods share a GPU.",
        [
            Query(
                expr=f"sum by (namespace, pod) (gpuscale_pod_gpu_utilization_ratio{of_pods})",
                legend="{{namespace}}/{{pod}}",
            )
        ],
        unit="percentunit",
    )
    page.series(
        "Device memory by pod",
        "What the pod's processes have allocated.",
        [
            Query(
                expr=f"sum by (namespace, pod) (gpuscale_pod_gpu_memory_used_bytes{of_pods})",
                legend="{{namespace}}/{{pod}}",
            )
        ],
        unit="bytes",
        stacked=True,
    )
    page.table(
        "Work that no allocation explains",
        "Lasting findings of the node audit; the evidence is at /api/v1/audit of the node's exporter.",
        [
            (
                "Findings",
                "short",
                f"sum by (node, rule, severity, namespace) (gpuscale_node_audit_findings{{{CLUSTER}}})",
            ),
        ],
        keys=["node", "rule", "severity", "namespace"],
        height=7,
    )
    page.table(
        "Pods that may use GPUs unasked",
        "What the audit found in pods' manifests; who and how is at /api/v1/audit of the controller and in gpuscale audit.",
        [
            (
                "Findings",
                "short",
                "max by (namespace, rule, severity) "
                f'(gpuscale_audit_findings{{{CLUSTER},namespace=~"$namespace"}})',
            ),
        ],
        keys=["namespace", "rule", "severity"],
        height=7,
    )
