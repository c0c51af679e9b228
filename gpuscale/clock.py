"""The only reader of time. Shells take a `Clock`; pure rooms take `now` as data and no clock at all."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What a shell may ask of time."""

    def wall(self) -> float:
        """Seconds since the Unix epoch; may step. For timestamps that leave the process."""
        ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary origin; never steps back. For durations and deadlines."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds` of this clock's time."""
        ...


class SystemClock:
    """The operating system's clocks."""

    def wall(self) -> float:
        """Seconds since the Unix epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds of CLOCK_MONOTONIC."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Sleep on the running event loop."""
        await asyncio.sleep(seconds)
