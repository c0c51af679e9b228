"""What is worth standing by for, from samples of what may come."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuscale.controller.domain import Floats
from gpuscale.controller.history import BIN_S, BINS_PER_DAY, DAY_S, History
from gpuscale.controller.newsvendor import (
    AROUND_BINS,
    DAYS,
    NEIGHBOURS,
    RECENT_BINS,
    SAMPLES_MIN,
    _highest,
    best_levels,
    likes,
    rises,
)

NOW_S = 100 * DAY_S + 8 * 3600.0


def level(samples: list[float], price: float) -> float:
    return float(best_levels(np.array([samples]), np.array([[price]]))[0, 0])


def history(shape: Floats, until_s: float = NOW_S) -> History:
    """A fortnight that ends at `until_s`; `shape` (BINS_PER_DAY,) repeats every day from midnight."""
    kept = History(1)
    ends = until_s - BIN_S * np.arange(14 * BINS_PER_DAY, dtype=np.float64)[::-1]
    number = ((ends - BIN_S) // BIN_S).astype(np.int64) % BINS_PER_DAY
    kept.put(0, ends, shape[number], BIN_S)
    # The bin in which the newest sample ended is closed by what comes after.
    kept.add(until_s + 7.5, 15.0, np.array([np.nan]))
    return kept


def test_what_comes_half_of_the_time_is_stood_by_for_and_what_never_comes_is_not() -> None:
    assert level([10.0] * 10 + [20.0] * 10, 10.0) == 20.0
    assert level([10.0] * 10 + [20.0] * 10, 0.5) == 10.0


def test_a_thin_tail_is_not_bought_though_it_holds_more_than_a_quantile_would_leave() -> None:
    """A tenth of the samples lies far out: the newsvendor of a single price stops before it."""
    body, tail = [10.0] * 90, [float(x) for x in range(100, 1100, 100)]
    assert level(body + tail, 0.9) == 10.0
    assert level(body + tail, 100.0) == 1000.0


@given(st.lists(st.floats(0.0, 1e3), min_size=SAMPLES_MIN, max_size=40), st.floats(0.01, 100.0))
def test_no_other_level_costs_less(samples: list[float], price: float) -> None:
    values = np.array(samples)

    def cost(stood_by: float) -> float:
        return stood_by + price * float(np.where(values > stood_by, values, 0.0).mean())

    best = cost(level(samples, price))
    assert all(best <= cost(other) * (1 + 1e-9) + 1e-9 for other in samples)


@given(st.floats(0.1, 10.0), st.floats(1.0, 10.0))
def test_dearer_lateness_never_buys_less(price: float, more: float) -> None:
    samples = np.random.default_rng(1).gamma(2.0, 10.0, 60).tolist()
    assert level(samples, price) <= level(samples, price * more)


def test_few_samples_are_no_basis() -> None:
    nothing = [float("nan")] * 30
    assert np.isnan(level(nothing + [5.0] * (SAMPLES_MIN - 1), 10.0))
    assert level(nothing + [5.0] * SAMPLES_MIN, 10.0) == 5.0


def test_a_morning_rise_is_found_at_this_hour_of_the_days_before() -> None:
    hour = np.arange(BINS_PER_DAY) / 12.0
    shape = np.where(hour >= 8.25, 100.0, 10.0)
    kept = history(shape)
    found = rises(kept.values, np.array([0]), np.array([NOW_S]), np.array([1200.0]))
    days = found[0, : DAYS * (2 * AROUND_BINS + 1)]
    # Eight o'clock sees the step of a quarter past eight; half an hour earlier does not.
    assert np.nanmax(days) == 90.0
    assert np.nanmin(days) == 0.0
    assert (found[0, -RECENT_BINS:] == 0.0).all()


def test_nothing_of_the_present_bin_or_later_is_read() -> None:
    flat = np.full(BINS_PER_DAY, 10.0)
    kept = history(flat)
    column = int(NOW_S // BIN_S) % kept.values.shape[1]
    before = rises(kept.values, np.array([0]), np.array([NOW_S + 100.0]), np.array([600.0]))
    kept.values[0, (column + np.arange(3)) % kept.values.shape[1]] = 1e6
    after = rises(kept.values, np.array([0]), np.array([NOW_S + 100.0]), np.array([600.0]))
    np.testing.assert_array_equal(before, after)


def test_a_hole_in_the_past_is_no_sample() -> None:
    kept = history(np.full(BINS_PER_DAY, 10.0))
    kept.values[:] = np.nan
    found = rises(kept.values, np.array([0]), np.array([NOW_S]), np.array([600.0]))
    assert np.isnan(found).all()


def alike(kept: History, level: float, half_hour: float, *, now: float = NOW_S) -> Floats:
    """What followed within ten minutes the times that are like these."""
    found: Floats = likes(
        kept.values,
        np.array([0]),
        now=np.array([now]),
        level=np.array([level]),
        half_hour=np.array([half_hour]),
        lead_s=np.array([600.0]),
    )[0]
    return found


def swinging() -> History:
    """Swings between 20 and 60 by day, and lies still at 20 by night."""
    number = np.arange(BINS_PER_DAY)
    return history(np.where((number >= 96) & (number % 3 == 0), 60.0, 20.0))


def test_a_low_within_a_busy_half_hour_is_followed_by_other_things_than_a_lull() -> None:
    kept = swinging()
    assert (alike(kept, 20.0, 100.0 / 3.0) == 60.0).mean() > 0.9
    assert (alike(kept, 20.0, 20.0) == 20.0).mean() > 0.9


def test_nothing_is_like_what_never_was() -> None:
    assert np.isnan(alike(swinging(), 500.0, 500.0)).all()
    assert np.isnan(alike(swinging(), 0.0, 0.0)).all()


def test_without_enough_that_is_alike_there_is_nothing_to_follow() -> None:
    kept = swinging()
    known = kept.values[0].copy()
    first = int(NOW_S // BIN_S) - NEIGHBOURS
    kept.values[:] = np.nan
    column = (first + np.arange(NEIGHBOURS)) % kept.values.shape[1]
    kept.values[0, column] = known[column]
    assert np.isnan(alike(kept, 20.0, 100.0 / 3.0)).all()


def test_a_hole_is_like_nothing_and_follows_nothing() -> None:
    kept = swinging()
    kept.values[0, ::40] = np.nan
    found = alike(kept, 20.0, 20.0)
    assert not np.isnan(found).any()
    assert set(found.tolist()) <= {20.0, 60.0}


@given(st.integers(0, 12), st.floats(0.0, 299.0))
def test_what_followed_is_read_up_to_now_and_no_further(ahead: int, into_bin: float) -> None:
    kept = swinging()
    column = int(NOW_S // BIN_S) % kept.values.shape[1]
    before = alike(kept, 20.0, 20.0, now=NOW_S + into_bin)
    kept.values[0, (column + np.arange(1 + ahead)) % kept.values.shape[1]] = 39.0
    np.testing.assert_array_equal(before, alike(kept, 20.0, 20.0, now=NOW_S + into_bin))


@given(st.integers(1, 144), st.integers(0, 5))
def test_the_highest_of_neighbours_is_that_of_each_of_them(span: int, seed: int) -> None:
    path = np.random.default_rng(seed).random((2, 200)).astype(np.float32)
    found = _highest(path, span)
    expected = np.lib.stride_tricks.sliding_window_view(path, span, axis=1).max(axis=2)
    np.testing.assert_array_equal(found, expected)
