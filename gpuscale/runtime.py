"""The life of a daemon: named tasks that must not return, signals, and an orderly end with deadlines.

One `run()` per process. SIGTERM and SIGINT cancel the main task (exit 0); a loop that returns or
raises ends the process with an error; whatever was opened is closed in reverse order, each closer
under its own deadline, and the one that missed it is named.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from gpuscale import log
from gpuscale.clock import Clock
from gpuscale.errors import GpuscaleError

CLOSE_DEADLINE_S = 5.0
"""Longest wait for one closer: a hung NVML call or peer must not keep the pod until SIGKILL."""

EXIT_TASK_ENDED = 70
"""EX_SOFTWARE: a task that must run for ever returned or failed; the restart is the cure."""

_log = log.get("runtime")


class TaskReturned(Exception):
    """A loop that must not end has ended; its name is the message."""


class Daemon:
    """What a daemon's main coroutine uses to own its tasks and closers."""

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._closers: list[tuple[str, Callable[[], Awaitable[object]]]] = []
        self._main: asyncio.Task[object] | None = None
        self.stopping = False
        """Whether its end was asked for, by a signal or by `stop()`."""

    def own(self, name: str, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run `coroutine` as an eternal task called `name`; its return is a failure."""

        async def guard() -> None:
            await coroutine
            raise TaskReturned(f"task {name} returned, and it must run for ever")

        self._group.create_task(guard(), name=name)

    def close_with(self, name: str, closer: Callable[[], Awaitable[object]]) -> None:
        """Call `closer` at the end, in reverse order of registration, within CLOSE_DEADLINE_S."""
        self._closers.append((name, closer))

    def stop(self) -> None:
        """End it as a signal does: cancel the tasks, close, exit code 0. Only the first call counts."""
        if not self.stopping and self._main is not None:
            self.stopping = True
            self._main.cancel()

    async def live(self, start: Callable[["Daemon"], Awaitable[None]]) -> None:
        """Start, run the owned tasks until cancelled or one of them fails, then close."""
        self._main = asyncio.current_task()
        try:
            async with self._group:
                await start(self)
        finally:
            await self._close()

    async def _close(self) -> None:
        for name, closer in reversed(self._closers):
            try:
                async with asyncio.timeout(CLOSE_DEADLINE_S):
                    await closer()
            except TimeoutError:
                _log.error("closer missed its deadline", closer=name, deadline_s=CLOSE_DEADLINE_S)
            except Exception:  # noqa: BLE001 - one failing closer must not keep the others from closing
                _log.exception("closer failed", closer=name)


async def every(clock: Clock, period_s: float, step: Callable[[], Awaitable[None]]) -> None:
    """Call `step` every `period_s` for ever, on a fixed grid; a step that overruns skips beats, never bunches."""
    due = clock.monotonic()
    while True:
        await step()
        now = clock.monotonic()
        due += period_s
        if due < now:
            due += ((now - due) // period_s + 1) * period_s
        await clock.sleep(max(0.0, due - now))


def run(start: Callable[[Daemon], Awaitable[None]]) -> int:
    """Run a daemon until a signal; the exit code: 0, an error's own, or EXIT_TASK_ENDED."""
    try:
        return asyncio.run(_until_signal(start))
    except (Exception, BaseExceptionGroup) as raised:  # noqa: BLE001 - the last frame: log it, exit with its code
        error = first(raised)
        if isinstance(error, GpuscaleError):
            _log.error("stopped", reason=str(error))
            return error.exit_code
        _log.error("task ended", reason=str(error), exc_info=raised)
        return EXIT_TASK_ENDED


async def _until_signal(start: Callable[[Daemon], Awaitable[None]]) -> int:
    main = asyncio.current_task()
    assert main is not None
    daemon = Daemon()

    def stop(name: str) -> None:
        _log.info("signal received", signal=name)
        daemon.stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number.name)
    try:
        await daemon.live(start)
    except asyncio.CancelledError:
        if not daemon.stopping:
            raise
        main.uncancel()
        return 0
    raise TaskReturned("no task was started")


def first(group: BaseException) -> BaseException:
    """The first leaf of an exception group: what went wrong first."""
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group


def exit_now(code: int) -> None:
    """End the process without joining threads: one that hangs in the driver can never be joined."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
