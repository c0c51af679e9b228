"""How long a replica takes from being asked for to its first served request, learned per workload.

Observed start times (pod creation to first Ready) are kept in a bounded ring; their P90 is the
lead time, because a plan made for the median start is late every second time. Until there are
`OBSERVED_MIN` of them the declared time stands: P90 of fewer is just the largest.
"""

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

STARTS_MAX = 64
"""Start times kept per workload: enough for a P90, few enough to follow a change of image or node."""
OBSERVED_MIN = 10
"""From this many observed starts on, a P90 says more than the declaration."""
START_S_MAX = 6 * 3600.0
"""A start that took longer is a pod that was stuck, not how long a start takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadTime:
    """The start time in use, and where it comes from."""

    p50_s: float
    p90_s: float
    """What plans are made with."""
    source: Literal["declared", "observed"]
    observed: int
    """Number of observed starts behind it."""

    @property
    def sentence(self) -> str:
        """For the explanation."""
        if self.source == "declared":
            return (
                f"A replica takes {self.p90_s:g} s to start, as the policy declares "
                f"({self.observed} starts observed; from {OBSERVED_MIN} on they are used)."
            )
        return (
            f"A replica takes {self.p50_s:.0f} s to start in the median and {self.p90_s:.0f} s at "
            f"P90, of {self.observed} observed starts."
        )


class LeadTimes:
    """Observed start times of all workloads, bounded."""

    def __init__(self) -> None:
        self._starts: dict[str, deque[float]] = {}

    def observe(self, key: str, starts_s: Iterable[float]) -> None:
        """Enter start times of pods that became ready. What cannot be one is dropped."""
        good = [s for s in starts_s if 0 < s <= START_S_MAX]
        if good:
            self._starts.setdefault(key, deque(maxlen=STARTS_MAX)).extend(good)

    def of(self, key: str, declared_s: float, extra_s: float = 0.0) -> LeadTime:
        """The lead time of one workload.

        `extra_s` is what passes between the decision and the creation of the pod (the tick, the
        HPA's sync): it is added to observed starts, and never to the declared time, which says
        "from asking" already.
        """
        starts = self._starts.get(key, ())
        if len(starts) < OBSERVED_MIN:
            return LeadTime(
                p50_s=declared_s, p90_s=declared_s, source="declared", observed=len(starts)
            )
        p50, p90 = np.quantile(np.array(starts), [0.5, 0.9])
        return LeadTime(
            p50_s=float(p50) + extra_s,
            p90_s=float(p90) + extra_s,
            source="observed",
            observed=len(starts),
        )

    def keep(self, keys: Collection[str]) -> None:
        """Forget all workloads but these."""
        for key in self._starts.keys() - set(keys):
            del self._starts[key]
