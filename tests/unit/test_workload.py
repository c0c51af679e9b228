"""Load shapes: pure functions of time that compose."""

import math
import statistics
from collections.abc import Callable

import pytest

from gpuscale.workload import (
    DAY_S,
    Burst,
    Clipped,
    Constant,
    Diurnal,
    Noise,
    Outage,
    Ramp,
    RepeatedRamp,
    Scaled,
    Shape,
    Sum,
    normal,
)


def test_a_day_peaks_when_it_says_and_repeats() -> None:
    day = Diurnal(low=10.0, high=50.0, peak_at_s=50_000.0)
    assert day.at(50_000.0) == pytest.approx(50.0)
    assert day.at(50_000.0 + DAY_S / 2) == pytest.approx(10.0)
    assert day.at(12_345.0) == pytest.approx(day.at(12_345.0 + 7 * DAY_S) or 0.0)


def test_a_sharper_day_has_the_same_peak_and_a_longer_night() -> None:
    round_, sharp = Diurnal(low=0.0, high=1.0), Diurnal(low=0.0, high=1.0, sharpness=4.0)
    assert sharp.at(DAY_S / 2) == pytest.approx(1.0)
    assert (sharp.at(DAY_S / 4) or 0.0) < (round_.at(DAY_S / 4) or 0.0)


def test_a_ramp_is_a_straight_line_between_two_levels() -> None:
    ramp = Ramp(start_s=100.0, duration_s=50.0, low=2.0, high=12.0)
    assert [ramp.at(t) for t in (0.0, 100.0, 125.0, 150.0, 999.0)] == [2.0, 2.0, 7.0, 12.0, 12.0]


def test_a_repeated_ramp_rises_holds_falls_and_rests() -> None:
    ramp = RepeatedRamp(
        period_s=100.0, rise_s=20.0, hold_s=10.0, fall_s=40.0, low=0.0, high=8.0, offset_s=5.0
    )
    for period in range(3):
        at = [ramp.at(5.0 + period * 100.0 + t) for t in (0.0, 10.0, 20.0, 29.0, 50.0, 70.0, 99.0)]
        assert at == [0.0, 4.0, 8.0, 8.0, 4.0, 0.0, 0.0]


def test_a_fall_of_no_time_is_a_cliff() -> None:
    ramp = RepeatedRamp(period_s=10.0, rise_s=5.0, hold_s=2.0, fall_s=0.0, low=1.0, high=3.0)
    assert ramp.at(6.9) == 3.0
    assert ramp.at(7.0) == 1.0


def test_a_burst_adds_to_what_is_there() -> None:
    load = Sum(parts=(Constant(level=2.0), Burst(start_s=10.0, duration_s=5.0, level=7.0)))
    assert [load.at(t) for t in (9.9, 10.0, 14.9, 15.0)] == [2.0, 9.0, 9.0, 2.0]


def test_an_outage_is_a_gap_and_never_a_zero() -> None:
    load = Outage(of=Constant(level=5.0), start_s=10.0, duration_s=3.0, period_s=100.0)
    assert [load.at(t) for t in (9.0, 10.0, 12.9, 13.0, 111.0, 113.0)] == [
        5.0, None, None, 5.0, None, 5.0,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "wrap",
    [
        lambda shape: Sum(parts=(Constant(level=1.0), shape)),
        lambda shape: Scaled(of=shape, factor=3.0),
        lambda shape: Clipped(of=shape),
        lambda shape: Noise(of=shape, seed=1),
    ],
)
def test_a_gap_goes_through_whatever_is_around_it(wrap: Callable[[Shape], Shape]) -> None:
    gap = Outage(of=Constant(level=1.0), start_s=0.0, duration_s=1.0)
    shape = wrap(gap)
    assert shape.at(0.5) is None
    assert shape.at(1.5) is not None


def test_scaling_and_delay_move_a_shape() -> None:
    ramp = Ramp(start_s=0.0, duration_s=10.0, low=0.0, high=10.0)
    assert Scaled(of=ramp, factor=2.0, delay_s=5.0).at(10.0) == 10.0


def test_noise_is_the_same_for_the_same_seed_and_different_for_another() -> None:
    def series(seed: int) -> list[float | None]:
        noisy = Noise(of=Constant(level=100.0), seed=seed, ratio=0.1)
        return [noisy.at(float(t)) for t in range(50)]

    assert series(7) == series(7)
    assert series(7) != series(8)


def test_noise_holds_within_a_step_and_does_not_depend_on_the_order_of_asking() -> None:
    noisy = Noise(of=Constant(level=1.0), seed=3, step_s=10.0)
    late, early = noisy.at(95.0), noisy.at(5.0)
    assert noisy.at(9.9) == early
    assert noisy.at(90.0) == late


def test_noise_is_standard_normal() -> None:
    draws = [normal(5, step) for step in range(20_000)]
    assert statistics.fmean(draws) == pytest.approx(0.0, abs=0.03)
    assert statistics.pstdev(draws) == pytest.approx(1.0, abs=0.03)
    assert sum(abs(x) > 1.96 for x in draws) / len(draws) == pytest.approx(0.05, abs=0.01)
    neighbours = statistics.correlation(draws[:-1], draws[1:])
    assert abs(neighbours) < 0.03


def test_noise_never_makes_a_load_negative() -> None:
    noisy = Noise(of=Constant(level=1.0), seed=1, ratio=5.0)
    assert min(noisy.at(float(t)) or 0.0 for t in range(500)) == 0.0


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Diurnal(low=0.0, high=1.0, period_s=0.0),
        lambda: Ramp(start_s=0.0, duration_s=math.nan, low=0.0, high=1.0),
        lambda: RepeatedRamp(period_s=10, rise_s=6, hold_s=5, fall_s=0, low=0, high=1),
        lambda: Clipped(of=Constant(level=1.0), low=2.0, high=1.0),
        lambda: Outage(of=Constant(level=1.0), start_s=0.0, duration_s=5.0, period_s=5.0),
        lambda: Noise(of=Constant(level=1.0), seed=0, ratio=-0.1),
    ],
)
def test_a_shape_that_makes_no_sense_is_refused_when_it_is_made(wrong: Callable[[], Shape]) -> None:
    with pytest.raises(ValueError, match="must"):
        wrong()
