"""Load shapes: pure functions of time that compose."""

import statistics
from collections.abc import Callable

import pytest

from gpuscale.workload import (
    Burst,
    Clipped,
    Constant,
    Noise,
    RepeatedRamp,
    Scaled,
    Shape,
    Sum,
    normal,
)


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


def test_scaling_and_delay_move_a_shape() -> None:
    burst = Burst(start_s=0.0, duration_s=10.0, level=5.0)
    late = Scaled(of=burst, factor=2.0, delay_s=5.0)
    assert [late.at(t) for t in (4.9, 5.0, 14.9, 15.0)] == [0.0, 10.0, 10.0, 0.0]


def test_noise_is_the_same_for_the_same_seed_and_different_for_another() -> None:
    def series(seed: int) -> list[float]:
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
    assert min(noisy.at(float(t)) for t in range(500)) == 0.0


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: RepeatedRamp(period_s=10, rise_s=6, hold_s=5, fall_s=0, low=0, high=1),
        lambda: Clipped(of=Constant(level=1.0), low=2.0, high=1.0),
        lambda: Noise(of=Constant(level=1.0), seed=0, ratio=-0.1),
    ],
)
def test_a_shape_that_makes_no_sense_is_refused_when_it_is_made(wrong: Callable[[], Shape]) -> None:
    with pytest.raises(ValueError, match="must"):
        wrong()
