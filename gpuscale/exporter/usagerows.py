"""Rows of the page that say whose the GPUs are: holders, pods' use, accounts, the node audit."""

from collections.abc import Iterator

from gpuscale.exporter.audit import counts
from gpuscale.exporter.usage import Accounts, Allocation, AttributionState, AuditState, Usage

Row = tuple[str, dict[str, str], float]
"""(family, labels, value)."""


def rows(attribution: AttributionState | None, usage: Usage | None, now: float) -> Iterator[Row]:
    """All of them; `now` is the wall time of the rendering. The same row may come twice."""
    if attribution is not None:
        yield from _attribution(attribution, now)
    if usage is None:
        return
    yield "gpuscale_process_mapping_up", {}, float(usage.mapping.up)
    if usage.mapping.trouble is not None:
        yield "gpuscale_process_mapping_error_info", {"reason": usage.mapping.trouble}, 1
    for pod in usage.pods:
        labels = {
            "uuid": pod.uuid,
            "namespace": pod.namespace,
            "pod": pod.pod,
            "container": pod.container,
        }
        if pod.busy is not None:
            yield "gpuscale_pod_gpu_utilization_ratio", labels, pod.busy
        if pod.memory_bytes is not None:
            yield "gpuscale_pod_gpu_memory_used_bytes", labels, pod.memory_bytes
    if usage.accounts is not None:
        yield from _accounts(usage.accounts)
    yield from _audit(usage.audit)


def _attribution(state: AttributionState, now: float) -> Iterator[Row]:
    yield "gpuscale_attribution_up", {}, float(state.up)
    yield "gpuscale_attribution_pods_known", {}, float(state.pods_known)
    if state.trouble is not None:
        yield "gpuscale_attribution_error_info", {"reason": state.trouble}, 1
    if state.at is not None:
        yield "gpuscale_attribution_age_seconds", {}, max(0.0, now - state.at)
    if state.up:
        yield "gpuscale_attribution_unmatched_devices", {}, state.unmatched
        yield "gpuscale_attribution_dropped_devices", {}, state.dropped
    for held in state.allocations:
        yield from _allocation(held)


def _allocation(held: Allocation) -> Iterator[Row]:
    holder = {"namespace": held.namespace, "pod": held.pod, "container": held.container}
    whole = {**holder, "resource": held.resource, "replica": held.replica}
    yield "gpuscale_gpu_allocation_info", {"uuid": held.uuid, **whole}, 1
    if held.parent_uuid is not None:
        parent = {"uuid": held.parent_uuid, **whole, "replica": ""}
        yield "gpuscale_gpu_allocation_info", parent, 1
    if held.claim is not None:
        yield "gpuscale_gpu_claim_info", {"uuid": held.uuid, **holder, "claim": held.claim}, 1


def _accounts(accounts: Accounts) -> Iterator[Row]:
    for state, seconds in accounts.node:
        yield "gpuscale_node_gpu_seconds_total", {"state": state}, seconds
    for account in accounts.namespaces:
        labels = {
            "namespace": account.namespace,
            "resource": account.resource,
            "product": account.product,
            "state": account.state,
        }
        yield "gpuscale_namespace_gpu_seconds_total", labels, account.seconds
    for namespace, joules in accounts.joules:
        yield "gpuscale_namespace_gpu_energy_joules_total", {"namespace": namespace}, joules


def _audit(state: AuditState) -> Iterator[Row]:
    yield "gpuscale_audit_up", {}, float(state.up)
    for (rule, severity, namespace), count in counts(state.findings).items():
        labels = {"rule": rule, "severity": severity, "namespace": namespace}
        yield "gpuscale_node_audit_findings", labels, count
    strays: dict[tuple[str, str], int] = {}
    for finding in state.findings:
        if finding.processes:
            key = (finding.uuid, finding.owner_kind)
            strays[key] = strays.get(key, 0) + finding.processes
    for (uuid, kind), processes in strays.items():
        labels = {"uuid": uuid, "owner_kind": kind}
        yield "gpuscale_unaccounted_gpu_processes", labels, processes
