"""Invented nodes of every kind, read over a little invented time: what their pages look like."""

from collections.abc import Callable
from dataclasses import dataclass

from gpuscale.exporter import simulated
from gpuscale.exporter.attribution import attribute
from gpuscale.exporter.collectors import COLLECTORS
from gpuscale.exporter.device import Device
from gpuscale.exporter.deviceid import Inventory
from gpuscale.exporter.plausible import checked
from gpuscale.exporter.podresources import HeldDevice
from gpuscale.exporter.sample import (
    CollectorStats,
    DeviceSample,
    DriverState,
    NodeSample,
    Reading,
)
from gpuscale.exporter.usage import Allocation
from gpuscale.settings import PodResourcesSettings
from tests.fakes.node import AT, allocation, attribution

STEP_S = 10.0


@dataclass
class Time:
    """A clock that a test turns."""

    s: float = 1_000.0

    def __call__(self) -> float:
        return self.s


def read(spec: str, reads: int = 3) -> tuple[DeviceSample, ...]:
    """Every collector's values of each GPU, after `reads` reads that are STEP_S apart."""
    now = Time()
    driver = simulated.driver(spec, now)
    devices = driver.devices()
    states: dict[tuple[str, str], dict[str, float]] = {}
    readings: dict[str, list[Reading]] = {}
    for turn in range(reads):
        readings = {
            device.identity.uuid: [
                collector.read(
                    device,
                    states.setdefault((device.identity.uuid, collector.name), {}),
                    STEP_S if turn else None,
                )
                for collector in COLLECTORS
            ]
            for device in devices
        }
        now.s += STEP_S
    return tuple(_sample(device, readings[device.identity.uuid]) for device in devices)


def _sample(device: Device, readings: list[Reading]) -> DeviceSample:
    samples, compatible = checked(
        [sample for reading in readings for sample in reading.samples],
        [sample for reading in readings for sample in reading.compatible],
    )
    given = {sample.family for sample in samples}
    return DeviceSample(
        identity=device.identity,
        up=True,
        reason=None,
        read_at=AT - 0.5,
        samples=samples,
        unsupported=tuple(
            lack for r in readings for lack in r.unsupported if lack.family not in given
        ),
        compatible=compatible,
        mig=next(reading.mig for reading in readings if reading.mig is not None),
    )


def node(devices: tuple[DeviceSample, ...], allocations: list[Allocation]) -> NodeSample:
    """A snapshot of these GPUs, held by these containers."""
    versions = simulated.driver("h100x1", Time()).open()
    return NodeSample(
        sequence=3,
        at=AT,
        node="node-1",
        driver=DriverState(up=True, versions=versions),
        devices=devices,
        attribution=attribution(allocations),
        collectors=tuple(
            CollectorStats(name=collector.name, duration_s=0.001, errors=())
            for collector in COLLECTORS
        ),
        cycles=3,
    )


def whole(devices: tuple[DeviceSample, ...]) -> list[Allocation]:
    """A pod for each GPU, or each MIG instance of it, but for the last one of the node."""
    held = [
        uuid
        for device in devices
        for uuid in ([m.uuid for m in device.mig] or [device.identity.uuid])
    ]
    return [allocation(uuid, pod=f"vllm-{number}") for number, uuid in enumerate(held[:-1])]


def shared(devices: tuple[DeviceSample, ...]) -> list[Allocation]:
    """Six pods on shares of the first two GPUs, four of each."""
    return [
        allocation(devices[pod % 2].identity.uuid, pod=f"triton-{pod}", replica=str(pod // 2))
        for pod in range(6)
    ]


def _attributed(
    devices: tuple[DeviceSample, ...], held: list[HeldDevice], replicas: int = 1
) -> list[Allocation]:
    """As the kubelet lists it, through the attribution of the product."""
    found = attribute(
        held,
        Inventory((d.identity for d in devices), (m for d in devices for m in d.mig)),
        PodResourcesSettings().resources,
        replicas={d.identity.uuid: replicas for d in devices},
    )
    assert not found.unmatched, "an id of this node was not understood"
    return list(found.allocations)


def mps(devices: tuple[DeviceSample, ...]) -> list[Allocation]:
    """Five clients of MPS: sixteen of each GPU at most, three on the first and two on the second."""
    return _attributed(
        devices,
        [
            _held("nvidia.com/gpu.shared", f"{devices[n % 2].identity.uuid}::{n + 9}", f"embed-{n}")
            for n in range(5)
        ],
        replicas=16,
    )


def claims(devices: tuple[DeviceSample, ...]) -> list[Allocation]:
    """Devices by ResourceClaim: one GPU that two pods share, one that a pod has alone, one free."""
    return _attributed(
        devices,
        [
            _held("gpu.nvidia.com", "gpu-0", "vllm-0", "inference/shared"),
            _held("gpu.nvidia.com", "gpu-0", "vllm-1", "inference/shared"),
            _held("gpu.nvidia.com", "gpu-1", "batch-0", "inference/batch-0-gpu"),
        ],
    )


def claimed_instances(devices: tuple[DeviceSample, ...]) -> list[Allocation]:
    """Instances by ResourceClaim; which one is told by the UUID among the CDI names."""
    (gpu,) = devices
    return _attributed(
        devices,
        [
            _held(
                "gpu.nvidia.com",
                f"gpu-0-mig-1g10gb-19-{place}",
                f"vllm-{place}",
                f"inference/vllm-{place}-slice",
                (f"k8s.gpu.nvidia.com/claim=0f-{instance.uuid}",),
            )
            for place, instance in enumerate(gpu.mig[:4])
        ],
    )


def _held(
    resource: str, device_id: str, pod: str, claim: str | None = None, cdi: tuple[str, ...] = ()
) -> HeldDevice:
    return HeldDevice(
        namespace="inference",
        pod=pod,
        container="server",
        resource=resource,
        device_id=device_id,
        claim=claim,
        cdi_names=cdi,
    )


@dataclass(frozen=True)
class Fleet:
    """A kind of node."""

    spec: str
    hold: Callable[[tuple[DeviceSample, ...]], list[Allocation]] = whole

    def sample(self) -> NodeSample:
        """Its snapshot."""
        devices = read(self.spec)
        return node(devices, self.hold(devices))


FLEETS = {
    "h100x8": Fleet("h100x8"),
    "h200x8": Fleet("h200x8"),
    "a100-mixed-mig": Fleet("a100-migx1"),
    "h100-mig-7x1g": Fleet("h100-migx1"),
    "l4": Fleet("l4x1"),
    "t4": Fleet("t4x1"),
    "t4-time-sliced": Fleet("t4x2", shared),
    "l4-mps": Fleet("l4x2", mps),
    "h100-dra": Fleet("h100x3", claims),
    "h100-dra-mig": Fleet("h100-migx1", claimed_instances),
    "geforce": Fleet("geforcex1"),
    "jetson": Fleet("jetsonx1"),
}
"""By the name of their golden page."""
