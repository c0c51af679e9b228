"""A controller's hours are decided again from its journal, every decision of every tick the same."""

import json
import math
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from gpuscale.cli import cli
from gpuscale.controller import lookup, reel
from gpuscale.controller.records import Records
from gpuscale.errors import InputError, SourceUnreachable
from tests.fakes.controllers import TICK_S, Running, running
from tests.fakes.signal import FakeSignal

LLAMA, QWEN = "inference/llama", "inference/qwen"
BEGIN = 1_700_000_000.0
WORKLOADS = [
    {"namespace": "inference", "name": "llama"},
    {"namespace": "inference", "name": "qwen", "policy": "careful"},
]
DOWN = SourceUnreachable("no Prometheus answers at http://prometheus:9090: start it or correct url")


def wave(tick: int, scale: float = 1.0) -> float:
    """Demand with a slow wave, bursts and a texture of its own."""
    slow = 40 + 30 * math.sin(tick / 90)
    return scale * (slow + (25 if tick % 97 < 6 else 0) + 7 * math.sin(tick * 1.7))


def past(days: float) -> tuple[Any, Any]:
    minutes = np.arange(int(days * 1440), dtype=np.float64)
    times = BEGIN - 60.0 * minutes[::-1]
    return times, 40 + 30 * np.sin(minutes / 200)


async def live(run: Running, ticks: int, *, begin: int = 0) -> None:
    """Hours with bursts, a source that dies and returns, and a clock that is set."""
    for tick in range(begin, begin + ticks):
        run.signal.demand[LLAMA] = wave(tick)
        run.signal.demand[QWEN] = None if tick % 50 < 8 else wave(tick, 0.4)
        run.signal.waiting = float(tick % 11)
        run.signal.failure = DOWN if 300 <= tick < 340 else None
        if tick == 420:
            run.clock.step_wall(-120.0)
        await run.ticks()


def journaled(file: Path, **more: object) -> dict[str, Any]:
    return {
        "workloads": WORKLOADS,
        "policies": {"careful": {"risk": 0.95, "step_up_max": 2, "capacity": 3.0}},
        "journal": {"path": str(file), **more},
    }


@pytest.fixture
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many segments in a few hours, so that memories are written and read back."""
    monkeypatch.setattr(reel, "SEGMENT_S", 1800.0)


@pytest.mark.usefixtures("short_segments")
async def test_hours_of_a_controller_come_out_the_same_at_every_tick(tmp_path: Path) -> None:
    file = tmp_path / "journal.db"
    signal = FakeSignal(past={LLAMA: past(3.0), QWEN: past(0.5)})
    ticks = 720
    async with running(journaled(file), signal=signal) as run:
        await live(run, ticks)

    found = lookup.check(file, 0.0, BEGIN + 1e6)

    assert (found.ticks, found.differing_count) == (ticks, 0)
    assert found.decisions == 2 * ticks
    assert found.outcomes > 100, "what the journal holds in full was compared too"
    with sqlite3.connect(file) as db:
        segments = db.execute("SELECT memory IS NULL FROM segment ORDER BY id").fetchall()
    db.close()
    assert len(segments) >= 6
    assert segments[0] == (1,), "the first one began with nothing"


@pytest.mark.usefixtures("short_segments")
async def test_a_restart_and_another_set_of_workloads_are_replayed_too(tmp_path: Path) -> None:
    file = tmp_path / "journal.db"
    signal = FakeSignal(past={LLAMA: past(1.0)})
    async with running(journaled(file), signal=signal) as run:
        await live(run, 150)
        clock = run.clock
    fewer = {**journaled(file), "workloads": WORKLOADS[:1]}
    async with running(fewer, signal=signal, clock=clock) as run:
        await live(run, 150, begin=150)

    found = lookup.check(file, 0.0, BEGIN + 1e6)

    assert (found.ticks, found.decisions, found.differing_count) == (300, 450, 0)


async def test_a_tick_between_two_journaled_decisions_is_explained_exactly(tmp_path: Path) -> None:
    file = tmp_path / "journal.db"
    async with running(journaled(file), signal=FakeSignal()) as run:
        await live(run, 100)
        status = run.controller.status
        assert status is not None
        at = status.observation.now
        real = status.decision.of(0)

    shown = lookup.from_replay(file, LLAMA, at + 5)
    result = CliRunner().invoke(
        cli, ["explain", LLAMA, "--journal", str(file), "--at", f"{at:.0f}", "--replay"]
    )
    done = CliRunner().invoke(cli, ["replay", "--journal", str(file), "--format", "json"])

    assert (shown["now"], shown["inputs"]["demand"]) == (at, real.inputs.demand)
    assert shown["desired"] == getattr(real, "desired", None)
    assert (result.exit_code, result.output.splitlines()[1:]) == (0, shown["sentences"])
    assert json.loads(done.output)["ticks"] == 100
    assert done.exit_code == 0


async def test_a_tick_that_was_tampered_with_is_found(tmp_path: Path) -> None:
    file = tmp_path / "journal.db"
    async with running(journaled(file), signal=FakeSignal()) as run:
        await live(run, 60)
    with sqlite3.connect(file) as db:
        db.execute("UPDATE tick SET fingerprint = zeroblob(16) WHERE number = 40")
    db.close()

    done = CliRunner().invoke(cli, ["replay", "--journal", str(file)])

    assert done.exit_code == 1
    assert "1 comes out otherwise, at 2023-11-14T22:23:35Z." in done.output


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        ("UPDATE tick SET body = x'00' WHERE number = 3", "what was stored is damaged"),
        ("UPDATE segment SET memory = x'1234'", "what was stored is damaged"),
        ('UPDATE segment SET header = \'{"tick_s":15,"version":"0.0.9"}\'', "gpuscale 0.0.9"),
        ("UPDATE segment SET header = 'x'", "the journal cannot be read"),
        ("DELETE FROM tick", "has no tick between"),
        ("DROP TABLE segment", "has no tick between"),
    ],
)
async def test_what_cannot_be_replayed_is_one_sentence(
    tmp_path: Path, spoil: str, sentence: str
) -> None:
    file = tmp_path / "journal.db"
    async with running(journaled(file), signal=FakeSignal()) as run:
        await live(run, 6)
    with sqlite3.connect(file) as db:
        db.execute(spoil)
    db.close()

    with pytest.raises(InputError, match=sentence):
        lookup.check(file, 0.0, BEGIN + 1e6)


async def test_the_disk_for_replays_is_bounded_and_the_newest_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reel, "SEGMENT_S", 300.0)
    file = tmp_path / "journal.db"
    bytes_max = 120_000
    async with running(journaled(file, replay_bytes_max=bytes_max), signal=FakeSignal()) as run:
        await live(run, 400)
        end = run.clock.wall()

    with sqlite3.connect(file) as db:
        (kept,) = db.execute("SELECT SUM(bytes) FROM segment").fetchone()
        (orphans,) = db.execute(
            "SELECT COUNT(*) FROM tick WHERE segment NOT IN (SELECT id FROM segment)"
        ).fetchone()
    db.close()
    found = lookup.check(file, 0.0, BEGIN + 1e6)

    assert kept <= 2 * bytes_max, "old segments go every ten minutes"
    assert orphans == 0
    assert found.end == end
    assert 0 < found.ticks < 400
    assert found.differing_count == 0


@pytest.mark.parametrize("more", [{"replay_bytes_max": 0}, {"path": None}])
async def test_nothing_is_kept_where_nobody_wants_it(tmp_path: Path, more: dict[str, Any]) -> None:
    file = tmp_path / "journal.db"
    async with running(journaled(file, **more), signal=FakeSignal()) as run:
        await live(run, 5)

    with pytest.raises(InputError, match=r"no such journal|has no tick"):
        lookup.check(file, 0.0, BEGIN + 1e6)


async def test_a_write_that_fails_ends_the_segment_and_the_next_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reel, "REST_S", 60.0)
    file = tmp_path / "journal.db"
    async with running(journaled(file), signal=FakeSignal()) as run:
        await live(run, 20)
        writes: Callable[..., None] = Records.add_tick

        def full(*_: object, **__: object) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        monkeypatch.setattr(Records, "add_tick", full)
        await live(run, 3, begin=20)
        monkeypatch.setattr(Records, "add_tick", writes)
        await live(run, 40, begin=23)

    found = lookup.check(file, 0.0, BEGIN + 1e6)

    assert found.differing_count == 0
    assert 20 + 30 <= found.ticks <= 60, f"a gap of {REST_TICKS} ticks or so"


REST_TICKS = 60.0 / TICK_S
