"""Forecasts: calibrated, gated, and untouched by what was not seen."""

import numpy as np
import pytest

from gpuscale.controller.domain import QUANTILES, FleetForecast, Floats
from gpuscale.controller.forecast import Forecaster, conformal, gated
from gpuscale.controller.forecast.experts import EXPERTS, combined
from gpuscale.controller.forecast.looks import LOOK_MAX, LOOKS, looks
from gpuscale.controller.forecast.past import learn, minutes
from gpuscale.controller.forecast.pending import MINUTE_S
from gpuscale.controller.forecast.regression import Regressions
from gpuscale.controller.history import BIN_S, BINS_PER_DAY, History
from tests.fakes.observations import grid

DAY_S = 86_400.0
LEAD_S = 600.0
LEVELS = np.array(QUANTILES)


def daily(times: Floats, amplitude: float = 40.0) -> Floats:
    """Quiet nights, a ramp from 8:00 to 8:30, a plateau to 20:00."""
    hour = times % DAY_S / 3600.0
    up: Floats = np.clip((hour - 8.0) * 2.0, 0.0, 1.0) - np.clip((hour - 20.0) * 2.0, 0.0, 1.0)
    out: Floats = np.add(10.0, amplitude * up)
    return out


def with_past(days: int, amplitude: float = 40.0) -> History:
    history = History(1)
    times = grid(1, days * BINS_PER_DAY + 1, BIN_S)
    history.put(0, times, daily(times - BIN_S / 2, amplitude), BIN_S)
    return history


def looked_at(
    history: History, now_s: float, level: float, *, peak: bool = True
) -> dict[str, float]:
    """What the regressions see of one workload, in units/s."""
    value = np.array([level])
    found = looks(
        level=value,
        recent=value,
        before=value,
        scale=np.array([SCALE]),
        values=history.values,
        rows=np.array([0]),
        now_s=np.array([now_s]),
        lead_s=np.array([LEAD_S]),
        step_s=MINUTE_S,
        peak=peak,
    )
    return dict(zip(LOOKS, (SCALE * found[0]).tolist(), strict=True))


SCALE = 20.0
MORNING_S = 10 * DAY_S + 8.0 * 3600.0 + 600.0
"""Ten minutes into a ramp of half an hour; the level here is that of the newest minute."""
MORNING_LEVEL = 10.0 + 40.0 * 570 / 1800
RISE = 40.0 * 600 / 1800
BIN_RISE = 40.0 * BIN_S / 1800
"""A peak is read by whole bins, so that a step is never seen coming too late."""


def test_the_season_is_a_rise_above_the_present_level() -> None:
    for peak, bins_on in ((False, 0.0), (True, BIN_RISE)):
        seen = looked_at(with_past(10), MORNING_S, MORNING_LEVEL, peak=peak)
        for look in ("day-rise", "week-rise", "days-rise", "days-scaled"):
            assert RISE * 0.9 < seen[look] < RISE * 1.1 + bins_on
        assert seen["days-level"] == pytest.approx(0.0, abs=0.5)
        assert seen["slope"] == 0.0


def test_a_workload_that_doubled_is_shown_the_season_at_its_new_size() -> None:
    seen = looked_at(with_past(10), MORNING_S, 2 * MORNING_LEVEL, peak=False)
    assert seen["days-scaled"] == pytest.approx(2 * RISE, rel=0.1)
    assert seen["days-rise"] == pytest.approx(RISE, rel=0.1)


def test_days_that_are_not_known_say_nothing() -> None:
    seen = looked_at(with_past(2), 2 * DAY_S + 8.0 * 3600.0, level=10.0)
    assert seen["day-rise"] > 5.0
    assert seen["week-rise"] == seen["week-level"] == 0.0
    assert set(looked_at(History(1), MORNING_S, 7.0).values()) == {0.0, SCALE}


def test_no_look_counts_for_more_than_four_scales() -> None:
    seen = looked_at(with_past(10, amplitude=4e6), MORNING_S, MORNING_LEVEL)
    assert seen["day-rise"] == LOOK_MAX * SCALE


def test_the_better_expert_leads_and_an_absent_one_is_left_out() -> None:
    wide = len(EXPERTS)
    rise, loss = np.full((1, wide), 9.0), np.full((1, wide), 10.0)
    rise[0, 1], loss[0, 1] = 5.0, 1.0
    rise[0, 2], loss[0, 2] = np.nan, 0.1
    lived_through = np.array([1440.0])
    assert combined(rise, loss, lived_through)[0] == pytest.approx(5.0)
    assert combined(rise, np.full((1, wide), np.nan), lived_through)[0] == 0.0


def test_a_first_lucky_minute_does_not_outweigh_the_last_value() -> None:
    rise, loss = np.full((1, len(EXPERTS)), 9.0), np.full((1, len(EXPERTS)), 0.85)
    rise[0, 0], loss[0, 0] = 0.0, 1.0
    lucky = combined(rise, loss, np.array([1.0]))[0]
    assert combined(rise, loss, np.array([1440.0]))[0] > 2.0 * lucky


def test_a_regression_learns_what_follows_from_what() -> None:
    """Rises that are twice the first look and nothing else, seen for a day."""
    regressions, rng = Regressions(1, MINUTE_S), np.random.default_rng(3)
    for step in range(1440):
        looked = rng.normal(size=(1, len(LOOKS))) * 0.3
        rise = 2.0 * looked[:, 1]
        regressions.hear(np.array([0]), looked, rise, np.array([1]))
        regressions.advance(step)
    looked = np.zeros((1, len(LOOKS)))
    looked[0, 1] = 0.5
    assert regressions.rises(looked)[0] == pytest.approx(1.0, rel=0.1)


def test_what_a_regression_knows_does_not_depend_on_its_row() -> None:
    """Ten workloads that live the same know the same at every step."""
    n, rng = 10, np.random.default_rng(4)
    regressions = Regressions(n, MINUTE_S)
    for step in range(200):
        looked = np.repeat(rng.normal(size=(1, len(LOOKS))), n, axis=0)
        regressions.hear(np.arange(n), looked, looked[:, 2], np.ones(n, dtype=np.int64))
        regressions.advance(step)
        assert np.ptp(regressions.used, axis=0).max() == 0.0
    assert regressions.used.any()


def test_a_blend_that_lost_to_the_plain_level_is_not_used() -> None:
    losses = np.zeros((2, len(EXPERTS) + 1))
    losses[:, 0], losses[:, -1] = 1.0, (1.1, 0.9)
    assert gated(np.array([5.0, 5.0]), losses).tolist() == [0.0, 5.0]


def test_quantiles_of_scores_are_ordered_and_narrow_with_experience() -> None:
    fresh = conformal.score_quantiles(np.full((1, 4), np.nan), LEVELS[None])
    calm = conformal.score_quantiles(np.full((1, 100), 0.01), LEVELS[None])
    assert (np.diff(fresh, axis=1) >= 0).all()
    assert calm == pytest.approx(0.01)
    assert fresh[0, -1] > 0.1


def test_missed_outcomes_raise_the_level_that_is_read() -> None:
    slip = np.zeros((1, len(LEVELS)))
    for _ in range(5):
        slip = conformal.adapted(slip, LEVELS[None], np.zeros((1, len(LEVELS)), dtype=bool))
    used = conformal.in_use(LEVELS[None], slip)
    assert (used >= np.minimum(LEVELS, conformal.LEVEL_MAX)).all()
    assert used[0, 0] > LEVELS[0]
    assert used.max() <= conformal.LEVEL_MAX


def test_a_past_does_not_forecast_with_what_came_after_it() -> None:
    """Changing the future of a past changes nothing that was forecast before."""
    times = grid(1, 9 * BINS_PER_DAY + 1, BIN_S)
    rng = np.random.default_rng(3)
    demand = daily(times) * rng.gamma(100, 0.01, len(times))
    other = demand.copy()
    cut = 8 * BINS_PER_DAY + 100
    other[cut:] *= 7.0
    found = []
    for values in (demand, other):
        history = History(1)
        history.put(0, times, values, BIN_S)
        forecaster = Forecaster(1, 15.0)
        seen = minutes(times, values, BIN_S)
        past = learn(forecaster, 0, seen, LEAD_S, history)
        assert past is not None
        found.append((seen.times, past.quantiles))
    before = found[0][0] <= times[cut - 1]
    assert before.sum() > 1000
    np.testing.assert_allclose(found[0][1][before], found[1][1][before], rtol=1e-6)
    assert not np.allclose(found[0][1][~before], found[1][1][~before])


def live(forecaster: Forecaster, history: History, times: Floats, demand: Floats) -> FleetForecast:
    """Ticks of a minute each; gives the last forecast."""
    forecast = None
    for now, value in zip(times, demand, strict=True):
        seen = np.array([value])
        history.add(now, MINUTE_S, seen)
        forecast = forecaster.advance(now, seen, ~np.isnan(seen), np.array([LEAD_S]), history)
    assert forecast is not None
    return forecast


def test_learning_a_past_at_once_equals_having_lived_it() -> None:
    """The same days, once tick by tick and once as a past, give nearly the same forecast."""
    times = grid(1, 3 * 1440 + 1, MINUTE_S) + 20 * DAY_S
    rng = np.random.default_rng(5)
    demand = daily(times) * rng.gamma(400, 1 / 400, len(times))
    lived, lived_history = Forecaster(1, MINUTE_S), History(1)
    lived_forecast = live(lived, lived_history, times, demand)
    history = History(1)
    history.put(0, times, demand, MINUTE_S)
    forecaster = Forecaster(1, MINUTE_S)
    past = learn(forecaster, 0, minutes(times, demand, MINUTE_S), LEAD_S, history)
    assert past is not None
    np.testing.assert_allclose(past.quantiles[-1], lived_forecast.quantiles[0], rtol=0.15)
    np.testing.assert_allclose(forecaster.losses()[0], lived.losses()[0], rtol=0.1, equal_nan=True)


def test_intervals_hold_as_often_as_they_say() -> None:
    times = grid(1, 4 * 1440 + 1, MINUTE_S)
    rng = np.random.default_rng(7)
    demand = daily(times) * rng.gamma(100, 0.01, len(times))
    forecaster, history = Forecaster(1, MINUTE_S), History(1)
    forecast = live(forecaster, history, times, demand)
    for level, share in zip(QUANTILES, forecast.coverage[0], strict=True):
        # The median is calibrated by halves.
        assert share == pytest.approx(level, abs=0.08 if level == 0.5 else 0.05)


def test_an_outage_is_not_learned() -> None:
    """Two hours without data leave losses, scores and level as they were.

    The first minutes of it may still complete outcomes that were known by then.
    """
    times = grid(1, 2 * 1440 + 1, MINUTE_S)
    forecaster, history = Forecaster(1, MINUTE_S), History(1)
    seen = np.where(times > times[-15], np.nan, daily(times))
    before = live(forecaster, history, times, seen)
    loss, scores = forecaster.loss.copy(), np.nansum(forecaster.errors)
    blind = times[-1] + grid(1, 121, MINUTE_S)
    after = live(forecaster, history, blind, np.full(120, np.nan))
    assert after.level[0] == before.level[0]
    np.testing.assert_array_equal(forecaster.loss, loss)
    assert np.nansum(forecaster.errors) == scores


def test_silent_pods_can_raise_the_level_and_never_lower_it() -> None:
    forecaster, history = Forecaster(1, 15.0), History(1)
    lead, partial = np.array([LEAD_S]), np.array([False])
    for tick in range(8):
        forecaster.advance(15.0 * tick, np.array([10.0]), ~partial, lead, history)
    for tick in range(8, 16):
        forecaster.advance(15.0 * tick, np.array([5.0]), partial, lead, history)
    assert forecaster.level[0] == 10.0
    for tick in range(16, 24):
        forecaster.advance(15.0 * tick, np.array([20.0]), partial, lead, history)
    assert forecaster.level[0] == 20.0


def test_a_collapse_is_noticed_only_where_it_has_no_precedent() -> None:
    times = grid(1, 4 * 1440 + 1, MINUTE_S)
    demand = daily(times)
    forecaster, history = Forecaster(1, MINUTE_S), History(1)
    live(forecaster, history, times, demand)
    assert not forecaster.collapsed[0]
    noon = times[-1] + grid(1, 12 * 60 + 1, MINUTE_S)
    live(forecaster, history, noon, daily(noon))
    live(forecaster, history, noon[-1] + grid(1, 4, MINUTE_S), np.zeros(3))
    assert forecaster.collapsed[0]
    live(forecaster, history, noon[-1] + grid(4, 41, MINUTE_S), np.zeros(37))
    assert not forecaster.collapsed[0], "after half an hour it is how things are"
