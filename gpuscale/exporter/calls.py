"""Calls into the driver that may never return: named while they are under way, and made one GPU after another."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpuscale import log
from gpuscale.clock import Clock
from gpuscale.exporter.device import Device

TURN_WAIT_S_MAX = 0.1
TURN_WAIT_SHARE = 0.1
"""Of the fast period: how late the other GPUs are read at most because one of them hangs."""

_log = log.get("exporter.calls")


class Calls:
    """The call into the driver that one thread is in, if any; it is named when it is overdue."""

    def __init__(self, clock: Clock, *, deadline_s: float, **who: object) -> None:
        self._clock = clock
        self._deadline_s = deadline_s
        self._who = who
        self._under_way: tuple[str, float] | None = None
        self._reported: tuple[str, float] | None = None

    @contextmanager
    def named(self, what: str) -> Iterator[None]:
        """Run one call under this name (the thread's side)."""
        since = self.enter(what)
        try:
            yield
        finally:
            self.leave(what, since)

    def enter(self, what: str) -> float:
        """A call under this name begins; hand what this gives to `leave` when it has returned."""
        since = self._clock.monotonic()
        self._under_way = (what, since)
        return since

    def leave(self, what: str, since: float) -> None:
        """The call that began at `since` has returned."""
        self._under_way = None
        took_s = self._clock.monotonic() - since
        if took_s > self._deadline_s:
            _log.warning("late call returned", call=what, took_s=round(took_s, 3), **self._who)

    def overdue(self) -> str | None:
        """Why the thread does not go on, in words that do not change while it hangs; None while it does."""
        under_way = self._under_way
        if under_way is None or self._clock.monotonic() - under_way[1] <= self._deadline_s:
            return None
        if under_way is not self._reported:
            self._reported = under_way
            _log.error("call hangs", call=under_way[0], deadline_s=self._deadline_s, **self._who)
        return f"{under_way[0]} has not returned within {self._deadline_s:g} s"


class Turns:
    """One GPU is read after another, as long as none holds up the rest.

    Threads that read at the same time would hand the interpreter to and fro at every call, and each
    would find the processor's caches full of the other's. It is a courtesy and not a lock: nobody
    waits for a GPU that hangs for longer than a part of a period.
    """

    def __init__(self, period_s: float) -> None:
        self._lock = threading.Lock()
        self._wait_s = min(TURN_WAIT_S_MAX, period_s * TURN_WAIT_SHARE)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Run one round, if possible alone."""
        alone = self._lock.acquire(timeout=self._wait_s)
        try:
            yield
        finally:
            if alone:
                self._lock.release()


class NamedDevice:
    """A Device whose every method runs under its own name."""

    def __init__(self, device: Device, calls: Calls) -> None:
        self._device = device
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._device, name)
        if not callable(attribute):
            return attribute  # a value of this moment, asked for each time
        calls = self._calls

        def named(*args: Any) -> Any:
            since = calls.enter(name)
            try:
                return attribute(*args)
            finally:
                calls.leave(name, since)

        # The next time it is found without coming here.
        self.__dict__[name] = named
        return named
