"""The driver's ring of samples: every moment counted once, lost time not invented."""

import pytest

from gpuscale.exporter.samplebuffer import STALLED_READS_MAX, SampleBuffer, weighted_mean

SECOND = 1_000_000
START = 1_700_000_000 * SECOND


def grid(first_s: float, count: int, step_s: float, share: float) -> list[tuple[int, float]]:
    return [(START + round((first_s + i * step_s) * SECOND), share) for i in range(count)]


def test_samples_weigh_by_the_time_they_stand_for() -> None:
    points = [
        (START + 1 * SECOND // 10, 1.0),  # 0.1 s at 100 %
        (START + 4 * SECOND // 10, 0.0),  # 0.3 s at 0 %: no longer than twice the usual step
        (START + 6 * SECOND // 10, 0.5),  # 0.2 s at 50 %
    ]
    mean, covered_s = weighted_mean(points, seen_us=START)
    assert covered_s == pytest.approx(0.6)
    assert mean == pytest.approx((0.1 * 1.0 + 0.3 * 0.0 + 0.2 * 0.5) / 0.6)


def test_reads_that_follow_each_other_cover_all_time_once() -> None:
    buffer = SampleBuffer()
    everything = grid(0.0, 200, 0.1, 0.7)
    buffer.take(everything[:1])
    covered = 0.0
    for end in (37, 38, 90, 200):
        taken = buffer.take(everything[:end])
        assert taken is not None
        covered += taken[1]
    assert covered == pytest.approx(19.9)


def test_the_first_read_tells_the_last_second_and_not_the_whole_ring() -> None:
    mean, covered_s = weighted_mean(grid(0.0, 100, 0.1, 1.0) + grid(10.0, 10, 0.1, 0.2), seen_us=0)
    assert mean == pytest.approx(0.2)
    assert covered_s == pytest.approx(1.0)


def test_time_that_the_ring_has_lost_is_not_invented() -> None:
    """Nothing was read for a minute; the ring holds the last two seconds of it."""
    mean, covered_s = weighted_mean(grid(58.0, 21, 0.1, 0.9), seen_us=START)
    assert mean == pytest.approx(0.9)
    assert covered_s == pytest.approx(2.2, abs=0.11)


def test_samples_seen_before_do_not_count_again() -> None:
    buffer = SampleBuffer()
    points = grid(0.0, 10, 0.1, 1.0)
    buffer.take(points)
    assert buffer.take(points) is None
    taken = buffer.take(points + grid(1.0, 5, 0.1, 0.0))
    assert taken is not None
    assert taken[0] == 0.0


def test_the_order_in_which_the_driver_hands_them_over_does_not_matter() -> None:
    points = grid(0.0, 5, 0.1, 1.0) + grid(0.5, 5, 0.1, 0.0)
    one, other = SampleBuffer(), SampleBuffer()
    assert one.take(points) == other.take(points[::-1])


def test_after_a_step_back_of_the_clock_it_starts_over() -> None:
    buffer = SampleBuffer()
    buffer.take(grid(3600.0, 10, 0.1, 1.0))
    for _ in range(STALLED_READS_MAX):
        assert buffer.take([]) is None
    assert buffer.take(grid(0.0, 10, 0.1, 0.3)) is not None


def test_samples_stamped_alike_give_a_mean_and_no_time() -> None:
    mean, covered_s = weighted_mean([(START, 0.2), (START, 0.4)], seen_us=START)
    assert mean == pytest.approx(0.3)
    assert covered_s == 0.0
