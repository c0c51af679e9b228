"""The demo's time: simulated seconds that move only when the demo moves them."""

import asyncio
import heapq
import itertools


class VirtualClock:
    """A `Clock` whose owner calls `advance_to`; whoever sleeps on it wakes when its time has come."""

    def __init__(self, start: float) -> None:
        """`start`: Unix seconds at which the demo begins."""
        self._now = start
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def wall(self) -> float:
        """Simulated Unix seconds."""
        return self._now

    def monotonic(self) -> float:
        """The same: simulated time never steps back."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Wait until `seconds` of simulated time have passed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), future))
        await future

    def advance_to(self, now: float) -> None:
        """Move to `now` and wake everybody whose time has come; going back is ignored."""
        self._now = max(self._now, now)
        while self._sleepers and self._sleepers[0][0] <= self._now:
            _, _, future = heapq.heappop(self._sleepers)
            if not future.done():
                future.set_result(None)
