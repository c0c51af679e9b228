"""Series under dcgm-exporter's names, types, help, units and labels, so that its dashboards go on working.

Written here and not by prometheus-client, which would sort the labels and rename counters. Other
than dcgm-exporter, label values are escaped, and a value that is not known is absent instead of 0.
Each device series appears once: the labels `container`, `namespace` and `pod` are there when one
container holds the GPU, and left out when it is shared or free.

Reference: dcgm-exporter 4.5, `etc/default-counters.csv` and `internal/pkg/rendermetrics`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from gpuscale.exporter.attribution import single_holder
from gpuscale.exporter.sample import DeviceSample, NodeSample


def _percent(ratio: float) -> str:
    """DCGM's integer percent of a ratio."""
    return str(round(ratio * 100))


def _float(value: float) -> str:
    """DCGM writes doubles with six digits behind the point."""
    return f"{value:f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    """One field of dcgm-exporter, and the family of ours that its value comes from."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    family: str
    write: Callable[[float], str]


FIELDS: tuple[_Field, ...] = (
    _Field(
        name="DCGM_FI_DEV_POWER_USAGE",
        kind="gauge",
        help="Power draw (in W).",
        family="gpuscale_gpu_power_watts",
        write=_float,
    ),
    _Field(
        name="DCGM_FI_DEV_GPU_UTIL",
        kind="gauge",
        help="GPU utilization (in %).",
        family="gpuscale_gpu_utilization_ratio",
        write=_percent,
    ),
    _Field(
        name="DCGM_FI_DEV_MEM_COPY_UTIL",
        kind="gauge",
        help="Memory utilization (in %).",
        family="gpuscale_gpu_memory_copy_utilization_ratio",
        write=_percent,
    ),
)
"""In the order of dcgm-exporter's default-counters.csv."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """The same series in both formats, without the end marker of OpenMetrics."""

    text: bytes
    openmetrics: bytes


def render(sample: NodeSample | None, hostname_label: str) -> Pages:
    """Write the compatible series of a snapshot; a field without any value is left out whole.

    In OpenMetrics the type is `unknown`: its counters would have to end in `_total`, and the names
    are what has to stay.
    """
    text: list[str] = []
    openmetrics: list[str] = []
    labels = {} if sample is None else _labels(sample, hostname_label)
    for field in FIELDS:
        series = [] if sample is None else list(_series(field, sample, labels))
        if series:
            head = f"# HELP {field.name} {field.help}\n# TYPE {field.name} "
            text += [head, field.kind, "\n", *series]
            openmetrics += [head, "unknown\n", *series]
    return Pages(text="".join(text).encode(), openmetrics="".join(openmetrics).encode())


def _series(field: _Field, sample: NodeSample, labels: dict[str, str]) -> Iterator[str]:
    for device in sample.devices:
        for value in device.samples:
            if value.family == field.family:
                rendered = labels[device.identity.uuid]
                yield f"{field.name}{{{rendered}}} {field.write(value.value)}\n"


def _labels(sample: NodeSample, hostname_label: str) -> dict[str, str]:
    """The label text of each device by uuid: the same for all its fields."""
    return {
        device.identity.uuid: ",".join(
            f'{name}="{_escape(value)}"' for name, value in _pairs(device, sample, hostname_label)
        )
        for device in sample.devices
    }


def _pairs(
    device: DeviceSample, sample: NodeSample, hostname_label: str
) -> Iterator[tuple[str, str]]:
    identity = device.identity
    yield "gpu", str(identity.index)
    yield "UUID", identity.uuid
    yield "pci_bus_id", identity.pci_bus_id
    # dcgm-exporter puts the index here, although the name looks like that of the device file.
    yield "device", f"nvidia{identity.index}"
    yield "modelName", identity.product
    yield hostname_label, sample.node
    versions = sample.driver.versions
    if versions is not None and versions.driver is not None:
        yield "DCGM_FI_DRIVER_VERSION", versions.driver
    allocations = sample.attribution.allocations if sample.attribution is not None else ()
    holder = single_holder(allocations, identity.uuid)
    if holder is not None:
        yield "container", holder.container
        yield "namespace", holder.namespace
        yield "pod", holder.pod


def _escape(value: str) -> str:
    """A label value in the text format: backslash, quote and line feed are escaped."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
