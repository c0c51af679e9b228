"""What demand did to other autoscalers, lived through with this one: each story comes from a report.

The number of a scenario is that of the list of reports which the project keeps: 1 is the avalanche
of 22,745 replicas for 10 that were needed. A failure names the command that plays it again.
"""

from collections.abc import Callable

import numpy as np
import pytest

from gpuscale.workload import normal
from tests.fakes.story import BEGIN, Row, Story, asked, model, told

KEY = "ml/model"
YOUNG = 2.3
"""Times the need that a workload may stand by for in its first hours: what has just risen eightfold
within a minute may do so again, as far as anybody knows. The avalanches ended at 8 to 2,000 times."""
HOUR = 3600.0


@pytest.fixture(autouse=True)
def replay(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> None:
    """The command that plays this scenario again; pytest shows it where it fails."""
    print(f"replay: pytest '{request.node.nodeid}'")


def noisy(shape: Callable[[float], float], seed: int) -> Callable[[float], float]:
    """Seconds since the beginning -> requests/s, with 5 % of noise that the seed decides."""

    def at(now: float) -> float:
        second = now - BEGIN
        return max(0.0, shape(second) * (1.0 + 0.05 * normal(seed, int(second // 5))))

    return at


def at_minute(rows: list[Row], minute: float) -> Row:
    return min(rows, key=lambda row: abs(row.at_s - minute * 60))


async def lived(
    shape: Callable[[float], float],
    hours: float,
    *,
    seed: int = 1,
    start_s: float = 180.0,
    replicas: int = 2,
) -> tuple[Story, list[Row]]:
    """The whole life of one model; its rows, and the story as it ended."""
    workload = model(noisy(shape, seed), start_s=start_s, replicas=replicas)
    async with told(workload, seed=seed) as story:
        return story, await story.pass_s(hours * HOUR)


@pytest.mark.parametrize("seed", [1, 2])
async def test_01_a_ramp_to_a_hundredfold_with_a_slow_start_is_no_avalanche(seed: int) -> None:
    """1 to 100 requests/s while a replica takes five minutes: ten are needed, and about ten asked."""
    _, rows = await lived(
        lambda s: float(np.clip((s - 600) / 900 * 99 + 1, 1, 100)), 2.5, seed=seed, start_s=300.0
    )
    assert max(asked(rows)) <= 25, "a backlog is worked off once, not at every tick again"
    assert 10 <= rows[-1].asked <= 13, "at most 1.3 times the need, when all is calm"
    assert rows[-1].ready >= 10


@pytest.mark.parametrize("seed", [1, 2])
async def test_02_replicas_that_load_are_not_asked_for_again(seed: int) -> None:
    """A step to 8 replicas' worth with ten minutes of loading: no doubling at every sync."""
    _, rows = await lived(lambda s: 10.0 if s < 1200 else 80.0, 2.0, seed=seed, start_s=600.0)
    waiting = [r.asked for r in rows if 1200 <= r.at_s <= 1800]
    assert max(waiting) <= 24
    rises = np.flatnonzero(np.diff(waiting) > 0)
    assert len(rises) <= 8, f"it is asked again and again: {waiting}"
    assert 8 <= rows[-1].asked <= YOUNG * 8


async def test_03_no_band_is_dead_however_large_the_fleet() -> None:
    """One replica more of ten, or of eighty, is 10 % or less: what is asked is what comes."""
    _, rows = await lived(
        lambda s: 75.0 + 650.0 * min(1.0, s / 9000) - 600.0 * min(1.0, max(0.0, s - 9000) / 5000),
        4.0, replicas=9, start_s=60.0,
    )  # fmt: skip
    steps = [(a.answer, a.asked) for a in rows if a.answer is not None]
    behind = [pair for pair in steps if pair[0] > pair[1]]
    assert max(a for _, a in steps) >= 75
    assert not behind, f"the HPA does not follow up: {behind[:5]}"
    small = [
        b - a for a, b in zip(asked(rows), asked(rows)[1:], strict=False) if 0 < b - a <= 0.1 * a
    ]
    assert small, "steps within 10 % were made"


async def test_07_load_that_stops_while_pods_are_pending_takes_the_ask_back() -> None:
    """Four GPUs, work for eight replicas, and then none: nobody waits for nodes any more."""
    workload = model(
        noisy(lambda s: 5.0 if s < 1200 or s > 2400 else 80.0, 3), start_s=120.0, replicas=1
    )
    async with told(workload, nodes={"small": 4}) as story:
        rows = await story.pass_s(2.5 * HOUR)
    assert at_minute(rows, 39).pending >= 3
    assert max(asked(rows)) <= 24, "what cannot be scheduled is not asked for over and over"
    assert at_minute(rows, 100).pending == 0
    assert rows[-1].asked <= 2


@pytest.mark.parametrize("seed", [1, 2])
async def test_08_after_a_surge_an_idle_fleet_shrinks_in_bounded_time(seed: int) -> None:
    """From 30 replicas' worth to nothing at all."""
    _, rows = await lived(
        lambda s: 300.0 if 1800 < s < 5400 else (20.0 if s <= 1800 else 0.0), 4.0, seed=seed
    )
    assert 28 <= at_minute(rows, 85).asked <= YOUNG * 30
    assert rows[-1].asked <= 2, "two and a half hours later"


async def test_16_a_retry_storm_after_an_outage_is_carried_and_forgotten() -> None:
    """Nothing for ten minutes, then four times the usual for five: up at once, and back within the hour."""

    def storm(s: float) -> float:
        into = s - 2 * HOUR
        return 0.0 if 0 <= into < 600 else 160.0 if 600 <= into < 900 else 40.0

    times = BEGIN - 300.0 * np.arange(3 * 288, dtype=np.float64)[::-1]
    workload = model(noisy(storm, 1), start_s=120.0, replicas=5)
    async with told(workload, past={KEY: (times, np.full(len(times), 40.0))}) as story:
        rows = await story.pass_s(5 * HOUR)
    usual = at_minute(rows, 118).asked
    assert max(asked(rows)) <= 40
    assert max(asked(rows)[-120:]) <= 1.8 * usual


@pytest.mark.parametrize("seed", [1, 2])
async def test_15_a_past_that_promises_three_times_too_much_is_soon_not_believed(seed: int) -> None:
    """Five mornings rose to 120 requests/s; today is a holiday, at 40."""
    times = BEGIN - 300.0 * np.arange(5 * 288, dtype=np.float64)[::-1]
    hour = (times - BEGIN) % 86_400 / HOUR
    past = np.where((hour >= 1.0) & (hour < 6.0), 120.0, 20.0)
    workload = model(noisy(lambda s: 20.0 if s < HOUR else 40.0, seed), start_s=300.0, replicas=3)
    async with told(workload, seed=seed, past={KEY: (times, past)}) as story:
        rows = await story.pass_s(6.5 * HOUR)
    assert max(asked(rows)) <= 20, "not more than the past would need"
    later = [r.asked for r in rows if r.at_s > 3 * HOUR]
    assert float(np.mean(later)) <= 9.0, "two hours on, what is there counts"
    assert rows[-1].asked <= 8


async def test_20_a_morning_that_comes_an_hour_earlier_is_met_within_a_start() -> None:
    """The clocks were changed: what rose at 8:00 for five days rises at 7:00."""
    times = BEGIN - 300.0 * np.arange(5 * 288, dtype=np.float64)[::-1]
    hour = (times - BEGIN) % 86_400 / HOUR
    past = np.where((hour >= 8.0) & (hour < 18.0), 120.0, 20.0)
    workload = model(
        noisy(lambda s: 120.0 if s % 86_400 >= 7 * HOUR else 20.0, 5), start_s=180.0, replicas=3
    )
    async with told(workload, past={KEY: (times, past)}) as story:
        rows = await story.pass_s(9 * HOUR)
    assert at_minute(rows, 7 * 60 + 8).ready >= 12
    assert max(asked(rows)) <= 40
    assert 12 <= rows[-1].asked <= 18, "the hour at which it used to rise is no second rise"


@pytest.mark.parametrize("seed", [1, 2])
async def test_22_a_square_wave_of_twice_the_start_is_not_chased(seed: int) -> None:
    """15 and 5 replicas' worth by turns of ten minutes, which is what a start takes."""
    _, rows = await lived(
        lambda s: 150.0 if s % 1200 < 600 else 50.0, 8.0, seed=seed, start_s=600.0, replicas=10
    )
    second = asked(rows)[len(rows) // 2 :]
    assert np.count_nonzero(np.diff(second)) <= 4 * 3 * 6, "less than three moves per half wave"
    assert min(second) >= 10, "replicas are kept through a valley that is shorter than their start"
    assert max(second) <= YOUNG * 15
