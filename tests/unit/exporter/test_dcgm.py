"""The series under dcgm-exporter's names, to the letter."""

import dataclasses

from gpuscale.exporter import dcgm
from gpuscale.exporter.sample import DriverState, NodeSample, Sample
from gpuscale.exporter.usage import Allocation
from tests.fakes.gpu import FakeDriver, identity
from tests.fakes.node import allocation, node_of

UUID = identity(0).uuid


def node(*allocations: Allocation, gpus: int = 1) -> NodeSample:
    return node_of(FakeDriver.of(gpus), allocations)


def lines(sample: NodeSample, hostname_label: str = "Hostname") -> list[str]:
    return dcgm.render(sample, hostname_label).text.decode().splitlines()


def test_a_series_is_written_as_dcgm_exporter_writes_it() -> None:
    assert lines(node(allocation(UUID))) == [
        "# HELP DCGM_FI_DEV_POWER_USAGE Power draw (in W).",
        "# TYPE DCGM_FI_DEV_POWER_USAGE gauge",
        f'DCGM_FI_DEV_POWER_USAGE{{gpu="0",UUID="{UUID}",pci_bus_id="00000000:10:00.0",'
        'device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="node-1",'
        'DCGM_FI_DRIVER_VERSION="550.90.07",container="server",namespace="inference",'
        'pod="vllm-0"} 350.000000',
        "# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).",
        "# TYPE DCGM_FI_DEV_GPU_UTIL gauge",
        f'DCGM_FI_DEV_GPU_UTIL{{gpu="0",UUID="{UUID}",pci_bus_id="00000000:10:00.0",'
        'device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="node-1",'
        'DCGM_FI_DRIVER_VERSION="550.90.07",container="server",namespace="inference",'
        'pod="vllm-0"} 50',
        "# HELP DCGM_FI_DEV_MEM_COPY_UTIL Memory utilization (in %).",
        "# TYPE DCGM_FI_DEV_MEM_COPY_UTIL gauge",
        f'DCGM_FI_DEV_MEM_COPY_UTIL{{gpu="0",UUID="{UUID}",pci_bus_id="00000000:10:00.0",'
        'device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="node-1",'
        'DCGM_FI_DRIVER_VERSION="550.90.07",container="server",namespace="inference",'
        'pod="vllm-0"} 25',
    ]


def test_in_openmetrics_the_type_is_unknown_and_the_rest_is_the_same() -> None:
    pages = dcgm.render(node(), "Hostname")
    assert b"TYPE DCGM_FI_DEV_GPU_UTIL unknown\n" in pages.openmetrics
    assert pages.openmetrics.replace(b" unknown\n", b" gauge\n") == pages.text


def test_the_host_label_is_spelled_as_the_dashboards_in_use_spell_it() -> None:
    assert ',hostname="node-1",' in lines(node(), "hostname")[2]
    assert "Hostname" not in lines(node(), "hostname")[2]


def test_a_shared_gpu_appears_once_and_names_no_pod() -> None:
    shared = node(allocation(UUID, pod="a", replica="0"), allocation(UUID, pod="b", replica="1"))
    util = [line for line in lines(shared) if line.startswith("DCGM_FI_DEV_GPU_UTIL{")]
    assert len(util) == 1
    assert "pod=" not in util[0]


def test_a_pod_is_named_on_its_own_gpu_only() -> None:
    util = [line for line in lines(node(allocation(UUID), gpus=2)) if "GPU_UTIL{" in line]
    assert ["pod=" in line for line in util] == [True, False]


def test_a_value_that_is_not_known_is_absent_and_not_zero() -> None:
    sample = node()
    device = dataclasses.replace(
        sample.devices[0], samples=(Sample(family="gpuscale_gpu_power_watts", value=80.5),)
    )
    published = lines(dataclasses.replace(sample, devices=(device,)))
    assert len(published) == 3
    assert published[2].endswith(" 80.500000")


def test_without_a_gpu_nothing_is_written() -> None:
    down = dataclasses.replace(node(), driver=DriverState(up=False, reason="no"), devices=())
    assert dcgm.render(down, "Hostname").text == b""
    assert dcgm.render(None, "Hostname").openmetrics == b""


def test_a_driver_that_does_not_tell_its_version_leaves_the_label_out() -> None:
    sample = dataclasses.replace(node(), driver=DriverState(up=True))
    assert "DRIVER_VERSION" not in lines(sample)[2]


def test_a_hostile_label_value_stays_inside_its_quotes() -> None:
    evil = dataclasses.replace(node(), node='a"} 1\nDCGM_FI_DEV_GPU_UTIL{gpu="9\\')
    assert len(lines(evil)) == len(lines(node()))
    assert r'Hostname="a\"} 1\nDCGM_FI_DEV_GPU_UTIL{gpu=\"9\\"' in lines(evil)[2]
