"""The benchmarks run: on an hour of made-up demand, and on a few workloads."""

import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import scaling, synthetic, tick


def test_scaling_is_judged_beside_the_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(synthetic, "KINDS", (synthetic.hour_only,))
    synthetic.write(tmp_path, seed=1)
    monkeypatch.setattr(sys, "argv", ["scaling", "--traces", str(tmp_path), "--cold-start", "60"])
    scaling.main()
    told = capsys.readouterr().out
    assert "hour_only_1" in told
    assert "gpuscale's J is " in told
    assert "of keda-rate@0.7's" in told


def test_a_tick_is_timed_for_any_number_of_workloads() -> None:
    found = tick.measure(workloads=3, ticks=5)
    assert len(found.seconds) == 5
    assert (found.seconds > 0).all()


def test_every_kind_of_demand_can_be_made_again() -> None:
    for number, kind in enumerate(synthetic.KINDS):
        step_s, values = kind(np.random.default_rng([7, number]))
        again = kind(np.random.default_rng([7, number]))[1]
        np.testing.assert_array_equal(values, again)
        assert step_s in (10, 60, 300)
        assert np.nanmin(values) >= 0
