"""What a snapshot is published as: known values once, unknown ones not at all."""

import dataclasses

import pytest

from gpuscale import catalog, httpd
from gpuscale.exporter import exposition
from gpuscale.exporter.sample import (
    CollectorStats,
    DeviceSample,
    DriverState,
    NodeSample,
    Sample,
    Unsupported,
)
from gpuscale.exporter.usage import AttributionState
from tests.fakes.gpu import FakeDriver
from tests.fakes.node import AT, allocation, node_of

Labels = frozenset[tuple[str, str]]


def node(gpus: int = 2) -> NodeSample:
    driver = FakeDriver.of(gpus)
    return node_of(driver, [allocation(driver.gpus[0].identity.uuid)])


def series(sample: NodeSample | None, now: float = AT) -> dict[tuple[str, Labels], float]:
    return {
        (s.name, frozenset(s.labels.items())): s.value
        for metric in exposition.families(sample, now)
        for s in metric.samples
    }


def names(sample: NodeSample | None) -> set[str]:
    return {name for name, _ in series(sample)}


def of(sample: NodeSample, name: str, now: float = AT) -> list[float]:
    return [value for (series_name, _), value in series(sample, now).items() if series_name == name]


def with_device(sample: NodeSample, **changes: object) -> NodeSample:
    first: DeviceSample = dataclasses.replace(sample.devices[0], **changes)  # type: ignore[arg-type]
    return dataclasses.replace(sample, devices=(first, *sample.devices[1:]))


def test_every_published_name_label_and_type_is_the_catalogs() -> None:
    for metric in exposition.families(node(), AT):
        for sample in metric.samples:
            family = catalog.FAMILIES[sample.name]
            assert metric.type == family.kind
            assert metric.documentation == family.help
            assert tuple(sample.labels) == family.labels


def test_before_the_first_snapshot_nothing_is_claimed_about_the_driver() -> None:
    assert names(None) == {"gpuscale_exporter_build_info"}


def test_each_device_series_appears_once_so_that_a_sum_is_right() -> None:
    assert of(node(), "gpuscale_gpu_power_watts") == [350.0, 350.0]


def test_the_age_of_a_sample_is_that_at_the_rendering() -> None:
    assert of(node(1), "gpuscale_gpu_sample_age_seconds", now=AT + 4) == [4.5]
    assert of(node(1), "gpuscale_attribution_age_seconds", now=AT + 4) == [6.0]


def test_an_age_is_never_negative_when_the_wall_clock_steps_back() -> None:
    assert of(node(1), "gpuscale_gpu_sample_age_seconds", now=AT - 100) == [0.0]


def test_a_driver_that_is_down_says_why_and_claims_no_gpu() -> None:
    sample = dataclasses.replace(
        node(), driver=DriverState(up=False, reason="no driver"), devices=(), attribution=None
    )
    published = series(sample)
    assert published["gpuscale_nvml_up", frozenset()] == 0
    assert ("gpuscale_nvml_error_info", frozenset({("reason", "no driver")})) in published
    assert not {name for name in names(sample) if name.startswith("gpuscale_gpu")}


def test_a_driver_that_is_up_has_no_error() -> None:
    assert of(node(), "gpuscale_nvml_up") == [1]
    assert "gpuscale_nvml_error_info" not in names(node())


def test_a_gpu_that_is_down_says_why_and_keeps_its_identity() -> None:
    sample = with_device(node(1), up=False, reason="power_watts hangs", samples=())
    assert of(sample, "gpuscale_gpu_up") == [0]
    assert "gpuscale_gpu_error_info" in names(sample)
    assert "gpuscale_gpu_info" in names(sample)
    assert "gpuscale_gpu_power_watts" not in names(sample)


def test_a_value_that_is_no_number_is_absent() -> None:
    bad = (
        Sample(family="gpuscale_gpu_power_watts", value=float("nan")),
        Sample(family="gpuscale_gpu_energy_joules_total", value=float("inf")),
    )
    published = names(with_device(node(1), samples=bad))
    assert not published & {"gpuscale_gpu_power_watts", "gpuscale_gpu_energy_joules_total"}


def test_a_series_that_is_there_already_is_not_published_twice() -> None:
    twice = (
        Sample(family="gpuscale_gpu_power_watts", value=1.0),
        Sample(family="gpuscale_gpu_power_watts", value=2.0),
    )
    assert of(with_device(node(1), samples=twice), "gpuscale_gpu_power_watts") == [1.0]


def test_what_a_gpu_does_not_give_is_announced() -> None:
    lack = Unsupported(family="gpuscale_gpu_energy_joules_total", reason="no_permission")
    sample = with_device(node(1), unsupported=(lack,))
    published = [labels for name, labels in series(sample) if name.endswith("unsupported_info")]
    assert ("metric", "gpuscale_gpu_energy_joules_total") in published[0]
    assert ("reason", "no_permission") in published[0]


def test_a_family_that_the_catalog_does_not_know_is_a_programming_error() -> None:
    with pytest.raises(KeyError):
        exposition.families(with_device(node(1), samples=(Sample(family="gpu", value=1),)), AT)


def test_a_label_that_the_catalog_does_not_know_is_a_programming_error() -> None:
    odd = Sample(family="gpuscale_gpu_power_watts", value=1, labels=(("rail", "12V"),))
    with pytest.raises(KeyError, match="rail"):
        exposition.families(with_device(node(1), samples=(odd,)), AT)


def test_attribution_that_is_off_is_absent_and_not_down() -> None:
    sample = dataclasses.replace(node(), attribution=None)
    assert not {name for name in names(sample) if "attribution" in name or "allocation" in name}


def test_a_kubelet_that_never_answered_is_down_and_has_no_age() -> None:
    state = AttributionState(up=False, reason="no socket", at=None, allocations=(), unmatched=0)
    sample = dataclasses.replace(node(), attribution=state)
    assert of(sample, "gpuscale_attribution_up") == [0]
    assert "gpuscale_attribution_age_seconds" not in names(sample)
    assert "gpuscale_attribution_unmatched_devices" not in names(sample)


def test_failed_reads_are_counted_by_what_the_driver_answered() -> None:
    stats = CollectorStats(name="power", duration_s=None, errors=(("driver_error_999", 3),))
    sample = dataclasses.replace(node(), collectors=(stats,))
    assert of(sample, "gpuscale_collector_errors_total") == [3]
    assert "gpuscale_collector_duration_seconds" not in names(sample)


def test_rendering_is_repeatable() -> None:
    first = httpd.render(exposition.families(node(), AT))
    assert first.text == httpd.render(exposition.families(node(), AT)).text
