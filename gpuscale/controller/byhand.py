"""Replicas that a person set in direct mode: noticed, and left alone for a while.

What is asked of a target changes by us or by somebody else. A count that we did not ask for lately is
somebody else's (`kubectl scale`, a deployment pipeline), and they had a reason: it stands for
`manual_hold_s` of the policy, then gpuscale goes on. An operator who wants longer pauses or shadows.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuscale.controller.domain import ReplicaState, Workload

OWN_MAX = 20
"""Own counts remembered, five minutes of them at the default tick: caches show a write late."""


@dataclass(slots=True)
class _Seen:
    asked: int | None = None
    own: deque[int] = field(default_factory=lambda: deque(maxlen=OWN_MAX))
    until: float = 0.0
    """Of the monotonic clock."""


class ByHand:
    """What was asked of every target in direct mode, and by whom."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def heed(
        self,
        workloads: Sequence[Workload],
        replicas: Mapping[str, ReplicaState],
        answered: Mapping[str, int | None],
        now: float,
    ) -> tuple[Workload, ...]:
        """The workloads, those paused that were scaled by hand. `answered`: our last counts; `now`: monotonic."""
        kept: dict[str, _Seen] = {}
        found = []
        for workload in workloads:
            if workload.actuator != "scale" or workload.policy.mode != "act":
                found.append(workload)
                continue
            seen = kept[workload.key] = self._seen.get(workload.key) or _Seen()
            state = replicas.get(workload.key)
            _observe(seen, None if state is None else state.asked, answered.get(workload.key))
            if seen.until < 0:
                seen.until = now + workload.policy.manual_hold_s
            if now < seen.until and workload.paused is None:
                count = f"{seen.asked} replica{'' if seen.asked == 1 else 's'}"
                found.append(replace(workload, paused=f"a person who set {count}"))
            else:
                found.append(workload)
        self._seen = kept
        return tuple(found)


def _observe(seen: _Seen, asked: int | None, answered: int | None) -> None:
    """Enter what is asked of the target; `until` becomes negative where somebody else set it anew."""
    if answered is not None and (not seen.own or seen.own[-1] != answered):
        seen.own.append(answered)
    if asked is None:
        return
    before, seen.asked = seen.asked, asked
    if before is None or asked == before or asked in seen.own:
        return
    seen.until = -1.0
