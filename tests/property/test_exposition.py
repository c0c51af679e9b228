"""Whatever a name contains, it reads back as it was: the exposition has one line per series, always."""

import dataclasses
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import Sample

from gpuscale.exporter.sample import NodeSample
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
