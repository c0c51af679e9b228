"""Forecasts: calibrated, gated, and untouched by what was not seen."""

import numpy as np
import pytest

from gpuscale.controller.domain import QUANTILES, FleetForecast, Floats
from gpuscale.controller.forecast import MINUTE_S, Forecaster, conformal, gated
from gpuscale.controller.forecast.experts import EXPERTS, combined, rises
from gpuscale.controller.forecast.past import learn, minutes
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


def rise_at(history: History, now_s: float, level: float, lead_s: float = LEAD_S) -> Floats:
    rise = rises(
        level=np.array([level]),
        recent=np.array([level]),
        before=np.array([level]),
        values=history.values,
        rows=np.array([0]),
        now_s=np.array([now_s]),
        lead_s=np.array([lead_s]),
    )
    return np.array(rise[0])


def test_the_season_is_a_rise_above_the_present_level() -> None:
    ramp = 10 * DAY_S + 8.0 * 3600.0 + 600.0
    level = 10.0 + 40.0 * 750 / 1800  # the mean of the bin that begins now
    rise = dict(zip(EXPERTS, rise_at(with_past(10), ramp, level), strict=True))
    assert rise["last"] == 0.0
    assert rise["trend"] == 0.0
    for season in ("yesterday", "days", "week"):
        assert rise[season] == pytest.approx(40.0 * 600 / 1800, rel=0.05)


def test_a_workload_that_doubled_is_forecast_at_its_new_size() -> None:
    ramp = 10 * DAY_S + 8.0 * 3600.0 + 600.0
    level = 2 * (10.0 + 40.0 * 750 / 1800)
    rise = rise_at(with_past(10), ramp, level)
    assert rise[2] == pytest.approx(2 * 40.0 * 600 / 1800, rel=0.05)


def test_what_falls_peaks_now() -> None:
    evening = 10 * DAY_S + 20.0 * 3600.0
    assert rise_at(with_past(10), evening, level=50.0)[2:] == pytest.approx(0.0, abs=1.0)


def test_a_season_without_its_days_is_unknown() -> None:
    rise = rise_at(with_past(2), 2 * DAY_S + 8.0 * 3600.0, level=10.0)
    assert not np.isnan(rise[EXPERTS.index("yesterday")])
    assert np.isnan(rise[EXPERTS.index("week")])


def test_a_flash_crowd_at_most_doubles_by_its_trend() -> None:
    rise = rises(
        level=np.array([100.0]),
        recent=np.array([80.0]),
        before=np.array([1.0]),
        values=History(1).values,
        rows=np.array([0]),
        now_s=np.array([1e6]),
        lead_s=np.array([3600.0]),
    )[0]
    assert rise[EXPERTS.index("trend")] <= 100.0


def test_the_better_expert_leads_and_an_absent_one_is_left_out() -> None:
    rise = np.array([[0.0, 5.0, np.nan, 9.0, 9.0]])
    assert combined(rise, np.array([[10.0, 1.0, 0.1, 10.0, 10.0]]))[0] == pytest.approx(5.0)
    assert combined(rise, np.full((1, 5), np.nan))[0] == 0.0


def test_a_blend_that_lost_to_the_plain_level_is_not_used() -> None:
    losses = np.array([[1.0, 0, 0, 0, 0, 1.1], [1.0, 0, 0, 0, 0, 0.9]])
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
        assert share == pytest.approx(level, abs=0.05)


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
