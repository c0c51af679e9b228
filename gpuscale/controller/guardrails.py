"""What stands between a plan and an answer: an ordered chain of guards.

Each guard takes the replicas wanted (n,) and gives the replicas it lets pass; the chain's order is
the policy, written once in `GUARDS`. What a guard changed, and why, is put into words only for the
workload that is asked about.

Bounds win over steps and dwell: both measure from the present replicas *brought within the bounds*,
so that a lowered maximum is obeyed at once, and the result of the chain lies within bounds, step
and dwell together. A pause wins over everything: then nothing moves.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpuscale.controller.domain import Bools, FleetPolicy, Floats, Verdict

FRESH_S = 300.0
"""After a start, nothing is scaled down before this much demand has been seen: a first quiet
minute says nothing, and what runs was wanted by somebody. It is the HPA's own down window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What the guards look at. Arrays of shape (n,)."""

    now: float
    policy: FleetPolicy
    desired: Floats
    """The answer before this one; NaN where there was none."""
    asked: Floats
    """spec.replicas at present; NaN where unknown."""
    ready: Floats
    coverage: Floats
    seen_s: Floats
    """Seconds of demand known without a longer gap until now, history before the start included."""
    rose_at: Floats
    """When the answer last rose; -inf where it never did."""
    paused: Bools
    collapsed: Bools
    """Demand fell to almost nothing, as it never did at this hour."""

    @property
    def current(self) -> Floats:
        """Replicas of the present: asked for, else the last answer, else those that are ready."""
        own = np.where(np.isnan(self.desired), self.ready, self.desired)
        return np.where(np.isnan(self.asked), own, self.asked)

    @property
    def standing(self) -> Floats:
        """The most that is asked for by anybody now; below it is a scale-down. NaN where unknown."""
        return np.fmax(self.desired, self.asked)

    @property
    def base(self) -> Floats:
        """What steps are measured from."""
        return np.where(np.isnan(self.standing), self.ready, self.standing)

    @property
    def partial(self) -> Bools:
        """Too few pods answered, or nobody knows how many should have."""
        return np.isnan(self.coverage) | (self.coverage < self.policy.coverage_min)

    @property
    def fresh(self) -> Bools:
        """Too little was seen so far."""
        return self.seen_s < FRESH_S

    def bounded(self, replicas: Floats) -> Floats:
        """Brought within the policy's bounds."""
        return np.minimum(np.maximum(replicas, self.policy.min_replicas), self.policy.max_replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """One guard: what it does to all workloads, and how it explains itself for one."""

    name: str
    apply: Callable[[Floats, Situation], Floats]
    reason: Callable[[Situation, int], str]


def _at_least(want: Floats, floor: Floats, where: Bools) -> Floats:
    return np.where(where, np.fmax(want, floor), want)


# ------------------------------------------------------------------ the guards


def _partial(want: Floats, seen: Situation) -> Floats:
    return _at_least(want, seen.standing, seen.partial)


def _partial_reason(seen: Situation, row: int) -> str:
    coverage = seen.coverage[row]
    if np.isnan(coverage):
        return (
            "It is not known how many pods should have answered, so silence of some could pass "
            "for calm: nothing is scaled down."
        )
    return (
        f"Only {coverage:.0%} of the pods answered (coverage_min is "
        f"{seen.policy.coverage_min[row]:.0%}): demand may be higher than it seems, so nothing is "
        "scaled down."
    )


def _fresh(want: Floats, seen: Situation) -> Floats:
    return _at_least(want, np.fmax(seen.standing, seen.ready), seen.fresh)


def _fresh_reason(seen: Situation, row: int) -> str:
    return (
        f"Demand has been seen for {seen.seen_s[row]:.0f} s only; what runs stays until it was "
        f"seen for {FRESH_S:.0f} s."
    )


def _collapse(want: Floats, seen: Situation) -> Floats:
    return _at_least(want, seen.standing, seen.collapsed)


def _collapse_reason(seen: Situation, row: int) -> str:
    return (
        "Demand fell to almost nothing, as it never did at this hour: that is more often an "
        "outage upstream than calm, and its end brings everybody back at once. Replicas stay for "
        "now."
    )


def _step_up(want: Floats, seen: Situation) -> Floats:
    base = seen.bounded(seen.base)
    return np.where(np.isnan(base), want, np.minimum(want, base + seen.policy.step_up_max))


def _step_up_reason(seen: Situation, row: int) -> str:
    return f"At most {seen.policy.step_up_max[row]:.0f} replicas are added at once (step_up_max)."


def _step_down(want: Floats, seen: Situation) -> Floats:
    base = seen.bounded(seen.base)
    return np.where(np.isnan(base), want, np.maximum(want, base - seen.policy.step_down_max))


def _step_down_reason(seen: Situation, row: int) -> str:
    return (
        f"At most {seen.policy.step_down_max[row]:.0f} replicas are removed at once "
        "(step_down_max)."
    )


def _dwell(want: Floats, seen: Situation) -> Floats:
    recent = seen.now - seen.rose_at < seen.policy.dwell_s
    return _at_least(want, seen.bounded(seen.desired), recent)


def _dwell_reason(seen: Situation, row: int) -> str:
    return (
        f"Replicas were added {seen.now - seen.rose_at[row]:.0f} s ago; nothing is removed for "
        f"{seen.policy.dwell_s[row]:.0f} s after a rise (dwell_s)."
    )


def _bounds(want: Floats, seen: Situation) -> Floats:
    return seen.bounded(want)


def _bounds_reason(seen: Situation, row: int) -> str:
    return (
        f"The policy's bounds are {seen.policy.min_replicas[row]:.0f} to "
        f"{seen.policy.max_replicas[row]:.0f} replicas (min_replicas, max_replicas)."
    )


def _paused(want: Floats, seen: Situation) -> Floats:
    return np.where(seen.paused & ~np.isnan(seen.current), seen.current, want)


def _paused_reason(seen: Situation, row: int) -> str:
    return "The workload is paused: what is asked for now stays."


GUARDS: tuple[Guard, ...] = (
    Guard(name="partial_data", apply=_partial, reason=_partial_reason),
    Guard(name="fresh_start", apply=_fresh, reason=_fresh_reason),
    Guard(name="collapse", apply=_collapse, reason=_collapse_reason),
    Guard(name="dwell", apply=_dwell, reason=_dwell_reason),
    Guard(name="step_up", apply=_step_up, reason=_step_up_reason),
    Guard(name="step_down", apply=_step_down, reason=_step_down_reason),
    Guard(name="bounds", apply=_bounds, reason=_bounds_reason),
    Guard(name="paused", apply=_paused, reason=_paused_reason),
)
"""First what is doubtful, then how fast, then how far, then whether at all."""


def guard(planned: Floats, seen: Situation) -> tuple[Floats, tuple[Floats, ...]]:
    """(what may be answered (n,), what left each guard in the order of `GUARDS`)."""
    stages = []
    want = planned
    for one in GUARDS:
        want = one.apply(want, seen)
        stages.append(want)
    return want, tuple(stages)


def verdicts(
    planned: Floats, stages: tuple[Floats, ...], seen: Situation, row: int
) -> tuple[Verdict, ...]:
    """The changes that the chain made to one workload's plan, in order."""
    found = []
    before = planned[row]
    for one, stage in zip(GUARDS, stages, strict=True):
        after = stage[row]
        if after != before:
            found.append(
                Verdict(
                    guard=one.name,
                    before=int(before),
                    after=int(after),
                    reason=one.reason(seen, row),
                )
            )
        before = after
    return tuple(found)
