"""Whatever the kubelet says of whoever, a sum over the GPUs of a page is what the GPUs said: no more, no less."""

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpuscale import catalog, httpd
from gpuscale.exporter import exposition, podusage
from gpuscale.exporter.attribution import attribute
from gpuscale.exporter.cgroup import Kind, Owner
from gpuscale.exporter.device import ComputeProcess, ProcessUtilization
from gpuscale.exporter.deviceid import Inventory
from gpuscale.exporter.podresources import HeldDevice
from gpuscale.exporter.pods import Pod
from gpuscale.exporter.processes import Process
from gpuscale.exporter.sample import NodeSample, ProcessReading
from gpuscale.exporter.usage import AttributionState, PodUsage
from gpuscale.settings import PodResourcesSettings
from tests.fakes.gpu import FakeDriver, instance
from tests.fakes.node import AT, attribution, node_of, usage

GPUS = 3
RESOURCES = PodResourcesSettings().resources


def bare() -> NodeSample:
    """Three GPUs, the last one with a MIG instance, and nobody who holds anything."""
    driver = FakeDriver.of(GPUS)
    part = instance(driver.gpus[2].identity.uuid)
    driver.gpus[2].mig = (part,)
    sample = node_of(driver)
    divided = dataclasses.replace(sample.devices[2], mig=(part,))
    return dataclasses.replace(sample, devices=(*sample.devices[:2], divided))


NODE = bare()
UUIDS = [device.identity.uuid for device in NODE.devices]
INSTANCE = NODE.devices[2].mig[0].uuid
NAMES = st.sampled_from(["a", "b", 'x"}\n', "n" * 253, "\\", ""])
HELD = st.lists(
    st.builds(
        HeldDevice,
        namespace=NAMES,
        pod=NAMES,
        container=NAMES,
        resource=st.sampled_from(["nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "example.com/nic"]),
        device_id=st.sampled_from(
            [
                *UUIDS,
                INSTANCE,
                *(f"{UUIDS[0]}::{n}" for n in range(3)),
                "nvidia1",
                "all",
                "GPU-x",
                "",
            ]
        ),
    ),
    max_size=20,
)
PROCESSES = st.lists(
    st.tuples(
        st.integers(0, GPUS - 1), st.integers(1, 6), st.integers(0, 200 << 30), st.floats(0, 1)
    ),
    max_size=12,
)
PODS = {
    f"uid-{n}": Pod(namespace="a", name=f"pod-{n}", uid=f"uid-{n}", since=1.0) for n in range(3)
}
MAPPED = {
    pid: Process(pid=pid, started=1, comm="x", owner=Owner(kind=Kind.POD, pod_uid=f"uid-{pid % 4}"))
    for pid in range(1, 7)
}


def held_by(held: list[HeldDevice]) -> AttributionState:
    inventory = Inventory(
        (device.identity for device in NODE.devices),
        (mig for device in NODE.devices for mig in device.mig),
    )
    found = attribute(held, inventory, RESOURCES)
    return attribution(found.allocations, unmatched=found.unmatched)


def page(state: AttributionState, running: list[tuple[int, int, int, float]]) -> str:
    rows: list[PodUsage] = []
    for index, device in enumerate(NODE.devices):
        mine = [(pid, used, sm) for gpu, pid, used, sm in running if gpu == index]
        looked = dataclasses.replace(
            device,
            processes=ProcessReading(
                processes=tuple(
                    ComputeProcess(pid=pid, used_memory_bytes=used) for pid, used, _ in mine
                ),
                utilization=tuple(
                    ProcessUtilization(pid=pid, sm_ratio=sm, memory_ratio=0.0, timestamp_us=1)
                    for pid, _, sm in mine
                ),
            ),
        )
        holders = [a for a in state.allocations if a.gpu_uuid == device.identity.uuid]
        rows += podusage.usage(looked, MAPPED, PODS, holders)
    whose = dataclasses.replace(usage(UUIDS[0]), pods=tuple(rows))
    sample = dataclasses.replace(NODE, attribution=state, usage=whose)
    return httpd.render(exposition.families(sample, AT)).text.decode()


def sums(text: str) -> dict[str, float]:
    totals: dict[str, float] = {}
    for family in parse_text(text):
        for sample in family.samples:
            totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    return totals


TRUTH = sums(httpd.render(exposition.families(NODE, AT)).text.decode())
DEVICE_FAMILIES = [
    family.name
    for family in catalog.EXPORTER
    if family.labels[:2] == ("gpu", "uuid") or family.labels[:2] == ("uuid", "parent_uuid")
]


@settings(max_examples=60)
@given(held=HELD, running=PROCESSES)
def test_promise_6_a_sum_over_any_device_family_is_the_physical_truth(
    held: list[HeldDevice], running: list[tuple[int, int, int, float]]
) -> None:
    totals = sums(page(held_by(held), running))
    assert {name: totals.get(name) for name in DEVICE_FAMILIES} == {
        name: TRUTH.get(name) for name in DEVICE_FAMILIES
    }


@settings(max_examples=60)
@given(held=HELD, running=PROCESSES)
def test_the_pods_together_never_use_more_than_the_gpus(
    held: list[HeldDevice], running: list[tuple[int, int, int, float]]
) -> None:
    totals = sums(page(held_by(held), running))
    for pods, gpus in (
        ("gpuscale_pod_gpu_utilization_ratio", "gpuscale_gpu_utilization_ratio"),
        ("gpuscale_pod_gpu_memory_used_bytes", "gpuscale_gpu_memory_used_bytes"),
    ):
        assert totals.get(pods, 0.0) <= TRUTH[gpus] * (1 + 1e-9)


@settings(max_examples=60)
@given(held=HELD)
def test_each_holder_of_a_device_has_one_row_of_its_own(held: list[HeldDevice]) -> None:
    state = held_by(held)
    rows = [
        tuple(sorted(sample.labels.items()))
        for family in parse_text(page(state, []))
        for sample in family.samples
        if sample.name == "gpuscale_gpu_allocation_info"
    ]
    assert len(rows) == len(set(rows))
    shown = {(dict(row)["uuid"], dict(row)["pod"], dict(row)["replica"]) for row in rows}
    assert {(a.uuid, a.pod, a.replica) for a in state.allocations} <= shown
