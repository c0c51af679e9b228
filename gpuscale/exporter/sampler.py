"""Reading the driver, in threads of its own: a call into it can hang for minutes and cannot be cancelled.

    supervisor thread     opens the driver, enumerates, starts and ends watches, tries again with backoff
    one thread per node   waits for the errors that the driver announces
    one thread per GPU    reads the collectors that are due, and publishes an immutable view
    event loop            `observe()`: takes what the views hold now; waits for nothing

A call that does not return in time is named, and costs its own GPU alone. All threads are daemons:
the process can always end. Values past their bound are left out, so their series end.
"""

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from gpuscale import log
from gpuscale.clock import Clock
from gpuscale.errors import DriverError, DriverMissing, DriverRestartRequired
from gpuscale.exporter.calls import Calls, Turns
from gpuscale.exporter.device import Driver, Identity
from gpuscale.exporter.look import Look
from gpuscale.exporter.sample import Collector, CollectorStats, DeviceSample, DriverState, Glance
from gpuscale.exporter.watch import Failures, Watch
from gpuscale.exporter.xids import XidWatch
from gpuscale.settings import ExporterSettings

BACKOFF_MIN_S = 1.0
BACKOFF_MAX_S = 60.0
"""A driver that is installed later is seen within a minute."""

PAUSE_MAX_S = 1.0
"""How long the calls under way may take to end before the driver is closed; else it stays open."""

LOST_BACKOFF_MAX_S = 300.0
"""Opening anew to find a lost GPU pauses the others for a moment: for one that never returns, seldom."""

BACKOFF_JITTER = 0.2
"""The nodes of a rack that lost power together must not ask in step."""

FAILED_ROUNDS_MAX = 10
"""Fast rounds in a row in which every read of every GPU fails before the process gives up: a container
that lost its devices (a reload of systemd does it) answers Unknown Error for ever."""

FAILED_OPENS_MAX = 6
"""Failed openings in a row, other than for a missing driver, before the process gives up: a minute."""

RELEASED = "the driver was released on request (SIGUSR1): send SIGUSR2 to open it again"

RELEASE_RETRY_S = 1.0
"""While a call hangs the driver cannot be closed; it is tried again this often."""

_log = log.get("exporter.sampler")


def backoff_s(failures: int, ceiling_s: float, jitter: float) -> float:
    """Seconds until try number `failures` + 1: doubling to the ceiling, times 1 + `jitter` (-0.2 to 0.2)."""
    doublings = min(max(failures - 1, 0), 32)
    return float(min(ceiling_s, BACKOFF_MIN_S * 2**doublings) * (1 + jitter))


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What the sampler knows at one moment."""

    driver: DriverState
    devices: tuple[Glance, ...]
    collectors: Callable[[], tuple[CollectorStats, ...]]
    """What each collector costs and how often it failed, added up when it is asked for."""


class Sampler:
    """Keeps the last values of every GPU of the node."""

    def __init__(
        self,
        driver: Driver,
        collectors: Sequence[Collector],
        *,
        settings: ExporterSettings,
        clock: Clock,
    ) -> None:
        self._driver = driver
        self._collectors = tuple(collectors)
        self._settings = settings
        self._clock = clock
        self._calls = Calls(clock, deadline_s=settings.call_deadline_s)
        self._failures = Failures()
        self._turns = Turns(settings.periods.fast_s)
        self._xids = XidWatch(driver, clock)
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._hurry = threading.Event()
        """What also ends the wait for a lost GPU."""
        self._released = threading.Event()
        self._thread: threading.Thread | None = None
        self._random = random.Random()  # noqa: S311 - jitter, not a secret
        # Written by the supervisor alone and replaced whole, so that readers need no lock.
        self._state: DriverState | None = None
        self._watches: dict[str, Watch] = {}
        """By uuid, every GPU that was ever seen: one that comes back keeps its counters."""
        self._never_opened: tuple[DeviceSample, ...] = ()
        self._fatal: BaseException | None = None
        self._open_failures = 0
        self._lost_tries = 0
        self._complete = False

    # ----- the event loop's side

    def start(self) -> None:
        """Start the supervisor's thread."""
        self._thread = threading.Thread(target=self._supervise, name="nvml", daemon=True)
        self._thread.start()

    def observe(self) -> Observed | None:
        """What is known now; None until the driver and every GPU have answered, failed, or are overdue.

        Raises DriverRestartRequired where only a new process helps, and whatever a thread of the
        sampler died of.
        """
        watches = tuple(self._watches.values())
        self._raise_what_is_fatal(watches)
        state, overdue = self._state, self._calls.overdue()
        if overdue is not None:
            versions = state.versions if state is not None else None
            state = DriverState(up=False, reason=overdue, versions=versions)
        if state is None or (not self._complete and any(w.is_pending for w in watches)):
            return None
        self._complete = True
        now = self._clock.monotonic()
        looks = (watch.look(now) for watch in watches)
        devices: list[Glance] = [self._with_xids(look) for look in looks if look is not None]
        devices += self._never_opened
        devices.sort(key=lambda device: device.identity.index)
        return Observed(
            driver=state, devices=tuple(devices), collectors=partial(self._statistics, watches)
        )

    def _with_xids(self, look: Look) -> Look:
        """A GPU that fell off the bus has no other value left to say so."""
        uuid = look.identity.uuid
        xids, unsupported = self._xids.samples(uuid), self._xids.unsupported(uuid)
        if not xids and not unsupported:
            return look
        return replace(look, xids=xids, xids_unsupported=unsupported)

    def stop(self, wait_s: float) -> bool:
        """Ask every thread to end, wait at most `wait_s`; whether all of them did and the driver is closed."""
        self._stop.set()
        self._look_up()
        if self._thread is None:
            return True
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def release(self) -> None:
        """Close the driver and leave it closed, so that it can be unloaded; returns at once."""
        self._released.set()
        self._look_up()

    def resume(self) -> None:
        """Open the driver again after a `release`; returns at once."""
        self._released.clear()
        self._look_up()

    def _look_up(self) -> None:
        self._hurry.set()
        self._wake.set()

    def _raise_what_is_fatal(self, watches: tuple[Watch, ...]) -> None:
        for fatal in (self._fatal, *(watch.fatal for watch in watches)):
            if fatal is not None:
                raise fatal
        present = [watch.view for watch in watches if watch.present]
        if present and all(view.failed_rounds >= FAILED_ROUNDS_MAX for view in present):
            raise DriverRestartRequired(
                f"every NVML read of every GPU has failed {FAILED_ROUNDS_MAX} times in a row "
                f"(last: {present[0].reason}): only a new process can get the devices back, "
                "so this one ends"
            )

    def _statistics(self, watches: tuple[Watch, ...]) -> tuple[CollectorStats, ...]:
        durations: dict[str, float] = {}
        for watch in watches:
            for name, duration_s in watch.view.durations.items():
                durations[name] = durations.get(name, 0.0) + duration_s
        errors = self._failures.counted()
        return tuple(
            CollectorStats(
                name=collector.name,
                duration_s=durations.get(collector.name),
                errors=errors.get(collector.name, ()),
            )
            for collector in self._collectors
        )

    # ----- the supervisor's thread

    def _supervise(self) -> None:
        try:
            while True:
                self._wake.clear()
                self._hurry.clear()
                if self._stop.is_set():
                    break
                if self._released.is_set():
                    self._hurry.wait(None if self._let_go() else RELEASE_RETRY_S)
                    continue
                delay_s = self._look_after()
                # A GPU that is lost is looked for at once, the second time after its delay.
                (self._hurry if self._lost_tries else self._wake).wait(delay_s)
            if self._end_watches():
                self._close()
        except BaseException as error:  # noqa: BLE001 - handed to the event loop, which ends the process
            self._fatal = error

    def _let_go(self) -> bool:
        """End every reading and close the driver; whether nothing of it is held any more."""
        for watch in self._watches.values():
            watch.leave()
        self._never_opened = ()
        closed = self._end_watches()
        if closed:
            self._close()
            reason = RELEASED
        else:
            reason = "the driver is to be released on request, and a call into it has not returned"
        if self._state is None or self._state.reason != reason:
            _log.info("driver released" if closed else "driver not released yet", reason=reason)
        self._state = DriverState(up=False, reason=reason)
        self._lost_tries = self._open_failures = 0
        return closed

    def _look_after(self) -> float:
        """Open the driver or enumerate anew; the seconds until this is due again."""
        lost = self._somebody_is_lost()
        self._lost_tries = self._lost_tries + 1 if lost else 0
        try:
            if self._state is None or not self._state.up:
                if self._end_watches():
                    self._open()
            elif not (lost and self._reopen()):
                self._enumerate()
        except DriverRestartRequired:
            raise
        except DriverError as error:
            return self._not_open(error)
        self._open_failures = 0
        if lost:
            return self._backoff(self._lost_tries, LOST_BACKOFF_MAX_S)
        return self._settings.periods.slow_s

    def _open(self) -> None:
        with self._calls.named("opening the driver"):
            versions = self._driver.open()
        gpus = self._enumerate()
        _log.info("driver opened", driver_version=versions.driver, gpus=gpus)
        self._state = DriverState(up=True, versions=versions)

    def _reopen(self) -> bool:
        """Look for lost GPUs in a new session, if no call is under way that would not survive its end."""
        if any(watch.is_overdue for watch in self._watches.values()):
            return False
        if not self._end_watches():
            for watch in self._watches.values():
                watch.resume()
            self._xids.resume()
            return False
        self._close()
        self._open()
        return True

    def _close(self) -> None:
        with self._calls.named("closing the driver"):
            self._driver.close()

    def _not_open(self, error: DriverError) -> float:
        if self._state is None or self._state.reason != str(error):
            _log.warning("driver not usable", reason=str(error), code=error.code)
        self._state = DriverState(up=False, reason=str(error))
        self._never_opened = ()
        for watch in self._watches.values():
            watch.leave()
        if self._end_watches():
            self._close()
        self._open_failures += 1
        if not isinstance(error, DriverMissing) and self._open_failures >= FAILED_OPENS_MAX:
            raise DriverRestartRequired(
                f"the driver could not be opened {FAILED_OPENS_MAX} times in a row "
                f"({error}): only a new process can help, so this one ends"
            ) from error
        return self._backoff(self._open_failures, BACKOFF_MAX_S)

    def _enumerate(self) -> int:
        """Bring the watches in line with the GPUs that are there, and count them; those that go on are not disturbed."""
        present = {uuid: watch for uuid, watch in self._watches.items() if watch.present}
        if any(watch.is_overdue for watch in present.values()):
            return len(present)  # the driver would only catch this thread in the same hang
        with self._calls.named("enumerating the GPUs"):
            devices = {device.identity.uuid: device for device in self._driver.devices()}
            lost = dict(self._driver.lost())
        for uuid, watch in present.items():
            if uuid in devices:
                continue
            reason = lost.pop(watch.identity.index, None)
            if reason is not None:
                watch.lose(reason)
            else:
                watch.leave()
                _log.warning("gpu removed", gpu=watch.identity.index, uuid=uuid)
        for uuid, device in devices.items():
            watch = self._watches.get(uuid) or self._new_watch(device.identity)
            watch.follow(device)
            self._watches = {**self._watches, uuid: watch}
        self._never_opened = tuple(_never_opened(index, why) for index, why in lost.items())
        if devices:
            self._xids.follow(frozenset(devices))
        return len(devices)

    def _new_watch(self, identity: Identity) -> Watch:
        return Watch(
            identity,
            self._collectors,
            settings=self._settings,
            clock=self._clock,
            failures=self._failures,
            lost=self._wake,
            turns=self._turns,
        )

    def _somebody_is_lost(self) -> bool:
        if self._never_opened:
            return True
        return any(watch.present and watch.view.lost for watch in self._watches.values())

    def _end_watches(self) -> bool:
        """Ask every thread to end; whether all have within PAUSE_MAX_S, together."""
        self._xids.end()
        for watch in self._watches.values():
            watch.end()
        until = self._clock.monotonic() + PAUSE_MAX_S
        watches = self._watches.values()
        threads: tuple[Watch | XidWatch, ...] = (*watches, self._xids)
        return all(thread.join(max(0.0, until - self._clock.monotonic())) for thread in threads)

    def _backoff(self, failures: int, ceiling_s: float) -> float:
        jitter = self._random.uniform(-BACKOFF_JITTER, BACKOFF_JITTER)
        return backoff_s(failures, ceiling_s, jitter)


def _never_opened(index: int, reason: str) -> DeviceSample:
    """A GPU that the driver counts and cannot open: down, and nothing but its number is known."""
    identity = Identity(index=index, uuid="", product="", pci_bus_id="", minor=None)
    return DeviceSample(identity=identity, up=False, reason=reason, read_at=None, samples=())
