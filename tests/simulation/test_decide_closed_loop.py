"""`decide` in closed loop with the engine: what a fleet lives through, not what one tick says."""

from collections.abc import Mapping

import numpy as np
import pytest

from gpuscale.controller import decide as core
from gpuscale.controller.domain import Floats
from gpuscale.settings import Policy
from gpuscale.simulation.engine import Case, Entry, Production, run
from tests.fakes.observations import grid

TICK_S = 15.0
DAY_S = 86_400.0
CAPACITY = 10.0


def ramps(times: Floats) -> Floats:
    """Quiet, and from 8:00 within ten minutes to twelve times that, until 18:00."""
    hour = times % DAY_S / 3600.0
    up = np.clip((hour - 8.0) * 6.0, 0.0, 1.0) - np.clip((hour - 18.0) * 2.0, 0.0, 1.0)
    return np.asarray(15.0 + 165.0 * up, dtype=np.float64)


def case(
    history: Floats, demand: Floats, seen: Floats | None = None, lead_s: float = 600.0
) -> Case:
    return Case(
        name="ramp",
        cold_start_s=lead_s,
        tick_s=TICK_S,
        capacity=CAPACITY,
        replicas_min=1,
        replicas_max=80,
        replicas=3,
        step_s=300.0,
        history=history,
        demand=demand,
        seen=demand if seen is None else seen,
    )


def lived(one: Case) -> Mapping[str, Floats]:
    """Asked, ready and late units per tick, (ticks,)."""
    contender = Production([one], core, Policy(mode="act"))
    rows: dict[str, list[float]] = {"asked": [], "ready": [], "late": []}

    def record(tick: int, outcome: object) -> None:
        for name, values in rows.items():
            values.append(float(getattr(outcome, name)[0, 0]))

    run([one], [Entry(names=("gpuscale",), contender=contender)], recorders=[record])
    return {name: np.array(values) for name, values in rows.items()}


def noisy(demand: Floats, seed: int) -> Floats:
    rng = np.random.default_rng(seed)
    return np.asarray(demand * rng.gamma(100.0, 0.01, len(demand)), dtype=np.float64)


@pytest.mark.parametrize("seed", [1, 2])
def test_after_a_few_mornings_replicas_are_asked_for_before_the_ramp(seed: int) -> None:
    """Twelve times the demand within ten minutes, which is as long as a replica takes to start.

    Beside it, the same morning of a fleet that has no past and cannot know: it is what the promise
    is measured against.
    """
    past = noisy(ramps(grid(0, 5 * 288, 300.0) + 150.0), seed)
    times = grid(0, round(9.5 * 3600 / TICK_S), TICK_S)
    demand = noisy(ramps(times), seed)
    knowing, unknowing = lived(case(past, demand)), lived(case(np.empty(0), demand))
    start = round(8 * 3600 / TICK_S)
    morning = slice(start, start + round(3600 / TICK_S))
    quiet = slice(round(3 * 3600 / TICK_S), round(7 * 3600 / TICK_S))
    assert np.median(knowing["asked"][quiet]) <= 4
    assert knowing["asked"][start - 1] >= 10, "asked for in the quiet, a start time ahead"
    assert unknowing["asked"][start - 1] <= 4
    late, late_unknowing = (f["late"][morning].sum() for f in (knowing, unknowing))
    assert late_unknowing > 0.2 * demand[morning].sum() * TICK_S
    # Who does not know catches up fast: a backlog is worked off with all that its lateness is worth.
    assert late < 0.7 * late_unknowing


@pytest.mark.parametrize("minutes", [4, 30])
def test_an_outage_of_the_source_at_the_peak_scales_nothing_down(minutes: int) -> None:
    past = grid(0, 4 * 288, 300.0) + 150.0
    times = grid(0, round(14 * 3600 / TICK_S), TICK_S)
    demand = noisy(ramps(times), 3)
    seen = demand.copy()
    start, length = round(12 * 3600 / TICK_S), round(minutes * 60 / TICK_S)
    seen[start : start + length] = np.nan
    found = lived(case(noisy(ramps(past), 3), demand, seen))
    standing = found["asked"][start]
    during = found["asked"][start + 1 : start + 1 + length]
    assert (during == standing).all()
    after = found["asked"][start + length : start + length + 240]
    assert after.min() >= 0.8 * standing
    assert found["late"][start : start + length + 240].sum() <= 0.01 * demand.sum()


def test_a_square_wave_of_twice_the_start_time_does_not_flap() -> None:
    times = grid(0, round(DAY_S / TICK_S), TICK_S)
    wave = np.where(times % 1200.0 < 600.0, 150.0, 50.0)
    found = lived(case(np.empty(0), noisy(wave, 4)))
    late_half = found["asked"][len(times) // 2 :]
    changes = np.count_nonzero(np.diff(late_half))
    assert changes <= 12 * 3 * 12, "on average less than three moves per half wave"
    assert late_half.min() >= 10, "replicas are kept through a valley shorter than their start"


def test_the_end_of_a_surge_is_followed_down_in_bounded_time() -> None:
    times = grid(0, round(8 * 3600 / TICK_S), TICK_S)
    surge = np.where((times > 2 * 3600) & (times < 3 * 3600), 300.0, 20.0)
    found = lived(case(np.empty(0), noisy(surge, 5), lead_s=180.0))
    assert found["asked"][round(3 * 3600 / TICK_S) - 4] >= 30
    assert found["asked"][round(3 * 3600 / TICK_S) :].max() <= 1.5 * 300.0 / CAPACITY
    assert found["asked"][round(5 * 3600 / TICK_S) :].max() <= 10
