"""From what was decided to what is answered over gRPC: one snapshot per tick.

Act mode answers the decision. Shadow mode moves nothing: beside other triggers it answers 0, since
the HPA takes the largest of all metrics, and as the only trigger the replicas that are asked for
already. Both hold whether or not anything is known about demand: an error beside other triggers
would keep the HPA from scaling down, which is moving.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpuscale.controller.domain import (
    Answer,
    FleetDecision,
    Hold,
    ReplicaState,
    Snapshot,
    Workload,
)
from gpuscale.settings import SELF_SCALING

_SHADOW_BESIDE = Answer(
    desired=0,
    reason="shadow mode beside other triggers: 0 leaves the replicas to them",
    active=False,
)


def snapshot(
    decision: FleetDecision,
    workloads: Sequence[Workload],
    replicas: Mapping[str, ReplicaState],
    *,
    number: int,
    now: float,
) -> Snapshot:
    """The answers of one tick by key; `now` is its wall time, `number` counts the snapshots up.

    A workload that the decision does not cover has an answer without a number: it was declared
    after the tick began.
    """
    index = {key: i for i, key in enumerate(decision.keys)}
    answers: dict[str, Answer] = {}
    for workload in workloads:
        key = workload.key
        if workload.policy.mode == "shadow":
            answers[key] = _explained(workload, _shadow(workload, replicas.get(key)))
        elif key in index:
            answers[key] = _act(decision, index[key], replicas.get(key))
        else:
            answers[key] = Answer(
                desired=None,
                reason=f"nothing has been decided for {key} yet: the next tick decides",
                active=None,
            )
    return Snapshot(number=number, at=now, answers=answers)


def _explained(workload: Workload, shadow: Answer) -> Answer:
    server = workload.policy.server
    if server not in SELF_SCALING:
        return shadow
    return replace(shadow, reason=f"{server} scales itself, gpuscale recommends: {shadow.reason}")


def _shadow(workload: Workload, state: ReplicaState | None) -> Answer:
    if not workload.only_trigger:
        return _SHADOW_BESIDE
    asked = None if state is None else state.asked
    if asked is None:
        return Answer(
            desired=None,
            reason=f"shadow mode answers the present replicas of {workload.key}, and they are not known: "
            "check that the scale target exists and that gpuscale may read it",
            active=None,
        )
    return Answer(
        desired=asked,
        reason="shadow mode as the only trigger: the present replicas",
        active=asked > 0,
    )


def _act(decision: FleetDecision, i: int, state: ReplicaState | None) -> Answer:
    desired = float(decision.desired[i])
    if not (math.isfinite(desired) and desired >= 0):
        outcome = decision.of(i)
        reason = outcome.reason if isinstance(outcome, Hold) else "no number was decided"
        return Answer(desired=None, reason=reason, active=None)
    replicas = round(desired)
    if not decision.held[i]:
        return Answer(desired=replicas, reason="decided at this tick", active=replicas > 0)
    # A held number is not fresh data: it keeps what runs, and neither wakes nor stops anything.
    asleep = state is not None and state.asked == 0
    return Answer(
        desired=replicas,
        reason="held: the last number stands while the signal is missing",
        active=None if asleep or replicas == 0 else True,
    )
