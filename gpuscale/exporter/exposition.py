"""From the node's snapshot to Prometheus families: names, types and help come from the catalog alone.

A family is built anew for each snapshot, so a series ends with its device, its pod or its value:
there is nothing to delete and nothing that lingers. Ages are computed here, at rendering.
"""

import math
from collections.abc import Iterator

from prometheus_client.core import Metric

from gpuscale import __version__, catalog
from gpuscale.exporter import usagerows
from gpuscale.exporter.device import MigInstance
from gpuscale.exporter.sample import DeviceSample, NodeSample

_SUFFIX = {"counter": "_total", "info": "_info", "gauge": ""}

Row = tuple[str, dict[str, str], float]
"""(family, labels, value): one series, before it is checked against the catalog."""


def families(sample: NodeSample | None, now: float) -> tuple[Metric, ...]:
    """All families that have a series, in the catalog's order; before the first snapshot the build alone.

    `now` is the wall time of the rendering. A value that is not finite and a series that is there
    already are left out. Raises KeyError for a family or label that the catalog does not have: that
    is a programming error.
    """
    metrics: dict[str, Metric] = {}
    seen: set[tuple[str, tuple[str, ...]]] = set()
    for name, labels, value in _rows(sample, now):
        family = catalog.FAMILIES[name]
        if labels.keys() != set(family.labels):
            raise KeyError(f"{name} has the labels {family.labels}, not {tuple(labels)}")
        ordered = {label: labels[label] for label in family.labels}
        series = (name, tuple(ordered.values()))
        if series in seen or not math.isfinite(value):
            continue
        seen.add(series)
        if name not in metrics:
            stem = name.removesuffix(_SUFFIX[family.kind])
            metrics[name] = Metric(stem, family.help, family.kind)
        metrics[name].add_sample(name, ordered, value)
    return tuple(metrics[f.name] for f in catalog.EXPORTER if f.name in metrics)


def _rows(sample: NodeSample | None, now: float) -> Iterator[Row]:
    yield "gpuscale_exporter_build_info", {"version": __version__}, 1
    if sample is None:
        return
    yield from _node(sample)
    for device in sample.devices:
        yield from _device(device, sample.node, now)
    yield from usagerows.rows(sample.attribution, sample.usage, now)
    for collector in sample.collectors:
        labels = {"collector": collector.name}
        if collector.duration_s is not None:
            yield "gpuscale_collector_duration_seconds", labels, collector.duration_s
        for error, count in collector.errors:
            yield "gpuscale_collector_errors_total", {**labels, "error": error}, count


def _node(sample: NodeSample) -> Iterator[Row]:
    driver = sample.driver
    yield "gpuscale_nvml_up", {}, float(driver.up)
    if driver.reason is not None:
        yield "gpuscale_nvml_error_info", {"reason": driver.reason}, 1
    if driver.versions is not None:
        versions = driver.versions
        labels = {
            "driver": versions.driver or "",
            "nvml": versions.nvml or "",
            "cuda": versions.cuda or "",
        }
        yield "gpuscale_driver_info", labels, 1
    if driver.up:
        yield "gpuscale_gpus_detected", {}, len(sample.devices)
    yield "gpuscale_exporter_cycles_total", {}, sample.cycles


def _device(device: DeviceSample, node: str, now: float) -> Iterator[Row]:
    identity = device.identity
    gpu = {"gpu": str(identity.index), "uuid": identity.uuid}
    yield "gpuscale_gpu_up", gpu, float(device.up)
    if device.reason is not None:
        yield "gpuscale_gpu_error_info", {**gpu, "reason": device.reason}, 1
    if not identity.uuid:
        return  # a GPU that could never be opened: its number is all that is known
    yield (
        "gpuscale_gpu_info",
        {
            **gpu,
            "pci_bus_id": identity.pci_bus_id,
            "device": "" if identity.minor is None else f"nvidia{identity.minor}",
            "product": identity.product,
            "node": node,
        },
        1,
    )
    if device.read_at is not None:
        yield "gpuscale_gpu_sample_age_seconds", gpu, max(0.0, now - device.read_at)
    for lacking in device.unsupported:
        labels = {**gpu, "metric": lacking.family, "reason": lacking.reason}
        yield "gpuscale_gpu_unsupported_info", labels, 1
    for value in device.samples:
        yield (
            value.family,
            {**(gpu if value.mig is None else _mig(value.mig)), **dict(value.labels)},
            value.value,
        )


def _mig(instance: MigInstance) -> dict[str, str]:
    return {
        "uuid": instance.uuid,
        "parent_uuid": instance.parent_uuid,
        "profile": instance.profile,
    }
