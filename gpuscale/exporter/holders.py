"""Who holds, uses and owes: the loop over the kubelet, /proc, the accounts and the node audit put together.

The daemon calls `look` once per cycle, with what the driver says. Nothing here is waited for by a
scrape, and whatever fails here leaves the GPUs' own values alone.
"""

import asyncio
from collections.abc import Mapping, Sequence

from gpuscale import log, runtime
from gpuscale.clock import Clock
from gpuscale.errors import InputError
from gpuscale.exporter import podusage, statefile
from gpuscale.exporter.accounting import Gpu, Ledger
from gpuscale.exporter.audit import Allowed, Audit, Seen
from gpuscale.exporter.kubelet import DeviceLister, Kubelet
from gpuscale.exporter.pods import Pod
from gpuscale.exporter.processes import Process, Processes
from gpuscale.exporter.sample import DeviceSample, Glance
from gpuscale.exporter.usage import (
    Allocation,
    AttributionState,
    AuditState,
    MappingState,
    PodUsage,
    Usage,
)
from gpuscale.settings import ExporterSettings

BUSY_SECONDS = "gpuscale_gpu_busy_seconds_total"
ENERGY = "gpuscale_gpu_energy_joules_total"
INSTANCE_BUSY = "gpuscale_mig_graphics_active_ratio"

OFF = MappingState(
    up=False, reason="it is switched off by the setting processes.enabled", trouble="off"
)

_log = log.get("exporter.holders")


class Holders:
    """One node's. `start` it within a daemon, `look` at each cycle."""

    def __init__(
        self,
        settings: ExporterSettings,
        clock: Clock,
        *,
        own_pod_uid: str | None = None,
        client: DeviceLister | None = None,
    ) -> None:
        """`client` takes the place of the kubelet's socket that is set."""
        self._settings = settings
        self._clock = clock
        self._processes: Processes | None = None
        self._mapping = OFF
        if settings.processes.enabled:
            self._map(Processes(settings.processes.proc, own_pod_uid=own_pod_uid))
        self._kubelet: Kubelet | None = None
        if settings.pod_resources.enabled:
            self._kubelet = Kubelet(settings, clock, self._processes, client)
        audit = settings.audit
        self._audit = Audit(
            Allowed(
                namespaces=audit.allow_namespaces,
                pods=audit.allow_pods,
                commands=audit.allow_commands,
            ),
            persist_s=audit.persist_s,
        )
        self._ledger: Ledger | None = None
        self._read_at: Mapping[str, float | None] = {}
        self._found: Mapping[int, Process] = {}
        self._used: tuple[PodUsage, ...] = ()
        self._findings = AuditState(up=False, reason=self._mapping.reason, at=None, findings=())

    @property
    def maps_processes(self) -> bool:
        """Whether somebody needs the driver's process lists."""
        return self._mapping.up

    def _map(self, processes: Processes) -> None:
        reason = processes.obstacle()
        if reason is None:
            self._processes = processes
            self._mapping = MappingState(up=True, reason=None)
            return
        _log.warning("process mapping impossible", reason=reason)
        self._mapping = MappingState(up=False, reason=reason, trouble="impossible")

    def start(self, daemon: runtime.Daemon, node: str) -> None:
        """Begin to ask the kubelet, and to write the accounts down."""
        if not self._settings.processes.enabled:
            _log.info("process mapping off", reason=OFF.reason)
        if self._kubelet is not None:
            daemon.close_with(f"kubelet of {node}", self._kubelet.close)
            period_s = self._settings.pod_resources.period_s
            daemon.own(
                f"attribution of {node}",
                runtime.every(self._clock, period_s, self.ask),
            )
        if self._settings.accounting.enabled:
            self.open_accounts()
            if self._settings.accounting.state_file is not None:
                daemon.close_with(f"accounts of {node}", self.save)
                daemon.own(f"saving the accounts of {node}", self._keep_saving())

    async def ask(self) -> None:
        """Ask the kubelet once."""
        if self._kubelet is not None:
            await self._kubelet.ask()

    # ----- accounts on disk

    def open_accounts(self) -> None:
        """Go on from the file, if there is one that can be used."""
        path = self._settings.accounting.state_file
        saved = None
        if path is not None:
            try:
                saved = statefile.load(path)
            except InputError as error:
                _log.warning("accounts start at zero", reason=str(error))
                statefile.set_aside(path)
        self._ledger = Ledger(saved, wall=self._clock.wall(), now=self._clock.monotonic())

    async def _keep_saving(self) -> None:
        period_s = self._settings.accounting.save_period_s
        await self._clock.sleep(period_s)
        await runtime.every(self._clock, period_s, self.save)

    async def save(self) -> None:
        """Write the accounts down; a failure is logged, and tried again at the next period."""
        path = self._settings.accounting.state_file
        if self._ledger is None or path is None:
            return
        saved = self._ledger.saved(self._clock.wall())
        try:
            await asyncio.to_thread(statefile.save, path, saved)
        except OSError as error:
            _log.warning("accounts not saved", path=path, reason=error.strerror or str(error))

    # ----- one cycle

    async def look(
        self, devices: Sequence[Glance], *, driver_up: bool
    ) -> tuple[AttributionState | None, Usage]:
        """What can be said of these devices now."""
        attribution = None if self._kubelet is None else self._kubelet.state(devices)
        pods = self._pods_by_uid()
        if self._processes is not None:
            await self._look_at_processes(devices, attribution, pods)
        if self._ledger is not None:
            self._count(devices, attribution, driver_up=driver_up)
        return attribution, Usage(
            mapping=self._mapping,
            pods=self._used,
            audit=self._findings,
            accounts=None if self._ledger is None else self._ledger.accounts(),
        )

    def _pods_by_uid(self) -> dict[str, Pod] | None:
        pods = None if self._kubelet is None else self._kubelet.pods
        return None if pods is None else {pod.uid: pod for pod in pods.values()}

    async def _look_at_processes(
        self,
        glances: Sequence[Glance],
        attribution: AttributionState | None,
        pods: Mapping[str, Pod] | None,
    ) -> None:
        """Map, add up and judge, once per reading of the driver's process lists."""
        assert self._processes is not None
        readings = [(d, d.processes) for d in glances if d.processes is not None]
        read_at = {device.identity.uuid: device.processes_at for device, _ in readings}
        if read_at == self._read_at:
            return
        self._read_at = read_at
        devices = tuple(glance.sample() for glance in glances)
        pids = {process.pid for _, reading in readings for process in reading.processes}
        pids |= {s.pid for _, reading in readings for s in reading.utilization or ()}
        self._found = await asyncio.to_thread(self._processes.look, pids)
        self._used = self._add_up(devices, attribution, pods)
        known = attribution is not None and attribution.fresh
        now = self._clock.wall()
        findings = self._audit.look(
            Seen(
                at=now,
                devices=devices,
                processes=self._found,
                pods_by_uid=pods,
                allocations=attribution.allocations if attribution is not None and known else None,
            )
        )
        self._findings = AuditState(up=True, reason=None, at=now, findings=findings)

    def _add_up(
        self,
        devices: Sequence[DeviceSample],
        attribution: AttributionState | None,
        pods: Mapping[str, Pod] | None,
    ) -> tuple[PodUsage, ...]:
        if pods is None:
            return ()
        held = () if attribution is None else attribution.allocations
        return tuple(
            row
            for device in devices
            for row in podusage.usage(
                device,
                self._found,
                pods,
                [a for a in held if a.gpu_uuid == device.identity.uuid],
            )
        )

    def _count(
        self,
        devices: Sequence[Glance],
        attribution: AttributionState | None,
        *,
        driver_up: bool,
    ) -> None:
        """Feed the accounts."""
        assert self._ledger is not None
        now = self._clock.monotonic()
        if not driver_up and not devices:
            self._ledger.step(None, now)
            return
        known = attribution is not None and attribution.fresh
        busy: dict[str, dict[tuple[str, str], float]] = {}
        for row in self._used:
            if row.busy is not None:
                busy.setdefault(row.uuid, {})[row.namespace, row.pod] = row.busy
        held = () if attribution is None else attribution.allocations
        gpus = [
            _gpu(
                device,
                known=known,
                held=tuple(a for a in held if a.gpu_uuid == device.identity.uuid),
                pod_busy=busy.get(device.identity.uuid, {}),
            )
            for device in devices
            if device.identity.uuid
        ]
        self._ledger.step(gpus, now)


def _gpu(
    device: Glance,
    *,
    known: bool,
    held: tuple[Allocation, ...],
    pod_busy: Mapping[tuple[str, str], float],
) -> Gpu:
    return Gpu(
        uuid=device.identity.uuid,
        product=device.identity.product,
        busy_s=device.value(BUSY_SECONDS),
        energy_j=device.value(ENERGY),
        known=known,
        held=held,
        instance_busy=device.instance_values(INSTANCE_BUSY),
        pod_busy=pod_busy,
    )
