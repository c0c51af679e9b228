"""The past of new workloads: entered once, asked for again where it failed, and nobody waits long for it."""

import time
from collections.abc import Sequence

import numpy as np
import pytest

from gpuscale.controller import backfill, decide
from gpuscale.controller.backfill import BATCH, PAUSE_S, Backfill
from gpuscale.controller.domain import Floats, SignalTarget
from gpuscale.errors import SourceRefused, SourceUnreachable
from tests.fakes.signal import FakeSignal
from tests.fakes.statuses import NOW, TICK_S

DOWN = SourceUnreachable("no Prometheus answers at http://prometheus:9090: start it or correct url")
REFUSED = SourceRefused("the Prometheus answered 422: check the policy's `selector`")
TIMES: Floats = np.asarray(NOW - 60.0 * np.arange(600, 0, -1), dtype=np.float64)
PAST: tuple[Floats, Floats] = (TIMES, np.full(len(TIMES), 7.0))
NOTHING: tuple[Floats, Floats] = (np.empty(0), np.empty(0))


def targets(count: int) -> list[SignalTarget]:
    return [
        SignalTarget(
            key=f"ai/w{i:02}",
            namespace="ai",
            name=f"w{i:02}",
            server="vllm",
            selector="",
            endpoints=(),
            pods_expected=1,
        )
        for i in range(count)
    ]


class Run:
    """A backfill with its memory, asked tick by tick."""

    def __init__(self, signal: FakeSignal, wanted: Sequence[SignalTarget]) -> None:
        self.signal = signal
        self.wanted = wanted
        self.keys = tuple(t.key for t in wanted)
        self.memory = decide.initial_memory(self.keys, TICK_S)
        self.journal: dict[str, tuple[Floats, Floats]] = {}
        self.journal_asked: list[str] = []
        self.backfill = Backfill(
            signal, self._demand, span_s=86_400, step_s=60, keep_s=86_400, journal_step_s=60
        )

    async def _demand(
        self, key: str, start: float, end: float, step_s: float
    ) -> tuple[Floats, Floats]:
        self.journal_asked.append(key)
        return self.journal.get(key, NOTHING)

    async def tick(self, now: float = NOW, *, seen: bool = True) -> None:
        self.memory = await self.backfill.enter(
            self.memory, self.wanted, now, seen=self.keys if seen else ()
        )

    @property
    def known(self) -> list[str]:
        """Who has a past."""
        _, values = zip(
            *(self.memory.history.recent(i, 100) for i in range(len(self.keys))), strict=True
        )
        return [k for k, v in zip(self.keys, values, strict=True) if np.isfinite(v).any()]


async def test_many_workloads_are_asked_for_in_batches_and_once() -> None:
    run = Run(FakeSignal(), targets(2 * BATCH + 1))
    run.signal.past = dict.fromkeys(run.keys, PAST)

    await run.tick()
    await run.tick()

    assert run.known == list(run.keys)
    assert [len(keys) for keys in run.signal.asked] == [BATCH, BATCH, 1]
    assert run.journal_asked == []


async def test_a_slow_past_costs_a_tick_the_deadline_and_comes_at_later_ticks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backfill, "DEADLINE_S", 0.25)
    run = Run(FakeSignal(past_s=0.1), targets(4 * BATCH))
    run.signal.past = dict.fromkeys(run.keys, PAST)

    begun = time.monotonic()
    await run.tick()
    took_s = time.monotonic() - begun
    after_one, problem = len(run.known), run.backfill.problem
    for _ in range(4):
        await run.tick()

    assert took_s < 1.0
    assert BATCH <= after_one < len(run.keys)
    assert problem is not None
    assert "backfill_s" in problem
    assert run.known == list(run.keys)
    assert run.backfill.problem is None


async def test_a_source_that_is_down_is_asked_again_at_every_tick_while_nothing_is_decided() -> (
    None
):
    run = Run(FakeSignal(past_failure=DOWN), targets(1))
    for tick in range(3):
        await run.tick(NOW + tick * TICK_S, seen=False)

    assert len(run.signal.asked) == 3
    assert run.backfill.problem == str(DOWN)
    assert run.journal_asked == [], "the journal's past is not better than none yet"


async def test_with_readings_and_no_past_the_journal_stands_in_and_pauses_double() -> None:
    run = Run(FakeSignal(past_failure=DOWN), targets(1))
    run.journal = {run.keys[0]: PAST}
    asked_at = []
    for tick in range(round(4 * PAUSE_S[1] / TICK_S)):
        before = len(run.signal.asked)
        await run.tick(NOW + tick * TICK_S)
        if len(run.signal.asked) > before:
            asked_at.append(tick * TICK_S)
        assert run.backfill.problem == str(DOWN), "said for as long as it is so"

    assert run.known == list(run.keys)
    assert run.journal_asked == list(run.keys), "once"
    pauses = np.diff(asked_at)
    assert pauses[0] == PAUSE_S[0]
    assert (np.diff(pauses) >= 0).all()
    assert pauses.max() <= PAUSE_S[1] + TICK_S
    assert len(asked_at) < 15

    run.signal.past_failure = None
    run.signal.past = {run.keys[0]: PAST}
    await run.tick(NOW + 6 * PAUSE_S[1])
    assert run.backfill.problem is None


async def test_a_new_workload_waits_for_no_pause() -> None:
    run = Run(FakeSignal(past_failure=DOWN), targets(2))
    both, run.wanted = run.wanted, run.wanted[:1]
    await run.tick()
    run.wanted = both
    await run.tick(NOW + TICK_S)

    assert len(run.signal.asked) == 2


async def test_workloads_whose_past_is_refused_keep_nobody_elses_away() -> None:
    run = Run(FakeSignal(), targets(3 * BATCH))
    run.signal.past = dict.fromkeys(run.keys, PAST)
    run.signal.past_failures = dict.fromkeys(run.keys[: 2 * BATCH], REFUSED)

    await run.tick()

    assert run.known == list(run.keys[2 * BATCH :])
    assert run.backfill.problem == str(REFUSED)


async def test_a_late_past_leaves_what_was_answered_meanwhile() -> None:
    run = Run(FakeSignal(past_failure=DOWN), targets(1))
    await run.tick()
    run.memory.standing.desired[0] = 9.0
    run.memory.standing.seen_s[0] = 45.0
    run.signal.past_failure, run.signal.past = None, {run.keys[0]: PAST}
    await run.tick(NOW + 2 * PAUSE_S[0])

    assert run.known == list(run.keys)
    assert run.memory.standing.desired.tolist() == [9.0]
    assert run.memory.standing.seen_s.tolist() == [45.0]
