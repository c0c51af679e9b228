"""Asks that move when it is worth it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuscale.controller.domain import Floats
from gpuscale.controller.follow import DOWN_S, UP_DRIFT, Follower

TICK_S = 15.0


def asks(blend: Floats, start: float = 10.0) -> list[float]:
    follower = Follower(1, TICK_S)
    follower.start(0, start)
    return [float(follower.advance(np.array([value]))[0]) for value in blend]


def test_a_blend_that_hovers_about_a_half_moves_nothing() -> None:
    noise = np.random.default_rng(3).normal(0.0, 0.15, 2000)
    assert set(asks(10.3 + noise)) == {10.0}


def test_a_large_change_is_followed_at_once_both_ways() -> None:
    assert asks(np.array([20.0, 20.0]))[0] == 20.0
    assert asks(np.array([2.0, 2.0]))[:2] == [2.0, 2.0]


def test_one_replica_too_many_goes_after_a_while() -> None:
    found = asks(np.full(20, 9.0))
    kept_s = found.count(10.0) * TICK_S
    assert DOWN_S <= kept_s <= 300.0
    assert found[-1] == 9.0


def test_the_last_replica_too_many_goes_too() -> None:
    """One instead of two is a small difference and half of the bill."""
    assert asks(np.full(20, 1.0), start=2.0)[-1] == 1.0


def test_a_gap_moves_nothing_and_forgets_nothing() -> None:
    follower = Follower(1, TICK_S)
    follower.start(0, 10.0)
    follower.advance(np.array([9.0]))
    owed = follower.below.copy()
    assert np.isnan(follower.advance(np.array([np.nan]))[0])
    np.testing.assert_array_equal(follower.below, owed)
    assert follower.asked[0] == 10.0


def test_the_first_blend_is_rounded() -> None:
    follower = Follower(1, TICK_S)
    assert follower.advance(np.array([3.4]))[0] == 3.0


@given(
    st.floats(0.0, 80.0),
    st.floats(0.0, 80.0),
    st.integers(0, 80).map(float),
    st.floats(0.0, 200.0),
    st.floats(0.0, 200.0),
)
def test_more_blend_never_asks_for_less(
    one: float, other: float, start: float, above: float, below: float
) -> None:
    follower = Follower(2, TICK_S)
    for row in (0, 1):
        follower.start(row, start)
    follower.above[:], follower.below[:] = above, below
    less, more = follower.advance(np.array(sorted([one, other])))
    assert less <= more


@given(st.floats(0.0, 80.0), st.integers(0, 80).map(float))
def test_a_steady_blend_comes_to_rest_beside_it(blend: float, start: float) -> None:
    found = asks(np.full(2000, blend), start=start)
    assert len(set(found[-100:])) == 1
    assert abs(found[-1] - blend) <= UP_DRIFT + 1e-9
