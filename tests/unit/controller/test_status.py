"""The rings remember the recent past of every workload, within their bounds."""

import numpy as np

from gpuscale.controller.status import COLUMNS, POINTS_MAX, Ring
from tests.fakes.statuses import NOW, TICK_S, status_of


def test_a_ring_gives_back_what_was_seen_in_order() -> None:
    ring = Ring(points_max=10)
    for i in range(4):
        ring.append(status_of({"llama": 10.0 + i}, now=NOW + i * TICK_S))

    at, values = ring.series("inference/llama")

    assert at.tolist() == [NOW + i * TICK_S for i in range(4)]
    assert values["demand"].tolist() == [10.0, 11.0, 12.0, 13.0]
    assert set(values) == set(COLUMNS)


def test_a_ring_forgets_the_oldest_first() -> None:
    ring = Ring(points_max=3)
    for i in range(8):
        ring.append(status_of({"llama": float(i)}, now=NOW + i * TICK_S))

    at, values = ring.series("inference/llama")

    assert values["demand"].tolist() == [5.0, 6.0, 7.0]
    assert np.all(np.diff(at) > 0)
    assert ring.series("inference/llama", points=2)[1]["demand"].tolist() == [6.0, 7.0]


def test_workloads_that_come_and_go_keep_their_own_past() -> None:
    ring = Ring(points_max=10)
    ring.append(status_of({"a": 1.0, "b": 2.0}, now=NOW))
    ring.append(status_of({"b": 3.0, "c": 4.0}, now=NOW + TICK_S))
    ring.append(status_of({"c": 6.0, "b": 5.0}, now=NOW + 2 * TICK_S))

    assert ring.series("inference/b")[1]["demand"].tolist() == [2.0, 3.0, 5.0]
    c = ring.series("inference/c")[1]["demand"].tolist()
    assert np.isnan(c[0])
    assert c[1:] == [4.0, 6.0]
    assert len(ring.series("inference/a")[0]) == 0


def test_a_hole_stays_a_hole() -> None:
    ring = Ring()
    ring.append(status_of({"a": 1.0}))
    ring.append(status_of({"a": None}, now=NOW + TICK_S))

    assert np.isnan(ring.series("inference/a")[1]["demand"][1])


def test_memory_is_bounded_for_a_large_fleet() -> None:
    ring = Ring(bytes_max=2**20)

    assert ring.points_kept(1) == POINTS_MAX
    assert ring.points_kept(200) * 200 * len(COLUMNS) * 4 <= 2**20
    assert ring.points_kept(1_000_000) == 40
