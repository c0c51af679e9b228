"""Allocated + unallocated + unknown = wall time × physical GPUs, and no joule more or less than the GPUs counted."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscale.exporter.accounting import Gpu, Ledger
from gpuscale.exporter.attribution import attribute
from gpuscale.exporter.device import MigInstance
from gpuscale.exporter.deviceid import Inventory
from gpuscale.exporter.podresources import HeldDevice
from gpuscale.exporter.pods import Pod
from gpuscale.settings import PodResourcesSettings
from tests.fakes.gpu import identity

RESOURCES = PodResourcesSettings().resources
GPUS = tuple(identity(index) for index in range(3))
PROFILES = ("1g.10gb", "2g.20gb", "3g.40gb", "1c.3g.40gb", "7g.80gb", "odd")


@dataclass(frozen=True)
class Moment:
    """One snapshot of a node on which everything may happen, lies of the kubelet among it."""

    after_s: float
    gpus: int
    mig: tuple[tuple[int, str], ...]
    held: tuple[tuple[int, int, str, str], ...]
    replicas: int
    known: bool
    busy: tuple[float | None, ...]
    joules: tuple[float | None, ...]
    restarted: bool


names = st.sampled_from(["a", "b", "kube-system", '"}\n', "ü" * 300])
moments = st.builds(
    Moment,
    after_s=st.floats(0, 200),
    gpus=st.integers(0, 3),
    mig=st.lists(st.tuples(st.integers(0, 2), st.sampled_from(PROFILES)), max_size=8).map(tuple),
    held=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 9), names, st.sampled_from(["x", "y"])),
        max_size=12,
    ).map(tuple),
    replicas=st.integers(0, 5),
    known=st.booleans(),
    busy=st.tuples(*[st.none() | st.floats(0, 1e6)] * 3),
    joules=st.tuples(*[st.none() | st.floats(0, 1e9)] * 3),
    restarted=st.booleans(),
)


def instances(moment: Moment) -> list[MigInstance]:
    return [
        MigInstance(
            uuid=f"MIG-{number}",
            parent_uuid=GPUS[index].uuid,
            gpu_instance_id=number,
            compute_instance_id=0,
            profile=profile,
        )
        for number, (index, profile) in enumerate(moment.mig)
    ]


def device_id(kind: int, number: int) -> str:
    uuid = GPUS[number % 3].uuid
    return (uuid, f"{uuid}::{number}", f"MIG-{number}", f"nvidia{number % 3}/vgpu{number}")[kind]


def snapshot(moment: Moment) -> list[Gpu]:
    present = GPUS[: moment.gpus]
    inventory = Inventory(
        present, [i for i in instances(moment) if i.parent_uuid in {g.uuid for g in present}]
    )
    held = [
        HeldDevice(
            namespace=namespace,
            pod=pod,
            container="c",
            resource="nvidia.com/gpu",
            device_id=device_id(kind, number),
        )
        for kind, number, namespace, pod in moment.held
    ]
    known_pods = {("a", "x"): Pod(namespace="a", name="x", uid="u", since=1.0)}
    found = attribute(
        held,
        inventory,
        RESOURCES,
        replicas={GPUS[0].uuid: moment.replicas},
        pods=known_pods if moment.restarted else None,
    )
    return [
        Gpu(
            uuid=gpu.uuid,
            product=gpu.product,
            busy_s=moment.busy[gpu.index],
            energy_j=moment.joules[gpu.index],
            known=moment.known,
            held=tuple(a for a in found.allocations if a.gpu_uuid == gpu.uuid),
            instance_busy={"MIG-1": 0.5, "MIG-2": 7.0},
            pod_busy={("a", "x"): 0.9, ("b", "y"): 3.0},
        )
        for gpu in present
    ]


@given(st.lists(moments, min_size=2, max_size=12))
def test_no_second_and_no_joule_is_lost_or_made_whatever_happens(story: list[Moment]) -> None:
    ledger, at, wall = Ledger(), 0.0, 1_000.0
    gpu_seconds = joules = 0.0
    before: list[Gpu] = []
    counters: dict[str, float] = {}
    for moment in story:
        if moment.restarted:
            # The process is away for as long; only its file is left.
            ledger = Ledger(ledger.saved(wall), wall=wall + moment.after_s)
        else:
            at += moment.after_s
        wall += moment.after_s
        gpu_seconds += moment.after_s * len(before)
        now = snapshot(moment)
        for gpu in now:
            if gpu.energy_j is not None:
                last = counters.get(gpu.uuid)
                if last is not None:
                    joules += gpu.energy_j - last if gpu.energy_j >= last else gpu.energy_j
                counters[gpu.uuid] = gpu.energy_j
        ledger.step(now, at)
        before = now
    accounts = ledger.accounts()
    node = dict(accounts.node)
    assert sum(node.values()) == pytest.approx(gpu_seconds)
    assert sum(a.seconds for a in accounts.namespaces) == pytest.approx(node["allocated"])
    assert sum(value for _, value in accounts.joules) == pytest.approx(joules, abs=1e-3)
    assert all(value >= 0 for value in node.values())


@given(moments)
def test_the_shares_of_one_gpu_never_exceed_it(moment: Moment) -> None:
    for gpu in snapshot(moment):
        assert sum(a.share for a in gpu.held) <= 1 + 1e-9
        assert all(a.share > 0 for a in gpu.held)


@given(st.lists(moments, min_size=2, max_size=10))
def test_counters_never_fall(story: list[Moment]) -> None:
    ledger, at = Ledger(), 0.0
    last: dict[object, float] = {}
    for moment in story:
        at += moment.after_s
        ledger.step(snapshot(moment), at)
        accounts = ledger.accounts()
        now: dict[object, float] = dict(accounts.node) | {("j", n): v for n, v in accounts.joules}
        now |= {
            (a.namespace, a.resource, a.product, a.state): a.seconds for a in accounts.namespaces
        }
        assert all(now[key] >= value for key, value in last.items())
        last = now
