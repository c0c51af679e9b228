"""Series under dcgm-exporter's names, types, help, units and labels, so that its dashboards go on working.

Written here and not by prometheus-client, which would sort the labels and rename counters. Other
than dcgm-exporter, label values are escaped, and a value that is not known is absent instead of 0.
Each device series appears once: the labels `container`, `namespace` and `pod` are there when one
container holds the GPU or MIG instance, and left out when it is shared or free.

Reference: dcgm-exporter 4.5, `internal/pkg/rendermetrics`; docs/moving-from-dcgm-exporter.md says
what differs, and why.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from gpuscale.exporter import xidcodes
from gpuscale.exporter.attribution import single_holder
from gpuscale.exporter.dcgmfields import DEFAULT, OPTIONAL, XID, Field
from gpuscale.exporter.device import MigInstance
from gpuscale.exporter.sample import DeviceSample, NodeSample, Sample

VALUE_MAX = 1e18
"""Beyond it, and NaN, a value is none of a board's: it would have no place in DCGM's 64 bits."""

Line = tuple[MigInstance | None, float, str]
"""(MIG instance or None for the whole GPU, value, labels of this series alone)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """The same series in both formats, without the end marker of OpenMetrics."""

    text: bytes
    openmetrics: bytes


def render(sample: NodeSample | None, hostname_label: str, extra: Collection[str] = ()) -> Pages:
    """Write the compatible series of a snapshot; a field without any value is left out whole.

    `extra` names the optional fields that are wanted. In OpenMetrics the type is `unknown`: its
    counters would have to end in `_total`, and the names are what has to stay.
    """
    text: list[str] = []
    openmetrics: list[str] = []
    devices = (
        () if sample is None else tuple(_Device(d, sample, hostname_label) for d in sample.devices)
    )
    for field in (*DEFAULT, *(f for f in OPTIONAL if f.name in extra)):
        series = [line for device in devices for line in device.lines(field)]
        if series:
            head = f"# HELP {field.name} {field.help}\n# TYPE {field.name} "
            text += [head, field.kind, "\n", *series]
            openmetrics += [head, "unknown\n", *series]
    return Pages(text="".join(text).encode(), openmetrics="".join(openmetrics).encode())


class _Device:
    """The series of one GPU: its values by family, and the text of its labels, made once."""

    def __init__(self, device: DeviceSample, node: NodeSample, hostname_label: str) -> None:
        self._device = device
        self._node = node
        self._hostname_label = hostname_label
        self._values: dict[str, list[Sample]] = {}
        for value in (*device.samples, *device.compatible):
            self._values.setdefault(value.family, []).append(value)
        self._labels: dict[MigInstance | None, tuple[str, str]] = {}

    def lines(self, field: Field) -> Iterator[str]:
        """The lines of one field: one of the GPU, or one of each instance."""
        seen: set[MigInstance | None] = set()
        for instance, value, own in self._series(field):
            if instance in seen or not abs(value) <= VALUE_MAX:
                continue
            seen.add(instance)
            labels = self._labels.get(instance)
            if labels is None:
                labels = self._labels[instance] = self._written(instance)
            # Labels of the series itself come last, after those of the pod.
            yield f"{field.name}{{{labels[0]}{labels[1]}{own}}} {field.write(value)}\n"

    def _series(self, field: Field) -> Iterator[Line]:
        if field.name == XID:
            yield from self._last_xid(field)
            return
        if self._device.mig and field.mig_family is not None:
            for value in self._values.get(field.mig_family, ()):
                yield value.mig, value.value, ""
            return
        for value in self._values.get(field.family or field.name, ()):
            if field.label is None or _means(value, field.label):
                yield value.mig, value.value, ""

    def _last_xid(self, field: Field) -> Iterator[Line]:
        """The code of the newest one is the value; as there, it stays until the exporter ends."""
        newest = max(
            self._values.get(field.family or "", ()), key=lambda value: value.value, default=None
        )
        if newest is None:
            return
        code = dict(newest.labels)["xid"]
        if code.isdecimal():
            text = xidcodes.meaning(int(code))
            yield None, float(code), f',err_code="{code}",err_msg="{_escape(text)}"'

    def _written(self, instance: MigInstance | None) -> tuple[str, str]:
        """(labels of the device, labels of its holder), each ready to be put in a row."""
        device = ",".join(_label(name, value) for name, value in self._pairs(instance))
        allocations = (
            self._node.attribution.allocations if self._node.attribution is not None else ()
        )
        uuid = self._device.identity.uuid if instance is None else instance.uuid
        holder = single_holder(allocations, uuid)
        if holder is None:
            return device, ""
        pod = (
            ("container", holder.container),
            ("namespace", holder.namespace),
            ("pod", holder.pod),
        )
        return device, "".join("," + _label(name, value) for name, value in pod)

    def _pairs(self, instance: MigInstance | None) -> Iterator[tuple[str, str]]:
        identity = self._device.identity
        yield "gpu", str(identity.index)
        yield "UUID", identity.uuid
        yield "pci_bus_id", identity.pci_bus_id
        # dcgm-exporter puts the index here, although the name looks like that of the device file.
        yield "device", f"nvidia{identity.index}"
        yield "modelName", identity.product
        if instance is not None:
            yield "GPU_I_PROFILE", instance.profile
            yield "GPU_I_ID", str(instance.gpu_instance_id)
        yield self._hostname_label, self._node.node
        versions = self._node.driver.versions
        if versions is not None and versions.driver is not None:
            yield "DCGM_FI_DRIVER_VERSION", versions.driver


def _means(value: Sample, label: tuple[str, str]) -> bool:
    """Whether it is the series that is meant: by one label, or by two values in their order."""
    return label in value.labels or tuple(text for _, text in value.labels) == label


def _label(name: str, value: str) -> str:
    return f'{name}="{_escape(value)}"'


def _escape(value: str) -> str:
    """A label value in the text format: backslash, quote and line feed are escaped."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
