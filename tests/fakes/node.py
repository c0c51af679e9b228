"""Snapshots of a node for tests of what is published: read from a driver at once, without threads."""

from collections.abc import Iterable, Sequence

from gpuscale import httpd
from gpuscale.errors import DriverError
from gpuscale.exporter import dcgm, exposition
from gpuscale.exporter.collectors import COLLECTORS
from gpuscale.exporter.device import Device, Driver, MigInstance
from gpuscale.exporter.plausible import checked
from gpuscale.exporter.sample import (
    CollectorStats,
    DeviceSample,
    DriverState,
    NodeSample,
    Sample,
    Unsupported,
)
from gpuscale.exporter.usage import (
    Account,
    Accounts,
    Allocation,
    AttributionState,
    AuditState,
    Finding,
    MappingState,
    PodUsage,
    Usage,
)

AT = 1_767_225_600.0
"""The wall time of every snapshot here: 2026-01-01T00:00:00Z."""


def allocation(
    uuid: str,
    *,
    pod: str = "vllm-0",
    namespace: str = "inference",
    container: str = "server",
    replica: str = "",
) -> Allocation:
    """A container that holds a GPU, or a share of it."""
    return Allocation(
        uuid=uuid,
        namespace=namespace,
        pod=pod,
        container=container,
        resource="nvidia.com/gpu.shared" if replica else "nvidia.com/gpu",
        replica=replica,
    )


def attribution(allocations: Iterable[Allocation], *, unmatched: int = 0) -> AttributionState:
    """A kubelet that has answered two seconds ago."""
    return AttributionState(
        up=True,
        reason=None,
        at=AT - 2,
        allocations=tuple(allocations),
        unmatched=unmatched,
    )


def usage(uuid: str, *, pod: str = "vllm-0") -> Usage:
    """A pod that uses a GPU, a container beside Kubernetes on it, and a day's accounts."""
    stray = Finding(
        rule="GPU-N01",
        severity="critical",
        gpu=0,
        uuid=uuid,
        owner_kind="docker",
        namespace="",
        pod="",
        container_id="d" * 64,
        unit=None,
        comm="python3",
        pids=(4711, 4712),
        processes=2,
        memory_bytes=1 << 30,
        first_seen=AT - 90,
        last_seen=AT - 2,
        evidence="a Docker container (dddddddddddd) runs 2 processes on GPU 0 outside Kubernetes",
    )
    return Usage(
        mapping=MappingState(up=True, reason=None),
        pods=(
            PodUsage(
                uuid=uuid,
                namespace="inference",
                pod=pod,
                container="server",
                busy=0.25,
                memory_bytes=float(10 << 30),
            ),
        ),
        audit=AuditState(up=True, reason=None, at=AT - 2, findings=(stray,)),
        accounts=Accounts(
            node=(("allocated", 86_400.0), ("unallocated", 3_600.5), ("unknown", 2.0)),
            namespaces=(
                Account(
                    namespace="inference",
                    resource="nvidia.com/gpu",
                    product="NVIDIA H100 80GB HBM3",
                    state="active",
                    seconds=80_000.0,
                ),
            ),
            joules=(("", 1_000.0), ("inference", 2e7)),
        ),
    )


def node_of(driver: Driver, allocations: Iterable[Allocation] = ()) -> NodeSample:
    """Everything that the collectors read from a driver, half a second ago."""
    versions = driver.open()
    devices = [_device(device) for device in driver.devices()]
    return NodeSample(
        sequence=7,
        at=AT,
        node="node-1",
        driver=DriverState(up=True, versions=versions),
        devices=tuple(devices),
        attribution=attribution(allocations),
        collectors=tuple(
            CollectorStats(name=collector.name, duration_s=0.001, errors=())
            for collector in COLLECTORS
        ),
        cycles=7,
    )


def _device(device: Device) -> DeviceSample:
    samples: list[Sample] = []
    unsupported: list[Unsupported] = []
    compatible: list[Sample] = []
    mig: tuple[MigInstance, ...] = ()
    reason: str | None = None
    for collector in COLLECTORS:
        state: dict[str, float] = {}
        try:
            collector.read(device, state, None)
            reading = collector.read(device, state, 1.0)
        except DriverError as error:
            reason = str(error)
            continue
        samples += reading.samples
        compatible += reading.compatible
        unsupported += reading.unsupported
        mig = reading.mig or mig
    return DeviceSample(
        identity=device.identity,
        up=reason is None,
        reason=reason,
        read_at=AT - 0.5,
        samples=checked(samples, compatible)[0],
        unsupported=tuple(unsupported),
        compatible=tuple(compatible),
        mig=mig,
    )


def page(
    sample: NodeSample | None, *, hostname_label: str = "Hostname", extra_fields: Sequence[str] = ()
) -> httpd.Exposition:
    """The whole page of a node, rendered at AT."""
    compatible = dcgm.render(sample, hostname_label, extra_fields)
    return httpd.render(
        exposition.families(sample, AT),
        extra_text=lambda: compatible.text,
        extra_openmetrics=lambda: compatible.openmetrics,
    )


def values(device: DeviceSample, family: str) -> Sequence[float]:
    """The values of a family on one device."""
    return [sample.value for sample in device.samples if sample.family == family]
