"""The HPA's arithmetic on one external metric of type AverageValue, as KEDA sets it up.

Source: Kubernetes' horizontal pod autoscaler, `GetExternalPerPodMetricReplicas`: the ratio is
value / (target × status.replicas); within the tolerance nothing changes, outside of it the wish is
ceil(value / target), whatever is ready. Scale-up policies and the scale-down stabilization then
bound the step. Time is data.
"""

import math
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class HpaBehavior:
    """The part of `spec.behavior` that matters here; the defaults are Kubernetes' own."""

    tolerance: float = 0.1
    up_percent: float = 100.0
    up_pods: int = 4
    """Most that is added per sync: the larger of the two policies."""
    down_stabilization_s: float = 300.0
    min_replicas: int = 1
    max_replicas: int = 100


FOLLOWING = HpaBehavior(tolerance=0.0, up_percent=900.0, up_pods=20, down_stabilization_s=60.0)
"""As `gpuscale scaledobject` sets it: decisions are made upstream, the HPA only follows."""


@dataclass(slots=True)
class Hpa:
    """One HPA: remembers its recommendations for the stabilization window."""

    behavior: HpaBehavior
    _recommended: list[tuple[float, int]] = field(default_factory=list)

    def sync(self, *, now: float, current: int, value: float | None, target: float = 1.0) -> int:
        """Replicas after one sync; `value` None (the metric failed) holds them.

        `now` in seconds, `current` replicas of the scale target, `value` and `target` in the
        metric's unit. Raises ValueError for a target that is not positive.
        """
        if target <= 0:
            raise ValueError(f"target must be positive, got {target:g}")
        b = self.behavior
        if value is None or current == 0:
            # An unknown metric blocks scaling; at zero replicas an HPA is disabled.
            return current
        ratio = value / (target * current)
        inside = abs(ratio - 1.0) <= b.tolerance + 1e-12
        want = current if inside else math.ceil(value / target - 1e-9)
        self._recommended = [
            (t, n) for t, n in self._recommended if t > now - b.down_stabilization_s
        ]
        self._recommended.append((now, want))
        if want < current:
            want = min(current, max(n for _, n in self._recommended))
        step = max(math.ceil(current * b.up_percent / 100.0), b.up_pods)
        want = min(want, current + step)
        return max(b.min_replicas, min(b.max_replicas, want))
