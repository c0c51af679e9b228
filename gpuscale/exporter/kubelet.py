"""Asking the kubelet at a pace of our own: what containers hold, and which pods are there.

One List per period, on one channel; the count of shares per device once in a while. Whatever goes
wrong is a state that is published and costs the GPUs nothing. An answer holds until its staleness
bound, then who holds what is unknown. Pods that have ended are dropped by what the node itself
shows: their log directory is gone, or (where processes can be seen) no process of theirs is left.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from gpuscale import log
from gpuscale.clock import Clock
from gpuscale.exporter import attribution, pods
from gpuscale.exporter.attribution import Attributed
from gpuscale.exporter.deviceid import Inventory
from gpuscale.exporter.podresources import HeldDevice, KubeletTrouble, PodResources
from gpuscale.exporter.processes import Processes
from gpuscale.exporter.sample import Glance
from gpuscale.exporter.usage import AttributionState, Trouble
from gpuscale.settings import ExporterSettings

REPLICAS_PERIOD_S = 60.0
"""How often the shares per device are asked for: they change with the device plugin's settings."""

SKIPPED_PERIODS_MAX = 7
"""Periods left out at most after the kubelet has limited our rate: others on this node ask as well."""

LIVING_PERIOD_S = 30.0
"""How often all processes are looked through for pods that have none: some twenty microseconds each."""

STARTED_S = 60.0
"""A pod whose directory is younger than this may not have had a process at the last look."""

_log = log.get("exporter.kubelet")


class DeviceLister(Protocol):
    """What is asked of a kubelet; each call raises KubeletTrouble where there is no answer."""

    async def held(self) -> tuple[HeldDevice, ...]:
        """Every device of every container."""
        ...

    async def allocatable(self) -> tuple[str, ...]:
        """Every device id that could be given out."""
        ...

    async def close(self) -> None:
        """End the connection."""
        ...


class Kubelet:
    """The last answers, and how the asking goes."""

    def __init__(
        self,
        settings: ExporterSettings,
        clock: Clock,
        processes: Processes | None = None,
        client: DeviceLister | None = None,
    ) -> None:
        """`processes` are those of the host, None where they cannot be seen."""
        self._settings = settings.pod_resources
        self._clock = clock
        self._processes = processes
        self._client = client or PodResources(
            self._settings.socket, timeout_s=self._settings.timeout_s
        )
        self._bound_s = max(settings.stale_after_s, 2 * self._settings.period_s)
        self._held: tuple[HeldDevice, ...] = ()
        self._at: float | None = None
        self._asked_at: float | None = None
        self._reason: str | None = "the kubelet has not answered yet"
        self._trouble: Trouble | None = "not_asked_yet"
        self._skip = 0
        self._limited = 0
        self._allocatable: tuple[str, ...] = ()
        self._replicas_due = 0.0
        self._living: frozenset[str] | None = None
        self._living_due = 0.0
        self._pods: Mapping[tuple[str, str], pods.Pod] | None = None
        self._seen: frozenset[tuple[str, str]] = frozenset()
        """Pods that had a log directory at the last look."""
        self._gone: set[tuple[str, str]] = set()
        self._dropped = 0
        self._known: tuple[tuple[HeldDevice, ...], tuple[str, ...], object, Inventory] | None = None
        self._attributed = Attributed(allocations=(), unmatched=0)

    @property
    def pods(self) -> Mapping[tuple[str, str], pods.Pod] | None:
        """The pods of this node by (namespace, name); None where they are not known."""
        return self._pods

    async def ask(self) -> None:
        """One List call, and a look at the pods; a failure is logged when it is a new one."""
        if self._skip > 0:
            self._skip -= 1
            return
        try:
            held = await self._client.held()
            await self._ask_replicas()
        except KubeletTrouble as error:
            self._failed(error)
            return
        if self._reason is not None:
            _log.info("attribution up", devices_held=len(held))
        self._limited = 0
        living = await asyncio.to_thread(self._look_at_pods)
        self._held = self._without_ended(held, living)
        self._at, self._asked_at = self._clock.wall(), self._clock.monotonic()
        self._reason = self._trouble = None

    def _failed(self, error: KubeletTrouble) -> None:
        if self._reason != str(error):
            _log.warning("attribution down", reason=str(error))
        self._reason = str(error)
        self._trouble = error.trouble
        if self._trouble == "rate_limited":
            self._limited += 1
            self._skip = min(SKIPPED_PERIODS_MAX, 2**self._limited - 1)

    async def _ask_replicas(self) -> None:
        now = self._clock.monotonic()
        if now < self._replicas_due:
            return
        try:
            self._allocatable = await self._client.allocatable()
        except KubeletTrouble as error:
            # Kubernetes before 1.23 has no such call: then the shares that are held are all there are.
            _log.debug("shares per device unknown", reason=str(error))
        self._replicas_due = now + REPLICAS_PERIOD_S

    # ----- pods that have ended

    def _look_at_pods(self) -> frozenset[str] | None:
        """Read the log directories; the UIDs that have a process, None where that cannot be seen."""
        found = pods.pods_in(self._settings.pod_logs) if self._settings.pod_logs else None
        self._pods = None if found is None else pods.newest(found)
        now = self._clock.monotonic()
        if self._processes is not None and now >= self._living_due:
            self._living = self._processes.living_pods()
            self._living_due = now + LIVING_PERIOD_S
        return self._living

    def _without_ended(
        self, held: tuple[HeldDevice, ...], living: frozenset[str] | None
    ) -> tuple[HeldDevice, ...]:
        known = self._pods
        if known is None:
            self._dropped = 0
            return held
        listed = {(device.namespace, device.pod) for device in held}
        # A pod that has just been admitted has no directory yet; one that had one, has ended.
        self._gone = ((self._gone | (self._seen - known.keys())) & listed) - known.keys()
        self._seen = frozenset(known)
        ended = set(self._gone)
        if living:
            ended |= {
                name
                for name in listed & known.keys()
                if known[name].uid not in living
                and self._clock.wall() - known[name].since > STARTED_S
            }
        kept = tuple(d for d in held if (d.namespace, d.pod) not in ended)
        self._dropped = len(held) - len(kept)
        return kept

    # ----- what the snapshot shows

    def state(self, devices: Sequence[Glance]) -> AttributionState:
        """The last answer against the devices that are there now; none past its bound."""
        fresh = (
            self._asked_at is not None and self._clock.monotonic() - self._asked_at <= self._bound_s
        )
        found = self._attribute(devices) if fresh else Attributed(allocations=(), unmatched=0)
        return AttributionState(
            up=self._reason is None,
            reason=self._reason,
            trouble=self._trouble,
            at=self._at,
            fresh=fresh,
            allocations=found.allocations,
            unmatched=found.unmatched,
            pods_known=self._pods is not None,
            dropped=self._dropped,
        )

    def _attribute(self, devices: Sequence[Glance]) -> Attributed:
        """Matched anew only when the kubelet or the driver says something else, not at each cycle."""
        inventory = Inventory(
            (device.identity for device in devices),
            (instance for device in devices for instance in device.mig),
        )
        known = (self._held, self._allocatable, self._pods, inventory)
        if self._known is None or not _same(known, self._known):
            self._attributed = attribution.attribute(
                self._held,
                inventory,
                self._settings.resources,
                replicas=attribution.replicas_of(self._allocatable, inventory),
                pods=self._pods,
                exclude=self._settings.exclude,
            )
            self._known = known
        return self._attributed

    async def close(self) -> None:
        """Close the channel."""
        await self._client.close()


def _same(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    """Whether all are the very same objects, the inventory the same by what it holds."""
    return one[-1] == other[-1] and all(a is b for a, b in zip(one[:-1], other[:-1], strict=True))
