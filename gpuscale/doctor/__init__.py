"""The doctor: what is installed, what is misconfigured, and the cure of each.

    facts    what is known, as values
    gather   asks the cluster, Prometheus and this machine
    visit    lets a running controller ask it
    nodes    checks on nodes, the device plugin and GPU pods
    scaling  checks on KEDA, HPAs, ScaledObjects and quotas
    own      checks on gpuscale itself and on what reaches Prometheus

Each check is a pure function of facts; one that could not look says so. Nothing is changed.
"""

from gpuscale.doctor import nodes, own, scaling
from gpuscale.doctor.facts import STATUSES, Facts, Result, Unread


def examine(facts: Facts) -> tuple[Result, ...]:
    """Every check, those that need a person first."""
    found = [] if facts.here is None else [*own.here(facts.here)]
    found += own.cluster_facts(facts)
    if not isinstance(facts.cluster, Unread):
        found += nodes.checks(facts.cluster)
        found += scaling.checks(facts.cluster)
        found += own.exporters(facts.cluster)
        found += own.controller(facts.cluster)
    found += own.prometheus(facts.prometheus, facts.cluster)
    return tuple(sorted(found, key=lambda result: STATUSES.index(result.status)))
