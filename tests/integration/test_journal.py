"""The journal keeps what is needed to explain and to backfill, and never fails its caller."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from gpuscale.controller import decide, lookup
from gpuscale.controller import journal as journals
from gpuscale.controller.domain import Decision, Hold
from gpuscale.controller.journal import Journal
from gpuscale.controller.records import DemandRow, Records
from gpuscale.errors import InputError
from gpuscale.settings import JournalSettings
from tests.fakes.decider import UNKNOWN
from tests.fakes.statuses import NOW, TICK_S, status_of

KEY = "inference/llama"


def settings(path: Path | None, keep_s: float = 86_400.0) -> JournalSettings:
    return JournalSettings(path=None if path is None else str(path), keep_s=keep_s)


async def record(journal: Journal, demands: Sequence[float | None], start: float = NOW) -> None:
    memory = decide.initial_memory((KEY,), TICK_S)
    for i, demand in enumerate(demands):
        await journal.record(
            status_of({"llama": demand}, now=start + i * TICK_S, number=i + 1, memory=memory)
        )


async def test_a_decision_comes_back_whole_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "journal.db"
    journal = Journal(settings(file))
    await journal.open()
    status = status_of({"llama": 20.0})
    await journal.record(status)
    await journal.close()

    again = Journal(settings(file))
    await again.open()
    found = await again.decision(KEY, NOW + 5)
    await again.close()

    assert isinstance(found, Decision)
    assert found == status.decision.of(0)


async def test_what_was_decided_at_a_time_is_the_last_decision_before_it(tmp_path: Path) -> None:
    journal = Journal(settings(tmp_path / "journal.db"))
    await journal.open()
    await record(journal, [20.0] * 3 + [60.0] * 30)

    early = await journal.decision(KEY, NOW + 2 * TICK_S + 1)
    late = await journal.decision(KEY, NOW + 1e6)
    never = await journal.decision(KEY, NOW - 1)
    await journal.close()

    assert isinstance(early, Decision)
    assert isinstance(late, Decision)
    assert early.desired < late.desired
    assert never is None


async def test_a_past_decision_says_where_its_capacity_and_start_time_came_from(
    tmp_path: Path,
) -> None:
    """What is learned later is not said of earlier decisions; the origin outlives the decisions' bound."""
    file = tmp_path / "journal.db"
    journal = Journal(settings(file))
    await journal.open()
    before = status_of({"llama": 20.0})
    await journal.record(before)
    learned = replace(before.leads[0], source="observed", observed=9, p50_s=70.0, p90_s=95.0)
    after = status_of({"llama": 90.0}, now=NOW + 600, number=2)
    await journal.record(replace(after, leads=(learned,)))
    await journal.close()

    early = lookup.from_journal(file, KEY, NOW + 1)
    late = lookup.from_journal(file, KEY, NOW + 700)
    assert early["sentences"][-2:] == [before.capacities[0].sentence, before.leads[0].sentence]
    assert late["sentences"][-1] == learned.sentence
    assert (early["lead_source"], late["lead_source"]) == ("declared", "observed")
    with Records.open(file) as records:
        for _ in range(2):
            records.prune(NOW + 1e6, demand_rows_max=9, decision_rows_max=9)
        kept = records.origin(KEY, NOW + 1e6)
        assert kept is not None
        assert kept.lead == learned
        assert records.origin(KEY, NOW + 1) is None


def test_a_journal_from_before_origins_were_kept_explains_without_them(tmp_path: Path) -> None:
    file = tmp_path / "journal.db"
    outcome = status_of({"llama": 20.0}).decision.of(0)
    with Records.open(file) as records:
        records.write([], [outcome])
    with sqlite3.connect(file) as db:
        db.execute("DROP TABLE origin")
    db.close()
    found = lookup.from_journal(file, KEY, NOW + 1)
    assert found["desired"] is not None
    assert found["lead_source"] is None


async def test_a_hold_is_kept_as_a_hold() -> None:
    journal = Journal(settings(None))
    await journal.open()
    await record(journal, [None])

    found = await journal.decision(KEY, NOW)
    await journal.close()

    assert isinstance(found, Hold)
    assert found.answer is None


async def test_unchanged_decisions_are_not_written_at_every_tick() -> None:
    """Two hours without a change are eight rows or so, not 480."""
    journal = Journal(settings(None))
    await journal.open()
    ticks = int(7200 / TICK_S)
    await record(journal, [20.0] * ticks)

    found = await journal.decisions(KEY, NOW, NOW + 7200, limit=1000)
    await journal.close()

    assert 7200 / journals.REPEAT_S <= len(found) <= 7200 / journals.REPEAT_S + 5
    assert found[0].now < found[-1].now


async def test_demand_comes_back_on_a_grid_with_its_holes(tmp_path: Path) -> None:
    file = tmp_path / "journal.db"
    journal = Journal(settings(file))
    await journal.open()
    start = NOW - NOW % 60 + TICK_S  # the end of the first tick of a minute
    per_minute = int(60 / TICK_S)
    await record(
        journal,
        [10.0] * per_minute + [None] * per_minute + [30.0] * per_minute,
        start=start,
    )
    await journal.close()

    again = Journal(settings(file))
    await again.open()
    minute = NOW - NOW % 60
    times, demand = await again.demand(KEY, minute, minute + 180, 60.0)
    fine, fine_demand = await again.demand(KEY, minute, minute + 180, 15.0)
    coarse, coarse_demand = await again.demand(KEY, minute, minute + 180, 180.0)
    await again.close()

    assert times.tolist() == [minute + 60, minute + 120, minute + 180]
    assert demand[[0, 2]].tolist() == [10.0, 30.0]
    assert np.isnan(demand[1])
    assert len(fine) == 12
    assert fine_demand[:4].tolist() == [10.0] * 4
    assert np.isnan(fine_demand[4:8]).all()
    assert coarse.tolist() == [minute + 180]
    assert coarse_demand.tolist() == [20.0]


async def test_a_workload_without_records_has_no_past() -> None:
    journal = Journal(settings(None))
    await journal.open()

    times, demand = await journal.demand("inference/unknown", NOW - 3600, NOW, 60.0)
    await journal.close()

    assert len(times) == len(demand) == 0


async def test_old_records_are_deleted() -> None:
    journal = Journal(settings(None, keep_s=3600.0))
    await journal.open()
    await record(journal, [10.0, 10.0], start=NOW)
    await record(journal, [10.0, 10.0], start=NOW + 7200)

    old = await journal.decision(KEY, NOW + 3600)
    new = await journal.decision(KEY, NOW + 7300)
    await journal.close()

    assert old is None
    assert new is not None


def test_the_number_of_rows_is_bounded() -> None:
    with Records.open(None) as records:
        records.write([DemandRow(key=KEY, at=60 * i, value=1.0) for i in range(100)], [])
        records.prune(0.0, demand_rows_max=10, decision_rows_max=10)
        times, demand = records.demand(KEY, 0.0, 6000.0, 60.0)

    assert np.isfinite(demand).sum() == 10
    assert np.isfinite(demand[-10:]).all()
    assert len(times) == 100


async def test_a_damaged_file_is_named_once_and_the_journal_goes_on_in_memory(
    tmp_path: Path,
) -> None:
    file = tmp_path / "journal.db"
    file.write_bytes(b"this was a database once" * 100)
    journal = Journal(settings(file))

    with capture_logs() as logs:
        await journal.open()
        await record(journal, [20.0] * 3)
        found = await journal.decision(KEY, NOW + 60)
    problem = journal.problem
    await journal.close()

    assert found is not None
    assert problem is not None
    assert str(file) in problem
    assert "in memory" in problem
    assert [entry["log_level"] for entry in logs] == ["error"]
    assert file.read_bytes().startswith(b"this was"), "a damaged file is somebody's evidence"


async def test_damage_that_shows_while_it_is_used_costs_no_tick(tmp_path: Path) -> None:
    file = tmp_path / "journal.db"
    journal = Journal(settings(file))
    await journal.open()
    await record(journal, [20.0 + 5 * i for i in range(200)])
    await journal.close()
    raw = bytearray(file.read_bytes())
    raw[8192:] = b"\xff" * (len(raw) - 8192)  # the schema survives, the tables do not
    file.write_bytes(raw)

    again = Journal(settings(file))
    await again.open()
    await record(again, [20.0 + 5 * i for i in range(20)], start=NOW + 6000)
    await record(again, [20.0], start=NOW + 9000)
    problem = again.problem
    found = await again.decision(KEY, NOW + 9000)
    await again.close()

    assert problem is not None
    assert str(file) in problem
    assert found is not None, "in memory it goes on"


async def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    journal = Journal(settings(tmp_path / "missing" / "journal.db"))

    await journal.open()
    await record(journal, [20.0])
    found = await journal.decision(KEY, NOW)
    problem = journal.problem
    await journal.close()

    assert found is not None
    assert problem is not None
    assert "missing" in problem


async def test_a_journal_of_another_version_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "journal.db"
    with sqlite3.connect(file) as db:
        db.execute("CREATE TABLE decision (other TEXT)")
        db.execute("PRAGMA user_version = 99")
    db.close()
    journal = Journal(settings(file))

    await journal.open()
    problem = journal.problem
    await journal.close()

    assert problem is not None
    assert "version 99" in problem


async def test_a_running_journal_can_be_read_from_outside(tmp_path: Path) -> None:
    file = tmp_path / "journal.db"
    journal = Journal(settings(file))
    await journal.open()
    await record(journal, [20.0])

    with Records.read(file) as records:
        found = records.decision(KEY, NOW)
        keys = records.keys()
    await journal.close()

    assert found is not None
    assert keys == (KEY,)


def test_reading_what_is_no_journal_says_which_key_to_look_at(tmp_path: Path) -> None:
    other = tmp_path / "settings.yaml"
    other.write_text("tick_s: 15\n")

    for path in (tmp_path / "nowhere.db", other):
        with pytest.raises(InputError, match=r"journal\.path") as caught:
            Records.read(path)
        assert str(path) in str(caught.value)


def test_damage_in_the_middle_is_one_sentence_for_who_reads_from_outside(tmp_path: Path) -> None:
    file = tmp_path / "journal.db"
    with Records.open(file) as records:
        hold = Hold(key=KEY, now=NOW, reason="x" * 500, answer=None, inputs=UNKNOWN)
        records.write([], [replace(hold, now=NOW + i) for i in range(500)])
    page = 4096
    file.write_bytes(file.read_bytes()[:page] + b"\xff" * (file.stat().st_size - page))

    with pytest.raises(InputError, match="cannot be read"):
        lookup.from_journal(file, KEY, NOW + 1e6)


async def test_one_record_that_cannot_be_read_costs_itself_and_not_the_file(
    tmp_path: Path,
) -> None:
    """An older version may have written what this one does not understand."""
    file = tmp_path / "journal.db"
    journal = Journal(settings(file))
    await journal.open()
    await record(journal, [20.0])
    with sqlite3.connect(file) as other:
        other.execute("UPDATE decision SET outcome = ?", (b"of another time",))
    other.close()

    lost = await journal.decision(KEY, NOW)
    await record(journal, [40.0], start=NOW + 60)
    found = await journal.decision(KEY, NOW + 60)
    await journal.close()

    assert lost is None
    assert isinstance(found, Decision)
    assert journal.problem is None
    with Records.read(file) as records:
        assert records.decision(KEY, NOW + 60) == found


async def test_a_volume_that_hangs_costs_a_tick_the_deadline_once_and_nothing_while_it_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "DEADLINE_S", 0.2)
    answers = threading.Event()
    write = Records.write

    def hang(*given: Any) -> None:
        answers.wait(30)
        write(*given)

    monkeypatch.setattr(Records, "write", hang)
    journal = Journal(settings(tmp_path / "journal.db"))
    await journal.open()
    begun = time.monotonic()
    with capture_logs() as logs:
        await record(journal, [20.0 + i for i in range(20)])
    took_s = time.monotonic() - begun
    problem = journal.problem
    answers.set()
    await asyncio.sleep(0.2)
    await record(journal, [50.0], start=NOW + 1000)
    found = await journal.decision(KEY, NOW + 1000)
    recovered = journal.problem
    await journal.close()

    assert took_s < 2.0
    assert problem is not None
    assert "journal.db" in problem
    assert "does not answer" in problem
    assert len([e for e in logs if e["event"] == "journal failed"]) == 1
    assert recovered is None
    assert isinstance(found, Decision)


async def test_a_file_that_cannot_be_opened_for_a_hanging_volume_is_gone_on_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "DEADLINE_S", 0.2)
    answers = threading.Event()
    opened = Records.open

    def hang(path: Path | None) -> Records:
        if path is not None:
            answers.wait(30)
        return opened(path)

    monkeypatch.setattr(Records, "open", hang)
    journal = Journal(settings(tmp_path / "journal.db"))
    await journal.open()
    await record(journal, [20.0])
    found = await journal.decision(KEY, NOW)
    problem = journal.problem
    answers.set()
    await journal.close()

    assert problem is not None
    assert "journal.db" in problem
    assert isinstance(found, Decision | Hold), "kept in memory"
