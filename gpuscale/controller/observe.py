"""From what the sources gave to the arrays that `decide` reads: one tick's observation.

What a source did not give is NaN here, and is never filled in: a reading that failed leaves the
demand unknown and the age of the last good one growing.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from gpuscale.controller.capacity import Sight
from gpuscale.controller.domain import (
    FleetObservation,
    FleetPolicy,
    Floats,
    ReplicaState,
    SignalReading,
    SignalTarget,
    Workload,
)
from gpuscale.controller.servers import SERVERS
from gpuscale.controller.servers.promql import own

ENDPOINTS_MAX = 4_096
"""Pages of one workload; a fleet beyond it is read through Prometheus."""


def target_of(workload: Workload, state: ReplicaState | None) -> SignalTarget:
    """Where the signals of a workload are, by its policy and the pods that are ready."""
    policy = workload.policy
    table = SERVERS.get(policy.server)
    if workload.endpoints:
        endpoints = workload.endpoints
        expected: int | None = len(endpoints)
    elif state is not None and table is None:
        endpoints, expected = (), state.ready
    elif state is not None and table is not None:
        port, path = policy.metrics_port or table.port, policy.metrics_path or table.path
        hosts = (f"[{host}]" if ":" in host else host for host in state.endpoints[:ENDPOINTS_MAX])
        endpoints = tuple(f"http://{host}:{port}{path}" for host in hosts)
        expected = state.ready
    else:
        endpoints, expected = (), None
    selector = selector_of(workload)
    return SignalTarget(
        key=workload.key,
        namespace=workload.namespace,
        name=workload.name,
        server=policy.server,
        selector=selector,
        endpoints=endpoints,
        pods_expected=expected,
        queries={}
        if policy.custom is None
        else own(
            policy.custom,
            namespace=workload.namespace,
            name=name_of(workload),
            selector=selector,
        ),
    )


def name_of(workload: Workload) -> str:
    """What pods are named after: the target; a ScaledObject may be called otherwise."""
    return workload.name if workload.target is None else workload.target.name


def selector_of(workload: Workload) -> str:
    """The policy's label matchers with the namespace and the name of the scale target filled in.

    Pods are named after the target; a ScaledObject may be called otherwise. Without a target the
    workload's own name stands in. Only the two placeholders are replaced: braces of a regular expression stay as they are.
    """
    selector = workload.policy.selector.replace("{namespace}", workload.namespace)
    return selector.replace("{name}", name_of(workload))


def observation_of(
    *,
    now: float,
    tick_s: float,
    workloads: Sequence[Workload],
    fresh: Mapping[str, SignalReading],
    last: Mapping[str, SignalReading],
    replicas: Mapping[str, ReplicaState],
    lead_s: Floats,
    capacity: Floats,
) -> FleetObservation:
    """The arrays of one tick. `fresh` are this tick's readings, `last` the newest good ones of all."""
    policies = [w.policy for w in workloads]
    keys = tuple(w.key for w in workloads)
    read = [fresh.get(key) for key in keys]
    states = [replicas.get(key) for key in keys]
    return FleetObservation(
        now=now,
        tick_s=tick_s,
        keys=keys,
        policy=FleetPolicy.of(policies),
        demand=_column([None if r is None else r.arrivals for r in read]),
        backlog=_column([None if r is None else r.waiting for r in read]),
        coverage=_column([None if r is None else coverage_of(r) for r in read]),
        age_s=np.array([_age_s(now, last.get(key)) for key in keys], dtype=np.float64),
        asked=_column([None if s is None else s.asked for s in states]),
        ready=_column([_ready(s, r) for s, r in zip(states, read, strict=True)]),
        starting=_column([None if s is None else s.starting for s in states]),
        pending=_column([None if s is None else s.pending for s in states]),
        capacity=capacity,
        lead_s=lead_s,
        paused=np.array([w.paused is not None for w in workloads], dtype=np.bool_),
    )


def sight_of(
    *,
    now: float,
    tick_s: float,
    workloads: Sequence[Workload],
    fresh: Mapping[str, SignalReading],
    last: Mapping[str, SignalReading],
    replicas: Mapping[str, ReplicaState],
) -> Sight:
    """What capacity is learned from at this tick, as `observation_of`."""
    read = [fresh.get(w.key) for w in workloads]
    states = [replicas.get(w.key) for w in workloads]
    return Sight(
        now=now,
        tick_s=tick_s,
        throughput=_column([None if r is None else r.throughput for r in read]),
        in_flight=_column([None if r is None else r.in_flight for r in read]),
        waiting=_column([None if r is None else r.waiting for r in read]),
        kv_fraction=_column([None if r is None else r.kv_fraction for r in read]),
        busy=_column([None if r is None else r.busy for r in read]),
        replicas=_column([_ready(s, r) for s, r in zip(states, read, strict=True)]),
        coverage=_column([None if r is None else coverage_of(r) for r in read]),
        objective_s=_column([w.policy.latency_objective_s for w in workloads]),
        builds=[_build(w, replicas.get(w.key), last.get(w.key)) for w in workloads],
    )


def _build(workload: Workload, state: ReplicaState | None, reading: SignalReading | None) -> str:
    """What the replicas run: the pods' build, the server and its models; empty while not all is known."""
    if reading is None:
        return ""
    if state is not None and not state.build:
        return ""
    pods = "" if state is None else state.build
    return "|".join((workload.policy.server, pods, *sorted(reading.models)))


def units_of(workloads: Sequence[Workload]) -> tuple[str, ...]:
    """What the demand of each workload counts: requests, or tokens where its server counts no requests."""
    tables = (SERVERS.get(w.policy.server) for w in workloads)
    return tuple("requests" if table is None else table.unit for table in tables)


def coverage_of(reading: SignalReading) -> float | None:
    """Pods that answered over pods that should have; None where nobody knows how many should.

    A workload at zero replicas is covered whole: no pod is silent.
    """
    expected = reading.pods_expected
    if expected is None:
        return None
    if expected == 0:
        return 1.0
    return min(1.0, reading.pods_answered / expected)


def _ready(state: ReplicaState | None, reading: SignalReading | None) -> int | None:
    """Replicas that serve: by the cluster, else the pods that answered."""
    if state is not None:
        return state.ready
    return None if reading is None else reading.pods_answered


def _age_s(now: float, reading: SignalReading | None) -> float:
    # A time that is no number says nothing of how old the reading is.
    if reading is None or not math.isfinite(reading.at):
        return np.inf
    return max(0.0, now - reading.at)


def _column(values: Sequence[float | None]) -> Floats:
    return np.array([np.nan if v is None else float(v) for v in values], dtype=np.float64)
