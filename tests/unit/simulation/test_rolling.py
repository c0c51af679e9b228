"""Rolling origins: scored as stated, from what was seen, whatever the trace calls its seconds."""

from dataclasses import replace

import numpy as np
import pytest

from gpuscale.controller.domain import Floats
from gpuscale.errors import InputError
from gpuscale.simulation.rolling import Question, Target, answer, evaluate
from gpuscale.simulation.trace import Trace

STEP_S = 300.0
DAY = 288


def made(values: Floats, *, start_s: float = 0.0, step_s: float = STEP_S) -> Trace:
    return Trace(name="made", start_s=start_s, step_s=step_s, values=values)


def noisy(days: int, seed: int = 1) -> Floats:
    """A daily wave with noise."""
    rng = np.random.default_rng(seed)
    at = np.arange(days * DAY)
    out: Floats = (30.0 + 20.0 * np.sin(at / DAY * 2 * np.pi)) * rng.gamma(100.0, 0.01, len(at))
    return out


def silent() -> float:
    return 0.0


def at_every_bin(target: Target) -> Question:
    return Question(horizon_s=900.0, target=target, origins=10_000)


@pytest.mark.parametrize("target", ["peak", "value"])
def test_the_scores_are_those_of_the_answers_one_by_one(target: Target) -> None:
    """Every origin's answer, asked for on its own, gives the same errors and coverage."""
    values = noisy(2)
    recorded, first, horizon = made(values), len(values) - 24, 3
    asked = replace(at_every_bin(target), from_s=first * STEP_S)
    found = evaluate(recorded, asked, silent)
    errors, naive, truth, hits = 0.0, 0.0, 0.0, 0
    origins = range(first, len(values) - horizon + 1)
    live = evaluate_by_answers(recorded, asked, origins)
    for at, quantiles in zip(origins, live, strict=True):
        ahead = values[at : at + horizon]
        outcome = ahead.max() if target == "peak" else ahead[-1]
        errors += abs(quantiles[0.5] - outcome)
        naive += abs(values[at - 1] - outcome)
        truth += outcome
        hits += outcome <= quantiles[0.9]
    assert found.origins == len(origins)
    # An answer learns all before it as a past, an evaluation lives through its window: nearly alike.
    assert found.relative_mae == pytest.approx(errors / naive, rel=0.1)
    assert found.wape == pytest.approx(errors / truth, rel=0.1)
    assert found.coverage[0.9] == pytest.approx(hits / len(origins), abs=0.1)


def evaluate_by_answers(
    recorded: Trace, asked: Question, origins: range
) -> list[dict[float, float]]:
    return [
        answer(recorded, replace(asked, from_s=None, to_s=at * STEP_S)).quantiles for at in origins
    ]


def test_an_answer_uses_nothing_after_its_time() -> None:
    values = noisy(4)
    other = values.copy()
    cut = 3 * DAY + 100
    other[cut:] *= 5.0
    asked = Question(horizon_s=1800.0, to_s=cut * STEP_S)
    assert answer(made(values), asked) == answer(made(other), asked)


def test_scores_know_no_calendar_and_no_units() -> None:
    values = noisy(4)
    asked = at_every_bin("value")
    plain = evaluate(made(values), asked, silent)
    for changed in (made(values, start_s=123_456.7), made(values * 1024.0)):
        moved = evaluate(changed, asked, silent)
        assert moved.relative_mae == pytest.approx(plain.relative_mae, rel=1e-3)
        assert moved.pinball[0.9] == pytest.approx(plain.pinball[0.9], rel=1e-3)
        assert moved.coverage == pytest.approx(plain.coverage, abs=0.01)


def test_zeros_are_no_evidence_of_coverage() -> None:
    """Office hours: at night any quantile covers, which says nothing."""
    at = np.arange(4 * DAY)
    values = np.where(at % DAY < DAY // 2, 0.0, noisy(4))
    found = evaluate(made(values), at_every_bin("value"), silent)
    day = evaluate(made(noisy(4)), at_every_bin("value"), silent)
    assert found.coverage[0.9] < 0.97
    assert day.coverage[0.9] == pytest.approx(0.9, abs=0.05)


@pytest.mark.parametrize("missing", [slice(0, 50), slice(600, 900), slice(1000, 1003)])
def test_missing_values_are_scored_by_nobody(missing: slice) -> None:
    values = noisy(4)
    values[missing] = np.nan
    found = evaluate(made(values), at_every_bin("value"), silent)
    known = ~np.isnan(values[len(values) // 2 + 2 :])
    assert found.origins == known.sum()
    assert np.isfinite([found.mase, found.wape, found.relative_mae]).all()


def test_a_constant_has_no_error_and_no_ratio() -> None:
    found = evaluate(made(np.full(2 * DAY, 7.0)), at_every_bin("value"), silent)
    assert found.wape == 0.0
    assert np.isnan(found.relative_mae)
    assert found.coverage[0.9] == 1.0


def test_bins_longer_than_those_of_the_history_are_forecast_too() -> None:
    values = noisy(8)[::6]
    found = evaluate(
        made(values, step_s=1800.0), Question(horizon_s=3600.0, target="value"), silent
    )
    assert 0.0 < found.relative_mae < 1.3
    assert found.coverage[0.9] > 0.7


def test_time_of_an_update_is_what_the_clock_says() -> None:
    clock = iter(np.arange(10_000) * 0.5)
    found = evaluate(made(noisy(2)), at_every_bin("peak"), lambda: float(next(clock)))
    assert found.seconds_per_update == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        ({"horizon_s": 0.0}, "--horizon"),
        ({"horizon_s": float("nan")}, "--horizon"),
        ({"horizon_s": 60.0, "origins": 0}, "--origins"),
        ({"horizon_s": 60.0, "quantiles": (0.5, 1.0)}, "--quantiles"),
        ({"horizon_s": 60.0, "quantiles": ()}, "--quantiles"),
    ],
)
def test_what_cannot_be_asked_is_refused(question: dict[str, float], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Question(**question)  # type: ignore[arg-type]


def test_a_horizon_beyond_a_quarter_of_the_window_is_refused() -> None:
    evaluate(made(noisy(2)), Question(horizon_s=21_600.0), silent)
    with pytest.raises(InputError, match="a quarter of made's window"):
        evaluate(made(noisy(2)), Question(horizon_s=21_900.0), silent)
