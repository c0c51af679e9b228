"""Stories of demand, and how the controller's forecaster fares in each beside the last value."""

import numpy as np

from gpuscale.controller.domain import Floats
from gpuscale.simulation.rolling import Evaluation, Question, answer, evaluate
from gpuscale.simulation.trace import Trace

STEP_S = 300.0
DAY = 288
HALF_HOUR_S = 1800.0


def made(values: Floats) -> Trace:
    return Trace(name="made", start_s=0.0, step_s=STEP_S, values=values)


def judged(values: Floats) -> Evaluation:
    """The demand half an hour ahead, over every bin of the last half."""
    asked = Question(horizon_s=HALF_HOUR_S, target="value", origins=100_000)
    return evaluate(made(values), asked, lambda: 0.0)


def waved(days: int, seed: int = 1, weekend: float = 1.0) -> Floats:
    """A daily wave under noise, smaller on two days of seven."""
    rng = np.random.default_rng(seed)
    at = np.arange(days * DAY)
    wave = 30.0 + 20.0 * np.sin(at / DAY * 2 * np.pi)
    size = np.where(at // DAY % 7 >= 5, weekend, 1.0)
    out: Floats = wave * size * rng.gamma(400.0, 1 / 400.0, len(at))
    return out


def test_a_day_and_a_week_are_learned() -> None:
    assert judged(waved(12)).relative_mae < 0.85
    assert judged(waved(24, weekend=0.3)).relative_mae < 0.85


def test_a_level_shift_is_followed_at_once() -> None:
    values = waved(12)
    values[9 * DAY :] *= 4.0
    found = judged(values)
    assert found.relative_mae < 0.92
    assert 0.85 < found.coverage[0.9] < 0.95


def test_pure_chance_costs_little_beside_the_last_value_and_is_covered() -> None:
    walk = np.exp(np.cumsum(np.random.default_rng(2).normal(0.0, 0.02, 8 * DAY)))
    found = judged(30.0 * walk)
    assert found.relative_mae < 1.1
    assert 0.85 < found.coverage[0.9] < 0.95


def test_sparse_demand_is_covered_when_it_comes() -> None:
    rng = np.random.default_rng(3)
    values = np.where(rng.random(12 * DAY) < 0.3, rng.gamma(2.0, 5.0, 12 * DAY), 0.0)
    assert 0.82 < judged(values).coverage[0.9] < 0.95


def test_an_outage_is_not_learned_as_demand() -> None:
    """Half a day that nobody saw: the next day is forecast as if it had been seen."""
    whole = waved(10)
    holed = whole.copy()
    holed[8 * DAY : 8 * DAY + DAY // 2] = np.nan
    later = Question(horizon_s=HALF_HOUR_S, to_s=(9 * DAY + DAY // 4 + 6) * STEP_S)
    seen, missed = answer(made(whole), later), answer(made(holed), later)
    assert abs(missed.quantiles[0.5] / seen.quantiles[0.5] - 1.0) < 0.1
    assert missed.quantiles[0.9] < 1.5 * seen.quantiles[0.9]


def test_an_hour_of_history_is_enough_to_answer() -> None:
    found = answer(made(waved(1)[:12]), Question(horizon_s=HALF_HOUR_S))
    assert all(np.isfinite(list(found.quantiles.values())))
