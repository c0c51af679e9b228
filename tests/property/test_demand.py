"""What holds of demand for any pods, in any order, whatever they answer."""

import math

from hypothesis import given
from hypothesis import strategies as st

from gpuscale.controller.demand import (
    DemandState,
    Expectation,
    filled,
    update,
)
from gpuscale.controller.podsample import PodSample
from gpuscale.controller.servers.table import parse

ANY = st.none() | st.floats(allow_nan=True, allow_infinity=True)
COUNT = st.integers(0, 10**6).map(float)
NAMES = st.sampled_from([f"pod-{i}" for i in range(6)])

samples = st.builds(
    PodSample,
    pod=NAMES,
    at=st.floats(0, 10_000),
    completed=st.none() | st.dictionaries(st.sampled_from("xyz"), st.floats(), max_size=3),
    running=ANY,
    waiting=ANY,
    sojourn_s=ANY,
    kv_fraction=ANY,
    queue_s=ANY,
    started_at=ANY,
)
ticks = st.lists(st.tuples(st.lists(samples, max_size=8), st.none() | st.integers(0, 8)))


@given(ticks)
def test_nothing_negative_or_infinite_ever_comes_out(
    story: list[tuple[list[PodSample], int | None]],
) -> None:
    state, now = DemandState(), 0.0
    for seen, expected in story:
        now += 15.0
        state, demand = update(state, seen, expected=expected, now=now)
        values = (demand.arrivals, demand.running, demand.waiting, demand.queue_seconds)
        assert all(value is None or 0.0 <= value < math.inf for value in values)
        assert demand.kv_fraction is None or 0.0 <= demand.kv_fraction <= 1.0
        assert demand.pods_answered == len({sample.pod for sample in seen})
        assert (demand.reason is None) == (demand.arrivals is not None)


@given(ticks, st.randoms())
def test_the_order_of_pods_does_not_matter(
    story: list[tuple[list[PodSample], int | None]], random: object
) -> None:
    one, other, now = DemandState(), DemandState(), 0.0
    for seen, expected in story:
        now += 15.0
        # Two different samples of one pod at one time have no order to go by.
        unique = list({(sample.pod, sample.at): sample for sample in seen}.values())
        mixed = unique.copy()
        random.shuffle(mixed)  # type: ignore[attr-defined]
        one, first = update(one, unique, expected=expected, now=now)
        other, second = update(other, mixed, expected=expected, now=now)
        assert first == second


@given(
    st.lists(st.tuples(COUNT, COUNT, COUNT), min_size=1, max_size=6),
    st.integers(1, 5),
)
def test_what_arrives_over_any_intervals_is_what_ended_and_what_is_left(
    steps: list[tuple[float, float, float]], pods: int
) -> None:
    """Conservation: with honest counters nothing that arrived is lost or counted twice."""
    state, now, total = DemandState(), 0.0, 0.0
    ended = running = 1.0
    waiting = 0.0
    arrived = 0.0
    for grown, left, queued in [(0.0, running, waiting), *steps]:
        # Requests may leave only by ending: what is inside never falls by more than what ended.
        change = grown + (left - running) + (queued - waiting)
        if change < 0:
            continue
        arrived += change
        ended, running, waiting = ended + grown, left, queued
        now += 15.0
        seen = [
            PodSample(
                pod=f"pod-{i}", at=now, completed={"all": ended}, running=running, waiting=waiting
            )
            for i in range(pods)
        ]
        state, demand = update(state, seen, expected=pods, now=now)
        total += (demand.arrivals or 0.0) * 15.0
    assert math.isclose(total, arrived * pods, rel_tol=1e-6, abs_tol=1e-6)


@given(st.integers(1, 20), st.integers(0, 20), COUNT)
def test_fewer_answers_of_equal_pods_give_the_same_demand(
    known: int, silent: int, each: float
) -> None:
    whole = (known + silent) * each
    assert math.isclose(filled(known * each, known, known, known + silent), whole)
    # Never less than what was measured, whatever is expected.
    for settled in (None, 0, known, known + silent):
        assert filled(known * each, known, known, settled) >= known * each


@given(st.lists(st.tuples(st.floats(0, 100), st.none() | st.integers(0, 50)), max_size=50))
def test_settled_pods_are_never_more_than_were_expected_lately(
    steps: list[tuple[float, int | None]],
) -> None:
    expectation, now, counts = Expectation(), 0.0, []
    for wait, count in steps:
        now += wait
        expectation = expectation.next(count, now)
        counts += [count] if count is not None else []
        settled = expectation.settled
        assert (settled is None) == (not counts)
        if settled is not None:
            assert settled <= counts[-1]


@given(st.binary(max_size=2000))
def test_garbage_on_a_page_never_raises(text: bytes) -> None:
    parse(text, ["m"])
    for values in parse(b"m{" + text + b"\nm " + text + b"\nm 1\n", ["m"]).values():
        assert all(isinstance(value, float) for value in values.values())


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
        max_size=4,
    ),
    st.floats(),
)
def test_any_sample_of_the_text_format_is_read_back(labels: dict[str, str], value: float) -> None:
    def escaped(text: str) -> str:
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    pairs = ",".join(f'{name}="{escaped(text)}"' for name, text in labels.items())
    number = "NaN" if math.isnan(value) else repr(value).replace("inf", "Inf")
    found = parse(f"m{{{pairs}}} {number}\n".encode(), ["m"])
    (read,) = found["m"].values()
    assert read == value or (math.isnan(read) and math.isnan(value))
