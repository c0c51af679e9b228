"""An event loop on a thread of its own, for servers that run beside a test which only waits."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

CALL_S = 20.0

T = TypeVar("T")


class Background:
    """`run` something on the loop and wait for it; `close` when all is done."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What the coroutine returns, within CALL_S."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(CALL_S)

    def close(self) -> None:
        """Stop the loop and its thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
