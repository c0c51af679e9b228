"""What the API says of a workload in a list and around its decision: plain values, null where unknown."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuscale.controller.domain import Floats
from gpuscale.controller.status import STAGES, FleetStatus, WorkloadStatus, known, whole

STATES = ("error", "held", "paused", "rising", "falling", "steady")
"""States of a workload, the ones that need a person first.

error: no answer; held: the last answer stands; rising, falling: which way the replicas go.
"""


def states_of(status: FleetStatus) -> NDArray[np.int64]:
    """Position in STATES of every workload."""
    seen, desired = status.observation, status.decision.desired
    return np.select(
        [
            ~np.isfinite(desired),
            status.decision.held,
            seen.paused,
            desired > seen.ready,
            desired < seen.ready,
        ],
        [0, 1, 2, 3, 4],
        default=5,
    )


def late(status: FleetStatus) -> NDArray[np.bool_]:
    """Whether more arrives at each workload than its ready replicas carry, so that requests wait.

    False where one of the three is not known.
    """
    seen = status.observation
    with np.errstate(invalid="ignore"):  # unknown compares as false
        return np.asarray(seen.demand > seen.ready * seen.capacity)


def row(status: FleetStatus, i: int, state: int) -> dict[str, Any]:
    """One workload in one line; null where unknown."""
    workload, seen, decision = status.workloads[i], status.observation, status.decision
    levels = decision.forecast.levels
    return {
        "namespace": workload.namespace,
        "name": workload.name,
        "state": STATES[state],
        "server": workload.policy.server,
        "mode": workload.policy.mode,
        "policy": workload.policy_name,
        "actuator": workload.actuator,
        "demand": known(seen.demand[i]),
        "backlog": known(seen.backlog[i]),
        "coverage": known(seen.coverage[i]),
        "age_s": known(seen.age_s[i]),
        **{stage: whole(getattr(seen, stage)[i]) for stage in STAGES},
        "desired": whole(decision.desired[i]),
        "held": bool(decision.held[i]),
        "capacity": known(seen.capacity[i]),
        "lead_s": known(seen.lead_s[i]),
        "forecast": {
            f"{level:g}": known(decision.forecast.quantiles[i, j]) for j, level in enumerate(levels)
        },
    }


def context(found: WorkloadStatus) -> dict[str, Any]:
    """What stands around the decision of one workload."""
    target = found.workload.target
    return {
        "problem": found.problem,
        "paused": found.workload.paused,
        "target": None if target is None else f"{target.kind}/{target.name}",
        "pending_reason": None if found.replicas is None else found.replicas.pending_reason,
        "pods_answered": None if found.reading is None else found.reading.pods_answered,
        "pods_expected": None if found.reading is None else found.reading.pods_expected,
    }


def known_sum(values: Floats) -> int | None:
    """The sum of what is known; None where nothing is."""
    kept = values[np.isfinite(values)]
    return round(float(kept.sum())) if len(kept) else None
