"""Two hundred lives with random faults, under controllers that are killed and clocks that jump.

What must hold is judged from outside: by the answers, by what was asked, and by which faults there
really were. Three controllers share them; every workload has faults of its own, and a failure names the
seed, and the command that replays that one life.
"""

import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import numpy as np
import pytest

from gpuscale.controller.domain import Answer, Floats
from tests.fakes.clock import ManualClock
from tests.fakes.controllers import TICK_S, Running, running
from tests.fakes.schedules import BLINDING, DOUBTFUL, Schedule, Truth, drawn

TICKS = 480
"""Two hours."""
BATCHES = (range(100), range(100, 188), range(188, 200))
"""Seeds by controller: one whose clock is right, one with a clock that jumps a little, one with a
clock that is set far back. After that everything is learned anew, which costs a second a dozen."""
FRESH_S = 300.0
RUNAWAY = 4.5
"""Times the highest demand so far: a backlog of a minute, worked off where starts are quick and late
requests ten times as dear, is worth 3.6."""
SETTINGS = {"defaults": {"mode": "act"}}
REPLAY = "GPUSCALE_SEED={seed} pytest tests/simulation/test_fault_schedules.py -k {batch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """What happens to the controller of a batch, by tick."""

    kills: dict[int, int] = field(default_factory=dict)
    """Tick at which it dies -> ticks until there is a new one."""
    steps: dict[int, float] = field(default_factory=dict)
    """Tick -> seconds by which the wall clock jumps."""


def events_of(batch: int) -> Events:
    rng = np.random.default_rng(1000 + batch)
    ticks = [int(t) for t in rng.choice(np.arange(40, TICKS - 40), 6, replace=False)]
    kills = {t: int(rng.integers(1, 41)) for t in ticks[:3]}
    far = 20.0 if batch == 2 else 1.0
    jumps = (float(rng.uniform(5, 240)), -float(rng.uniform(5, 240)), -far * rng.uniform(30, 240))
    # Old samples and a clock set back together would hide the one behind the other.
    steps = dict(zip(ticks[3:], jumps, strict=True)) if batch else {}
    return Events(kills=kills, steps=steps)


@dataclass(slots=True)
class Judge:
    """What is known from outside of one workload, and what was done wrong with it."""

    schedule: Schedule
    last: int | None = None
    """The controller's last number since its start."""
    rose_s: float = -np.inf
    good_s: float = -np.inf
    """When it was last readable."""
    readable_s: float = 0.0
    """Seconds of readable ticks in a row, missing ones up to hold_s allowed."""
    wrong: list[str] = field(default_factory=list)

    def begin_anew(self) -> None:
        self.last, self.rose_s, self.good_s, self.readable_s = None, -np.inf, -np.inf, 0.0

    def see(self, tick: int, answer: Answer, asked: int, asked_known: bool, ready: int) -> None:
        """Judge one answer; `asked` is what was asked for before it."""
        now, policy = tick * TICK_S, self.schedule.policy
        faults = self.schedule.felt(tick)
        low, high = policy["min_replicas"], policy["max_replicas"]
        readable = ready > 0 and not faults & BLINDING
        if now - self.good_s > policy["hold_s"]:
            self.readable_s = 0.0
        self.good_s = now if readable else self.good_s
        self.readable_s += TICK_S if readable else 0.0
        desired = answer.desired
        # What a silent or unreadable pod means is doubt; no pod at all is no doubt but no data.
        if faults & DOUBTFUL or ready == 0:
            self.expect(answer.active is not False, tick, f"{answer} stops pods in doubt")
        stale_s = now - self.good_s
        if stale_s > policy["hold_s"] + 45.0 + TICK_S:
            self.expect(desired is None, tick, f"{desired} is answered {stale_s:.0f} s blind")
        if desired is None:
            return
        before = self.last if self.last is not None else (asked if asked_known else None)
        floor = min(
            high, max(x for x in (self.last, asked if asked_known else None, 0) if x is not None)
        )
        self.expect(low <= desired <= high, tick, f"{desired} is outside {low}..{high}")
        doubt = faults & DOUBTFUL or ready == 0 or self.readable_s < FRESH_S
        if doubt:
            self.expect(
                desired >= floor, tick, f"{desired} is below {floor} in doubt ({set(faults)})"
            )
        if before is not None:
            base = max(low, floor)
            self.expect(
                desired <= base + policy.get("step_up_max", np.inf),
                tick,
                f"{desired} jumps from {base}",
            )
            self.expect(
                desired >= base - policy.get("step_down_max", np.inf),
                tick,
                f"{desired} drops from {base}",
            )
            if self.last is not None and now - self.rose_s < policy["dwell_s"]:
                self.expect(
                    desired >= self.last,
                    tick,
                    f"{desired} after a rise to {self.last} within dwell",
                )
            if desired > before:
                self.rose_s = now
        peak = self.schedule.demand[: tick + 1].max() / self.schedule.capacity
        self.expect(
            desired <= max(floor, RUNAWAY * peak + 3.0), tick, f"{desired} for a peak of {peak:.1f}"
        )
        self.last = desired

    def expect(self, good: bool, tick: int, complaint: str) -> None:
        if not good:
            self.wrong.append(f"tick {tick}: {complaint}")


async def live(schedules: Sequence[Schedule], events: Events) -> list[Judge]:
    """All schedules of a batch to their end."""
    clock = ManualClock()
    truth = Truth(schedules, clock)
    judges = [Judge(schedule=s) for s in schedules]
    asked: Floats = truth.asked.copy()
    low = np.array([s.policy["min_replicas"] for s in schedules])
    down_until = -1
    async with AsyncExitStack() as stack:

        async def start() -> Running:
            return await stack.enter_async_context(
                running(SETTINGS, signal=truth, cluster=truth.view, clock=clock)
            )

        control: Running | None = await start()
        for tick in range(TICKS):
            if tick in events.kills:
                await stack.aclose()
                control, down_until = None, tick + events.kills[tick]
                truth.pod_signal.forget()
            if tick == down_until:
                control = await start()
                for judge in judges:
                    judge.begin_anew()
            clock.step_wall(events.steps.get(tick, 0.0))
            await clock.advance(TICK_S)
            truth.advance(asked)
            if control is None:
                continue
            snapshot = await control.decide()
            for i, judge in enumerate(judges):
                answer = snapshot.answers[judge.schedule.key]
                known = judge.schedule.key in truth.view.states
                judge.see(tick, answer, int(asked[i]), known, int(truth.ready[i]))
                if answer.desired is not None:
                    # The HPA never goes to 0 by itself; KEDA does, when told that nothing is active.
                    asked[i] = (
                        answer.desired
                        if answer.desired or answer.active is False
                        else min(1, asked[i])
                    )
            # Another trigger wakes what sleeps.
            asked = np.where((asked == 0) & (truth.demand > 0), np.maximum(1, low), asked)
    return judges


@pytest.mark.parametrize("batch", range(len(BATCHES)))
async def test_no_fault_ever_takes_replicas_away(batch: int) -> None:
    """Bounds, steps and dwell always; down never in doubt; an error when blind; nothing crashes."""
    only = os.environ.get("GPUSCALE_SEED")
    events = events_of(batch)
    schedules = [
        drawn(seed, TICKS, stale=not events.steps)
        for seed in BATCHES[batch]
        if only is None or int(only) == seed
    ]
    judges = await live(schedules, events)
    wrong = [
        f"{j.schedule.name}: {'; '.join(j.wrong[:3])}; replay: "
        + REPLAY.format(seed=j.schedule.name.split("-")[-1], batch=batch)
        for j in judges
        if j.wrong
    ]
    assert not wrong, "\n".join(wrong)
