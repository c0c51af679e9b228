"""Invented nodes of every kind, read over a little invented time: what their pages look like."""

from collections.abc import Callable
from dataclasses import dataclass

from gpuscale.exporter import simulated
from gpuscale.exporter.collectors import COLLECTORS
from gpuscale.exporter.device import Device
from gpuscale.exporter.plausible import checked
from gpuscale.exporter.sample import (
    CollectorStats,
    DeviceSample,
    DriverState,
    NodeSample,
    Reading,
)
from gpuscale.exporter.usage import Allocation
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
    "geforce": Fleet("geforcex1"),
    "jetson": Fleet("jetsonx1"),
}
"""By the name of their golden page."""
