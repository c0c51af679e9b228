"""Values that contradict each other: hardware counters that say nothing runs on a GPU that is busy.

Drivers are known to let the profiling counters stand at 0 after some errors, until the GPU is reset.
A zero that is known to be wrong is not published: it would scale a fleet down under load.
"""

from collections.abc import Sequence

from gpuscale.exporter.sample import Sample

SUSPECT = "gpuscale_gpu_profile_suspect"
BUSY = "gpuscale_gpu_utilization_ratio"
BUSY_MIN = 0.9
"""Kernels ran nearly all of the last period: then some SM was active at some time of it."""

_COUNTED = frozenset(
    {
        "gpuscale_gpu_graphics_active_ratio",
        "gpuscale_gpu_sm_active_ratio",
        "gpuscale_gpu_sm_occupancy_ratio",
        "gpuscale_gpu_tensor_active_ratio",
        "gpuscale_gpu_dram_active_ratio",
    }
)
_COMPATIBLE = "DCGM_FI_PROF_"


def checked(
    samples: Sequence[Sample], compatible: Sequence[Sample]
) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
    """Both lists without hardware counters that cannot be true, and with the family that says so.

    The family is there where both are known: 1 where they contradict each other, else 0.
    """
    counted = [s.value for s in samples if s.mig is None and s.family in _COUNTED]
    busy = next((s.value for s in samples if s.family == BUSY), None)
    if not counted or busy is None:
        return tuple(samples), tuple(compatible)
    suspect = busy >= BUSY_MIN and not any(counted)
    verdict = Sample(family=SUSPECT, value=float(suspect))
    if not suspect:
        return (*samples, verdict), tuple(compatible)
    return (
        (*(s for s in samples if s.family not in _COUNTED), verdict),
        tuple(s for s in compatible if not s.family.startswith(_COMPATIBLE)),
    )
