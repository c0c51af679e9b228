"""A tick's status with numbers that a test chooses, without a tick."""

from collections.abc import Mapping, Sequence

import numpy as np

from gpuscale.controller import decide
from gpuscale.controller.answer import snapshot
from gpuscale.controller.capacity import declared
from gpuscale.controller.domain import ReplicaState, SignalReading, Workload
from gpuscale.controller.leadtime import LeadTimes
from gpuscale.controller.observe import observation_of
from gpuscale.controller.status import FleetStatus
from gpuscale.settings import Policy

NOW = 1_700_000_000.0
TICK_S = 15.0


def workload(name: str, *, namespace: str = "inference", policy: Policy | None = None) -> Workload:
    """A workload in act mode whose replicas carry 5 requests/s each."""
    return Workload(
        namespace=namespace,
        name=name,
        policy=policy or Policy(mode="act", capacity=5.0),
        policy_name="defaults",
        actuator="none",
        target=None,
    )


def status_of(
    demand: Mapping[str, float | None],
    *,
    now: float = NOW,
    number: int = 1,
    workloads: Sequence[Workload] | None = None,
    replicas: Mapping[str, ReplicaState] | None = None,
    memory: decide.Memory | None = None,
) -> FleetStatus:
    """One tick of the production core on these demands, by workload name; None is a failed reading.

    With `memory` from earlier calls the ticks follow each other.
    """
    fleet = tuple(workloads or [workload(name) for name in demand])
    keys = tuple(w.key for w in fleet)
    fresh = {
        w.key: SignalReading(
            key=w.key,
            at=now,
            arrivals=value,
            running=1.0,
            waiting=3.0,
            pods_answered=2,
            pods_expected=2,
        )
        for w in fleet
        if (value := demand.get(w.name)) is not None
    }
    capacities = declared([w.policy for w in fleet])
    leads = tuple(LeadTimes().of(w.key, w.policy.start_time_s) for w in fleet)
    observation = observation_of(
        now=now,
        tick_s=TICK_S,
        workloads=fleet,
        fresh=fresh,
        last=fresh,
        replicas=replicas or {},
        lead_s=np.array([lead.p90_s for lead in leads]),
        capacity=capacities.values,
    )
    start = memory if memory is not None else decide.initial_memory(keys, TICK_S)
    decision, _ = decide.decide(observation, decide.align(start, keys))
    return FleetStatus(
        snapshot=snapshot(decision, fleet, replicas or {}, number=number, now=now),
        observation=observation,
        decision=decision,
        workloads=fleet,
        readings=fresh,
        problems={},
        replicas=replicas or {},
        capacities=capacities,
        leads=leads,
        index={key: i for i, key in enumerate(keys)},
    )
