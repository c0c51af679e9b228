"""Reading one of the driver's sample buffers: from where the last read ended, weighted by time.

The driver keeps a ring of (time, share) samples, a few to fifty a second, for half a minute or so.
Read in full, it gives the exact mean over any period of ours; what it has lost is not invented.
"""

import math
import operator

GAP_FACTOR = 2.0
"""A sample stands for the time since the one before it, but for no more than twice the usual step:
where the ring has overrun, the time that was lost is unknown."""
STEP_MAX_US = 1_000_000
"""The longest step that NVML documents; used while the usual step is not known."""
FIRST_WINDOW_S = 1.0
"""The first read takes the mean of this much of the ring; all of it would be half a minute old."""
STALLED_READS_MAX = 3
"""After so many reads without a new sample the place in the ring is forgotten: the driver stamps
samples with wall time, so that after a step back of the clock nothing is new for a long time."""

Point = tuple[int, float]
"""(wall time in µs, share 0–1 over the time since the sample before)."""


class SampleBuffer:
    """The place in one ring of one device."""

    def __init__(self) -> None:
        self.seen_us = 0
        """Time of the newest sample that was taken; 0 before the first."""
        self._stalled = 0

    def take(self, points: list[Point]) -> tuple[float, float] | None:
        """(mean share, seconds that it is the mean of) of what is new in `points`; None if nothing is."""
        fresh = sorted(point for point in points if point[0] > self.seen_us)
        if not fresh:
            self._stalled += 1
            if self._stalled >= STALLED_READS_MAX:
                self.seen_us = self._stalled = 0
            return None
        mean = weighted_mean(fresh, self.seen_us)
        self.seen_us, self._stalled = fresh[-1][0], 0
        return mean


def weighted_mean(points: list[Point], seen_us: int) -> tuple[float, float]:
    """(mean, seconds covered) of at least one point, in order of time, all after `seen_us`.

    `seen_us` 0 means that nothing was seen before: then the newest FIRST_WINDOW_S count.
    """
    if not seen_us:
        newest_us = points[-1][0]
        points = [point for point in points if newest_us - point[0] < FIRST_WINDOW_S * 1e6]
    # Some hundred samples a second and GPU come through here: whole columns, no loop of our own.
    times_us, shares = zip(*points, strict=True)
    steps_us = list(map(operator.sub, times_us[1:], times_us))
    usual_us = sorted(steps_us)[len(steps_us) // 2] if steps_us else STEP_MAX_US
    longest_us = min(GAP_FACTOR * usual_us, STEP_MAX_US)
    weights_us = [times_us[0] - seen_us if seen_us else usual_us, *steps_us]
    if max(weights_us) > longest_us:
        weights_us = [min(step_us, longest_us) for step_us in weights_us]
    covered_us = sum(weights_us)
    if covered_us <= 0:  # all stamped alike: no time that passed, nothing to weigh by
        return math.fsum(shares) / len(shares), 0.0
    busy_us = math.fsum(map(operator.mul, weights_us, shares))
    return min(1.0, busy_us / covered_us), covered_us / 1e6
