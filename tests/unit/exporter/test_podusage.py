"""What each pod used of each GPU: mapped, summed, never more than the GPU itself says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscale.exporter.cgroup import Kind, Owner
from gpuscale.exporter.device import ComputeProcess, ProcessUtilization
from gpuscale.exporter.pods import Pod
from gpuscale.exporter.podusage import busy_by_pid, usage
from gpuscale.exporter.processes import Process
from gpuscale.exporter.sample import DeviceSample, ProcessReading, Sample
from gpuscale.exporter.usage import PodUsage
from tests.fakes.gpu import identity
from tests.fakes.node import allocation

GPU = identity(0)
GIB = 1 << 30
PODS = {
    uid: Pod(namespace="inference", name=name, uid=uid, since=1.0)
    for uid, name in (("uid-a", "a"), ("uid-b", "b"))
}
PROCESSES = {
    pid: Process(pid=pid, started=1, comm="x", owner=Owner(kind=Kind.POD, pod_uid=uid))
    for pid, uid in ((1, "uid-a"), (2, "uid-a"), (3, "uid-b"), (4, "uid-unknown"))
}
HELD = (allocation(GPU.uuid, pod="a", replica="0"), allocation(GPU.uuid, pod="b", replica="1"))


def sample(pid: int, ratio: float, at_us: int = 1_000_000) -> ProcessUtilization:
    return ProcessUtilization(pid=pid, sm_ratio=ratio, memory_ratio=0.0, timestamp_us=at_us)


def device(
    memory: dict[int, int | None],
    samples: tuple[ProcessUtilization, ...] | None,
    *,
    busy: float | None = 1.0,
    used: float = 80.0 * GIB,
) -> DeviceSample:
    values = [Sample(family="gpuscale_gpu_memory_used_bytes", value=used)]
    if busy is not None:
        values.append(Sample(family="gpuscale_gpu_utilization_ratio", value=busy))
    return DeviceSample(
        identity=GPU,
        up=True,
        reason=None,
        read_at=1.0,
        samples=tuple(values),
        processes=ProcessReading(
            processes=tuple(
                ComputeProcess(pid=pid, used_memory_bytes=value) for pid, value in memory.items()
            ),
            utilization=samples,
        ),
    )


def rows(seen: DeviceSample) -> dict[str, tuple[float | None, float | None]]:
    found = usage(seen, PROCESSES, PODS, HELD)
    return {row.pod: (row.busy, row.memory_bytes) for row in found}


def test_promise_7_the_processes_of_a_pod_are_added_up() -> None:
    seen = device(
        {1: 2 * GIB, 2: GIB, 3: 4 * GIB}, (sample(1, 0.2), sample(2, 0.1), sample(3, 0.4))
    )
    found = rows(seen)
    assert found["a"][0] == pytest.approx(0.3)
    assert found["b"][0] == pytest.approx(0.4)
    assert (found["a"][1], found["b"][1]) == (3 * GIB, 4 * GIB)


def test_promise_44_a_holder_that_did_nothing_has_a_true_zero() -> None:
    """NVML says NOT_FOUND when nothing ran: for a pod that is known to hold the GPU that is 0."""
    assert rows(device({}, ())) == {"a": (0.0, 0.0), "b": (0.0, 0.0)}


def test_promise_10_where_the_gpu_gives_no_samples_there_is_no_utilization_and_no_zero() -> None:
    assert rows(device({1: GIB}, None)) == {"a": (None, GIB), "b": (None, 0.0)}


def test_where_the_driver_hides_the_memory_of_one_process_the_pods_sum_is_unknown() -> None:
    assert rows(device({1: GIB, 2: None}, ()))["a"] == (0.0, None)


def test_processes_that_belong_to_no_known_pod_are_nobodys_here() -> None:
    assert rows(device({4: GIB, 99: GIB}, (sample(4, 0.9),))) == {"a": (0.0, 0.0), "b": (0.0, 0.0)}


def test_a_pod_that_holds_nothing_has_a_row_for_what_it_uses() -> None:
    found = usage(device({3: GIB}, (sample(3, 0.5),)), PROCESSES, PODS, ())
    assert found == (
        PodUsage(
            uuid=GPU.uuid,
            namespace="inference",
            pod="b",
            container="",
            busy=0.5,
            memory_bytes=GIB,
        ),
    )


def test_the_container_is_named_where_there_is_one_only() -> None:
    two = (*HELD, allocation(GPU.uuid, pod="a", container="other", replica="3"))
    found = usage(device({}, ()), PROCESSES, PODS, two)
    assert {row.pod: row.container for row in found} == {"a": "", "b": "server"}


def test_promise_7_a_process_that_ran_for_a_part_of_the_time_counts_for_that_part() -> None:
    reading = device(
        {},
        (sample(1, 0.8, 1_000_000), sample(1, 0.8, 2_000_000), sample(3, 0.6, 2_000_000)),
    ).processes
    assert reading is not None
    assert busy_by_pid(reading) == pytest.approx({1: 0.8, 3: 0.3})


def test_promise_7_a_stale_sample_of_a_dead_process_does_not_count() -> None:
    reading = device({}, (sample(1, 0.9, 1), sample(3, 0.6, 60_000_000))).processes
    assert reading is not None
    assert busy_by_pid(reading) == pytest.approx({3: 0.6})


@given(
    st.dictionaries(st.integers(1, 4), st.integers(0, 200 * GIB), max_size=4),
    st.lists(
        st.builds(sample, st.integers(1, 4), st.floats(0, 1), st.integers(0, 20_000_000)),
        max_size=20,
    ),
    st.none() | st.floats(0, 1),
    st.floats(0, 80 * GIB),
)
def test_the_pods_of_a_gpu_never_exceed_what_the_gpu_says(
    memory: dict[int, int], samples: list[ProcessUtilization], busy: float | None, used: float
) -> None:
    found = usage(device(dict(memory), tuple(samples), busy=busy, used=used), PROCESSES, PODS, HELD)
    limit = 1.0 if busy is None else busy
    assert sum(row.busy or 0.0 for row in found) <= limit * (1 + 1e-9) + 1e-12
    assert sum(row.memory_bytes or 0.0 for row in found) <= used * (1 + 1e-9)
    assert all(row.busy is None or row.busy >= 0 for row in found)
