"""Every spelling of a device id by kubelets, device plugins, GKE, WSL and DRA."""

import pytest

from gpuscale.exporter.device import MigInstance
from gpuscale.exporter.deviceid import ID_CHARS_MAX, Inventory, Target, slice_share
from tests.fakes.gpu import identity

GPUS = (identity(0), identity(1))
A, B = (gpu.uuid for gpu in GPUS)


def mig(
    number: int, *, gi: int, ci: int = 0, profile: str = "1g.10gb", parent: str = B
) -> MigInstance:
    return MigInstance(
        uuid=f"MIG-{number:08d}-1111-2222-3333-444444444444",
        parent_uuid=parent,
        gpu_instance_id=gi,
        compute_instance_id=ci,
        profile=profile,
    )


SMALL, LARGE = mig(1, gi=9), mig(2, gi=2, profile="3g.40gb")
HALF_A = mig(3, gi=1, ci=0, profile="1c.2g.20gb")
HALF_B = mig(4, gi=1, ci=1, profile="1c.2g.20gb")
NODE = Inventory(GPUS, (SMALL, LARGE, HALF_A, HALF_B))


def of(instance: MigInstance, replica: str = "", share: float = 1 / 7) -> Target:
    return Target(uuid=instance.uuid, parent_uuid=B, replica=replica, share=share)


@pytest.mark.parametrize(
    ("device_id", "target"),
    [
        (A, Target(uuid=A)),
        (f"{A}::0", Target(uuid=A, replica="0")),
        (f"{A}::15", Target(uuid=A, replica="15")),
        (SMALL.uuid, of(SMALL)),
        (LARGE.uuid, of(LARGE, share=3 / 7)),
        (f"{SMALL.uuid}::1", of(SMALL, "1")),
        (f"MIG-{B}/9/0", of(SMALL)),
        (f"MIG-{B}/1/1", of(HALF_B)),
        (f"MIG-{B}/9/0::2", of(SMALL, "2")),
        ("nvidia0", Target(uuid=A)),
        ("nvidia0/vgpu2", Target(uuid=A, replica="2")),
        ("nvidia1/gi9", of(SMALL)),
        ("nvidia1/gi9/vgpu1", of(SMALL, "1")),
    ],
)
def test_promise_1_every_id_form_is_understood_at_once(device_id: str, target: Target) -> None:
    assert NODE.find(device_id) == (target,)


def test_the_id_of_wsl_is_every_gpu() -> None:
    assert NODE.find("all") == (Target(uuid=A), Target(uuid=B))


@pytest.mark.parametrize(
    "device_id",
    [
        "GPU-of-another-node",
        "MIG-99999999-1111-2222-3333-444444444444",
        f"{A}::",
        f"{A}::x",
        f"MIG-{B}/9/1",
        f"MIG-{A}/9/0",
        "nvidia1/gi1",
        "nvidia1/gi4",
        "nvidia7",
        "nvidia",
        "",
        "x" * (ID_CHARS_MAX + 1),
        '"}\n<script>',
    ],
)
def test_an_id_that_names_no_device_or_several_is_not_guessed(device_id: str) -> None:
    assert NODE.find(device_id) == ()


@pytest.mark.parametrize(
    ("device", "cdi", "target"),
    [
        ("gpu-0", (), Target(uuid=A)),
        ("gpu-0", ("k8s.gpu.nvidia.com/claim=1b2c-gpu-0",), Target(uuid=A)),
        ("anything", (f"nvidia.com/gpu={SMALL.uuid}",), of(SMALL)),
        ("gpu-1-mig-3g40gb-5-0", (), of(LARGE, share=3 / 7)),
        ("gpu-1-mig-1g.10gb-19-3", (), of(SMALL)),
        (
            "gpu-1-mig-1c.2g.20gb-0",
            (),
            Target(uuid=B, replica="1c.2g.20gb-0", share=1 / 7),
        ),
    ],
)
def test_promise_13_devices_of_dra_are_found_by_uuid_or_by_their_names(
    device: str, cdi: tuple[str, ...], target: Target
) -> None:
    assert NODE.find_claimed(device, cdi) == target


@pytest.mark.parametrize(
    "device", ["gpu-9", "gpu-0-mig-1g10gb-0", "gpu-1-mig-7g80gb-0", "", "tpu-0"]
)
def test_a_claimed_device_that_is_not_here_is_not_guessed(device: str) -> None:
    assert NODE.find_claimed(device, ()) is None


@pytest.mark.parametrize(
    ("profile", "product", "share"),
    [
        ("1g.10gb", "NVIDIA H100 80GB HBM3", 1 / 7),
        ("1g.10gb+me", "NVIDIA H100 80GB HBM3", 1 / 7),
        ("7g.80gb", "NVIDIA H100 80GB HBM3", 1.0),
        ("1c.3g.40gb", "NVIDIA A100-SXM4-80GB", 1 / 7),
        ("2g.12gb", "NVIDIA A30", 0.5),
        ("4g.96gb", "NVIDIA RTX PRO 6000 Blackwell Server Edition", 1.0),
        ("", "NVIDIA H100", 1 / 7),
    ],
)
def test_an_instance_stands_for_its_compute_slices(
    profile: str, product: str, share: float
) -> None:
    assert slice_share(profile, product) == pytest.approx(share)
