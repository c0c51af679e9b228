"""Hardware counters that stand at 0 on a busy GPU are left out and named, and no others."""

import pytest

from gpuscale.exporter.plausible import SUSPECT, checked
from gpuscale.exporter.sample import Sample
from tests.fakes.gpu import instance

SM = "gpuscale_gpu_sm_active_ratio"
BUSY = "gpuscale_gpu_utilization_ratio"


def of(busy: float | None, sm: float | None) -> dict[str, float]:
    """What is published, by family, of these two."""
    samples = [
        Sample(family=family, value=value)
        for family, value in ((BUSY, busy), (SM, sm))
        if value is not None
    ]
    kept, _ = checked(samples, [])
    return {sample.family: sample.value for sample in kept}


def test_counters_at_zero_on_a_busy_gpu_are_left_out_and_named() -> None:
    assert of(1.0, 0.0) == {BUSY: 1.0, SUSPECT: 1.0}


@pytest.mark.parametrize(("busy", "sm"), [(1.0, 0.01), (0.5, 0.0), (0.0, 0.0)])
def test_counters_that_may_be_true_stay(busy: float, sm: float) -> None:
    assert of(busy, sm) == {BUSY: busy, SM: sm, SUSPECT: 0.0}


def test_where_one_of_both_is_unknown_nothing_is_judged() -> None:
    assert of(1.0, None) == {BUSY: 1.0}
    assert of(None, 0.0) == {SM: 0.0}


def test_the_compatible_fields_of_the_counters_go_with_them_and_an_instances_stay() -> None:
    own = Sample(family="gpuscale_mig_sm_active_ratio", value=0.0, mig=instance("GPU-1"))
    samples = [Sample(family=BUSY, value=1.0), Sample(family=SM, value=0.0), own]
    fields = [
        Sample(family="DCGM_FI_PROF_PCIE_TX_BYTES", value=0.0),
        Sample(family="DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", value=5.0),
    ]
    kept, shown = checked(samples, fields)
    assert own in kept
    assert shown == (fields[1],)
