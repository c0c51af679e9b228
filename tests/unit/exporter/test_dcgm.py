"""The series under dcgm-exporter's names, to the letter."""

import dataclasses
import re
import typing

from gpuscale.exporter import dcgm
from gpuscale.exporter.dcgmfields import OPTIONAL
from gpuscale.exporter.sample import DriverState, NodeSample, Sample
from gpuscale.exporter.usage import Allocation
from gpuscale.settings.exporter import DcgmField
from tests.fakes.gpu import FakeDriver, identity, instance
from tests.fakes.node import allocation, node_of

UUID = identity(0).uuid


def node(*allocations: Allocation, gpus: int = 1) -> NodeSample:
    return node_of(FakeDriver.of(gpus), allocations)


def lines(sample: NodeSample, hostname_label: str = "Hostname") -> list[str]:
    return dcgm.render(sample, hostname_label).text.decode().splitlines()


LABELS = (
    f'gpu="0",UUID="{UUID}",pci_bus_id="00000000:10:00.0",device="nvidia0",'
    'modelName="NVIDIA H100 80GB HBM3",Hostname="node-1",DCGM_FI_DRIVER_VERSION="550.90.07"'
)
POD = ',container="server",namespace="inference",pod="vllm-0"'

HEADS = """
DCGM_FI_DEV_SM_CLOCK|gauge|SM clock frequency (in MHz).
DCGM_FI_DEV_MEM_CLOCK|gauge|Memory clock frequency (in MHz).
DCGM_FI_DEV_MEMORY_TEMP|gauge|Memory temperature (in C).
DCGM_FI_DEV_GPU_TEMP|gauge|GPU temperature (in C).
DCGM_FI_DEV_POWER_USAGE|gauge|Power draw (in W).
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION|counter|Total energy consumption since boot (in mJ).
DCGM_FI_DEV_PCIE_REPLAY_COUNTER|counter|Total number of PCIe retries.
DCGM_FI_DEV_GPU_UTIL|gauge|GPU utilization (in %).
DCGM_FI_DEV_MEM_COPY_UTIL|gauge|Memory utilization (in %).
DCGM_FI_DEV_ENC_UTIL|gauge|Encoder utilization (in %).
DCGM_FI_DEV_DEC_UTIL|gauge|Decoder utilization (in %).
DCGM_FI_DEV_XID_ERRORS|gauge|Value of the last XID error encountered.
DCGM_FI_DEV_FB_FREE|gauge|Framebuffer memory free (in MiB).
DCGM_FI_DEV_FB_USED|gauge|Framebuffer memory used (in MiB).
DCGM_FI_DEV_FB_RESERVED|gauge|Framebuffer memory reserved (in MiB).
DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL|counter|Total number of NVLink bandwidth counters for all lanes.
DCGM_FI_DEV_VGPU_LICENSE_STATUS|gauge|vGPU License status
DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS|counter|Number of remapped rows for uncorrectable errors
DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS|counter|Number of remapped rows for correctable errors
DCGM_FI_DEV_ROW_REMAP_FAILURE|gauge|Whether remapping of rows has failed
DCGM_FI_PROF_GR_ENGINE_ACTIVE|gauge|Ratio of time the graphics engine is active.
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE|gauge|Ratio of cycles the tensor (HMMA) pipe is active.
DCGM_FI_PROF_DRAM_ACTIVE|gauge|Ratio of cycles the device memory interface is active sending or receiving data.
DCGM_FI_PROF_PCIE_TX_BYTES|gauge|The rate of data transmitted over the PCIe bus - including both protocol headers and data payloads - in bytes per second.
DCGM_FI_PROF_PCIE_RX_BYTES|gauge|The rate of data received over the PCIe bus - including both protocol headers and data payloads - in bytes per second.
"""


def everything() -> NodeSample:
    """A GPU of which every field can be told, an announced error included."""
    sample = node(allocation(UUID))
    device = sample.devices[0]
    announced = (
        Sample(
            family="gpuscale_gpu_xid_last_timestamp_seconds", value=5.0, labels=(("xid", "79"),)
        ),
        Sample(
            family="gpuscale_gpu_xid_last_timestamp_seconds", value=9.0, labels=(("xid", "31"),)
        ),
    )
    nvlink = Sample(family="DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", value=1234.4)
    device = dataclasses.replace(
        device,
        samples=(*device.samples, *announced),
        compatible=(
            nvlink,
            *(s for s in device.compatible if s.family != nvlink.family),
        ),
    )
    return dataclasses.replace(sample, devices=(device,))


def values(sample: NodeSample, extra: tuple[str, ...] = ()) -> dict[str, str]:
    """What is written behind the labels, by the field."""
    page = dcgm.render(sample, "Hostname", extra).text.decode()
    rows = [line for line in page.splitlines() if not line.startswith("#")]
    return {row.split("{")[0]: row.rsplit(" ", 1)[1] for row in rows}


def test_the_default_fields_are_dcgm_exporters_in_name_type_help_and_order() -> None:
    expected = [
        line
        for name, kind, text in (row.split("|") for row in HEADS.strip().splitlines())
        for line in (f"# HELP {name} {text}", f"# TYPE {name} {kind}")
    ]
    assert [line for line in lines(everything()) if line.startswith("#")] == expected


def test_a_series_is_written_as_dcgm_exporter_writes_it() -> None:
    page = lines(everything())
    for row in (
        f"DCGM_FI_DEV_POWER_USAGE{{{LABELS}{POD}}} 350.000000",
        f"DCGM_FI_DEV_GPU_UTIL{{{LABELS}{POD}}} 50",
        f"DCGM_FI_DEV_FB_USED{{{LABELS}{POD}}} 20480",
        f"DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{LABELS}{POD}}} 0.500000",
        f'DCGM_FI_DEV_XID_ERRORS{{{LABELS}{POD},err_code="31",err_msg="GPU memory page fault"}} 31',
    ):
        assert row in page


def test_values_are_in_dcgm_exporters_units() -> None:
    assert values(everything()) == {
        "DCGM_FI_DEV_SM_CLOCK": "1980",
        "DCGM_FI_DEV_MEM_CLOCK": "2619",
        "DCGM_FI_DEV_MEMORY_TEMP": "62",
        "DCGM_FI_DEV_GPU_TEMP": "55",
        "DCGM_FI_DEV_POWER_USAGE": "350.000000",
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": "123456000",
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": "2",
        "DCGM_FI_DEV_GPU_UTIL": "50",
        "DCGM_FI_DEV_MEM_COPY_UTIL": "25",
        "DCGM_FI_DEV_ENC_UTIL": "0",
        "DCGM_FI_DEV_DEC_UTIL": "10",
        "DCGM_FI_DEV_XID_ERRORS": "31",
        "DCGM_FI_DEV_FB_FREE": "60416",
        "DCGM_FI_DEV_FB_USED": "20480",
        "DCGM_FI_DEV_FB_RESERVED": "1024",
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": "1234",
        "DCGM_FI_DEV_VGPU_LICENSE_STATUS": "1",
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": "0",
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": "1",
        "DCGM_FI_DEV_ROW_REMAP_FAILURE": "0",
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE": "0.500000",
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": "0.150000",
        "DCGM_FI_PROF_DRAM_ACTIVE": "0.300000",
        "DCGM_FI_PROF_PCIE_TX_BYTES": "1000000",
        "DCGM_FI_PROF_PCIE_RX_BYTES": "4000000",
    }


def test_what_is_commented_out_there_is_published_where_it_is_asked_for() -> None:
    asked = (
        "DCGM_FI_DEV_POWER_VIOLATION",
        "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL",
        "DCGM_FI_PROF_SM_ACTIVE",
    )
    extra = {k: v for k, v in values(everything(), asked).items() if k not in values(everything())}
    assert extra == {
        "DCGM_FI_DEV_POWER_VIOLATION": "12500000000",
        "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": "5",
        "DCGM_FI_PROF_SM_ACTIVE": "0.450000",
    }


def test_the_setting_and_the_table_name_the_same_optional_fields() -> None:
    assert set(typing.get_args(DcgmField)) == {field.name for field in OPTIONAL}


def test_an_instance_has_the_labels_of_its_gpu_its_profile_and_its_own_pod() -> None:
    driver = FakeDriver.of(1)
    first, second = instance(UUID, 1), instance(UUID, 2)
    driver.gpus[0].mig = (first, second)
    page = lines(node_of(driver, [allocation(second.uuid)]))
    used = [line for line in page if line.startswith("DCGM_FI_DEV_FB_USED{")]
    mig = LABELS.replace(",Hostname", ',GPU_I_PROFILE="1g.10gb",GPU_I_ID="{}",Hostname')
    assert used == [
        f"DCGM_FI_DEV_FB_USED{{{mig.format(1)}}} 2048",
        f"DCGM_FI_DEV_FB_USED{{{mig.format(2)}{POD}}} 2048",
    ]
    power = [line for line in page if line.startswith("DCGM_FI_DEV_POWER_USAGE{")]
    assert power == [f"DCGM_FI_DEV_POWER_USAGE{{{LABELS}}} 350.000000"]


def test_in_openmetrics_the_type_is_unknown_and_the_rest_is_the_same() -> None:
    pages = dcgm.render(everything(), "Hostname")
    text = pages.text.decode()
    assert "TYPE DCGM_FI_DEV_GPU_UTIL unknown\n" in pages.openmetrics.decode()
    assert re.sub(r"(# TYPE \w+) \w+", r"\1 unknown", text) == pages.openmetrics.decode()


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
    device = dataclasses.replace(device, compatible=())
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
