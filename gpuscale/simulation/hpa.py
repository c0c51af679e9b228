"""The HPA's arithmetic on one external metric of type AverageValue, as KEDA sets it up.

Source: Kubernetes' horizontal pod autoscaler, `GetExternalPerPodMetricReplicas`: the ratio is
value / (target × status.replicas); within the tolerance nothing changes, outside of it the wish is
ceil(value / target), whatever is ready. Scale-up policies and the scale-down stabilization then
bound the step. Time is data.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class HpaBehavior:
    """The part of `spec.behavior` that matters here; the defaults are Kubernetes' own."""

    tolerance: float = 0.1
    up_percent: float = 100.0
    up_pods: int = 4
    """Most that is added per sync: the larger of the two policies."""
    down_stabilization_s: float = 300.0
    down_pods: int | None = None
    """Most that is removed per `down_period_s`; None: everything at once, as Kubernetes' default."""
    down_period_s: float = 60.0
    min_replicas: int = 1
    max_replicas: int = 100

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> "HpaBehavior":
        """From the `spec` of a ScaledObject; what it leaves out has Kubernetes' default."""
        advanced = spec.get("advanced", {}).get("horizontalPodAutoscalerConfig", {})
        up = advanced.get("behavior", {}).get("scaleUp", {})
        down = advanced.get("behavior", {}).get("scaleDown", {})
        up_by = {p["type"]: p for p in up.get("policies", ())}
        down_by = {p["type"]: p for p in down.get("policies", ())}
        pods, own = down_by.get("Pods"), cls()
        return cls(
            tolerance=float(up.get("tolerance", own.tolerance)),
            up_percent=float(up_by.get("Percent", {}).get("value", own.up_percent)),
            up_pods=int(up_by.get("Pods", {}).get("value", own.up_pods)),
            down_stabilization_s=float(
                down.get("stabilizationWindowSeconds", own.down_stabilization_s)
            ),
            down_pods=int(pods["value"]) if pods else None,
            down_period_s=float(pods["periodSeconds"]) if pods else own.down_period_s,
            min_replicas=max(1, int(spec.get("minReplicaCount", 0))),
            max_replicas=int(spec.get("maxReplicaCount", own.max_replicas)),
        )


@dataclass(slots=True)
class Hpa:
    """One HPA: remembers its recommendations for the stabilization window."""

    behavior: HpaBehavior
    _recommended: list[tuple[float, int]] = field(default_factory=list)
    _removed: list[tuple[float, int]] = field(default_factory=list)

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
            want = self._down(now, current, min(current, max(n for _, n in self._recommended)))
        step = max(math.ceil(current * b.up_percent / 100.0), b.up_pods)
        want = min(want, current + step)
        return max(b.min_replicas, min(b.max_replicas, want))

    def _down(self, now: float, current: int, want: int) -> int:
        """`want`, but no more removed per period than the policy allows."""
        b = self.behavior
        if b.down_pods is not None:
            self._removed = [(t, n) for t, n in self._removed if t > now - b.down_period_s]
            want = max(want, current - b.down_pods + sum(n for _, n in self._removed))
        if want < current:
            self._removed.append((now, current - want))
        return min(current, want)
