"""How long a replica takes from being asked for to its first served request, learned per workload.

A start is told by stages: `schedule` (until a node is chosen), `provision` (a node that had to come
first), `pull` (sandbox, volumes, image), `load` (the server starts and loads its model) and `ready`
(until its readiness is believed). What is kept apart is the time in which no node would take the pod
and none was on its way: that is a lack of GPUs, not how long a start takes.

The lead time is the P90 of whole starts plus what passes before the pod exists (decision, HPA): a
plan made for the median start is late every second time. Starts are kept in a bounded ring, in
their order: another build of the pods, or starts that all lie beyond all before them, begin a new one.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from gpuscale.controller.domain import STAGES_OF_A_START, Start

STARTS_MAX = 40
"""Starts kept per workload: enough for a P90, few enough to follow a change of node or registry."""
OBSERVED_MIN = 5
"""From this many observed starts on they are used; the P90 of fewer than nine is their largest."""
START_S_MAX = 6 * 3600.0
"""A start that took longer is a pod that was stuck, not how long a start takes."""
FOUND_RANGE = 2.0
"""Pods found ready when gpuscale starts may have been ready before, and their Ready be a later one:
they count where they agree within this, or lie within this many times the declaration."""
FOUND_MIN = 3
SHIFT_AFTER = 8
SHIFT_UP = 4
SHIFT_DOWN = 8
"""So many starts in a row above (below) all of at least SHIFT_AFTER before them are another
distribution: by chance it happens once in 495 (12,870) times. Down is believed later: warm caches
make starts short until a cold node comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadTime:
    """The start time in use, and where it comes from."""

    p50_s: float
    p90_s: float
    """What plans are made with."""
    source: Literal["declared", "observed"]
    observed: int
    """Number of observed starts behind it."""
    declared_s: float | None = None
    delay_s: float = 0.0
    """Of p50_s and p90_s, what passes from the decision until the pod exists."""
    stages: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """P50 and P90 of each stage that was observed, in seconds."""
    unschedulable_s: float | None = None
    """P90 of the time in which no node would take the pod, which is no part of a start."""
    engine_s: float | None = None
    """Seconds that the server says its engine took to start, within `load`."""
    shift: str | None = None
    """Why earlier starts do not count any more; None where they do."""

    @property
    def sentence(self) -> str:
        """For the explanation."""
        if self.source == "declared":
            return (
                f"A replica takes {self.p90_s:g} s to start, as the policy declares "
                f"({self.observed} starts observed; from {OBSERVED_MIN} on they are used)."
            )
        line = (
            f"A replica takes {self.p50_s:.0f} s to start in the median and {self.p90_s:.0f} s at "
            f"P90, of {self.observed} observed starts"
        )
        if self.stages:
            parts = (f"{name} {p50:.0f} s" for name, (p50, _) in self.stages.items() if p50 >= 1)
            line += (
                f" (in the median {self.delay_s:.0f} s until the pod exists, {', '.join(parts)})"
            )
        line += "."
        if self.engine_s is not None:
            line += f" The server says that {self.engine_s:.0f} s of it go into its engine."
        if self.declared_s is not None:
            line += f" The policy declares {self.declared_s:g} s."
        if self.unschedulable_s:
            line += f" Apart from that, pods found no node for up to {self.unschedulable_s:.0f} s (P90)."
        if self.shift is not None:
            line += f" {self.shift}"
        return line


@dataclass(slots=True)
class _Past:
    """The starts of one workload."""

    starts: deque[Start] = field(default_factory=lambda: deque(maxlen=STARTS_MAX))
    build: str = ""
    prior: tuple[float, float] | None = None
    """P50 and P90 of the build before this one, which stand until there are enough of this one."""
    engine_s: float | None = None
    shift: str | None = None
    known: tuple[float, float, LeadTime] | None = None
    """The lead time, and the declaration and delay that it was made for."""


class LeadTimes:
    """Observed start times of all workloads, bounded."""

    def __init__(self) -> None:
        self._pasts: dict[str, _Past] = {}

    def observe(self, key: str, starts: Iterable[Start], *, engine_s: float | None = None) -> None:
        """Enter starts of pods that became ready, oldest first. What cannot be one is dropped."""
        good = [s for s in starts if 0 < s.total_s <= START_S_MAX]
        past = self._pasts.get(key)
        if past is None:
            if not good:
                return
            past = self._pasts[key] = _Past()
        if engine_s is not None and engine_s != past.engine_s:
            past.engine_s, past.known = engine_s, None
        for start in good:
            _enter(past, start)

    def of(self, key: str, declared_s: float, extra_s: float = 0.0) -> LeadTime:
        """The lead time of one workload.

        `extra_s` is what passes between the decision and the creation of the pod (the tick, the
        HPA's sync): it is added to observed starts, and never to the declared time, which says
        "from asking" already.
        """
        past = self._pasts.get(key)
        if past is None:
            return LeadTime(p50_s=declared_s, p90_s=declared_s, source="declared", observed=0)
        if past.known is None or past.known[:2] != (declared_s, extra_s):
            past.known = (declared_s, extra_s, _lead_time(past, declared_s, extra_s))
        return past.known[2]

    def keep(self, keys: Collection[str]) -> None:
        """Forget all workloads but these."""
        for key in self._pasts.keys() - set(keys):
            del self._pasts[key]


def _enter(past: _Past, start: Start) -> None:
    past.known = None
    if start.build and past.build and start.build != past.build:
        totals = [s.total_s for s in past.starts]
        if len(totals) >= OBSERVED_MIN:
            past.prior = _quantiles(totals)
        past.starts.clear()
        past.shift = "Starts of an earlier image, model or GPU do not count any more."
    past.build = start.build or past.build
    past.starts.append(start)
    for count, up in ((SHIFT_UP, True), (SHIFT_DOWN, False)):
        if _shifted([s.total_s for s in past.starts], count, up=up):
            newest = list(past.starts)[-count:]
            past.starts.clear()
            past.starts.extend(newest)
            past.shift = (
                f"Starts have become {'longer' if up else 'shorter'}: earlier ones do not count."
            )
            return


def _shifted(totals: list[float], count: int, *, up: bool) -> bool:
    """Whether the last `count` all lie beyond all of the others, of which there are enough."""
    before, after = totals[:-count], totals[-count:]
    if len(before) < SHIFT_AFTER:
        return False
    return min(after) > max(before) if up else max(after) < min(before)


def _lead_time(past: _Past, declared_s: float, extra_s: float) -> LeadTime:
    starts = _believed(past.starts, declared_s)
    totals = [s.total_s for s in starts]
    if len(starts) >= OBSERVED_MIN:
        p50, p90 = _quantiles(totals)
    elif past.prior is not None:
        # A new build is taken to start as the last one did, until it is seen to take longer.
        p50, p90 = past.prior[0], max([past.prior[1], *totals])
    else:
        return LeadTime(p50_s=declared_s, p90_s=declared_s, source="declared", observed=len(starts))
    stages = {
        name: _quantiles(seen)
        for name in STAGES_OF_A_START
        if (seen := [s.stages[name] for s in starts if name in s.stages])
    }
    waits = [s.unschedulable_s for s in starts if s.unschedulable_s > 0]
    return LeadTime(
        p50_s=p50 + extra_s,
        p90_s=p90 + extra_s,
        source="observed",
        observed=len(starts),
        declared_s=declared_s,
        delay_s=extra_s,
        stages=stages,
        unschedulable_s=_quantiles(waits)[1] if waits else None,
        engine_s=past.engine_s,
        shift=past.shift,
    )


def _believed(starts: Collection[Start], declared_s: float) -> list[Start]:
    """All that were witnessed, and of those found afterwards the ones that cannot be a later Ready."""
    found = [s.total_s for s in starts if not s.witnessed]
    agree = len(found) >= FOUND_MIN and max(found) <= FOUND_RANGE * min(found)
    return [s for s in starts if s.witnessed or agree or s.total_s <= FOUND_RANGE * declared_s]


def _quantiles(values: Collection[float]) -> tuple[float, float]:
    """P50 and P90 by Weibull's plotting positions i / (n + 1), at most the largest.

    In plain Python: a restart finds ten thousand workloads' starts at once, and numpy takes longer
    to be called than a few numbers to be sorted.
    """
    seen = sorted(values)

    def at(level: float) -> float:
        position = min(max(level * (len(seen) + 1) - 1.0, 0.0), len(seen) - 1.0)
        below = int(position)
        above = min(below + 1, len(seen) - 1)
        return seen[below] + (position - below) * (seen[above] - seen[below])

    return at(0.5), at(0.9)
