"""What candidates look at: every column from what was seen, and nothing where nothing was."""

import numpy as np
import pytest

from gpuscale.controller.decide import Memory, backfill, decide, initial_memory
from gpuscale.controller.domain import Floats
from gpuscale.controller.outlook import BASES, HOUR_MIN, ROWS_MIN, Outlook, _turn, trailing
from tests.fakes.observations import START_S, TICK_S, observation

KEYS = ("a/x", "b/y")


def lived(demand: Floats, memory: Memory | None = None) -> Memory:
    """Ticks of this demand (t, 2)."""
    memory = memory or initial_memory(KEYS, TICK_S)
    start = START_S if memory.now is None else memory.now
    for tick, values in enumerate(demand):
        seen = observation(KEYS, start + (tick + 1) * TICK_S, list(values), capacity=10.0)
        _, memory = decide(seen, memory)
    return memory


def test_the_minutes_of_the_last_hour_are_kept_and_older_ones_are_not() -> None:
    calm, loud = np.full((4 * HOUR_MIN, 2), 20.0), np.full((4 * HOUR_MIN, 2), 50.0)
    memory = lived(np.concatenate([calm, loud]))
    assert set(memory.outlook.minutes[0].tolist()) == {50.0}


def test_minutes_that_nobody_saw_are_unknown() -> None:
    memory = lived(np.full((4 * HOUR_MIN, 2), 20.0))
    assert memory.now is not None
    later = observation(KEYS, memory.now + 1800.0, [20.0, 20.0], capacity=10.0)
    _, memory = decide(later, memory)
    assert np.count_nonzero(np.isnan(memory.outlook.minutes[0])) == 29


def test_a_swinging_hour_is_worth_standing_by_for() -> None:
    """Twenty and fifty units by turns of five minutes: fifty is what the next minutes may bring."""
    swing = np.where(np.arange(4 * HOUR_MIN) % 40 < 20, 50.0, 20.0)
    memory = lived(np.stack([swing, np.full(4 * HOUR_MIN, 20.0)], axis=1))
    hour = memory.outlook.hour[:, -1]
    assert hour[0] == 50.0
    assert hour[1] == 20.0


def test_a_rush_that_always_follows_this_is_stood_by_for_though_nothing_has_risen_yet() -> None:
    """For three days, ten minutes of sixty follow twenty of twenty; at a level of twenty, that is known."""
    times = START_S - 60.0 * np.arange(3 * 1440, dtype=np.float64)[::-1]
    demand = np.where((times % 1800.0 > 0.0) & (times % 1800.0 <= 600.0), 60.0, 20.0)
    memory = initial_memory(KEYS, TICK_S)
    memory = backfill(memory, KEYS[0], times, demand, 60.0)
    memory = lived(np.full((20 * 4, 2), 20.0), memory)
    assert memory.outlook.like[0, -1] == 60.0
    assert np.isnan(memory.outlook.like[1]).all()


def test_a_past_leaves_what_living_through_it_leaves() -> None:
    times = START_S - 60.0 * np.arange(2 * 1440, dtype=np.float64)[::-1]
    demand = 30.0 + 10.0 * np.sin(times / 3600.0)
    memory = initial_memory(KEYS, TICK_S)
    memory = backfill(memory, KEYS[0], times, demand, 60.0)
    memory = lived(np.full((1, 2), demand[-1]), memory)
    outlook = memory.outlook
    minute = int(START_S // 60.0)
    assert outlook.minutes[0, (minute - 10) % HOUR_MIN] == np.float32(demand[-11])
    assert (outlook.rise[0] >= 0.0).all()
    assert outlook.rise[0, -1] > 0.0
    assert not np.isnan(outlook.hour[0]).any()
    assert np.isnan(outlook.hour[1]).all()


def test_workloads_that_move_keep_their_rows() -> None:
    outlook = Outlook(2, TICK_S)
    outlook.rise[:, 0] = (1.0, 2.0)
    outlook.align(np.array([1, -1, 0], dtype=np.int64))
    assert outlook.rise[:, 0].tolist() == [2.0, 0.0, 1.0]
    assert np.isnan(outlook.hour[1]).all()


def test_trailing_means_skip_what_is_missing() -> None:
    found = trailing(np.array([1.0, np.nan, 3.0, np.nan, np.nan, np.nan]), 2)
    np.testing.assert_array_equal(found, [1.0, 1.0, 3.0, 3.0, np.nan, np.nan])
    assert len(set(BASES)) == len(BASES)


@pytest.mark.parametrize("n", [1, 63, 64, 200, 5000])
def test_every_workload_has_its_turn_once_in_a_round(n: int) -> None:
    turns = [_turn(n, tick, 20) for tick in range(20)]
    np.testing.assert_array_equal(np.sort(np.concatenate(turns)), np.arange(n))
    assert max(len(turn) for turn in turns) <= max(ROWS_MIN, n / 20) * 2
