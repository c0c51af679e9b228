"""The grid of the past: what is missing stays missing, and rows stay with their workload."""

import numpy as np
import pytest

from gpuscale.controller.history import BIN_S, BINS_MAX, History, Recent, aligned, resampled
from tests.fakes.observations import grid


def test_a_bin_is_the_mean_of_its_ticks() -> None:
    history = History(1)
    for tick in range(21):  # twenty ticks fill a bin, the next one closes it
        history.add((tick + 1) * 15.0, 15.0, np.array([float(tick)]))
    assert history.values[0, 0] == pytest.approx(np.mean(np.arange(20)))


def test_a_bin_of_which_too_little_is_known_is_missing_not_zero() -> None:
    history = History(1)
    for tick in range(21):
        history.add((tick + 1) * 15.0, 15.0, np.array([4.0 if tick < 9 else np.nan]))
    assert np.isnan(history.values[0, 0])


def test_bins_that_were_skipped_are_missing() -> None:
    history = History(1)
    for tick in range(20):
        history.add((tick + 1) * 15.0, 15.0, np.array([4.0]))
    history.add(10 * BIN_S + 15.0, 15.0, np.array([4.0]))
    _, values = history.recent(0, 10)
    assert values[0] == 4.0
    assert np.isnan(values[1:]).all()


def test_a_ring_forgets_what_is_older_than_it_is_long() -> None:
    history = History(1)
    history.put(0, grid(1, 2 * BINS_MAX, BIN_S), np.arange(1.0, 2 * BINS_MAX), BIN_S)
    times, values = history.recent(0, BINS_MAX)
    assert len(times) == BINS_MAX - 1
    assert values[-1] == pytest.approx(times[-1] / BIN_S + 1)
    assert not np.isnan(values).any()


def test_a_backfill_of_another_step_keeps_the_amount() -> None:
    rng = np.random.default_rng(1)
    demand = rng.uniform(0, 10, 600)
    times = grid(1, 601, 60.0)
    history = History(1)
    history.put(0, times, demand, 60.0)
    history.add(601 * 60.0, 15.0, np.array([0.0]))
    _, values = history.recent(0, 120)
    assert values.sum() * BIN_S == pytest.approx(demand.sum() * 60.0, rel=1e-5)


def test_a_long_step_is_constant_within_itself_and_holes_stay_holes() -> None:
    edges = grid(0, 13, 300.0)
    means = resampled(np.array([1800.0, 3600.0]), np.array([5.0, np.nan]), 1800.0, edges)
    assert means[:6] == pytest.approx(5.0)
    assert np.isnan(means[6:]).all()


def test_what_was_observed_stands_against_a_late_backfill() -> None:
    history = History(1)
    for tick in range(21):
        history.add((tick + 1) * 15.0, 15.0, np.array([4.0]))
    history.put(0, np.array([300.0]), np.array([99.0]), 300.0)
    assert history.values[0, 0] == 4.0


def test_recent_means_skip_what_is_unknown() -> None:
    recent = Recent(1, 15.0)
    for value in (1.0, 2.0, np.nan, 6.0):
        recent.add(np.array([value]))
    assert recent.mean(60.0)[0] == pytest.approx(3.0)
    assert recent.mean(30.0)[0] == 6.0
    assert recent.mean(30.0, before_s=30.0)[0] == pytest.approx(1.5)
    assert np.isnan(recent.mean(300.0, before_s=300.0)[0])


def test_a_seed_fills_the_ticks_before_and_what_was_observed_stands() -> None:
    recent = Recent(2, 15.0)
    recent.add(np.array([9.0, 9.0]))
    recent.seed(1, np.array([4.0, 3.0, 2.0, 1.0]))
    recent.add(np.array([9.0, 5.0]))
    assert recent.mean(60.0)[1] == pytest.approx((5 + 9 + 3 + 2) / 4)
    assert recent.mean(60.0)[0] == 9.0


def test_rows_move_with_their_workload() -> None:
    moved = aligned(np.array([[1.0], [2.0]]), np.array([1, -1, 0]), 7.0)
    assert moved.tolist() == [[2.0], [7.0], [1.0]]
    assert aligned(np.empty((0, 2)), np.array([-1]), 3.0).tolist() == [[3.0, 3.0]]
