"""Durations and steps of a trace that is read from Prometheus."""

import pytest

from gpuscale.errors import InputError
from gpuscale.simulation import recorded


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("14d", 1_209_600.0), ("1h30m", 5400.0), ("90", 90.0), ("1w", 604_800.0), ("500ms", 0.5)],
)
def test_durations_are_read_as_prometheus_writes_them(text: str, seconds: float) -> None:
    assert recorded.duration_s(text, "--since") == seconds


@pytest.mark.parametrize("text", ["", "0", "-3d", "two days", "14 d", "nan", "inf", "3dx", "1e400"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InputError, match=r"--since is .* write a duration like 14d"):
        recorded.duration_s(text, "--since")


def test_the_step_becomes_coarser_with_the_length() -> None:
    day = 86_400.0
    assert [recorded.step_for(d * day) for d in (1, 14, 60, 400, 9000)] == [
        *(60.0, 60.0, 300.0, 900.0, 3600.0),
    ]
