"""A Prometheus that is down, slow, guarded or something else: one sentence each, and nothing is ever zero."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuscale.controller import queryapi
from gpuscale.controller.domain import SignalReading, SignalTarget
from gpuscale.controller.signals import prometheus
from gpuscale.controller.signals.prometheus import PrometheusSignal
from gpuscale.errors import SourceError, SourceMalformed, SourceRefused, SourceUnreachable
from gpuscale.settings import PrometheusSettings
from tests.fakes.clock import ManualClock
from tests.fakes.prometheus import FakePrometheus, free_port, vector

NOW = 1_700_000_000.0


@pytest.fixture
async def fake() -> AsyncIterator[FakePrometheus]:
    fake = FakePrometheus()
    await fake.start()
    yield fake
    await fake.close()


def settings(url: str, **fields: Any) -> PrometheusSettings:
    return PrometheusSettings(url=url, timeout_s=fields.pop("timeout_s", 0.3), **fields)


def target(name: str, selector: str = 'namespace="ai"', expected: int | None = 2) -> SignalTarget:
    return SignalTarget(
        key=f"ai/{name}",
        namespace="ai",
        name=name,
        server="vllm",
        selector=selector,
        endpoints=(),
        pods_expected=expected,
    )


async def read(
    signal: PrometheusSignal, *targets: SignalTarget, now: float = NOW
) -> list[SignalReading | Exception]:
    outcomes = await signal.read(targets, now)
    await signal.close()
    return [outcomes[each.key] for each in targets]


SERIES = {"status": "success", "data": {"resultType": "vector", "result": [{"metric": {}}]}}

WRONG: dict[str, tuple[int, bytes, type[SourceError], str]] = {
    "a web page": (200, b"<html>hello</html>", SourceMalformed, "without /api/v1"),
    "binary": (200, b"\xff\x00\xfe", SourceMalformed, "without /api/v1"),
    "nested without end": (
        200,
        b'{"status":"success","x":' + b"[" * 200_000,
        SourceMalformed,
        "without /api/v1",
    ),
    "a list": (200, b"[]", SourceMalformed, "without /api/v1"),
    "a scalar": (
        200,
        b'{"status":"success","data":{"resultType":"scalar","result":[1,"2"]}}',
        SourceMalformed,
        "query API",
    ),
    "no data": (200, b'{"status":"success"}', SourceRefused, "answered 200"),
    "error in its protocol": (
        200,
        b'{"status":"error","errorType":"execution","error":"boom"}',
        SourceRefused,
        "boom",
    ),
    "partial": (
        200,
        b'{"status":"success","isPartial":true,"data":{"result":[]}}',
        SourceRefused,
        "partial answer",
    ),
    "not found": (404, b"nothing here", SourceRefused, "without /api/v1"),
    "no credentials": (401, b"who are you", SourceRefused, "bearer_token_file"),
    "not allowed": (403, b"{}", SourceRefused, "bearer_token_file"),
    "broken": (500, b"", SourceRefused, "answered 500"),
    "redirected": (302, b"", SourceRefused, "answered 302"),
    "overloaded": (503, b'{"status":"error","error":"too many"}', SourceRefused, "too many"),
}


@pytest.mark.parametrize("kind", WRONG)
async def test_a_wrong_answer_is_one_sentence_with_address_and_cure(
    fake: FakePrometheus, kind: str
) -> None:
    fake.status, fake.body, wanted, said = WRONG[kind]
    signal = PrometheusSignal(settings(fake.url), tick_s=15.0)
    for outcome in await read(signal, target("chat"), target("vision")):
        assert type(outcome) is wanted, outcome
        assert fake.url in str(outcome)
        assert said in str(outcome)
        assert "\n" not in str(outcome)
        assert len(str(outcome)) < 600
    with pytest.raises(wanted):
        await signal.history([target("chat")], NOW - 100, NOW, 10.0)
    await signal.close()


async def test_an_unreachable_server_is_asked_once_and_not_for_every_batch() -> None:
    url = f"http://user:secret@127.0.0.1:{free_port()}"
    signal = PrometheusSignal(settings(url), tick_s=15.0)
    outcomes = await read(signal, *(target(f"w{i}") for i in range(300)))
    assert all(isinstance(outcome, SourceUnreachable) for outcome in outcomes)
    assert "127.0.0.1" in str(outcomes[0])
    assert "prometheus.url" in str(outcomes[0])
    assert "secret" not in str(outcomes[0])


async def test_a_name_that_does_not_resolve_is_unreachable() -> None:
    signal = PrometheusSignal(settings("http://prometheus.invalid:9090"), tick_s=15.0)
    (outcome,) = await read(signal, target("chat"))
    assert isinstance(outcome, SourceUnreachable)
    assert "prometheus.invalid" in str(outcome)


async def test_a_server_that_hangs_costs_one_timeout_whatever_the_number_of_workloads(
    fake: FakePrometheus,
) -> None:
    fake.hang_s = 60.0
    signal = PrometheusSignal(settings(fake.url), tick_s=15.0)
    began = time.monotonic()
    outcomes = await read(signal, *(target(f"w{i}") for i in range(300)))
    assert time.monotonic() - began < 1.5
    assert all(isinstance(outcome, SourceUnreachable) for outcome in outcomes)
    assert "0.3 s" in str(outcomes[0])


@pytest.mark.parametrize("off_s", [-7200.0, 40.0])
async def test_a_clock_that_differs_is_an_error_and_never_demand_of_another_time(
    fake: FakePrometheus, off_s: float
) -> None:
    """Asked for the present by a clock that is behind, Prometheus answers what was true then."""
    fake.answer(vector({"arrivals/ai/chat": 1.0, "rated/ai/chat": 2, "answered/ai/chat": 2}))
    clock = ManualClock(wall=time.time() + off_s)
    signal = PrometheusSignal(settings(fake.url), tick_s=15.0, clock=clock)
    (outcome,) = await read(signal, target("chat"))
    with pytest.raises(SourceMalformed):
        await signal.history([target("chat")], NOW - 100, NOW, 10.0)
    await signal.close()

    assert isinstance(outcome, SourceMalformed)
    assert "clock" in str(outcome)
    assert fake.url in str(outcome)
    assert ("ahead of" if off_s < 0 else "behind") in str(outcome)


async def test_looking_for_a_cause_takes_no_longer_than_one_query(fake: FakePrometheus) -> None:
    """The server answers the tick's question, and hangs when it is asked why there is nothing."""
    fake.hangs_at = "count({namespace"
    signal = PrometheusSignal(settings(fake.url, timeout_s=0.3), tick_s=15.0)
    begun = time.monotonic()
    outcomes = await read(signal, *(target(f"w{i}") for i in range(8)))
    took_s = time.monotonic() - begun
    await signal.close()

    assert took_s < 2 * 0.3 + 0.5
    for outcome in outcomes:
        assert isinstance(outcome, SignalReading)
        assert (outcome.arrivals, outcome.pods_answered) == (None, 0)
        assert outcome.reason is not None


async def test_a_slow_server_costs_one_tick_at_most(fake: FakePrometheus) -> None:
    fake.hang_s = 0.2
    signal = PrometheusSignal(settings(fake.url), tick_s=1.0)
    began = time.monotonic()
    outcomes = await read(signal, *(target(f"w{i}", expected=0) for i in range(300)))
    assert time.monotonic() - began < 2.0
    assert isinstance(outcomes[0], SignalReading)
    assert isinstance(outcomes[-1], SourceUnreachable)
    assert "tick_s" in str(outcomes[-1])


async def test_an_answer_without_end_is_cut(
    fake: FakePrometheus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queryapi, "ANSWER_BYTES_MAX", 1000)
    fake.body = b" " * 100_000
    (outcome,) = await read(PrometheusSignal(settings(fake.url), tick_s=15.0), target("chat"))
    assert isinstance(outcome, SourceMalformed)
    assert "1000 bytes" in str(outcome)


async def test_one_bad_selector_spoils_no_other_workload(fake: FakePrometheus) -> None:
    fake.refused_text = "BROKEN"
    targets = [target(f"w{i}", expected=0) for i in range(12)]
    targets[5] = target("w5", selector="BROKEN")
    outcomes = await read(PrometheusSignal(settings(fake.url), tick_s=15.0), *targets)
    for i, outcome in enumerate(outcomes):
        if i == 5:
            assert isinstance(outcome, SourceRefused)
            assert "parse error" in str(outcome)
            assert "selector" in str(outcome)
        else:
            assert isinstance(outcome, SignalReading), outcome


async def test_many_workloads_share_a_query_and_no_query_is_too_long(
    fake: FakePrometheus,
) -> None:
    targets = [target(f"w{i}", expected=0) for i in range(100)]
    await read(PrometheusSignal(settings(fake.url), tick_s=15.0), *targets)
    assert len(fake.queries) <= 40
    for form in fake.queries:
        assert len(form["query"]) <= prometheus.QUERY_BYTES_MAX
        assert form["partial_response"] == "false"
        assert float(form["time"]) == NOW
    asked = re.findall(r"arrivals/ai/(w\d+)", " ".join(form["query"] for form in fake.queries))
    assert sorted(asked) == sorted(each.name for each in targets)


async def test_values_reach_the_workload_that_they_are_of(fake: FakePrometheus) -> None:
    fake.answer(
        vector(
            {
                "arrivals/ai/one": 1.5,
                "rated/ai/one": 2,
                "answered/ai/one": 2,
                "at/ai/one": NOW - 3,
                "waiting/ai/one": float("nan"),
                "arrivals/ai/two": 7,
                "answered/ai/two": 1,
                "arrivals/ai/stranger": 9,
            }
        )
    )
    one, two = await read(
        PrometheusSignal(settings(fake.url), tick_s=15.0), target("one"), target("two")
    )
    assert isinstance(one, SignalReading)
    assert (one.arrivals, one.waiting, one.pods_answered, one.at) == (1.5, None, 2, NOW - 3)
    assert isinstance(two, SignalReading)
    # Arrivals that no pod has a rate for are not believed.
    assert two.arrivals is None
    assert two.reason is not None


async def test_the_token_is_read_again_at_each_query(fake: FakePrometheus, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    signal = PrometheusSignal(settings(fake.url, bearer_token_file=str(token)), tick_s=15.0)
    asleep = target("chat", expected=0)
    await signal.read([asleep], NOW)
    token.write_text("second\n")
    await signal.read([asleep], NOW)
    assert fake.tokens == ["Bearer first", "Bearer second"]
    token.unlink()
    (outcome,) = await read(signal, asleep)
    assert isinstance(outcome, SourceRefused)
    assert str(token) in str(outcome)
    assert "bearer_token_file" in str(outcome)


async def test_a_long_past_is_asked_for_in_parts_on_one_grid(fake: FakePrometheus) -> None:
    def answer(*points: tuple[float, str]) -> dict[str, Any]:
        result = [{"metric": {}, "values": [list(point) for point in points]}]
        return {"status": "success", "data": {"resultType": "matrix", "result": result}}

    start, end = NOW - 30_000.5, NOW
    first = float(np.ceil(start))
    # Every part is answered the same: three known points, one absurd, one beyond the grid.
    fake.answer(
        answer(
            (first, "4"), (first + 1, "NaN"), (first + 3, "0"), (first + 4, "-1"), (end + 9, "1")
        )
    )
    signal = PrometheusSignal(settings(fake.url), tick_s=15.0)
    past = await signal.history([target("chat")], start, end, 1.0)
    await signal.close()
    times, demand = past["ai/chat"]
    assert (times[0], times[-1], len(times)) == (first, end, 30_001)
    assert demand[0] == 4
    assert demand[3] == 0
    assert np.isnan(demand[[1, 2, 4]]).all()
    assert np.isfinite(demand).sum() == 2
    assert [float(form["step"]) for form in fake.queries] == [1.0] * len(fake.queries)
    spans = sorted((float(form["start"]), float(form["end"])) for form in fake.queries)
    assert all(b - a + 1 <= 11_000 for a, b in spans)
    assert spans[0][0] == first
    assert spans[-1][1] == end
    assert all(after[0] == before[1] + 1.0 for before, after in pairwise(spans))


async def test_the_past_of_a_refused_workload_is_left_out(fake: FakePrometheus) -> None:
    fake.refused_text = "BROKEN"
    signal = PrometheusSignal(settings(fake.url), tick_s=15.0)
    past = await signal.history(
        [target("chat"), target("bad", selector="BROKEN")], NOW - 100, NOW, 10.0
    )
    await signal.close()
    assert set(past) == {"ai/chat"}
    assert np.isnan(past["ai/chat"][1]).all()


async def test_a_cancelled_tick_leaves_no_query_behind(fake: FakePrometheus) -> None:
    fake.hang_s = 60.0
    signal = PrometheusSignal(settings(fake.url, timeout_s=30.0), tick_s=15.0)
    reading = asyncio.ensure_future(signal.read([target("chat")], NOW))
    await asyncio.sleep(0.1)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await signal.close()
