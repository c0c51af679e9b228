"""The tick: observe, decide, publish, write, record; each step named, timed and bounded.

One failing source, workload or target never stops another: what fails is a fault with one sentence
(`faults.py`), and is tried again at the next tick. What is not an operating error is a mistake in
this program, and ends it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from gpuscale import log
from gpuscale.clock import Clock, SystemClock
from gpuscale.controller import answer, decide
from gpuscale.controller.backfill import Backfill
from gpuscale.controller.byhand import ByHand
from gpuscale.controller.capacity import Capacities, FleetCapacity
from gpuscale.controller.declared import Declared
from gpuscale.controller.domain import (
    FleetDecision,
    FleetObservation,
    ReplicaState,
    Scaler,
    Signal,
    SignalReading,
    SignalTarget,
    Workload,
)
from gpuscale.controller.faults import Faults
from gpuscale.controller.leadtime import LeadTime, LeadTimes
from gpuscale.controller.observe import observation_of, sight_of, target_of, units_of
from gpuscale.controller.replay import Entry
from gpuscale.controller.status import FleetStatus, Ring, Tally, whole
from gpuscale.controller.writes import write_scales
from gpuscale.errors import GpuscaleError
from gpuscale.settings import ControllerSettings

HPA_SYNC_S = 15.0
"""Period of the HPA's loop (kube-controller-manager's default): what may pass until it acts on an answer."""
SET_BACK_S = 5.0
"""The wall clock was set where it lost or won so much against the monotonic one within a tick; less
is slewing."""
ANEW_S = 300.0
"""Set back further, all that was learned lies in the future, and is learned anew from the past that
the source keeps; until then time that was seen before would teach nothing for hours."""
CHANGES_LOGGED_MAX = 50
"""Changes of answers logged one by one in a tick; the rest are counted."""

_log = log.get("loop")


class Surroundings(Protocol):
    """What the loop asks of the world beside its signals; answered from memory, in no time."""

    def declared(self) -> Declared:
        """Workloads of the settings and of the ScaledObjects."""
        ...

    def replicas(self, workloads: Sequence[Workload]) -> Mapping[str, ReplicaState]:
        """Replicas by key; without a cluster, and for what is not known, no entry."""
        ...

    def faults(self) -> Mapping[str, Sequence[str]]:
        """What is wrong with the cluster or the journal now: sentence -> workloads concerned; empty when all is well."""
        ...


class Recorder(Protocol):
    """Where a tick is recorded."""

    async def record(self, status: FleetStatus) -> None:
        """Keep it. Never raises for the file."""
        ...

    async def remember(self, entry: Entry, decided: FleetDecision, memory: decide.Memory) -> None:
        """Keep what entered the tick, so that it can be decided again; `memory` is what it left."""
        ...


@dataclass(slots=True, kw_only=True)
class Counters:
    """Counts since the start, of what the loop itself does."""

    ticks: int = 0
    step_s: dict[str, float] = field(default_factory=dict)
    signal_errors: dict[str, int] = field(default_factory=dict)
    scale_events: dict[str, tuple[int, int]] = field(default_factory=dict)
    writes: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class _Seen:
    """What one tick's observation was made of."""

    workloads: tuple[Workload, ...]
    refusals: Mapping[str, str]
    targets: tuple[SignalTarget, ...]
    replicas: Mapping[str, ReplicaState]
    leads: tuple[LeadTime, ...]
    capacities: FleetCapacity
    fresh: dict[str, SignalReading]
    problems: dict[str, str]
    observation: FleetObservation


class Loop:
    """Everything between two ticks: memory, learners, last readings, counters. Not for two tasks at once."""

    def __init__(
        self,
        settings: ControllerSettings,
        clock: Clock,
        *,
        source: str,
        signal: Signal,
        surroundings: Surroundings,
        scaler: Scaler | None,
        backfill: Backfill,
        recorder: Recorder,
        publish: Callable[[FleetStatus], None],
        faults: Faults,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._source = source
        self._signal = signal
        self._surroundings = surroundings
        self._scaler = scaler
        self._backfill = backfill
        self._recorder = recorder
        self._publish = publish
        self._faults = faults
        self._memory = decide.initial_memory((), settings.tick_s)
        self._leads = LeadTimes()
        self._capacities = Capacities()
        self._by_hand = ByHand()
        self._last: dict[str, SignalReading] = {}
        self._begun: set[str] = set()
        """Workloads that were read at least once."""
        self._answered: dict[str, int | None] = {}
        self._time: tuple[float, float] | None = None
        """(wall, monotonic) at the last tick."""
        self._turned_back: tuple[float, bool] | None = None
        """The clock was set before this tick: seconds back, and whether the memory began anew."""
        # Steps cost real time, whatever clock the controller lives by.
        self._stopwatch = SystemClock()
        self.counters = Counters()
        self.ring = Ring()
        self.status: FleetStatus | None = None

    async def tick(self) -> FleetStatus:
        """One pass. Returns what is known now; it is also `self.status`."""
        async with self.timed("observe"):
            seen = await self._observe()
        async with self.timed("backfill"):
            await self._enter_past(seen)
        async with self.timed("decide"):
            # Pure, and numpy lets go of the interpreter: RPCs are answered meanwhile.
            decision, self._memory = await asyncio.to_thread(
                decide.decide, seen.observation, self._memory
            )
        async with self.timed("publish"):
            status = self._status(seen, decision)
            self._publish(status)
            self._note_changes(status)
        async with self.timed("write"):
            failed = await write_scales(self._scaler, status, self.counters.writes)
            self._faults.replace("write", failed)
        async with self.timed("record"):
            await self._recorder.record(status)
            await self._recorder.remember(self._entry(seen), decision, self._memory)
        self.ring.append(status)
        self.counters.ticks += 1
        self.status = status
        return status

    def _entry(self, seen: _Seen) -> Entry:
        """What entered this tick; the clock that was set back enters once."""
        entry = Entry(
            observation=seen.observation,
            set_back=self._turned_back,
            pasts=self._backfill.entered,
        )
        self._turned_back = None
        return entry

    def tally(self) -> Tally:
        """The counts of the loop, as of now."""
        counted = self.counters
        return Tally(
            ticks=counted.ticks,
            step_s=dict(counted.step_s),
            signal_errors=dict(counted.signal_errors),
            scale_events=dict(counted.scale_events),
            actuator_writes=dict(counted.writes),
        )

    # ------------------------------------------------------------ observe

    async def _observe(self) -> _Seen:
        declared = self._surroundings.declared()
        replicas = self._surroundings.replicas(declared.workloads)
        workloads = self._by_hand.heed(
            declared.workloads, replicas, self._answered, self._clock.monotonic()
        )
        self._faults.replace("surroundings", self._surroundings.faults())
        self._faults.replace(
            "declaration", {f"{k}: {why}": () for k, why in declared.refusals.items()}
        )
        keys = tuple(w.key for w in workloads)
        self._leads.keep(keys)
        for key, state in replicas.items():
            before = self._last.get(key)
            engine_s = None if before is None else before.startup_s
            self._leads.observe(key, state.starts, engine_s=engine_s)
        leads = tuple(self._lead_of(w) for w in workloads)
        targets = tuple(target_of(w, replicas.get(w.key)) for w in workloads)
        now = self._clock.wall()
        self._heed_clock(now)
        fresh, problems = await self._read(targets, now)
        self._last = {key: self._last[key] for key in keys if key in self._last}
        self._last |= {key: r for key, r in fresh.items() if r.arrivals is not None}
        capacities = self._learn_capacity(workloads, now, fresh, replicas)
        return _Seen(
            workloads=workloads,
            refusals=declared.refusals,
            targets=targets,
            replicas=replicas,
            leads=leads,
            capacities=capacities,
            fresh=fresh,
            problems=problems,
            observation=observation_of(
                now=now,
                tick_s=self._settings.tick_s,
                workloads=workloads,
                fresh=fresh,
                last=self._last,
                replicas=replicas,
                lead_s=np.array([lead.p90_s for lead in leads], dtype=np.float64),
                capacity=capacities.values,
            ),
        )

    def _learn_capacity(
        self,
        workloads: Sequence[Workload],
        now: float,
        fresh: Mapping[str, SignalReading],
        replicas: Mapping[str, ReplicaState],
    ) -> FleetCapacity:
        self._capacities.align(tuple(w.key for w in workloads))
        self._capacities.observe(
            sight_of(
                now=now,
                tick_s=self._settings.tick_s,
                workloads=workloads,
                fresh=fresh,
                last=self._last,
                replicas=replicas,
            )
        )
        return self._capacities.of([w.policy for w in workloads], units_of(workloads))

    def _lead_of(self, workload: Workload) -> LeadTime:
        delay_s = self._settings.tick_s + (HPA_SYNC_S if workload.actuator == "keda" else 0.0)
        return self._leads.of(workload.key, workload.policy.start_time_s, delay_s)

    def _heed_clock(self, now: float) -> None:
        """Keep a wall clock that was set back from making what is old look new.

        One that was set forward looks like ticks that were missed; it must not end a dwell.
        """
        monotonic = self._clock.monotonic()
        last, self._time = self._time, (now, monotonic)
        if last is None:
            return
        back_s = (monotonic - last[1]) - (now - last[0])
        if abs(back_s) < SET_BACK_S:
            return
        anew = back_s > ANEW_S
        if back_s > 0:
            _log.warning("wall clock set back", seconds=round(back_s), learned_anew=anew)
            self._last = {key: replace(r, at=r.at - back_s) for key, r in self._last.items()}
        self._memory = decide.set_back(self._memory, back_s, anew=anew)
        self._turned_back = (back_s, anew)
        if anew:
            self._backfill.begin_anew()

    async def _read(
        self, targets: Sequence[SignalTarget], now: float
    ) -> tuple[dict[str, SignalReading], dict[str, str]]:
        """(readings, why there is none or not all of it), by key."""
        fresh: dict[str, SignalReading] = {}
        problems: dict[str, str] = {}
        faults: dict[str, list[str]] = {}
        read = await self._signal.read(targets, now) if targets else {}
        for target in targets:
            got = read.get(target.key)
            if isinstance(got, SignalReading):
                fresh[target.key] = got
                sentence = got.reason
            elif isinstance(got, GpuscaleError):
                sentence = str(got)
                count = self.counters.signal_errors.get(self._source, 0)
                self.counters.signal_errors[self._source] = count + 1
            elif got is None:
                sentence = f"{self._source} said nothing of it: this is a mistake in gpuscale"
            else:
                raise got
            if sentence is not None:
                problems[target.key] = sentence
                # A rate needs two readings: that the first one lacks it is no fault.
                if target.key in self._begun or not isinstance(got, SignalReading):
                    faults.setdefault(sentence, []).append(target.key)
        self._begun = self._begun & {t.key for t in targets} | fresh.keys()
        self._faults.replace("signal", faults)
        return fresh, problems

    async def _enter_past(self, seen: _Seen) -> None:
        self._memory = memory = decide.align(self._memory, seen.observation.keys)
        if seen.targets and not seen.fresh:
            return  # the source is down: its past would cost the tick a time-out more, and can wait
        # The reading of this tick is not the past: the journal and Prometheus end before it.
        self._memory = await self._backfill.enter(
            memory,
            seen.targets,
            seen.observation.now - self._settings.tick_s,
            seen=self._last.keys(),
        )
        self._faults.set("past", self._backfill.problem)

    # ------------------------------------------------------------ after the decision

    def _status(self, seen: _Seen, decision: FleetDecision) -> FleetStatus:
        snapshot = answer.snapshot(
            decision,
            seen.workloads,
            seen.replicas,
            number=self.counters.ticks + 1,
            now=seen.observation.now,
        )
        return FleetStatus(
            snapshot=snapshot,
            observation=seen.observation,
            decision=decision,
            workloads=seen.workloads,
            readings=dict(self._last),
            problems=seen.problems,
            replicas=seen.replicas,
            capacities=seen.capacities,
            leads=seen.leads,
            index={key: i for i, key in enumerate(seen.observation.keys)},
            refusals=seen.refusals,
            faults=self._faults.sentences(),
        )

    def _note_changes(self, status: FleetStatus) -> None:
        """Count and log every change of what is answered."""
        logged = 0
        events = self.counters.scale_events
        answers: dict[str, int | None] = {}
        for i, key in enumerate(status.observation.keys):
            after = answers[key] = whole(status.decision.desired[i])
            before = self._answered.get(key)
            up, down = events.get(key, (0, 0))
            if before is not None and after is not None and before != after:
                up, down = (up + 1, down) if after > before else (up, down + 1)
            events[key] = (up, down)
            if before != after:
                logged += 1
                if logged <= CHANGES_LOGGED_MAX:
                    _log.info("answer changed", workload=key, before=before, after=after)
        if logged > CHANGES_LOGGED_MAX:
            _log.info("more answers changed", count=logged - CHANGES_LOGGED_MAX)
        for key in events.keys() - answers.keys():
            del events[key]
        self._answered = answers

    @asynccontextmanager
    async def timed(self, step: str) -> AsyncIterator[None]:
        """Time a step of the tick under its name."""
        begun = self._stopwatch.monotonic()
        try:
            yield
        finally:
            self.counters.step_s[step] = self._stopwatch.monotonic() - begun
