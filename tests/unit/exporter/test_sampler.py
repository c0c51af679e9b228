"""The arithmetic of the sampling threads: the grid of beats, the backoff, the names of errors."""

import pytest

from gpuscale.errors import (
    DeviceLost,
    DriverError,
    DriverMissing,
    DriverRestartRequired,
    NotSupported,
)
from gpuscale.exporter.sampler import BACKOFF_MAX_S, BACKOFF_MIN_S, backoff_s
from gpuscale.exporter.watch import Failures, next_due


def test_beats_stay_on_their_grid() -> None:
    assert next_due(10.0, 1.0, 10.2) == 11.0


def test_a_round_that_overruns_skips_beats_and_never_bunches() -> None:
    assert next_due(10.0, 1.0, 13.7) == 14.0


def test_a_beat_that_came_early_is_not_repeated() -> None:
    assert next_due(10.0, 1.0, 9.9) == 11.0


def test_backoff_doubles_up_to_its_ceiling_and_stays_there() -> None:
    delays = [backoff_s(failures, BACKOFF_MAX_S, 0.0) for failures in range(1, 9)]
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60]
    assert backoff_s(10**6, BACKOFF_MAX_S, 0.0) == BACKOFF_MAX_S


def test_jitter_spreads_a_rack_of_nodes() -> None:
    assert backoff_s(1, BACKOFF_MAX_S, -0.2) == pytest.approx(0.8 * BACKOFF_MIN_S)
    assert backoff_s(1, BACKOFF_MAX_S, 0.2) == pytest.approx(1.2 * BACKOFF_MIN_S)


@pytest.mark.parametrize(
    ("error", "label"),
    [
        (NotSupported("x", code=3), "not_supported_3"),
        (DeviceLost("x", code=15), "device_lost_15"),
        (DriverMissing("x"), "driver_missing"),
        (DriverRestartRequired("x", code=18), "driver_restart_required_18"),
        (DriverError("x", code=999), "driver_error_999"),
        (DriverError("x"), "driver_error"),
    ],
)
def test_a_failed_read_is_counted_under_a_bounded_name(error: DriverError, label: str) -> None:
    failures = Failures()
    failures.count("power", error)
    failures.count("power", error)
    assert failures.counted() == {"power": ((label, 2),)}


def test_failures_are_counted_per_collector() -> None:
    failures = Failures()
    failures.count("power", DriverError("x", code=1))
    failures.count("memory", DriverError("x", code=2))
    failures.count("power", DriverError("x", code=3))
    assert failures.counted() == {
        "memory": (("driver_error_2", 1),),
        "power": (("driver_error_1", 1), ("driver_error_3", 1)),
    }
