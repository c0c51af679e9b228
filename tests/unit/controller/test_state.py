"""Values as bytes and back: nothing is lost, nothing runs, and equal values are equal bytes."""

import msgspec
import numpy as np
import pytest

from gpuscale.controller import decide, state
from gpuscale.controller.domain import Past
from gpuscale.controller.history import History
from gpuscale.errors import InputError


def test_a_memory_comes_back_with_every_array_as_it_was() -> None:
    memory = decide.initial_memory(("a/b", "c/d"), 15.0)
    raw = state.dump(memory)

    again = state.load(raw)

    assert isinstance(again, decide.Memory)
    assert state.dump(again) == raw
    assert again.keys == memory.keys
    assert again.history.values is not memory.history.values
    again.history.values[0, 0] = 1.0  # what was read can be written to
    assert np.isnan(memory.history.values[0, 0])


def test_what_is_one_object_in_two_places_stays_one() -> None:
    shared = np.zeros(3)
    past = Past(key="a/b", times=shared, demand=shared, step_s=60.0)

    again = state.load(state.dump([past, shared]))

    assert again[0].times is again[0].demand is again[1]


def test_types_shapes_and_the_order_in_memory_are_kept() -> None:
    values = {
        "c": np.arange(6.0).reshape(2, 3),
        "f": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
        "empty": np.empty((0, 4)),
        "truth": np.array([True, False]),
        "nan": (float("nan"), float("-inf"), None, "text", b"raw", np.float32(0.1)),
    }

    again = state.load(state.dump(values))

    for name in ("c", "f", "empty", "truth"):
        assert again[name].dtype == values[name].dtype  # type: ignore[attr-defined]
        np.testing.assert_array_equal(again[name], values[name])
    assert again["f"].flags.f_contiguous
    assert np.isnan(again["nan"][0])
    assert again["nan"][1:] == values["nan"][1:]  # type: ignore[index]


def test_what_is_no_data_is_refused_before_it_is_written() -> None:
    for value in (print, object(), np.array([object()]), {"a": 1j}):
        with pytest.raises(TypeError, match="is no data of the pure rooms"):
            state.dump(value)


@pytest.mark.parametrize(
    "plain",
    [
        ["o", "journal:os.system", []],
        ["o", "os:system", []],
        ["o", "history:np.ndarray", []],
        ["o", "history:History.__init__", []],
        ["o", "../x:y", []],
        ["a", "<f8", [1 << 40], "C", b""],
        ["a", "O", [1], "C", b"12345678"],
        ["r", 3],
        ["?", 1],
        [],
        ["t"],
        [["t", []]],
    ],
)
def test_damaged_or_hostile_bytes_are_one_sentence_and_make_nothing(plain: object) -> None:
    with pytest.raises(InputError, match="cannot be read back"):
        state.load(msgspec.msgpack.encode(plain))


def test_bytes_that_nest_without_end_or_stop_in_the_middle_are_refused() -> None:
    deep: object = 1
    for _ in range(200):
        deep = ["t", [deep]]
    whole = state.dump(History(2))
    for raw in (msgspec.msgpack.encode(deep), whole[: len(whole) // 2], b"", b"\xc1"):
        with pytest.raises(InputError):
            state.load(raw)
