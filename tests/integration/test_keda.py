"""The external scaler on loopback, called as KEDA calls it: every call, every way of not knowing, both streams."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from gpuscale.clock import SystemClock
from gpuscale.controller.actuators.keda import (
    CONNECTION_AGE_S,
    CONNECTION_GRACE_S,
    METRIC,
    OPTIONS,
    STREAM_JITTER_S,
    STREAM_S,
    STREAMS_PER_OBJECT_MAX,
    ExternalScaler,
)
from gpuscale.controller.domain import Answer, Snapshot
from gpuscale.errors import ListenError
from gpuscale.proto import externalscaler_pb2 as pb
from tests.fakes.clock import ManualClock
from tests.fakes.keda import Keda, OldKeda, PushLog, hpa

ADDRESS = {"scalerAddress": "gpuscale-grpc.gpuscale.svc:6000"}


def ref(name: str = "llama", metadata: Mapping[str, str] | None = None) -> pb.ScaledObjectRef:
    return pb.ScaledObjectRef(name=name, namespace="llm", scalerMetadata=metadata or ADDRESS)


def metrics(of: pb.ScaledObjectRef, name: str = METRIC) -> pb.GetMetricsRequest:
    return pb.GetMetricsRequest(scaledObjectRef=of, metricName=name)


def snapshot(at: float, **desired: int | None) -> Snapshot:
    answers = {
        f"llm/{name}": Answer(
            desired=n, reason="the signal is missing", active=None if n is None else n > 0
        )
        for name, n in desired.items()
    }
    return Snapshot(number=1, at=at, answers=answers)


@asynccontextmanager
async def serving(clock: Any = None, **options: Any) -> AsyncIterator[tuple[ExternalScaler, Keda]]:
    scaler = ExternalScaler(clock or SystemClock(), **options)
    keda = Keda([await scaler.start("127.0.0.1:0")])
    try:
        yield scaler, keda
    finally:
        await keda.close()
        await scaler.close()


async def failure(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call
    return raised.value.code(), raised.value.details() or ""


async def until(condition: Callable[[], object], *, within_s: float = 5.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.005)


# ---------------------------------------------------------------- numbers


@pytest.mark.parametrize("desired", [0, 1, 7, 88, 100_000])
async def test_the_hpa_asks_for_exactly_what_is_answered(desired: int) -> None:
    async with serving() as (scaler, keda):
        scaler.publish(snapshot(SystemClock().wall(), llama=desired))
        (found,) = await keda.evaluate(ref())
        assert found.metric == "s0-desired-replicas"
        assert found.active == (desired > 0)
        for current in (1, 10, 89):
            assert hpa(found.value, found.target, current, tolerance=0.0) == desired


@pytest.mark.parametrize("desired", [0, 1, 12])
async def test_keda_before_the_float_fields_reads_the_same(desired: int) -> None:
    async with serving() as (scaler, keda):
        scaler.publish(snapshot(SystemClock().wall(), llama=desired))
        (value,) = (await keda.stub.GetMetrics(metrics(ref()))).metricValues
        assert (value.metricValue, value.metricValueFloat) == (desired, desired)
    scaler = ExternalScaler(SystemClock())
    address = await scaler.start("127.0.0.1:0")
    old = OldKeda(address)
    try:
        scaler.publish(snapshot(SystemClock().wall(), llama=desired))
        assert await old.target_and_value("llm", "llama") == (1, desired)
    finally:
        await old.close()
        await scaler.close()


async def test_the_name_that_keda_forgot_to_strip_is_understood_and_no_other() -> None:
    async with serving() as (scaler, keda):
        scaler.publish(snapshot(SystemClock().wall(), llama=3))
        answer = await keda.stub.GetMetrics(metrics(ref(), "s1-desired-replicas"))
        assert [v.metricValue for v in answer.metricValues] == [3]
        code, said = await failure(keda.stub.GetMetrics(metrics(ref(), "gpu-utilization")))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert said == "metric 'gpu-utilization' is not served: ask for desired-replicas"


async def test_every_replica_of_the_controller_says_the_same() -> None:
    scalers = [ExternalScaler(SystemClock()) for _ in range(3)]
    keda = Keda([await s.start("127.0.0.1:0") for s in scalers])
    try:
        for scaler in scalers:
            scaler.publish(snapshot(SystemClock().wall(), llama=5))
        values = {(await keda.evaluate(ref()))[0].value for _ in range(30)}
        assert values == {5.0}
        await until(lambda: all(s.requests for s in scalers))
    finally:
        await keda.close()
        for scaler in scalers:
            await scaler.close()


# ---------------------------------------------------------------- not knowing is an error, never a number


async def test_before_the_first_decision_the_spec_is_served_and_the_value_is_an_error() -> None:
    async with serving() as (_, keda):
        spec = (await keda.stub.GetMetricSpec(ref())).metricSpecs
        assert [(s.metricName, s.targetSize, s.targetSizeFloat) for s in spec] == [(METRIC, 1, 1.0)]
        for call in (keda.stub.GetMetrics(metrics(ref())), keda.stub.IsActive(ref())):
            code, said = await failure(call)
            assert code is grpc.StatusCode.UNAVAILABLE
            assert said.startswith("gpuscale has just started")


async def test_a_stale_decision_is_an_error_and_a_fresh_one_cures_it() -> None:
    clock = ManualClock()
    async with serving(clock, stale_after_s=60.0) as (scaler, keda):
        scaler.publish(snapshot(clock.wall() - 20, llama=4))
        await clock.advance(39.0)
        assert (await keda.evaluate(ref()))[0].value == 4
        await clock.advance(2.0)
        for call in (keda.stub.GetMetrics(metrics(ref())), keda.stub.IsActive(ref())):
            assert await failure(call) == (
                grpc.StatusCode.UNAVAILABLE,
                "the last decision is older than 60 s: see the controller's log",
            )
        await keda.stub.GetMetricSpec(ref())  # KEDA's fallback only counts failures of GetMetrics
        scaler.publish(snapshot(clock.wall(), llama=4))
        assert (await keda.evaluate(ref()))[0].value == 4


async def test_a_clock_that_is_set_back_does_not_keep_a_decision_alive() -> None:
    clock = ManualClock()
    async with serving(clock, stale_after_s=60.0) as (scaler, keda):
        scaler.publish(snapshot(clock.wall(), llama=4))
        clock.step_wall(-3600.0)
        await clock.advance(61.0)
        code, _ = await failure(keda.stub.GetMetrics(metrics(ref())))
        assert code is grpc.StatusCode.UNAVAILABLE


async def test_a_workload_without_a_number_fails_with_the_reason_of_its_hold() -> None:
    async with serving() as (scaler, keda):
        scaler.publish(snapshot(SystemClock().wall(), llama=None))
        expected = (grpc.StatusCode.UNAVAILABLE, "the signal is missing")
        assert await failure(keda.stub.GetMetrics(metrics(ref()))) == expected
        assert await failure(keda.stub.IsActive(ref())) == expected


async def test_an_unknown_object_is_not_found_but_never_costs_it_its_hpa() -> None:
    """KEDA up to 2.19 gives an object whose spec cannot be read an HPA on CPU, for ever."""
    async with serving() as (scaler, keda):
        scaler.publish(snapshot(SystemClock().wall(), other=1))
        assert (await keda.stub.GetMetricSpec(ref())).metricSpecs[0].metricName == METRIC
        for call in (keda.stub.GetMetrics(metrics(ref())), keda.stub.IsActive(ref())):
            code, said = await failure(call)
            assert code is grpc.StatusCode.NOT_FOUND
            assert said.startswith("llm/llama is not known to gpuscale: check that")


async def test_a_refused_declaration_is_told_to_keda_in_its_sentence() -> None:
    async with serving() as (scaler, keda):
        sentence = "metadata key risk is 'high': write a number such as 2.5"
        scaler.publish(snapshot(SystemClock().wall(), other=1), {"llm/llama": sentence})
        calls = (
            keda.stub.GetMetricSpec(ref()),
            keda.stub.GetMetrics(metrics(ref())),
            keda.stub.IsActive(ref()),
        )
        for call in calls:
            assert await failure(call) == (grpc.StatusCode.INVALID_ARGUMENT, sentence)
        code, _ = await failure(keda.stub.StreamIsActive(ref()).read())
        assert code is grpc.StatusCode.INVALID_ARGUMENT


async def test_bad_metadata_of_a_new_object_names_the_key_before_the_cache_has_it() -> None:
    async with serving() as (scaler, keda):
        scaler.publish(snapshot(SystemClock().wall()))
        bad = ref(metadata={**ADDRESS, "url": "http://169.254.169.254/"})
        code, said = await failure(keda.stub.GetMetricSpec(bad))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert said.startswith("unknown metadata key 'url': remove it")
        code, said = await failure(keda.stub.IsActive(pb.ScaledObjectRef()))
        assert (code, said) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "namespace and name of the ScaledObject are empty",
        )


async def test_a_request_of_megabytes_is_turned_away() -> None:
    async with serving() as (scaler, keda):
        scaler.publish(snapshot(SystemClock().wall(), llama=1))
        code, _ = await failure(keda.stub.IsActive(ref(metadata={"x": "y" * 1_000_000})))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await keda.stub.IsActive(ref())).result


async def test_calls_are_counted_by_method_and_code() -> None:
    async with serving() as (scaler, keda):
        scaler.publish(snapshot(SystemClock().wall(), llama=1))
        await keda.evaluate(ref())
        await failure(keda.stub.IsActive(ref("other")))
        assert scaler.requests == {
            ("GetMetricSpec", "OK"): 1,
            ("GetMetrics", "OK"): 1,
            ("IsActive", "OK"): 1,
            ("IsActive", "NOT_FOUND"): 1,
        }


async def test_a_busy_port_is_one_sentence_with_the_cure() -> None:
    first = ExternalScaler(SystemClock())
    host, port = await first.start("127.0.0.1:0")
    try:
        with pytest.raises(ListenError, match=rf"cannot listen on {host}:{port} .*`listen_grpc`"):
            await ExternalScaler(SystemClock()).start(f"{host}:{port}")
    finally:
        await first.close()


# ---------------------------------------------------------------- streams


async def read(call: Any) -> bool | None:
    """The next state; None at a clean end."""
    async with asyncio.timeout(5):
        response = await call.read()
    return None if response is grpc.aio.EOF else bool(response.result)


async def test_a_stream_speaks_at_once_and_at_every_change() -> None:
    async with serving() as (scaler, keda):
        scaler.publish(snapshot(SystemClock().wall(), llama=0, other=5))
        call = keda.stub.StreamIsActive(ref())
        assert await read(call) is False
        scaler.publish(snapshot(SystemClock().wall(), llama=2, other=5))
        assert await read(call) is True
        scaler.publish(snapshot(SystemClock().wall(), llama=0, other=5))
        assert await read(call) is False
        assert scaler.streams == {"StreamIsActive": 1, "StreamMetricSpec": 0}
        call.cancel()
        await until(lambda: scaler.streams["StreamIsActive"] == 0)
        await until(lambda: scaler.requests.get(("StreamIsActive", "CANCELLED")) == 1)


async def test_true_is_repeated_and_false_is_not() -> None:
    async with serving(repeat_s=0.1) as (scaler, keda):
        scaler.publish(snapshot(SystemClock().wall(), up=1, down=0))
        up, down = (keda.stub.StreamIsActive(ref(name)) for name in ("up", "down"))
        assert [await read(up) for _ in range(4)] == [True] * 4
        assert await read(down) is False
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.35):
                await down.read()
        up.cancel()


async def test_a_stream_is_silent_while_nothing_is_known_and_never_repeats_what_is_stale() -> None:
    clock = ManualClock()
    async with serving(clock, stale_after_s=25.0, repeat_s=10.0) as (scaler, keda):
        log = PushLog()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(keda.push(ref(), log, clock))
            await until(lambda: scaler.streams["StreamIsActive"] == 1)
            assert log.states == []
            scaler.publish(snapshot(clock.wall(), llama=1))
            await until(lambda: log.states == [True])
            for expected in (2, 3, 3, 3):
                await asyncio.sleep(0.05)
                await clock.advance(10.0)
                await until(lambda n=expected: len(log.states) == n)  # type: ignore[misc]
            task.cancel()


async def test_an_object_that_appears_after_its_stream_is_served_on_it() -> None:
    async with serving(unknown_s=5.0) as (scaler, keda):
        scaler.publish(snapshot(SystemClock().wall(), other=1))
        call = keda.stub.StreamIsActive(ref())
        await until(lambda: scaler.streams["StreamIsActive"] == 1)
        scaler.publish(snapshot(SystemClock().wall(), other=1, llama=1))
        assert await read(call) is True
        call.cancel()


async def test_an_object_that_never_appears_ends_its_stream_with_not_found() -> None:
    async with serving(unknown_s=0.1, repeat_s=0.05) as (scaler, keda):
        scaler.publish(snapshot(SystemClock().wall(), other=1))
        code, said = await failure(keda.stub.StreamIsActive(ref()).read())
        assert code is grpc.StatusCode.NOT_FOUND
        assert said.startswith("llm/llama is not known")


async def test_streams_end_with_ok_so_that_keda_keeps_its_first_backoff() -> None:
    """Three rotations and a shutdown: KEDA pauses two seconds each time, never four."""

    class Hurried(SystemClock):
        async def sleep(self, seconds: float) -> None:
            await asyncio.sleep(seconds / 100)

    async with serving(stream_s=0.1, stream_jitter_s=0.05) as (scaler, keda):
        scaler.publish(snapshot(SystemClock().wall(), llama=1))
        log = PushLog()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(keda.push(ref(), log, Hurried()))
            await until(lambda: len(log.ends) == 3)
            await until(lambda: scaler.streams["StreamIsActive"] == 1)
            await scaler.close()
            await until(lambda: len(log.ends) >= 4)
            task.cancel()
        assert log.ends[:4] == [grpc.StatusCode.OK] * 4
        assert log.pauses_s[:4] == [2.0] * 4
        assert log.states[:4] == [True] * 4


async def test_renewing_a_connection_cuts_no_stream() -> None:
    assert STREAM_S + STREAM_JITTER_S < CONNECTION_GRACE_S
    assert STREAM_S + STREAM_JITTER_S < CONNECTION_AGE_S
    options = (
        *(o for o in OPTIONS if "connection_age" not in o[0]),
        ("grpc.max_connection_age_ms", 300),
        ("grpc.max_connection_age_grace_ms", 5_000),
    )
    async with serving(options=options, stream_s=1.0, stream_jitter_s=0.0, repeat_s=0.2) as (
        scaler,
        keda,
    ):
        scaler.publish(snapshot(SystemClock().wall(), llama=1))
        call = keda.stub.StreamIsActive(ref())
        states = []
        while (state := await read(call)) is not None:
            states.append(state)
            assert (await keda.stub.IsActive(ref())).result
        assert len(states) >= 4
        assert await call.code() is grpc.StatusCode.OK


async def test_the_spec_stream_speaks_once_and_stays_open_until_it_is_renewed() -> None:
    async with serving(stream_s=0.3, stream_jitter_s=0.0) as (_, keda):
        call = keda.stub.StreamMetricSpec(ref())
        first = await call.read()
        assert first == await keda.stub.GetMetricSpec(ref())
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK


async def test_streams_that_dead_connections_left_give_way_to_new_ones() -> None:
    async with serving() as (scaler, keda):
        scaler.publish(snapshot(SystemClock().wall(), llama=1, other=1))
        other = keda.stub.StreamIsActive(ref("other"))
        assert await read(other) is True
        calls = []
        for _ in range(STREAMS_PER_OBJECT_MAX + 1):
            calls.append(keda.stub.StreamIsActive(ref()))
            assert await read(calls[-1]) is True
        assert await read(calls[0]) is None
        assert await calls[0].code() is grpc.StatusCode.OK
        assert scaler.streams["StreamIsActive"] == STREAMS_PER_OBJECT_MAX + 1
        for call in (other, *calls):
            call.cancel()


async def test_two_thousand_objects_are_evaluated_and_pushed() -> None:
    names = [f"w{i}" for i in range(2_000)]
    async with serving() as (scaler, keda):
        scaler.publish(snapshot(SystemClock().wall(), **{n: i % 50 for i, n in enumerate(names)}))
        gate = asyncio.Semaphore(64)

        async def one(name: str) -> float:
            async with gate:
                (found,) = await keda.evaluate(ref(name))
                return found.value

        async with asyncio.timeout(60):
            values = await asyncio.gather(*(one(name) for name in names))
        assert values == [i % 50 for i in range(2_000)]
        streams = [keda.stub.StreamIsActive(ref(name)) for name in names[:500]]
        states = await asyncio.gather(*(read(call) for call in streams))
        assert states == [i % 50 > 0 for i in range(500)]
        await scaler.close()
        assert await asyncio.gather(*(read(call) for call in streams)) == [None] * 500
