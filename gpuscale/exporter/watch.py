"""Watching one GPU: a thread that reads the collectors that are due, and the view of it that it publishes.

The thread replaces its view whole after each round, so whoever looks needs no lock and never waits.
What the thread is doing right now is noted before each call into the driver, so that a call that
does not return can be named from outside.
"""

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from gpuscale import log
from gpuscale.clock import Clock
from gpuscale.errors import (
    DeviceLost,
    DriverError,
    DriverMissing,
    DriverRestartRequired,
    NotSupported,
)
from gpuscale.exporter.calls import Calls, NamedDevice, Turns
from gpuscale.exporter.device import Device, Identity
from gpuscale.exporter.look import Look, Read
from gpuscale.exporter.sample import Collector, Tier
from gpuscale.settings import ExporterSettings

ERROR_KINDS: tuple[tuple[type[DriverError], str], ...] = (
    (NotSupported, "not_supported"),
    (DeviceLost, "device_lost"),
    (DriverMissing, "driver_missing"),
    (DriverRestartRequired, "driver_restart_required"),
    (DriverError, "driver_error"),
)
"""The label `error`: a kind, followed by NVML's return code where there is one. NVML has some forty."""

_log = log.get("exporter.watch")


class Failures:
    """Failed reads by collector and error, since the start; counted by every thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()

    def count(self, collector: str, error: DriverError) -> None:
        """One more failed read."""
        kind = next(name for known, name in ERROR_KINDS if isinstance(error, known))
        label = kind if error.code is None else f"{kind}_{error.code}"
        with self._lock:
            self._counts[collector, label] += 1

    def counted(self) -> dict[str, tuple[tuple[str, int], ...]]:
        """(error, count) by collector, in a stable order."""
        with self._lock:
            counts = sorted(self._counts.items())
        by_collector: dict[str, tuple[tuple[str, int], ...]] = {}
        for (collector, error), count in counts:
            by_collector[collector] = (*by_collector.get(collector, ()), (error, count))
        return by_collector


@dataclass(frozen=True, slots=True, kw_only=True)
class _View:
    """All that a thread has to say about its GPU; replaced whole after each round."""

    reads: Mapping[str, Read] = field(default_factory=dict)
    durations: Mapping[str, float] = field(default_factory=dict)
    rounds: int = 0
    failed_rounds: int = 0
    """Rounds in a row in which every read failed."""
    reason: str | None = None
    lost: bool = False


class Watch:
    """One GPU, across every session with the driver in which it is there."""

    def __init__(
        self,
        identity: Identity,
        collectors: Sequence[Collector],
        *,
        settings: ExporterSettings,
        clock: Clock,
        failures: Failures,
        lost: threading.Event,
        turns: Turns | None = None,
    ) -> None:
        """`lost` is set when the GPU is; `turns` are shared by the GPUs of one node."""
        self.identity = identity
        self.present = True
        """Whether the driver enumerates it."""
        self.fatal: BaseException | None = None
        """What the thread died of; ends the process."""
        self._collectors = tuple(collectors)
        periods = settings.periods
        self._periods = {
            Tier.FAST: periods.fast_s,
            Tier.MEDIUM: periods.medium_s,
            Tier.SLOW: periods.slow_s,
            Tier.PROCESSES: periods.processes_s,
        }
        # A value that is read once a minute is not stale after thirty seconds, but when the next
        # reading of it is missing.
        self._bounds = {
            tier: max(settings.stale_after_s, 2 * period) for tier, period in self._periods.items()
        }
        self._clock = clock
        self._failures = failures
        self._lost = lost
        self._turns = turns or Turns(periods.fast_s)
        self._calls = Calls(
            clock, deadline_s=settings.call_deadline_s, gpu=identity.index, uuid=identity.uuid
        )
        self._totals: dict[str, dict[str, float]] = {c.name: {} for c in collectors}
        self._view = _View()
        self._device: Device | None = None
        self._thread: threading.Thread | None = None
        self._halt = threading.Event()

    # ----- what others see

    @property
    def view(self) -> _View:
        """What the thread said last."""
        return self._view

    @property
    def is_pending(self) -> bool:
        """Whether it is there, and nothing can be said of it yet."""
        view = self._view
        return self.present and not view.rounds and not view.lost and self._calls.overdue() is None

    @property
    def is_overdue(self) -> bool:
        """Whether its thread hangs in the driver."""
        return self._calls.overdue() is not None

    def look(self, now: float) -> Look | None:
        """What is known at `now` (monotonic); None for a GPU that is gone, or not read yet."""
        view, overdue = self._view, self._calls.overdue()
        pending = not view.rounds and not view.lost and overdue is None
        if not self.present or pending:
            return None
        return Look(
            identity=self.identity,
            reason=overdue or view.reason,
            reads=()
            if view.lost
            else tuple(
                (collector, read, now - read.monotonic <= self._bounds[collector.tier])
                for collector in self._collectors
                if (read := view.reads.get(collector.name)) is not None
            ),
        )

    # ----- the supervisor's side

    def follow(self, device: Device) -> None:
        """The GPU is there under this handle: go on, or start to read it."""
        self.identity = device.identity
        self.present = True
        self._device = device
        if self._thread is not None and self._thread.is_alive():
            self._halt.clear()
            return
        self._halt = threading.Event()
        self._thread = threading.Thread(
            target=self._run,
            args=(device, self._halt),
            name=f"nvml-gpu-{self.identity.index}",
            daemon=True,
        )
        self._thread.start()

    def resume(self) -> None:
        """Go on after all, after an `end` that was not followed through."""
        if self.present and self._device is not None and not self._view.lost:
            self.follow(self._device)

    def lose(self, reason: str) -> None:
        """The driver counts the GPU and cannot open it."""
        self.end()
        self._view = _View(reason=reason, lost=True)

    def leave(self) -> None:
        """The driver does not know the GPU any more: its series end."""
        self.end()
        self.present = False

    def end(self) -> None:
        """Ask the thread to end after the call it is in."""
        self._halt.set()

    def join(self, wait_s: float) -> bool:
        """Whether the thread has ended within `wait_s`."""
        if self._thread is None:
            return True
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    # ----- the thread

    def _run(self, device: Device, halt: threading.Event) -> None:
        named = cast("Device", NamedDevice(device, self._calls))
        began: dict[str, float] = {}  # reads of this session: a gap before it is nobody's busy time
        failing: dict[str, str] = {}
        # All GPUs share one beat, so that the processor wakes once for all of them.
        start = self._clock.monotonic()
        due = {tier: start - start % period_s for tier, period_s in self._periods.items()}
        try:
            while not halt.is_set():
                now = self._clock.monotonic()
                tiers = {tier for tier, at in due.items() if at <= now}
                with self._turns.taken():
                    found = self._round(named, tiers, began, failing)
                if not found:
                    self._lost.set()
                    return
                for tier in tiers:
                    due[tier] = next_due(due[tier], self._periods[tier], self._clock.monotonic())
                halt.wait(max(0.0, min(due.values()) - self._clock.monotonic()))
        except BaseException as error:  # noqa: BLE001 - handed to the event loop, which ends the process
            self.fatal = error

    def _round(
        self, device: Device, tiers: set[Tier], began: dict[str, float], failing: dict[str, str]
    ) -> bool:
        """Read the collectors of these tiers and publish; False when the GPU is lost."""
        before = self._view
        reads, durations = dict(before.reads), dict(before.durations)
        collectors = [c for c in self._collectors if c.tier in tiers]
        errors: dict[str, str] = {}
        for collector in collectors:
            name = collector.name
            at = self._clock.monotonic()
            last = began.get(name)
            try:
                wall = self._clock.wall()
                elapsed_s = None if last is None else at - last
                reading = collector.read(device, self._totals[name], elapsed_s)
            except DriverRestartRequired as error:
                self._failures.count(name, error)
                raise
            except DriverError as error:
                self._failures.count(name, error)
                errors[name] = str(error)
                if failing.get(name) != str(error):
                    self._say("read failed", collector=name, reason=str(error), code=error.code)
                failing[name] = str(error)
                if isinstance(error, DeviceLost | DriverMissing):
                    self._view = _View(reason=str(error), lost=True, durations=durations)
                    return False
            else:
                began[name] = at
                for failed in reading.errors:
                    self._failures.count(name, failed)
                reads[name] = Read(reading=reading, wall=wall, monotonic=at)
                if failing.pop(name, None) is not None:
                    self._say("read succeeded again", collector=name)
            durations[name] = self._clock.monotonic() - at
        self._view = self._after(before, collectors, errors, reads, durations)
        return True

    def _after(
        self,
        before: _View,
        collectors: Sequence[Collector],
        errors: Mapping[str, str],
        reads: Mapping[str, Read],
        durations: Mapping[str, float],
    ) -> _View:
        """The view after a round: down when every fast read failed; other tiers do not decide that."""
        fast = [c.name for c in collectors if c.tier is Tier.FAST]
        failed = bool(fast) and all(name in errors for name in fast)
        if not fast:
            failed_rounds, reason = before.failed_rounds, before.reason
        elif failed:
            failed_rounds, reason = before.failed_rounds + 1, errors[fast[-1]]
        else:
            failed_rounds, reason = 0, None
        return _View(
            reads=reads,
            durations=durations,
            rounds=before.rounds + 1,
            failed_rounds=failed_rounds,
            reason=reason,
        )

    def _say(self, event: str, **data: object) -> None:
        _log.warning(event, gpu=self.identity.index, uuid=self.identity.uuid, **data)


def next_due(due: float, period_s: float, now: float) -> float:
    """The next beat of a fixed grid after `now`: a round that overran skips beats, and never bunches."""
    missed = max(0.0, now - due) // period_s
    return due + (missed + 1) * period_s
