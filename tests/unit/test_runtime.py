"""`every` keeps a fixed grid and never bunches beats that it missed."""

import asyncio

import pytest

from gpuscale.runtime import every


class Time:
    """A clock that moves only when something sleeps or works."""

    def __init__(self) -> None:
        self.now = 0.0

    def wall(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


async def beats(work_s: list[float], period_s: float) -> list[float]:
    clock = Time()
    seen: list[float] = []

    async def step() -> None:
        if len(seen) == len(work_s):
            raise EOFError
        clock.now += work_s[len(seen)]
        seen.append(clock.now - work_s[len(seen)])

    with pytest.raises(EOFError):
        await every(clock, period_s, step)
    return seen


async def test_work_within_the_period_keeps_the_grid() -> None:
    assert await beats([0.2, 0.9, 0.5], 1.0) == pytest.approx([0.0, 1.0, 2.0])


async def test_an_overrun_skips_beats_and_stays_on_the_grid() -> None:
    assert await beats([0.0, 3.5, 0.0, 0.0], 1.0) == pytest.approx([0.0, 1.0, 5.0, 6.0])
