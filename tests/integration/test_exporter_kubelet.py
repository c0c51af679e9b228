"""The kubelet's socket, with all that it does: absent, refusing, hanging, restarted, verbose."""

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from gpuscale.exporter.daemon import Exporter
from gpuscale.exporter.podresources import (
    ANSWER_BYTES_MAX,
    HELD_MAX,
    NAME_CHARS_MAX,
    HeldDevice,
    KubeletTrouble,
    PodResources,
)
from gpuscale.exporter.usage import AttributionState
from gpuscale.settings import ExporterSettings
from tests.fakes.exporter import exporting, settings_of, until
from tests.fakes.gpu import FakeDriver, identity
from tests.fakes.kubelet import Claimed, FakeKubelet

UUID = identity(0).uuid
HELD = ("inference", "vllm-0", "server", "nvidia.com/gpu", [UUID])


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[FakeKubelet]:
    fake = FakeKubelet(tmp_path / "kubelet.sock")
    fake.held = [HELD]
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def client(kubelet: FakeKubelet) -> AsyncIterator[PodResources]:
    client = PodResources(str(kubelet.socket), timeout_s=0.5)
    yield client
    await client.close()


async def test_every_device_of_every_container_is_given(
    kubelet: FakeKubelet, client: PodResources
) -> None:
    kubelet.held.append(("train", "job-1", "main", "example.com/rdma", ["a", "b"]))
    assert await client.held() == (
        HeldDevice(
            namespace="inference",
            pod="vllm-0",
            container="server",
            resource="nvidia.com/gpu",
            device_id=UUID,
        ),
        *(
            HeldDevice(
                namespace="train",
                pod="job-1",
                container="main",
                resource="example.com/rdma",
                device_id=device_id,
            )
            for device_id in "ab"
        ),
    )


async def test_a_missing_socket_is_named_with_the_cure(tmp_path: Path) -> None:
    client = PodResources(str(tmp_path / "none.sock"), timeout_s=0.5)
    with pytest.raises(KubeletTrouble, match=r"none\.sock: mount its directory"):
        await client.held()
    await client.close()


async def test_a_socket_behind_which_nobody_listens_is_named(tmp_path: Path) -> None:
    (tmp_path / "dead.sock").touch()
    client = PodResources(str(tmp_path / "dead.sock"), timeout_s=0.5)
    with pytest.raises(KubeletTrouble, match="cannot be reached"):
        await client.held()
    await client.close()


async def test_a_path_with_strange_letters_is_a_path(tmp_path: Path) -> None:
    (tmp_path / "a b%20é").mkdir()
    fake = FakeKubelet(tmp_path / "a b%20é" / "k.sock")
    fake.held = [HELD]
    await fake.start()
    client = PodResources(str(fake.socket), timeout_s=1)
    try:
        assert len(await client.held()) == 1
    finally:
        await client.close()
        await fake.stop()


async def test_the_rate_limit_is_told_from_an_answer_that_is_too_long(
    kubelet: FakeKubelet, client: PodResources
) -> None:
    kubelet.error = grpc.StatusCode.RESOURCE_EXHAUSTED
    with pytest.raises(KubeletTrouble, match="limits the rate"):
        await client.held()
    kubelet.error = None
    kubelet.padding_bytes = ANSWER_BYTES_MAX + 1
    with pytest.raises(KubeletTrouble, match="not a kubelet's list"):
        await client.held()


async def test_a_long_answer_within_the_limit_is_read(
    kubelet: FakeKubelet, client: PodResources
) -> None:
    kubelet.padding_bytes = 8 * 1024 * 1024
    assert len(await client.held()) == 1


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (grpc.StatusCode.UNIMPLEMENTED, "no PodResources API v1"),
        (grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED"),
        (grpc.StatusCode.INTERNAL, "INTERNAL"),
    ],
)
async def test_a_refusal_is_named(
    kubelet: FakeKubelet, client: PodResources, code: grpc.StatusCode, says: str
) -> None:
    kubelet.error = code
    with pytest.raises(KubeletTrouble, match=says):
        await client.held()


async def test_a_kubelet_that_hangs_is_given_up_at_the_deadline(
    kubelet: FakeKubelet, client: PodResources
) -> None:
    kubelet.delay_s = 30
    with pytest.raises(KubeletTrouble, match=r"not answered within 0\.5 s"):
        await client.held()


async def test_promise_13_devices_of_claims_are_given_with_their_claim(
    kubelet: FakeKubelet, client: PodResources
) -> None:
    kubelet.held = []
    kubelet.claimed = [
        Claimed("train", "job-1", "main", claim="big", device="gpu-0", cdi=("k8s.gpu/claim=1",))
    ]
    assert await client.held() == (
        HeldDevice(
            namespace="train",
            pod="job-1",
            container="main",
            resource="gpu.nvidia.com",
            device_id="gpu-0",
            claim="train/big",
            cdi_names=("k8s.gpu/claim=1",),
        ),
    )


async def test_promise_12_each_trouble_has_a_word_of_its_own(
    kubelet: FakeKubelet, client: PodResources, tmp_path: Path
) -> None:
    async def trouble(asked: PodResources) -> str:
        with pytest.raises(KubeletTrouble) as raised:
            await asked.held()
        return raised.value.trouble

    kubelet.error = grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await trouble(client) == "rate_limited"
    kubelet.error = grpc.StatusCode.UNIMPLEMENTED
    assert await trouble(client) == "unimplemented"
    kubelet.error = grpc.StatusCode.INTERNAL
    assert await trouble(client) == "refused"
    kubelet.error, kubelet.padding_bytes = None, ANSWER_BYTES_MAX + 1
    assert await trouble(client) == "malformed"
    kubelet.padding_bytes, kubelet.delay_s = 0, 30
    assert await trouble(client) == "timeout"
    elsewhere = PodResources(str(tmp_path / "custom-root" / "kubelet.sock"), timeout_s=0.5)
    assert await trouble(elsewhere) == "no_socket"
    await elsewhere.close()


async def test_names_without_end_are_cut_and_devices_without_end_are_refused(
    kubelet: FakeKubelet, client: PodResources
) -> None:
    kubelet.held = [("n" * 300, "p" * 300, '"}\n<b>&\\', "nvidia.com/gpu", [UUID])]
    (device,) = await client.held()
    assert len(device.namespace) == len(device.pod) == NAME_CHARS_MAX
    assert device.container == '"}\n<b>&\\', "what a label may hold is the page's to escape"
    kubelet.held = [
        ("a", "b", "c", "nvidia.com/gpu", [f"{UUID}::{n}" for n in range(HELD_MAX + 1)])
    ]
    with pytest.raises(KubeletTrouble, match="more than 16384 devices"):
        await client.held()


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff" * 40,
        b"\x0a\x7f",  # a pod that is longer than the answer
        b"\x0a\x04\x0a\x02\xff\xfe",  # a name that is no UTF-8
    ],
)
async def test_an_answer_that_is_no_list_is_named_and_the_next_one_is_read(
    kubelet: FakeKubelet, client: PodResources, raw: bytes
) -> None:
    kubelet.raw = raw
    with pytest.raises(KubeletTrouble) as raised:
        await client.held()
    assert raised.value.trouble == "malformed"
    kubelet.raw = None
    assert len(await client.held()) == 1


async def test_what_the_kubelet_could_give_out_is_read(
    kubelet: FakeKubelet, client: PodResources
) -> None:
    kubelet.allocatable = [f"{UUID}::{n}" for n in range(4)]
    assert await client.allocatable() == tuple(kubelet.allocatable)


# ----- seen from the exporter


def asking(kubelet: FakeKubelet, period_s: float = 0.1) -> ExporterSettings:
    return settings_of(
        pod_resources={"socket": str(kubelet.socket), "period_s": period_s, "timeout_s": 0.2}
    )


def state(exporter: Exporter) -> AttributionState | None:
    return exporter.sample.attribution if exporter.sample is not None else None


def pods(exporter: Exporter) -> list[str] | None:
    now = state(exporter)
    return [held.pod for held in now.allocations] if now is not None and now.up else None


async def test_a_pod_that_comes_and_goes_is_seen(kubelet: FakeKubelet) -> None:
    async with exporting(FakeDriver.of(1), asking(kubelet)) as exporter:
        await until(lambda: pods(exporter) == ["vllm-0"])
        kubelet.held = []
        await until(lambda: pods(exporter) == [])
        kubelet.held = [
            ("a", "x", "c", "nvidia.com/gpu.shared", [f"{UUID}::0"]),
            ("b", "y", "c", "nvidia.com/gpu.shared", [f"{UUID}::1", "MIG-unknown"]),
        ]
        await until(lambda: pods(exporter) == ["x", "y"])
        last = state(exporter)
        assert last is not None
        assert last.unmatched == 1


async def test_one_list_call_per_period_however_many_cycles(kubelet: FakeKubelet) -> None:
    async with exporting(FakeDriver.of(1), asking(kubelet, period_s=60.0)) as exporter:
        await until(lambda: exporter.sample is not None and exporter.sample.cycles > 10)
    assert kubelet.calls == 1


async def test_a_kubelet_that_is_restarted_is_found_again_on_its_new_socket(
    kubelet: FakeKubelet,
) -> None:
    async with exporting(FakeDriver.of(1), asking(kubelet)) as exporter:
        await until(lambda: pods(exporter) == ["vllm-0"])
        await kubelet.stop()
        await until(lambda: (s := state(exporter)) is not None and not s.up)
        last = state(exporter)
        assert last is not None
        assert [held.pod for held in last.allocations] == ["vllm-0"], (
            "the last answer is still fresh"
        )
        await until(lambda: (s := state(exporter)) is not None and not s.allocations)
        assert exporter.sample is not None
        assert exporter.sample.devices[0].up, "the GPUs do not depend on the kubelet"

        kubelet.held = [("inference", "vllm-1", "server", "nvidia.com/gpu", [UUID])]
        await kubelet.start()
        await until(lambda: pods(exporter) == ["vllm-1"], within_s=10)


async def test_a_kubelet_that_hangs_costs_the_gpus_nothing(kubelet: FakeKubelet) -> None:
    kubelet.delay_s = 30
    async with exporting(FakeDriver.of(1), asking(kubelet)) as exporter:
        await until(lambda: exporter.sample is not None and exporter.sample.cycles > 10)
        last = state(exporter)
        assert last is not None
        assert not last.up
        assert exporter.sample is not None
        assert exporter.sample.devices[0].up


async def test_promise_5_shares_are_parts_of_what_the_device_plugin_made(
    kubelet: FakeKubelet,
) -> None:
    kubelet.allocatable = [f"{UUID}::{n}" for n in range(4)]
    kubelet.held = [("a", "x", "c", "nvidia.com/gpu", [f"{UUID}::2"])]
    async with exporting(FakeDriver.of(1), asking(kubelet)) as exporter:
        await until(lambda: pods(exporter) == ["x"])
        last = state(exporter)
        assert last is not None
        assert last.allocations[0].share == 0.25


async def test_promise_17_thousands_of_pods_cost_one_answer_and_no_cycle(
    kubelet: FakeKubelet,
) -> None:
    """What names no GPU is looked up once per answer, not once per cycle or scrape."""
    kubelet.idle_pods = 4_000
    kubelet.held = [("a", f"p-{n}", "c", "nvidia.com/gpu", [f"GPU-x::{n}"]) for n in range(2_000)]
    async with exporting(FakeDriver.of(1), asking(kubelet, period_s=60.0)) as exporter:
        await until(lambda: (s := state(exporter)) is not None and s.unmatched == 2_000)
        first = state(exporter)
        assert exporter.sample is not None
        cycles = exporter.sample.cycles
        await until(lambda: exporter.sample is not None and exporter.sample.cycles > cycles + 20)
        assert state(exporter) == first
    assert kubelet.calls == 1


async def test_a_kubelet_that_limits_the_rate_is_asked_less_often_and_then_again(
    kubelet: FakeKubelet,
) -> None:
    kubelet.error = grpc.StatusCode.RESOURCE_EXHAUSTED
    async with exporting(FakeDriver.of(1), asking(kubelet, period_s=0.02)) as exporter:
        await until(lambda: kubelet.calls == 3)
        assert exporter.sample is not None
        cycles = exporter.sample.cycles
        last = state(exporter)
        assert last is not None
        assert last.trouble == "rate_limited"
        await until(lambda: exporter.sample is not None and exporter.sample.cycles > cycles + 2)
        assert kubelet.calls <= 5, "seven periods are left out after the third refusal"
        kubelet.error = None
        await until(lambda: pods(exporter) == ["vllm-0"])


async def test_promise_11_a_pod_whose_directory_is_gone_holds_nothing(
    kubelet: FakeKubelet, tmp_path: Path
) -> None:
    """A kubelet before 1.34 goes on listing it; one that has not got its directory yet is kept."""
    logs = tmp_path / "pods"
    ended = logs / "inference_vllm-0_3f2a9c1e-5b7d-4e8f-9a0b-1c2d3e4f5a6b"
    ended.mkdir(parents=True)
    settings = settings_of(
        pod_resources={
            "socket": str(kubelet.socket),
            "period_s": 0.1,
            "timeout_s": 0.2,
            "pod_logs": str(logs),
        }
    )
    kubelet.held.append(("inference", "starting", "server", "nvidia.com/gpu", [identity(1).uuid]))
    async with exporting(FakeDriver.of(2), settings) as exporter:
        await until(lambda: pods(exporter) == ["vllm-0", "starting"])
        last = state(exporter)
        assert last is not None
        assert last.allocations[0].pod_uid == "3f2a9c1e-5b7d-4e8f-9a0b-1c2d3e4f5a6b"
        ended.rmdir()
        await until(lambda: pods(exporter) == ["starting"])
        last = state(exporter)
        assert last is not None
        assert last.dropped == 1
