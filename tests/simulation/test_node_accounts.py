"""Hours on a node in which everything happens: pods come and go, MIG is configured anew, the kubelet and the driver
fail, the exporter is restarted. The accounts are held against what really was."""

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpuscale.exporter.device import MigInstance
from gpuscale.exporter.holders import Holders
from gpuscale.exporter.podresources import HeldDevice, KubeletTrouble
from gpuscale.exporter.sample import DeviceSample, Sample
from gpuscale.exporter.usage import Usage
from gpuscale.settings import ExporterSettings
from tests.fakes.clock import ManualClock
from tests.fakes.exporter import settings_of
from tests.fakes.gpu import identity

GPUS = 4
HOURS_S = 2 * 3600
LIST_PERIOD_S = 5
PROFILES = {"1g.10gb": 1, "2g.20gb": 2, "3g.40gb": 3}
NAMESPACES = ("chat", "train", "lab")


@dataclass
class Node:
    """What really is: who holds what, and how busy and hot it gets."""

    random: random.Random
    mig: dict[int, tuple[MigInstance, ...]] = field(default_factory=dict)
    held: dict[str, tuple[HeldDevice, float]] = field(default_factory=dict)
    """By pod: what it holds, and the share of a GPU that this is."""
    busy_s: list[float] = field(default_factory=lambda: [0.0] * GPUS)
    joules: list[float] = field(default_factory=lambda: [1e6] * GPUS)
    kubelet_fails: KubeletTrouble | None = None
    driver_up: bool = True
    pods: int = 0
    truth_s: dict[str, float] = field(default_factory=dict)
    truth_j: float = 0.0

    async def held_devices(self) -> tuple[HeldDevice, ...]:
        if self.kubelet_fails is not None:
            raise self.kubelet_fails
        return tuple(device for device, _ in self.held.values())

    def devices(self) -> tuple[DeviceSample, ...]:
        return tuple(self._device(index) for index in range(GPUS))

    def _device(self, index: int) -> DeviceSample:
        samples = [Sample(family="gpuscale_gpu_energy_joules_total", value=self.joules[index])]
        if not self.mig.get(index):
            busy = Sample(family="gpuscale_gpu_busy_seconds_total", value=self.busy_s[index])
            samples.append(busy)
        return DeviceSample(
            identity=identity(index),
            up=True,
            reason=None,
            read_at=0.0,
            samples=tuple(samples),
            mig=self.mig.get(index, ()),
        )

    def pass_a_second(self) -> None:
        for device, share in self.held.values():
            self.truth_s[device.namespace] = self.truth_s.get(device.namespace, 0.0) + share
        for index in range(GPUS):
            self.busy_s[index] += self.random.random()
            watts = self.random.uniform(70, 700)
            self.joules[index] += watts
            self.truth_j += watts

    # ----- what may happen

    def start_pod(self) -> None:
        taken = {device.device_id for device, _ in self.held.values()}
        free: list[tuple[str, float]] = []
        for index in range(GPUS):
            instances = self.mig.get(index, ())
            if instances:
                free += [(i.uuid, PROFILES[i.profile] / 7) for i in instances]
            else:
                free.append((identity(index).uuid, 1.0))
        free = [(device, share) for device, share in free if device not in taken]
        if not free:
            return
        device_id, share = self.random.choice(free)
        self.pods += 1
        name = f"pod-{self.pods}"
        device = HeldDevice(
            namespace=self.random.choice(NAMESPACES),
            pod=name,
            container="server",
            resource="nvidia.com/gpu",
            device_id=device_id,
        )
        self.held[name] = (device, share)

    def end_pod(self) -> None:
        if self.held:
            del self.held[self.random.choice(sorted(self.held))]

    def configure_mig(self) -> None:
        """As its operator does it: the GPU is drained first."""
        index = self.random.randrange(GPUS)
        uuids = {i.uuid for i in self.mig.get(index, ())} | {identity(index).uuid}
        self.held = {p: h for p, h in self.held.items() if h[0].device_id not in uuids}
        layout: list[str] = []
        while self.random.random() < 0.7:
            profile = self.random.choice(sorted(PROFILES))
            if sum(PROFILES[p] for p in (*layout, profile)) <= 7:
                layout.append(profile)
        self.mig[index] = tuple(
            MigInstance(
                uuid=f"MIG-{self.random.getrandbits(64):016x}",
                parent_uuid=identity(index).uuid,
                gpu_instance_id=number,
                compute_instance_id=0,
                profile=profile,
            )
            for number, profile in enumerate(layout)
        )


class Kubelet:
    """The node's kubelet, as the exporter asks it."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def held(self) -> tuple[HeldDevice, ...]:
        return await self._node.held_devices()

    async def allocatable(self) -> tuple[str, ...]:
        return ()

    async def close(self) -> None:
        return


@dataclass
class Story:
    """One run: the node, the exporter on it, and what the accounts must come to."""

    node: Node
    clock: ManualClock
    settings: ExporterSettings
    holders: Holders
    usage: Usage | None = None
    blind_s: int = 0
    """Seconds in which the exporter could not know."""

    async def second(self, at: int) -> None:
        if at % LIST_PERIOD_S == 0:
            await self.holders.ask()
        devices = self.node.devices() if self.node.driver_up else ()
        _, self.usage = await self.holders.look(devices, driver_up=self.node.driver_up)
        self.node.pass_a_second()
        await self.clock.advance(1.0)

    async def restart(self, away_s: int) -> None:
        """The file is written as at an orderly end; then nobody looks for a while."""
        await self.holders.look(
            self.node.devices() if self.node.driver_up else (), driver_up=self.node.driver_up
        )
        await self.holders.save()
        for _ in range(away_s):
            self.node.pass_a_second()
            await self.clock.advance(1.0)
        self.holders = exporter(self.node, self.clock, self.settings)
        await self.holders.ask()


def exporter(node: Node, clock: ManualClock, settings: ExporterSettings) -> Holders:
    holders = Holders(settings, clock, client=Kubelet(node))
    holders.open_accounts()
    return holders


def begin(seed: int, folder: Path) -> Story:
    node, clock = Node(random=random.Random(seed)), ManualClock()
    settings = settings_of(
        pod_resources={"enabled": True, "period_s": LIST_PERIOD_S, "pod_logs": ""},
        accounting={"state_file": str(folder / "accounts.json")},
        stale_after_s=15.0,
    )
    return Story(node=node, clock=clock, settings=settings, holders=exporter(node, clock, settings))


async def run(story: Story) -> tuple[int, int]:
    """(seconds that passed, changes of who holds what)."""
    node, dice = story.node, story.node.random
    passed = changes = 0
    while passed < HOURS_S:
        draw = dice.random()
        if draw < 0.010:
            node.start_pod()
            changes += 1
        elif draw < 0.017:
            node.end_pod()
            changes += 1
        elif draw < 0.0175:
            node.configure_mig()
            changes += GPUS
        elif draw < 0.0185:
            node.kubelet_fails = KubeletTrouble("it hangs", "timeout")
        elif draw < 0.0190:
            node.driver_up = False
        elif draw < 0.0195:
            away_s = dice.randrange(90)
            await story.restart(away_s)
            passed += away_s
            story.blind_s += away_s
        elif draw < 0.06:
            node.kubelet_fails, node.driver_up = None, True
        await story.second(passed)
        passed += 1
    return passed, changes


@pytest.mark.parametrize("seed", range(4))
async def test_the_accounts_come_to_what_really_was(seed: int, tmp_path: Path) -> None:
    story = begin(seed, tmp_path)
    passed, changes = await run(story)
    node = story.node
    node.kubelet_fails, node.driver_up = None, True
    _, usage = await story.holders.look(node.devices(), driver_up=True)
    assert usage.accounts is not None
    replay = f"pytest 'tests/simulation/test_node_accounts.py' -k 'what_really_was and {seed}'"
    totals = dict(usage.accounts.node)
    assert sum(totals.values()) == pytest.approx(passed * GPUS), replay
    assert totals["unknown"] >= story.blind_s * GPUS, replay
    assert totals["allocated"] > 1_000, replay
    assert totals["unallocated"] > 1_000, replay

    held: dict[str, float] = {}
    for account in usage.accounts.namespaces:
        held[account.namespace] = held.get(account.namespace, 0.0) + account.seconds
    assert sum(held.values()) == pytest.approx(totals["allocated"]), replay
    # A change is seen up to one period late, an outage covers for as long as an answer is fresh;
    # apart from that and from what is unknown, the accounts are the truth.
    late_s = changes * LIST_PERIOD_S
    for namespace, truth_s in node.truth_s.items():
        assert abs(held.get(namespace, 0.0) - truth_s) <= totals["unknown"] + late_s, replay

    joules = dict(usage.accounts.joules)
    assert sum(joules.values()) == pytest.approx(node.truth_j, rel=1e-6), replay


async def test_with_a_kubelet_that_answers_the_accounts_are_exact(tmp_path: Path) -> None:
    """Nothing fails, changes fall on the beat: then to the second."""
    story = begin(7, tmp_path)
    node = story.node
    for at in range(600):
        if at % 50 == 0:
            node.start_pod()
        if at % 75 == 0:
            node.end_pod()
        await story.second(at)
    _, usage = await story.holders.look(node.devices(), driver_up=True)
    assert usage.accounts is not None
    held: dict[str, float] = {}
    for account in usage.accounts.namespaces:
        held[account.namespace] = held.get(account.namespace, 0.0) + account.seconds
    assert held == pytest.approx(node.truth_s)
    assert dict(usage.accounts.node)["unknown"] == 0.0


async def test_a_file_that_cannot_be_written_costs_the_accounts_nothing(tmp_path: Path) -> None:
    story = begin(1, tmp_path)
    (tmp_path / "accounts.json").mkdir()
    await story.holders.save()
    await story.second(0)
    await story.second(1)
    assert story.usage is not None
    assert story.usage.accounts is not None
    assert sum(dict(story.usage.accounts.node).values()) == GPUS
