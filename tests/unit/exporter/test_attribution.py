"""Who holds which GPU, and which share of it: exclusive, shared, divided by MIG, claimed, or held by a pod that has ended."""

import pytest

from gpuscale.exporter.attribution import (
    ALLOCATIONS_MAX,
    Attributed,
    attribute,
    replicas_of,
    single_holder,
)
from gpuscale.exporter.device import MigInstance
from gpuscale.exporter.deviceid import Inventory
from gpuscale.exporter.podresources import HeldDevice
from gpuscale.exporter.pods import Pod
from gpuscale.settings import PodResourcesSettings
from tests.fakes.gpu import identity
from tests.fakes.node import allocation

GPUS = (identity(0), identity(1))
UUID = GPUS[0].uuid
MIG = tuple(
    MigInstance(
        uuid=f"MIG-{number}",
        parent_uuid=GPUS[1].uuid,
        gpu_instance_id=number,
        compute_instance_id=0,
        profile="1g.10gb",
    )
    for number in range(7)
)
NODE = Inventory(GPUS, MIG)
RESOURCES = PodResourcesSettings().resources


def held(
    device_id: str, pod: str = "vllm-0", resource: str = "nvidia.com/gpu", container: str = "server"
) -> HeldDevice:
    return HeldDevice(
        namespace="inference", pod=pod, container=container, resource=resource, device_id=device_id
    )


def claimed(device: str, pod: str, claim: str = "inference/shared") -> HeldDevice:
    return HeldDevice(
        namespace="inference",
        pod=pod,
        container="server",
        resource="gpu.nvidia.com",
        device_id=device,
        claim=claim,
    )


def of(*devices: HeldDevice, **known: object) -> Attributed:
    return attribute(devices, NODE, RESOURCES, **known)  # type: ignore[arg-type] # the test's own words


def pods(**since: float) -> dict[tuple[str, str], Pod]:
    return {
        ("inference", name): Pod(namespace="inference", name=name, uid=f"uid-{name}", since=at)
        for name, at in since.items()
    }


def test_promise_5_a_time_sliced_gpu_is_held_by_every_pod_that_has_a_share() -> None:
    found = of(
        held(f"{UUID}::0", pod="a", resource="nvidia.com/gpu.shared"),
        held(f"{UUID}::1", pod="b", resource="nvidia.com/gpu.shared"),
        held(f"{UUID}::2", pod="b", resource="nvidia.com/gpu.shared"),
        replicas={UUID: 4},
    )
    assert [(a.pod, a.replica, a.share) for a in found.allocations] == [
        ("a", "0", 0.25),
        ("b", "1", 0.25),
        ("b", "2", 0.25),
    ]


def test_shares_that_the_kubelet_does_not_count_are_those_that_are_held() -> None:
    found = of(held(f"{UUID}::0", pod="a"), held(f"{UUID}::1", pod="b"))
    assert [a.share for a in found.allocations] == [0.5, 0.5]


def test_promise_8_each_of_sixteen_mps_shares_is_on_its_own_gpu() -> None:
    devices = [held(f"{gpu.uuid}::{n}", pod=f"p{gpu.index}-{n}") for gpu in GPUS for n in range(16)]
    found = attribute(devices, Inventory(GPUS), RESOURCES)
    assert all(a.pod.startswith(f"p{int(a.uuid[4:12])}-") for a in found.allocations)
    assert sum(a.share for a in found.allocations) == pytest.approx(2.0)


def test_promise_9_a_mig_instance_is_held_and_so_is_its_part_of_the_gpu() -> None:
    found = of(held("MIG-3", resource="nvidia.com/mig-1g.10gb"))
    (allocation,) = found.allocations
    assert (allocation.uuid, allocation.gpu_uuid) == ("MIG-3", GPUS[1].uuid)
    assert allocation.share == pytest.approx(1 / 7)


def test_shares_of_a_mig_instance_are_shares_of_its_slices() -> None:
    found = of(held("MIG-3::0", pod="a"), held("MIG-3::1", pod="b"), replicas={"MIG-3": 2})
    assert [a.share for a in found.allocations] == pytest.approx([1 / 14, 1 / 14])


def test_promise_13_a_claim_that_two_pods_share_is_held_by_both() -> None:
    found = of(claimed("gpu-0", "a"), claimed("gpu-0", "b"), pods=pods(a=1.0, b=2.0))
    assert [(a.pod, a.share, a.claim) for a in found.allocations] == [
        ("a", 0.5, "inference/shared"),
        ("b", 0.5, "inference/shared"),
    ]


def test_promise_11_a_device_that_was_given_on_is_the_newer_pods() -> None:
    devices = (held(UUID, pod="job"), held(UUID, pod="next"))
    assert [a.pod for a in of(*devices, pods=pods(job=1.0, next=2.0)).allocations] == ["next"]
    both = of(*devices)
    assert [(a.pod, a.share) for a in both.allocations] == [("job", 0.5), ("next", 0.5)], (
        "without their times nobody can be told from the other"
    )


def test_the_uid_of_a_pod_comes_from_its_log_directory() -> None:
    (found,) = of(held(UUID, pod="a"), pods=pods(a=1.0)).allocations
    assert found.pod_uid == "uid-a"


def test_a_pod_that_holds_a_gpu_only_to_look_at_it_is_no_holder() -> None:
    found = of(held(UUID, pod="monitor-x7"), exclude=("inference/monitor-*",))
    assert found == Attributed(allocations=(), unmatched=0)


def test_a_container_may_hold_several_gpus() -> None:
    found = attribute([held(UUID), held(GPUS[1].uuid)], Inventory(GPUS), RESOURCES)
    assert [a.uuid for a in found.allocations] == [UUID, GPUS[1].uuid]


def test_a_device_that_the_kubelet_lists_once_per_numa_node_counts_once() -> None:
    assert len(of(held(UUID), held(UUID)).allocations) == 1


def test_devices_of_other_kinds_are_not_ours_to_count() -> None:
    found = of(held("eth0", resource="example.com/rdma"), held("x", resource="amd.com/gpu"))
    assert found == Attributed(allocations=(), unmatched=0)


def test_promise_1_what_names_no_device_is_counted_once_and_not_guessed() -> None:
    assert of(held("GPU-elsewhere"), held("GPU-elsewhere"), held("MIG-9")) == Attributed(
        allocations=(), unmatched=2
    )


def test_a_renamed_resource_is_found_once_the_settings_name_it() -> None:
    device = held(UUID, resource="example.com/big-gpu")
    assert not attribute([device], NODE, RESOURCES).allocations
    assert attribute([device], NODE, (r"^example\.com/.*gpu$",)).allocations


def test_a_kubelet_that_gives_one_gpu_to_many_divides_it_and_does_not_multiply_it() -> None:
    lies = [held(UUID, pod="a"), held(f"{UUID}::0", pod="b"), held(f"{UUID}::1", pod="c")]
    found = of(*lies)
    assert sum(a.share for a in found.allocations) == pytest.approx(1.0)
    assert {a.pod for a in found.allocations} == {"a", "b", "c"}


def test_the_page_does_not_grow_beyond_its_limit() -> None:
    devices = [held(f"{UUID}::{n}", pod=f"pod-{n}") for n in range(ALLOCATIONS_MAX + 5)]
    found = of(*devices)
    assert len(found.allocations) == ALLOCATIONS_MAX
    assert found.unmatched == 5


def test_the_number_of_shares_is_what_the_kubelet_could_give_out() -> None:
    ids = [UUID, *(f"{GPUS[1].uuid}::{n}" for n in range(4)), "MIG-3::0", "eth0"]
    assert replicas_of(ids, NODE) == {GPUS[1].uuid: 4, "MIG-3": 1}


def test_a_gpu_has_a_single_holder_only_if_one_container_has_it() -> None:
    one = allocation(UUID, pod="a", replica="0")
    same = allocation(UUID, pod="a", replica="1")
    other = allocation(UUID, pod="b", replica="2")
    assert single_holder([one], UUID) == one
    assert single_holder([one, same], UUID) is not None
    assert single_holder([one, other], UUID) is None
    assert single_holder([], UUID) is None
    assert single_holder([allocation(GPUS[1].uuid)], UUID) is None
