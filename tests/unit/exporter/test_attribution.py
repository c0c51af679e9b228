"""Who holds which GPU: every spelling of a device id, shared GPUs, and ids that name none of ours."""

import pytest

from gpuscale.exporter.attribution import (
    ALLOCATIONS_MAX,
    Attributed,
    attribute,
    single_holder,
)
from gpuscale.exporter.podresources import HeldDevice
from gpuscale.settings import PodResourcesSettings
from tests.fakes.gpu import identity
from tests.fakes.node import allocation

GPUS = (identity(0), identity(1))
UUID = GPUS[0].uuid
RESOURCES = PodResourcesSettings().resources


def held(
    device_id: str, pod: str = "vllm-0", resource: str = "nvidia.com/gpu", container: str = "server"
) -> HeldDevice:
    return HeldDevice(
        namespace="inference", pod=pod, container=container, resource=resource, device_id=device_id
    )


def of(*devices: HeldDevice) -> Attributed:
    return attribute(devices, GPUS, RESOURCES)


@pytest.mark.parametrize(
    ("device_id", "uuid", "replica"),
    [
        (UUID, UUID, ""),
        (f"{UUID}::0", UUID, "0"),
        (f"{UUID}::13", UUID, "13"),
        ("nvidia1", GPUS[1].uuid, ""),
        ("nvidia0/vgpu3", UUID, "3"),
    ],
)
def test_every_spelling_of_a_whole_or_shared_gpu_is_found(
    device_id: str, uuid: str, replica: str
) -> None:
    found = of(held(device_id))
    assert [(a.uuid, a.replica) for a in found.allocations] == [(uuid, replica)]
    assert found.unmatched == 0


@pytest.mark.parametrize(
    "device_id",
    [
        "GPU-of-another-node",
        f"{UUID}::",
        f"{UUID}::x",
        "MIG-11111111-2222-3333-4444-555555555555",
        "nvidia0/gi3",
        "nvidia7",
        "nvidia",
        "",
    ],
)
def test_an_id_that_names_no_gpu_of_this_node_is_counted_and_not_guessed(device_id: str) -> None:
    assert of(held(device_id)) == Attributed(allocations=(), unmatched=1)


def test_a_time_sliced_gpu_is_held_by_every_pod_that_has_a_share() -> None:
    found = of(
        held(f"{UUID}::0", pod="a", resource="nvidia.com/gpu.shared"),
        held(f"{UUID}::1", pod="b", resource="nvidia.com/gpu.shared"),
        held(f"{UUID}::2", pod="b", resource="nvidia.com/gpu.shared"),
    )
    assert [(a.pod, a.replica) for a in found.allocations] == [("a", "0"), ("b", "1"), ("b", "2")]


def test_a_container_may_hold_several_gpus() -> None:
    found = of(held(UUID), held(GPUS[1].uuid))
    assert [a.uuid for a in found.allocations] == [UUID, GPUS[1].uuid]


def test_a_device_that_the_kubelet_lists_once_per_numa_node_counts_once() -> None:
    assert len(of(held(UUID), held(UUID)).allocations) == 1


def test_devices_of_other_kinds_are_not_ours_to_count() -> None:
    found = of(held("eth0", resource="example.com/rdma"), held("x", resource="amd.com/gpu"))
    assert found == Attributed(allocations=(), unmatched=0)


def test_a_renamed_resource_is_found_once_the_settings_name_it() -> None:
    device = held(UUID, resource="example.com/big-gpu")
    assert not attribute([device], GPUS, RESOURCES).allocations
    assert attribute([device], GPUS, (r"^example\.com/.*gpu$",)).allocations


def test_without_gpus_every_id_is_unmatched() -> None:
    assert attribute([held(UUID)], (), RESOURCES) == Attributed(allocations=(), unmatched=1)


def test_the_page_does_not_grow_beyond_its_limit() -> None:
    devices = [held(f"{UUID}::{n}", pod=f"pod-{n}") for n in range(ALLOCATIONS_MAX + 5)]
    found = of(*devices)
    assert len(found.allocations) == ALLOCATIONS_MAX
    assert found.unmatched == 5


def test_a_gpu_has_a_single_holder_only_if_one_container_has_it() -> None:
    one = allocation(UUID, pod="a", replica="0")
    same = allocation(UUID, pod="a", replica="1")
    other = allocation(UUID, pod="b", replica="2")
    assert single_holder([one], UUID) == one
    assert single_holder([one, same], UUID) is not None
    assert single_holder([one, other], UUID) is None
    assert single_holder([], UUID) is None
    assert single_holder([allocation(GPUS[1].uuid)], UUID) is None
