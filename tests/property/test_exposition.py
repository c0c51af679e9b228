"""Whatever a name contains, it reads back as it was: the exposition has one line per series, always."""

import dataclasses
import math
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import Sample

from gpuscale import catalog
from gpuscale.exporter.sample import NodeSample
from gpuscale.exporter.sample import Sample as DeviceReading
from tests.fakes.gpu import FakeDriver
from tests.fakes.node import allocation, node_of, page

TEXT = st.text(
    alphabet=st.characters(codec="utf-8") | st.sampled_from('"\\\n{},=# \r\t'),
    max_size=300,
)
"""Any text that protobuf and UTF-8 can carry, with what means something to the format often in it."""


def node(product: str, name: str, pod: str) -> NodeSample:
    driver = FakeDriver.of(1)
    gpu = driver.gpus[0]
    gpu.identity = dataclasses.replace(gpu.identity, product=product)
    held = allocation(gpu.identity.uuid, pod=pod)
    return dataclasses.replace(node_of(driver, [held]), node=name)


def by_name(samples: Iterable[Sample]) -> dict[str, dict[str, str]]:
    return {sample.name: sample.labels for sample in samples}


@given(product=TEXT, name=TEXT, pod=TEXT)
def test_labels_read_back_as_they_were(product: str, name: str, pod: str) -> None:
    rendered = page(node(product, name, pod))
    for text, parse in (
        (rendered.text.decode(), parse_text),
        (rendered.openmetrics.decode(), parse_openmetrics),
    ):
        labels = by_name(s for family in parse(text) for s in family.samples)
        assert labels["gpuscale_gpu_info"]["product"] == product
        assert labels["gpuscale_gpu_info"]["node"] == name
        assert labels["gpuscale_gpu_allocation_info"]["pod"] == pod
        compatible = labels["DCGM_FI_DEV_POWER_USAGE"]
        assert compatible["modelName"] == product
        assert compatible["Hostname"] == name
        assert compatible["pod"] == pod


@given(product=TEXT, name=TEXT, pod=TEXT)
def test_no_name_adds_or_hides_a_series(product: str, name: str, pod: str) -> None:
    plain = page(node("H100", "node-1", "vllm-0")).text
    assert page(node(product, name, pod)).text.count(b"\n") == plain.count(b"\n")


OF_THE_SNAPSHOT = {"gpuscale_gpu_info", "gpuscale_gpu_up", "gpuscale_gpu_sample_age_seconds"}
"""Families that no collector gives."""
FAMILIES = [
    family
    for family in catalog.EXPORTER
    if family.labels[:2] == ("gpu", "uuid") and family.name not in OF_THE_SNAPSHOT
]
COUNTS = st.integers(0, 2**63).map(float) | st.floats(min_value=0) | st.just(math.nan)
VALUES = {"gauge": COUNTS | st.floats(), "counter": COUNTS, "info": st.just(1.0)}


@st.composite
def device_samples(draw: st.DrawFn) -> list[DeviceReading]:
    """Any values of any device families, with any labels, several times the same included."""
    return [
        DeviceReading(
            family=family.name,
            value=draw(VALUES[family.kind]),
            labels=tuple((label, draw(TEXT)) for label in family.labels[2:]),
        )
        for family in draw(st.lists(st.sampled_from(FAMILIES), max_size=12))
    ]


@settings(max_examples=50)
@given(samples=device_samples(), gpus=st.integers(1, 3))
def test_every_value_reads_back_once_for_each_gpu_and_no_other_does(
    samples: list[DeviceReading], gpus: int
) -> None:
    """Whoever holds a GPU: a sum over a device family is the sum over the GPUs."""
    driver = FakeDriver.of(gpus)
    held = [
        allocation(gpu.identity.uuid, pod=f"sharer-{share}", replica=str(share))
        for gpu in driver.gpus
        for share in range(3)
    ]
    whole = node_of(driver, held)
    whole = dataclasses.replace(
        whole,
        devices=tuple(
            dataclasses.replace(device, samples=tuple(samples), unsupported=())
            for device in whole.devices
        ),
    )
    expected: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for one in samples:
        key = (one.family, frozenset(one.labels))
        if math.isfinite(one.value):
            expected.setdefault(key, one.value)
    rendered = page(whole)
    for text, parse in (
        (rendered.text.decode(), parse_text),
        (rendered.openmetrics.decode(), parse_openmetrics),
    ):
        found: dict[tuple[str, frozenset[tuple[str, str]]], list[float]] = {}
        names = {family.name for family in FAMILIES}
        for sample in (s for family in parse(text) for s in family.samples):
            if sample.name in names:
                labels = {k: v for k, v in sample.labels.items() if k not in ("gpu", "uuid")}
                found.setdefault((sample.name, frozenset(labels.items())), []).append(sample.value)
        assert found == {key: [value] * gpus for key, value in expected.items()}
