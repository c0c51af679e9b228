"""The doctor on call: a running controller asks it when somebody looks, and no more often than needed."""

import asyncio
from dataclasses import asdict
from typing import Any

from gpuscale.clock import Clock
from gpuscale.controller import kube
from gpuscale.doctor import examine, gather
from gpuscale.doctor.facts import Cluster, Facts, Unread
from gpuscale.errors import GpuscaleError
from gpuscale.settings import ControllerSettings

FRESH_S = 300.0
"""A visit lists every pod of the cluster: what it found is shown for so long."""
DEADLINE_S = 60.0
"""A visit that takes longer is given up; so is the request of who waits for it."""


class Visits:
    """What the doctor finds with the controller's own eyes and rights."""

    def __init__(self, settings: ControllerSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._found: dict[str, Any] | None = None
        self._at: float | None = None
        self._one_at_a_time = asyncio.Lock()

    async def results(self) -> dict[str, Any]:
        """As /api/v1/doctor answers it. Never raises for a cluster or a Prometheus that does not answer."""
        async with self._one_at_a_time:
            now = self._clock.monotonic()
            if self._found is None or self._at is None or now - self._at >= FRESH_S:
                results = examine(await self._facts())
                self._at = now
                self._found = {
                    "at": self._clock.wall(),
                    "results": [asdict(result) for result in results],
                }
        return self._found

    async def _facts(self) -> Facts:
        cluster: Cluster | Unread
        try:
            async with asyncio.timeout(DEADLINE_S):
                cluster = await self._cluster()
        except TimeoutError:
            cluster = Unread(f"it did not answer within {DEADLINE_S:g} s")
        except GpuscaleError as error:
            cluster = Unread(str(error))
        return Facts(
            here=None,
            cluster=cluster,
            prometheus=await gather.prometheus(self._settings.prometheus, self._clock),
        )

    async def _cluster(self) -> Cluster | Unread:
        settings = self._settings.kubernetes
        gateway = await kube.connect(settings, self._clock)
        if gateway is None:
            return Unread("this controller runs without one")
        try:
            # The map of GPUs asks the exporters by itself; through the API server it would take a right more.
            return await gather.cluster(gateway, settings.namespaces, ask_exporters=False)
        finally:
            await gateway.close()
