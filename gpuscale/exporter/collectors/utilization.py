"""How busy the GPU and its memory were: as a share, and as a counter whose rate() is that share."""

from gpuscale.exporter.device import Device
from gpuscale.exporter.gather import Gathering
from gpuscale.exporter.sample import Reading, Tier

BUSY_RATIO = "gpuscale_gpu_utilization_ratio"
BUSY_SECONDS = "gpuscale_gpu_busy_seconds_total"
COPY_RATIO = "gpuscale_gpu_memory_copy_utilization_ratio"
COPY_SECONDS = "gpuscale_gpu_memory_copy_busy_seconds_total"
SOURCE = "gpuscale_gpu_utilization_source_info"

INSTANT_COVERS_S_MAX = 60.0
"""An instant value stands for the time since the last read, but for no longer than the slowest
period that is sensible for it: after a call that hung for an hour, the hour is unknown."""
CREDIT_S_MAX = 2.0
"""Time that passed and was not counted yet, because the driver's newest sample is a little old. More
than two of its longest steps (1 s) is time that nobody measured, and is not made up later."""


class UtilizationCollector:
    """Ratios of the last period, and their integrals over time."""

    name = "utilization"
    tier = Tier.FAST
    families = (BUSY_RATIO, BUSY_SECONDS, COPY_RATIO, COPY_SECONDS, SOURCE)

    def read(self, device: Device, state: dict[str, float], elapsed_s: float | None) -> Reading:
        """Read once; the totals live in `state` and never fall."""
        gathering = Gathering()
        missed_s = state.get("missed_s", 0.0)
        state["missed_s"] = elapsed_s or 0.0  # not seen, unless nothing below raises
        seen = gathering.ask(device.utilization, *self.families)
        if seen is None:
            lacking = gathering.reading()  # raises what failed, other than not supported
            state["missed_s"] = missed_s
            return lacking
        del state["missed_s"]
        for ratio, covered_s, ratio_family, seconds_family in (
            (seen.busy, seen.busy_covered_s, BUSY_RATIO, BUSY_SECONDS),
            (seen.memory_copy, seen.memory_copy_covered_s, COPY_RATIO, COPY_SECONDS),
        ):
            if ratio is None:
                gathering.lack(ratio_family, "not_supported")
                gathering.lack(seconds_family, "not_supported")
                continue
            if elapsed_s is not None:
                # An instant value stands for the time since the last try: what a failed one
                # before it did not see stays unseen.
                instant_s = min(max(0.0, elapsed_s - missed_s), INSTANT_COVERS_S_MAX)
                mean_s = instant_s if covered_s is None else covered_s
                _count(state, seconds_family, ratio, mean_s, elapsed_s)
            gathering.add(ratio_family, ratio)
            gathering.add(seconds_family, state.get(seconds_family, 0.0))
        if seen.busy is not None:
            gathering.add(SOURCE, 1.0, ("source", seen.source))
        return gathering.reading()


def _count(
    state: dict[str, float], family: str, ratio: float, covered_s: float, elapsed_s: float
) -> None:
    """Add `ratio` over the time that it is the mean of, but over no more time than has passed."""
    credit_key = f"{family} credit_s"
    credit_s = state.get(credit_key, 0.0) + max(0.0, elapsed_s)
    counted_s = min(covered_s, credit_s)
    state[credit_key] = min(credit_s - counted_s, CREDIT_S_MAX)
    state[family] = state.get(family, 0.0) + ratio * counted_s
