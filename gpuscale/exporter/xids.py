"""Errors that the driver announces (XIDs): a thread that waits for them, and a counter per GPU and code.

The event carries no history: what happened while nobody was subscribed is not known, and a code is
counted again each time it comes, also when it is the same one.
"""

import threading
from collections.abc import Sequence

from gpuscale import log
from gpuscale.clock import Clock
from gpuscale.errors import DriverError, DriverRestartRequired, NotSupported
from gpuscale.exporter.device import Driver, XidEvent, XidEvents
from gpuscale.exporter.sample import Sample, Unsupported
from gpuscale.exporter.xidcodes import meaning

COUNT = "gpuscale_gpu_xid_errors_total"
LAST = "gpuscale_gpu_xid_last_timestamp_seconds"
FAMILIES = (COUNT, LAST)

POLL_S = 1.0
"""How often the driver is asked for what it has queued: a page shows no more, and a thread that does not
wait inside the driver is at no time in the way of its end."""
WAIT_S = 0.001
"""One wait for an event; what NVML makes of none at all is not documented."""
RETRY_S = 5.0
"""Between two attempts to subscribe: a driver that has just lost a GPU needs a moment."""
CODES_MAX = 32
"""Series of one GPU; what is beyond is counted under `other`. A sick GPU repeats a handful."""
OTHER = "other"

_log = log.get("exporter.xids")


class XidWatch:
    """Counts across sessions; `start` with each session and `end` before its end."""

    def __init__(self, driver: Driver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._halt = threading.Event()
        self._anew = threading.Event()
        self._uuids: frozenset[str] = frozenset()
        # Written by the thread alone; values are replaced whole, so that readers need no lock.
        self._seen: dict[str, dict[str, tuple[int, float]]] = {}
        self._unsupported: frozenset[str] = frozenset()

    # ----- what others see

    def samples(self, uuid: str) -> tuple[Sample, ...]:
        """Counts and last times of one GPU, in the order in which the codes first came."""
        return tuple(
            sample
            for code, (count, at) in self._seen.get(uuid, {}).items()
            for sample in (
                Sample(family=COUNT, value=float(count), labels=(("xid", code),)),
                Sample(family=LAST, value=at, labels=(("xid", code),)),
            )
        )

    def unsupported(self, uuid: str) -> tuple[Unsupported, ...]:
        """Both families where the events of this GPU cannot be had."""
        if uuid not in self._unsupported:
            return ()
        return tuple(Unsupported(family=family, reason="not_supported") for family in FAMILIES)

    # ----- the supervisor's side

    def follow(self, uuids: frozenset[str]) -> None:
        """These GPUs are there: subscribe, or subscribe anew where they are not the same as before."""
        if self._thread is not None and self._thread.is_alive():
            if uuids != self._uuids:
                self._anew.set()
            self._uuids = uuids
            self._halt.clear()
            return
        self._uuids = uuids
        self._halt = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(self._halt,), name="nvml-xid", daemon=True
        )
        self._thread.start()

    def resume(self) -> None:
        """Go on after all, after an `end` that was not followed through."""
        if self._uuids:
            self.follow(self._uuids)

    def end(self) -> None:
        """Ask the thread to end after the wait it is in."""
        self._halt.set()

    def join(self, wait_s: float) -> bool:
        """Whether the thread has ended within `wait_s`."""
        if self._thread is None:
            return True
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    # ----- the thread

    def _run(self, halt: threading.Event) -> None:
        said: str | None = None
        while not halt.is_set():
            self._anew.clear()
            try:
                self._listen(halt)
            except NotSupported as error:
                self._unsupported = self._uuids
                _log.info("xid events not supported", reason=str(error))
                _wait_until(halt, self._anew)
            except DriverRestartRequired:
                return  # a read of a GPU will say the same, and end the process
            except DriverError as error:
                if str(error) != said:
                    said = str(error)
                    _log.warning("xid events interrupted", reason=said, code=error.code)
                halt.wait(RETRY_S)

    def _listen(self, halt: threading.Event) -> None:
        events: XidEvents = self._driver.xid_events()
        try:
            self._unsupported = frozenset(events.unsupported)
            while not halt.is_set() and not self._anew.is_set():
                event = events.wait(WAIT_S)
                if event is not None:
                    self._count(event)
                    continue
                # On the beat on which the GPUs are read, while the processor is awake.
                halt.wait(POLL_S - self._clock.monotonic() % POLL_S)
        finally:
            events.close()

    def _count(self, event: XidEvent) -> None:
        uuids: Sequence[str] = sorted(self._uuids)
        uuid = event.uuid or (uuids[0] if len(uuids) == 1 else "")
        _log.warning(
            "xid",
            uuid=uuid or "unknown",
            xid=event.xid,
            meaning=meaning(event.xid),
            gpu_instance=event.gpu_instance_id,
        )
        if not uuid:
            return
        seen = self._seen.get(uuid, {})
        code = str(event.xid)
        if code not in seen and len(seen) >= CODES_MAX:
            code = OTHER
        count, _ = seen.get(code, (0, 0.0))
        self._seen = {**self._seen, uuid: {**seen, code: (count + 1, self._clock.wall())}}


def _wait_until(halt: threading.Event, anew: threading.Event) -> None:
    """Until other GPUs are there, or the session ends."""
    while not halt.wait(POLL_S) and not anew.is_set():
        continue
