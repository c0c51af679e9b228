"""A list-and-watch cache of one resource: complete, current, and honest about when it is neither.

The list comes in pages, the first from the API server's own cache (resourceVersion 0), a relist after
a 410, or after an answer that was too large, consistent (none). The watch starts where the list ended and goes on from the version of each
event and bookmark. Its end by the server is followed by another at once; a failure, or an end within
a second, by an exponential backoff with jitter. A relist replaces everything at once, so that what
was deleted meanwhile is gone.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gpuscale.clock import Clock
from gpuscale.controller.gateway import KubeGateway, Throttled, TooLarge
from gpuscale.errors import ApiError, ApiGone, ApiNotFound, ApiRefused

OBJECTS_MAX = 500_000
"""Twice the pods of the largest cluster that Kubernetes is tested with (150,000); a bound on memory."""

TURN = 50
"""Objects read in a row, some milliseconds, before others get a turn on the event loop."""

PAGES_MAX = 100_000
"""A list that goes on beyond it will not end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How a cache spends its time; the defaults are for an API server, tests hurry."""

    page: int = 500
    """Objects per page, as the clients of Kubernetes itself."""
    watch_s: tuple[float, float] = (300.0, 600.0)
    """A watch is asked to last a time drawn from this range, so that caches do not reconnect at once."""
    silence_s: float = 90.0
    """A watch that brings nothing for so long is opened again: bookmarks come every minute, and a
    connection that died without a word looks just like a quiet one."""
    short_s: float = 1.0
    """A watch that ends sooner did not work."""
    backoff_s: tuple[float, float] = (1.0, 60.0)
    """First and longest pause after failures in a row."""
    absent_s: float = 60.0
    """A resource type that does not exist (no KEDA) is looked for this often."""


T = TypeVar("T")
Key = tuple[str, str]
"""(namespace, name)."""


class Cache(Generic[T]):
    """All objects of one list path, each as `keep` makes of it. `run` it; read it at any time."""

    def __init__(
        self,
        gateway: KubeGateway,
        path: str,
        clock: Clock,
        keep: Callable[[Mapping[str, Any]], T],
        *,
        timing: Timing | None = None,
    ) -> None:
        self._gateway = gateway
        self._path = path
        self._clock = clock
        self._keep = keep
        self._timing = timing or Timing()
        self._objects: dict[Key, T] = {}
        self._version: str | None = None
        self._consistent = False
        self._contact: float | None = None
        self._opened: float | None = None
        """When the present watch was accepted."""
        self._failures = 0
        self._problem: str | None = None
        self._random = random.Random()  # noqa: S311 - spreads reconnections, keeps no secret
        self.synced = False
        """Whether the first list is complete; stays so when the server is lost."""
        self.absent = False
        """Whether the server has no such resource type: synced, and empty."""
        self.refused = False
        """Whether the server last said that it may not be read (403)."""
        self.changes = 0
        """Grows with every change of `objects`."""

    @property
    def objects(self) -> Mapping[Key, T]:
        """By (namespace, name); to be read, not kept."""
        return self._objects

    @property
    def age_s(self) -> float | None:
        """Seconds since the server last said something (a page, an event, a bookmark); None before that."""
        return None if self._contact is None else self._clock.monotonic() - self._contact

    @property
    def problem(self) -> str | None:
        """Why it is not current, one sentence; None while it is, or has not begun.

        One failure between two good watches is not one: a quiet connection that was opened again.
        """
        return self._problem if self._failures > 1 or not self.synced else None

    async def run(self) -> None:
        """List and watch for ever."""
        while True:
            self._opened = None
            try:
                if self._version is None:
                    await self._list()
                await self._watch()
            except TooLarge as error:
                self._consistent = True  # whose pages are as large as asked for
                await self._pause(error)
            except ApiGone:
                self._version, self._consistent = None, True
                await self._pause(None)
            except ApiNotFound:
                self._vanish()
                await self._clock.sleep(self._timing.absent_s)
            except ApiError as error:
                await self._pause(error)
            else:
                await self._pause(None)

    async def _list(self) -> None:
        query = {"limit": str(self._timing.page)}
        if not self._consistent:
            query["resourceVersion"] = "0"
        found: dict[Key, T] = {}
        for _ in range(PAGES_MAX):
            metadata, items = await self._gateway.page(self._path, query)
            self._contact = self._clock.monotonic()
            for i, item in enumerate(items):
                found[_key(item)] = self._keep(item)
                if i % TURN == 0:
                    await asyncio.sleep(0)
            if len(found) > OBJECTS_MAX:
                raise ApiError(
                    f"{self._path} has more than {OBJECTS_MAX} objects: watch fewer namespaces with "
                    "kubernetes.namespaces"
                )
            token, version = _of(metadata, "continue"), _of(metadata, "resourceVersion")
            if not token:
                break
            query = {"limit": str(self._timing.page), "continue": token}
        else:
            raise ApiError(f"{self._path} has more than {PAGES_MAX} pages: check the API server")
        if found != self._objects:
            self._objects = found
            self.changes += 1
        self._version, self.synced, self.absent, self._problem = version or "0", True, False, None

    async def _watch(self) -> None:
        query = {
            "resourceVersion": self._version or "0",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(round(self._random.uniform(*self._timing.watch_s)) or 1),
        }
        silence_s = self._timing.silence_s
        async with self._gateway.watch(self._path, query, silence_s=silence_s) as events:
            self._contact = self._opened = self._clock.monotonic()
            self._problem, self.refused = None, False
            async with aclosing(events) as stream:
                async for event in stream:
                    self._contact = self._clock.monotonic()
                    self._apply(event)

    def _apply(self, event: Mapping[str, Any]) -> None:
        kind, raw = event.get("type"), event.get("object")
        if not isinstance(raw, Mapping):
            return
        version = _of(raw.get("metadata"), "resourceVersion")
        if kind == "DELETED":
            if self._objects.pop(_key(raw), None) is not None:
                self.changes += 1
        elif kind in ("ADDED", "MODIFIED"):
            key, kept = _key(raw), self._keep(raw)
            if self._objects.get(key) != kept:
                if len(self._objects) >= OBJECTS_MAX and key not in self._objects:
                    return
                self._objects[key] = kept
                self.changes += 1
        if version:
            self._version = version

    def _vanish(self) -> None:
        """The resource type is not there: nothing of it exists, which is known."""
        if self._objects:
            self._objects = {}
            self.changes += 1
        self._version, self.synced, self.absent = None, True, True
        self._contact, self._problem, self._failures = self._clock.monotonic(), None, 0

    async def _pause(self, error: ApiError | None) -> None:
        """Wait as long as what just ended asks for; a watch that lasted and ended well asks for nothing."""
        timing = self._timing
        if self._opened is not None and self._clock.monotonic() - self._opened >= timing.short_s:
            self._failures = 0
            if error is None:
                return
        self.refused = isinstance(error, ApiRefused)
        if error is not None:
            self._problem = str(error)
        first, longest = timing.backoff_s
        pause_s = min(longest, first * 2.0 ** min(self._failures, 32)) * self._random.uniform(
            0.5, 1.0
        )
        self._failures += 1
        if isinstance(error, Throttled):
            pause_s = max(pause_s, min(longest, error.retry_after_s))
        await self._clock.sleep(pause_s)


def _of(metadata: object, field: str) -> str | None:
    value = metadata.get(field) if isinstance(metadata, Mapping) else None
    return value if isinstance(value, str) and value else None


def _key(raw: object) -> Key:
    metadata = raw.get("metadata") if isinstance(raw, Mapping) else None
    return _of(metadata, "namespace") or "", _of(metadata, "name") or ""
