"""The exporter inside a test's event loop, at a pace that suits a test."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from gpuscale import runtime
from gpuscale.clock import SystemClock
from gpuscale.config import convert
from gpuscale.exporter.daemon import Exporter
from gpuscale.exporter.device import Driver
from gpuscale.settings import ExporterSettings

FAST_S = 0.05


def settings_of(**changes: Any) -> ExporterSettings:
    """Settings for loopback: a twentieth of a second per cycle, and no kubelet unless one is given."""
    data: dict[str, Any] = {
        "listen": "127.0.0.1:0",
        "periods": {"fast_s": FAST_S, "medium_s": FAST_S, "slow_s": 0.2},
        "call_deadline_s": 0.3,
        "stale_after_s": 1.5,
        "pod_resources": {"enabled": False},
    }
    return convert(data | changes, ExporterSettings, where="test")


@asynccontextmanager
async def exporting(
    driver: Driver | None, settings: ExporterSettings | None = None
) -> AsyncIterator[Exporter]:
    """An exporter that listens; ends as a daemon ends. What its loops raise is raised here."""
    exporter = Exporter(
        settings or settings_of(), node="node-1", driver=driver, clock=SystemClock()
    )
    started = asyncio.Event()

    async def start(daemon: runtime.Daemon) -> None:
        await exporter.start(daemon)
        started.set()

    async with asyncio.TaskGroup() as group:
        life = group.create_task(runtime.Daemon().live(start))
        await started.wait()
        try:
            yield exporter
        finally:
            life.cancel()


async def until(holds: Callable[[], bool], within_s: float = 5.0) -> None:
    """Wait until something holds; fails when it does not come to hold."""
    async with asyncio.timeout(within_s):
        while not holds():
            await asyncio.sleep(0.01)
