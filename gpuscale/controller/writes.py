"""The writes of direct mode: replicas set through scale subresources, several at once, within a time."""

import asyncio
from collections.abc import Mapping, Sequence

import numpy as np

from gpuscale.controller.domain import Scaler, Workload
from gpuscale.controller.status import FleetStatus
from gpuscale.errors import ApiError

WRITES_AT_ONCE = 16
"""Writes to scale subresources in flight: the API server's fairness starts to queue beyond it."""
WRITES_DEADLINE_S = 10.0
"""All writes of one tick together: a hung API server must not make the answers over gRPC stale."""


async def write_scales(
    scaler: Scaler | None, status: FleetStatus, counted: dict[str, int]
) -> Mapping[str, Sequence[str]]:
    """Set the replicas of direct mode, where they differ from what is asked for.

    Adds to `counted` by result; gives what failed as sentences with the workloads concerned.
    """
    due = [w for i, w in enumerate(status.workloads) if _is_due(status, i, w)]
    if scaler is None:
        sentence = "no cluster is connected: nothing is written to its scale target"
        return {sentence: [w.key for w in due]} if due else {}
    gate = asyncio.Semaphore(WRITES_AT_ONCE)
    failed: dict[str, list[str]] = {}
    tried: set[str] = set()

    async def write(workload: Workload) -> None:
        desired = status.decision.desired[status.index[workload.key]]
        async with gate:
            try:
                await scaler.scale(workload, int(desired))
            except ApiError as error:
                result = "refused" if error.status in (401, 403) else "failed"
                failed.setdefault(str(error), []).append(workload.key)
            else:
                result = "written"
            tried.add(workload.key)
        counted[result] = counted.get(result, 0) + 1

    try:
        async with asyncio.timeout(WRITES_DEADLINE_S), asyncio.TaskGroup() as group:
            for workload in due:
                group.create_task(write(workload), name=f"scale {workload.key}")
    except TimeoutError:
        sentence = (
            f"the API server did not take all writes within {WRITES_DEADLINE_S:.0f} s: check its "
            "load; the next tick tries again"
        )
        failed.setdefault(sentence, []).extend(w.key for w in due if w.key not in tried)
    return failed


def _is_due(status: FleetStatus, i: int, workload: Workload) -> bool:
    """Whether this decision is to be written: only a fresh one, in direct mode, where it changes something."""
    if workload.actuator != "scale" or workload.policy.mode != "act" or workload.paused is not None:
        return False
    if status.decision.held[i]:
        return False
    desired, asked = status.decision.desired[i], status.observation.asked[i]
    # What is asked at present must be known: a number is never written blind over another's.
    return bool(np.isfinite(desired) and np.isfinite(asked) and desired != asked)
