"""The kubelet's socket, with all that it does: absent, refusing, hanging, restarted, verbose."""

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from gpuscale.errors import SourceMalformed, SourceRefused, SourceUnreachable
from gpuscale.exporter.daemon import Exporter
from gpuscale.exporter.podresources import ANSWER_BYTES_MAX, HeldDevice, PodResources
from gpuscale.exporter.sample import AttributionState
from gpuscale.settings import ExporterSettings
from tests.fakes.exporter import exporting, settings_of, until
from tests.fakes.gpu import FakeDriver, identity
from tests.fakes.kubelet import FakeKubelet

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
    with pytest.raises(SourceUnreachable, match=r"none\.sock: mount its directory"):
        await client.held()
    await client.close()


async def test_a_socket_behind_which_nobody_listens_is_named(tmp_path: Path) -> None:
    (tmp_path / "dead.sock").touch()
    client = PodResources(str(tmp_path / "dead.sock"), timeout_s=0.5)
    with pytest.raises(SourceUnreachable, match="cannot be reached"):
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
    with pytest.raises(SourceRefused, match="limits the rate"):
        await client.held()
    kubelet.error = None
    kubelet.padding_bytes = ANSWER_BYTES_MAX + 1
    with pytest.raises(SourceMalformed, match="not a kubelet's list"):
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
    with pytest.raises(SourceRefused, match=says):
        await client.held()


async def test_a_kubelet_that_hangs_is_given_up_at_the_deadline(
    kubelet: FakeKubelet, client: PodResources
) -> None:
    kubelet.delay_s = 30
    with pytest.raises(SourceUnreachable, match=r"not answered within 0\.5 s"):
        await client.held()


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
