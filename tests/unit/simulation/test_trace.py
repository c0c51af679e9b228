"""Traces: what is read, what is refused and in which words, which window is judged."""

from pathlib import Path

import numpy as np
import pytest

from gpuscale.errors import InputError
from gpuscale.simulation import trace
from gpuscale.simulation.trace import Trace


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    return path


def made(
    values: list[float] | np.ndarray, step_s: float = 60.0, start_s: float = 0.0, name: str = "made"
) -> Trace:
    return Trace(
        name=name, start_s=start_s, step_s=step_s, values=np.array(values, dtype=np.float64)
    )


def test_an_empty_value_is_missing_and_not_zero(tmp_path: Path) -> None:
    read = trace.load(written(tmp_path, "timestamp,value\n120,1.5\n180,\n240,0\n"))
    assert (read.name, read.start_s, read.step_s, read.end_s) == ("t", 120, 60, 300)
    assert np.isnan(read.values[1])
    assert read.values.tolist()[::2] == [1.5, 0.0]


def test_a_byte_order_mark_blank_lines_and_decimals_of_seconds_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("\ufefftimestamp,value\r\n0.5,1\r\n3.0,2\r\n\r\n5.5,3\r\n", encoding="utf-8")
    assert trace.load(path).step_s == 2.5


FAULTS = [
    ("", "line 1: the header must be timestamp,value, found nothing"),
    ("time,value\n0,1\n", "line 1: the header must be timestamp,value, found 'time,value'"),
    ("timestamp,value\n0,1\n60,2,3\n", "line 3: 3 fields instead of 2"),
    ("timestamp,value\n0,1\nx,2\n", "line 3: the timestamp is \"'x'\"; write seconds as a number"),
    ("timestamp,value\n0,1\n60,abc\n", "line 3: the value is \"'abc'\"; write units per second"),
    ("timestamp,value\n0,1\n60,nan\n", "line 3: the value is \"'nan'\"; write units per second"),
    ("timestamp,value\n0,1\n60,inf\n", "line 3: the value is \"'inf'\"; write units per second"),
    ("timestamp,value\n0,1\n60,-2\n", "line 3: the value is -2; demand cannot be negative"),
    ("timestamp,value\n0,1\n0,2\n", "line 3: the timestamp 0 does not come after 0; sort the rows"),
    ("timestamp,value\n60,1\n0,2\n", "line 3: the timestamp 0 does not come after 60"),
    (
        "timestamp,value\n0,1\n60,1\n180,2\n",
        "line 4: the timestamp 180 follows 60, but the step is 60 s; write the missing rows with an empty value",
    ),
    (
        "timestamp,value\n0,1\n60,1\n90,2\n",
        "line 4: the timestamp 90 follows 60, but the step is 60 s; bring the rows to one step",
    ),
    ("timestamp,value\n0,1\n", "has 1 rows of data; a trace needs at least two"),
    ("timestamp,value\n0,\n60,\n", "has no value at all"),
]


@pytest.mark.parametrize(("text", "sentence"), FAULTS)
def test_a_fault_is_one_sentence_with_the_line_and_the_cure(
    tmp_path: Path, text: str, sentence: str
) -> None:
    with pytest.raises(InputError) as caught:
        trace.load(written(tmp_path, text))
    assert sentence.replace("\"'", "'").replace("'\"", "'") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_missing_a_folder_or_binary_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.csv cannot be read: No such file"):
        trace.load(tmp_path / "absent.csv")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        trace.load(tmp_path)
    binary = tmp_path / "b.csv"
    binary.write_bytes(b"timestamp,value\n0,\xff\xfe\n")
    with pytest.raises(InputError, match="not UTF-8"):
        trace.load(binary)


def test_the_last_week_is_judged_or_the_last_half_of_a_shorter_trace() -> None:
    assert trace.window(made(np.ones(30 * 24), 3600.0), None, None) == (23 * 24, 30 * 24)
    assert trace.window(made(np.ones(9 * 24), 3600.0), None, None) == (108, 216)


def test_a_window_is_said_in_the_traces_own_seconds() -> None:
    it = made(np.ones(100), start_s=6000.0)
    assert trace.window(it, 9000.0, 9600.0) == (50, 60)
    assert trace.window(it, 9059.0, None) == (50, 100)
    assert trace.window(it, 9000.0, 99_999.0) == (50, 100)


@pytest.mark.parametrize(
    ("from_s", "to_s", "sentence"),
    [
        (0.0, None, "--from 0 is outside the trace: made reaches from 6000 to 12000 s"),
        (12000.0, None, "--from 12000 is outside the trace"),
        (None, 6000.0, "--to 6000 is outside the trace"),
        (9000.0, 9000.0, "the window from 9000 to 9000 s is empty; --to must come after --from"),
        (float("nan"), None, "--from nan is outside the trace"),
        (None, float("nan"), "--to nan is outside the trace"),
        (float("inf"), None, "--from inf is outside the trace"),
    ],
)
def test_a_window_outside_the_trace_is_refused(
    from_s: float | None, to_s: float | None, sentence: str
) -> None:
    with pytest.raises(InputError) as caught:
        trace.window(made(np.ones(100), start_s=6000.0), from_s, to_s)
    assert sentence in str(caught.value)


def test_the_default_capacity_carries_the_peak_with_twenty_replicas_at_70_percent() -> None:
    it = made(np.arange(1001.0))
    assert trace.capacity(it) == pytest.approx(995 / 14)
    assert trace.capacity(it, 10) == pytest.approx(995 / 7)


def test_a_trace_that_is_nearly_all_zero_says_that_a_capacity_must_be_given() -> None:
    with pytest.raises(InputError, match=r"p99\.5 of the demand is 0.*give --capacity"):
        trace.capacity(made([0.0] * 999 + [5.0]))


@pytest.mark.parametrize(
    ("step_s", "tick_s"),
    [(5, 5), (10, 5), (15, 15), (60, 15), (300, 15), (20, 10), (100, 10), (8, 4), (22.5, 11.25)],
)
def test_the_tick_divides_the_step(step_s: float, tick_s: float) -> None:
    assert trace.tick_of(step_s) == tick_s


def test_a_step_below_the_tick_is_averaged_over_what_is_known() -> None:
    fine = made([1, 2, float("nan"), 4, 5, *[float("nan")] * 5, 7], step_s=1.0)
    coarse = trace.coarsened(fine)
    assert coarse.step_s == 5
    assert coarse.values[0] == 3.0
    assert np.isnan(coarse.values[1])
    assert len(coarse.values) == 2
    assert trace.coarsened(made([1, 2], 5.0)).values.tolist() == [1, 2]


def test_a_hole_is_bridged_for_the_queue_and_missing_for_the_policies() -> None:
    it = trace.ticks(made([10.0, float("nan"), 30.0]), 0, 3)
    assert it.tick_s == 15
    assert np.isnan(it.seen[4:8]).all()
    assert it.demand[4:8] == pytest.approx(20.0, rel=0.5)
    assert (it.seen[:4] == it.demand[:4]).all()


def test_noise_is_a_matter_of_the_name_and_ten_percent_wide() -> None:
    flat = np.full(2000, 100.0)
    one, same, other = (
        trace.ticks(made(flat, name=n), 0, 2000).demand for n in ("one", "one", "other")
    )
    assert (one == same).all()
    assert (one != other).any()
    assert one.mean() == pytest.approx(100, rel=0.01)
    assert one.std() == pytest.approx(10, rel=0.05)


def test_a_window_that_does_not_fit_in_memory_is_refused() -> None:
    with pytest.raises(InputError, match="narrow it with --from and --to"):
        trace.ticks(made(np.ones(2000), step_s=86_400.0), 0, 2000)
