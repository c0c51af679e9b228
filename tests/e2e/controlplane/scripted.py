"""The production external scaler whose answers a test writes, on an event loop of its own thread."""

import asyncio

from gpuscale.clock import SystemClock
from gpuscale.controller.actuators.keda import ExternalScaler
from gpuscale.controller.domain import Answer, Snapshot
from tests.e2e.controlplane.background import Background

REFRESH_S = 5.0
"""What was said is published again, as the controller does at every tick."""


class ScriptedScaler:
    """`say` how many replicas a workload is to have; KEDA asks it at `address`."""

    def __init__(self) -> None:
        self._background = Background("scripted scaler")
        self._clock = SystemClock()
        self._answers: dict[str, Answer] = {}
        self._number = 0
        self._scaler = ExternalScaler(self._clock)
        _, port = self._background.run(self._scaler.start("127.0.0.1:0"))
        self.address = f"localhost:{port}"
        self._refresher = asyncio.run_coroutine_threadsafe(self._refresh(), self._background.loop)

    def say(self, key: str, desired: int | None) -> None:
        """Answer this from now on; None is an error, as when gpuscale does not know."""
        active = None if desired is None else desired > 0
        self._answers[key] = Answer(desired=desired, reason="as the test says", active=active)
        self._background.run(self._publish())

    def asked(self, method: str) -> int:
        """Calls of a method so far."""
        return sum(n for (name, _), n in self._scaler.requests.items() if name == method)

    def streams(self) -> int:
        """State streams that KEDA holds open."""
        return self._scaler.streams["StreamIsActive"]

    def close(self) -> None:
        """End the streams with OK and stop."""
        self._refresher.cancel()
        self._background.run(self._scaler.close())
        self._background.close()

    async def _publish(self) -> None:
        self._number += 1
        self._scaler.publish(
            Snapshot(number=self._number, at=self._clock.wall(), answers=dict(self._answers))
        )

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            await self._publish()
