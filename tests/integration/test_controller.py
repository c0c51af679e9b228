"""The controller end to end in one loop: from readings to what KEDA, the page and the journal are told."""

import socket
from pathlib import Path

import grpc
import numpy as np
import pytest
from structlog.testing import capture_logs

from gpuscale import runtime
from gpuscale.clock import SystemClock
from gpuscale.controller.daemon import Controller
from gpuscale.errors import ApiRefused, ListenError, SourceUnreachable
from tests.fakes.cluster import FakeCluster, FakeScaler, replica_state, scaled_object
from tests.fakes.controllers import TICK_S, running, settings_of
from tests.fakes.signal import FakeSignal

LLAMA = "inference/llama"
WORKLOADS = [{"namespace": "inference", "name": "llama"}]
DOWN = SourceUnreachable("no Prometheus answers at http://prometheus:9090: start it or correct url")


async def test_rising_demand_raises_what_keda_is_told() -> None:
    signal = FakeSignal(demand={LLAMA: 20.0})
    async with running({"workloads": WORKLOADS}, signal=signal) as run:
        await run.ticks(20)
        before = await run.desired("inference", "llama")
        signal.demand[LLAMA] = 80.0
        await run.ticks(20)
        after = await run.desired("inference", "llama")

    assert before >= 4  # 20 requests/s over 5 per replica
    assert after >= 16
    assert after > before


async def test_a_silent_source_holds_and_then_errors_and_never_scales_down() -> None:
    """45 s stale, then held for 5 minutes, then no answer at all: the HPA then holds."""
    signal = FakeSignal(demand={LLAMA: 60.0})
    async with running({"workloads": WORKLOADS}, signal=signal) as run:
        await run.ticks(20)
        known = await run.desired("inference", "llama")
        signal.failure = DOWN
        told: list[float | None] = []
        codes: set[grpc.StatusCode] = set()
        for _ in range(40):
            await run.ticks()
            try:
                told.append(await run.desired("inference", "llama"))
            except grpc.aio.AioRpcError as error:
                codes.add(error.code())
                told.append(None)
        signal.failure = None
        await run.ticks(3)
        again = await run.desired("inference", "llama")

    assert codes == {grpc.StatusCode.UNAVAILABLE}
    held = [value for value in told if value is not None]
    assert held
    assert all(value >= known for value in held)
    assert told[-1] is None, "what is not known for ten minutes is not answered"
    assert told.index(None) * TICK_S >= 300 - 2 * TICK_S
    assert None not in told[: told.index(None)]
    assert all(value is None for value in told[told.index(None) :])
    assert again >= known, "the last number is the floor when data come back"


async def test_a_fault_is_logged_once_when_it_begins_and_once_when_it_ends() -> None:
    signal = FakeSignal(demand={LLAMA: 60.0})
    async with running({"workloads": WORKLOADS}, signal=signal) as run:
        await run.ticks(2)
        with capture_logs() as logs:
            signal.failure = DOWN
            await run.ticks(10)
            _, status = await run.get("/api/v1/status")
            signal.failure = None
            await run.ticks(2)
            _, well = await run.get("/api/v1/status")

    faults = [entry for entry in logs if entry["event"].startswith("fault")]
    assert [entry["event"] for entry in faults] == ["fault began", "fault ended"]
    assert faults[0]["reason"] == str(DOWN)
    assert faults[0]["first"] == [LLAMA]
    assert len(status["faults"]) == 1
    assert str(DOWN) in status["faults"][0]
    assert well["faults"] == []


async def test_a_first_reading_without_a_rate_is_no_fault_and_a_second_one_is() -> None:
    async with running({"workloads": WORKLOADS}, signal=FakeSignal(demand={LLAMA: None})) as run:
        with capture_logs() as logs:
            await run.ticks(1)
            first = list(logs)
            _, one = await run.get("/api/v1/workloads/inference/llama")
            await run.ticks(2)

    assert [e for e in first if e["event"] == "fault began"] == []
    assert "no counter" in one["problem"], "the page says it all the same"
    assert [e["first"] for e in logs if e["event"] == "fault began"] == [[LLAMA]]


async def test_one_failing_workload_does_not_stop_another() -> None:
    names = ("llama", "mixtral")
    signal = FakeSignal(demand={LLAMA: 60.0, "inference/mixtral": 60.0})
    workloads = [{"namespace": "inference", "name": name} for name in names]
    async with running({"workloads": workloads}, signal=signal) as run:
        await run.ticks(2)
        signal.failures["inference/mixtral"] = DOWN
        signal.demand[LLAMA] = 100.0
        await run.ticks(40)
        told = await run.desired("inference", "llama")
        with pytest.raises(grpc.aio.AioRpcError):
            await run.desired("inference", "mixtral")

    assert told >= 20


async def test_the_page_says_what_was_decided() -> None:
    signal = FakeSignal(demand={LLAMA: 37.0}, waiting=4.0)
    async with running({"workloads": WORKLOADS}, signal=signal) as run:
        snapshot = await run.ticks(12)
        decision = run.controller.decision
        _, status = await run.get("/api/v1/status")
        _, fleet = await run.get("/api/v1/workloads")
        _, one = await run.get("/api/v1/workloads/inference/llama")
        _, text = await run.text("/metrics")
        told = await run.desired("inference", "llama")

    assert decision is not None
    desired = int(decision.desired[0])
    assert status["number"] == snapshot.number == 12
    assert status["ready"] is None
    row = fleet["items"][0]
    assert (row["namespace"], row["name"]) == ("inference", "llama")
    assert row["demand"] == one["demand"] == 37.0
    assert row["backlog"] == 4.0
    assert row["desired"] == one["desired"] == one["decision"]["desired"] == desired == told
    assert one["answer"] == desired
    assert one["series"]["demand"] == [37.0] * 12
    assert one["series"]["at"][-1] == decision.now
    assert one["series"]["desired"][-1] == desired
    assert one["decision"]["inputs"]["demand"] == 37.0
    assert one["decision"]["sentences"]
    levels = sorted(one["forecast"], key=float)
    quantiles = [one["forecast"][level] for level in levels]
    assert quantiles == sorted(quantiles)
    assert (
        f'gpuscale_workload_desired_replicas{{namespace="inference",workload="llama"}} '
        f"{float(desired)}" in text
    )


async def test_ready_means_that_a_snapshot_is_out_and_the_caches_are_complete() -> None:
    cluster = FakeCluster(waiting="the list of pods is not complete yet: wait for it")
    async with running({"workloads": WORKLOADS}, cluster=cluster) as run:
        waiting = await run.text("/readyz")
        cluster.waiting = None
        undecided = await run.text("/readyz")
        alive = await run.text("/healthz")
        await run.ticks()
        ready = await run.text("/readyz")

    assert waiting == (503, "the list of pods is not complete yet: wait for it\n")
    assert undecided[0] == 503
    assert alive[0] == 200
    assert ready[0] == 200


async def test_workloads_come_from_scaled_objects_and_refusals_are_shown() -> None:
    cluster = FakeCluster(
        objects=[
            scaled_object("inference", "llama"),
            scaled_object("inference", "wrong", {"server": "nope"}),
        ],
        states={LLAMA: replica_state(LLAMA, asked=4, ready=4)},
    )
    signal = FakeSignal(demand={LLAMA: 60.0})
    async with running({}, cluster=cluster, signal=signal) as run:
        await run.ticks(3)
        told = await run.desired("inference", "llama")
        _, refusals = await run.get("/api/v1/refusals")
        code, answer = await run.get("/api/v1/workloads/inference/wrong")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await run.desired("inference", "wrong")
        cluster.objects.pop(0)
        await run.ticks()
        gone, _ = await run.get("/api/v1/workloads/inference/llama")

    assert told >= 12
    assert [item["workload"] for item in refusals["items"]] == ["inference/wrong"]
    assert code == 404
    assert "nope" in answer["error"]
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert gone == 404


async def test_direct_mode_writes_what_was_decided_and_only_when_it_differs() -> None:
    cluster = FakeCluster(states={LLAMA: replica_state(LLAMA, asked=4, ready=4)})
    scaler = FakeScaler()
    workloads = [{**WORKLOADS[0], "target": {"name": "llama"}}]
    signal = FakeSignal(demand={LLAMA: 60.0})
    async with running(
        {"workloads": workloads}, cluster=cluster, scaler=scaler, signal=signal
    ) as run:
        snapshot = await run.ticks(2)
        desired = snapshot.answers[LLAMA].desired
        assert desired is not None
        first = list(scaler.writes)
        cluster.states[LLAMA] = replica_state(LLAMA, asked=desired, ready=4)
        await run.ticks(1)
        then = run.controller.decision
        rewritten = scaler.writes[len(first) :]

    assert first
    assert set(first) == {(LLAMA, desired)}
    assert then is not None
    assert rewritten == ([] if then.desired[0] == desired else [(LLAMA, int(then.desired[0]))])


@pytest.mark.parametrize(
    ("mode", "asked", "failing"),
    [("shadow", True, False), ("act", False, False), ("act", True, True)],
    ids=["in shadow mode", "where the present replicas are not known", "while the signal is held"],
)
async def test_direct_mode_writes_nothing(mode: str, asked: bool, failing: bool) -> None:
    states = {LLAMA: replica_state(LLAMA, asked=4, ready=4)} if asked else {}
    scaler = FakeScaler()
    signal = FakeSignal(demand={LLAMA: 60.0}, failure=DOWN if failing else None)
    workloads = [{**WORKLOADS[0], "target": {"name": "llama"}, "overrides": {"mode": mode}}]
    async with running(
        {"workloads": workloads},
        cluster=FakeCluster(states=states),
        scaler=scaler,
        signal=signal,
    ) as run:
        await run.ticks(8)

    assert scaler.writes == []


async def test_a_refused_write_is_a_fault_and_the_others_are_written() -> None:
    keys = (LLAMA, "inference/mixtral")
    cluster = FakeCluster(states={k: replica_state(k, asked=2, ready=2) for k in keys})
    refused = ApiRefused("deployments/scale of llama may not be patched: add RBAC", status=403)
    scaler = FakeScaler(failures={LLAMA: refused})
    workloads = [
        {"namespace": "inference", "name": name, "target": {"name": name}}
        for name in ("llama", "mixtral")
    ]
    signal = FakeSignal(demand=dict.fromkeys(keys, 60.0))
    async with running(
        {"workloads": workloads}, cluster=cluster, scaler=scaler, signal=signal
    ) as run:
        with capture_logs() as logs:
            await run.ticks(4)
        _, status = await run.get("/api/v1/status")
        _, text = await run.text("/metrics")

    assert {key for key, _ in scaler.writes} == {"inference/mixtral"}
    assert any(str(refused) in fault for fault in status["faults"])
    assert len([e for e in logs if e["event"] == "fault began"]) == 1
    assert 'gpuscale_actuator_writes_total{result="refused"} 4.0' in text


async def test_the_past_is_entered_before_the_first_decision() -> None:
    """Demand that was seen before the start counts at the first tick, and is asked for once."""
    signal = FakeSignal(demand={LLAMA: 20.0})
    async with running({"workloads": WORKLOADS}, signal=signal) as run:
        end = run.clock.wall()
        times = np.asarray(end - 60.0 * np.arange(2 * 1440, 0, -1), dtype=np.float64)
        signal.past[LLAMA] = (times, 20.0 + 10 * np.sin(times * 2 * np.pi / 86_400))
        with capture_logs() as logs:
            await run.ticks(3)

    assert [e["workloads"] for e in logs if e["event"] == "past entered"] == [1]
    assert signal.asked == [(LLAMA,)]


async def test_the_past_waits_for_a_source_that_is_down() -> None:
    """It would cost each tick one more time-out, and there is nothing to decide for."""
    signal = FakeSignal(demand={LLAMA: 20.0}, failure=DOWN, past_failure=DOWN)
    async with running({"workloads": WORKLOADS}, signal=signal) as run:
        await run.ticks(3)
        asked_while_down = len(signal.asked)
        signal.failure = signal.past_failure = None
        await run.ticks(3)

    assert asked_while_down == 0
    assert len(signal.asked) == 1


async def test_a_restart_without_prometheus_learns_from_the_journal(tmp_path: Path) -> None:
    fields = {"workloads": WORKLOADS, "journal": {"path": str(tmp_path / "journal.db")}}
    signal = FakeSignal(demand={LLAMA: 20.0})
    async with running(fields, signal=signal) as run:
        await run.ticks(240)
        clock = run.clock

    with capture_logs() as logs:
        async with running(fields, signal=FakeSignal(demand={LLAMA: 20.0}), clock=clock) as run:
            await run.ticks()
            _, one = await run.get("/api/v1/workloads/inference/llama/decision")

    assert [e["workloads"] for e in logs if e["event"] == "past entered"] == [1]
    assert one["decision"]["desired"] >= 4


async def test_the_journal_explains_an_earlier_decision() -> None:
    signal = FakeSignal(demand={LLAMA: 20.0})
    async with running({"workloads": WORKLOADS}, signal=signal) as run:
        await run.ticks(4)
        early = run.clock.wall()
        signal.demand[LLAMA] = 120.0
        await run.ticks(40)
        _, then = await run.get(f"/api/v1/workloads/inference/llama/decision?at={early}")
        _, now = await run.get("/api/v1/workloads/inference/llama/decision")
        never, nothing = await run.get("/api/v1/workloads/inference/llama/decision?at=1")

    assert then["decision"]["now"] <= early
    assert then["decision"]["desired"] < now["decision"]["desired"]
    assert never == 404
    assert "error" in nothing


async def test_questions_out_of_range_are_answered_with_a_sentence() -> None:
    async with running({"workloads": WORKLOADS}) as run:
        await run.ticks()
        for path, words in (
            ("/api/v1/workloads?limit=0", "limit"),
            ("/api/v1/workloads?limit=99999999999999999999", "limit"),
            ("/api/v1/workloads?limit=00000000199999", "limit"),
            ("/api/v1/workloads?offset=0000000001" + "9" * 5000, "offset"),
            ("/api/v1/workloads?offset=-1", "offset"),
            ("/api/v1/workloads/inference/llama?points=x", "points"),
            ("/api/v1/workloads/inference/llama/decision?at=nan", "at"),
        ):
            code, answer = await run.get(path)
            assert code == 400, path
            assert words in answer["error"]
        for path in ("/api/v1/workloads/a/b", "/api/v1/nothing"):
            code, answer = await run.get(path)
            assert code == 404
            assert answer["error"]


async def test_nothing_can_be_changed_over_http() -> None:
    async with running({"workloads": WORKLOADS}) as run:
        await run.ticks()
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            for path in ("/", "/api/v1/status", "/api/v1/workloads/inference/llama"):
                async with run.http.request(method, run.url(path)) as response:
                    assert response.status == 405


async def test_a_page_that_polls_is_told_when_nothing_is_new() -> None:
    async with running({"workloads": WORKLOADS}) as run:
        await run.ticks()
        path = run.url("/api/v1/workloads")
        async with run.http.get(path) as response:
            tag = response.headers["ETag"]
        async with run.http.get(path, headers={"If-None-Match": tag}) as response:
            unchanged = response.status
        await run.ticks()
        async with run.http.get(path, headers={"If-None-Match": tag}) as response:
            changed = response.status

    assert (unchanged, changed) == (304, 200)


async def test_every_answer_carries_the_security_policy() -> None:
    async with running({"workloads": WORKLOADS}) as run:
        for path in ("/", "/static/app.js", "/api/v1/status", "/api/v1/nothing", "/metrics"):
            async with run.http.get(run.url(path)) as response:
                policy = response.headers["Content-Security-Policy"]
                assert "script-src 'self'" in policy, path
                assert "unsafe" not in policy
                assert response.headers["X-Content-Type-Options"] == "nosniff"


async def test_the_charts_library_is_served_from_its_package() -> None:
    async with running({}) as run:
        async with run.http.get(run.url("/static/plotly.min.js")) as response:
            body, tag = await response.read(), response.headers["ETag"]
            assert response.status == 200
            assert response.headers["Content-Type"].startswith("text/javascript")
        async with run.http.get(
            run.url("/static/plotly.min.js"), headers={"If-None-Match": tag}
        ) as response:
            assert response.status == 304
        assert (await run.text("/static/../daemon.py"))[0] == 404

    assert len(body) > 1_000_000


@pytest.mark.parametrize("key", ["listen", "listen_grpc"])
async def test_a_busy_port_is_one_sentence_with_the_key(key: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        controller = Controller(
            settings_of({key: f"127.0.0.1:{port}"}), SystemClock(), signal=FakeSignal()
        )
        daemon = runtime.Daemon()
        with pytest.raises(ListenError) as caught:
            await controller.start(daemon)
        await daemon._close()

    assert str(port) in str(caught.value)
    assert f"`{key}`" in str(caught.value)


@pytest.mark.parametrize("step_s", [-7200.0, -90.0, 90.0, 7200.0])
@pytest.mark.parametrize("source", ["answers", "silent"])
async def test_a_wall_clock_that_is_set_scales_nothing_down(step_s: float, source: str) -> None:
    """Neither to less demand, which was seen for no time yet, nor when the source fails as well."""
    signal = FakeSignal(demand={LLAMA: 60.0})
    async with running({"workloads": WORKLOADS}, signal=signal) as run:
        await run.ticks(40)
        before = await run.desired("inference", "llama")
        run.clock.step_wall(step_s)
        signal.demand[LLAMA] = 5.0
        signal.failure = DOWN if source == "silent" else None
        told: list[float | None] = []
        for _ in range(16):
            await run.ticks()
            try:
                told.append(await run.desired("inference", "llama"))
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.UNAVAILABLE
                told.append(None)
        signal.failure, signal.demand[LLAMA] = None, 100.0
        await run.ticks(4)
        after = await run.desired("inference", "llama")

    # A small step is no reason to forget that demand was seen; the policy's dwell alone decides then.
    if source == "silent" or abs(step_s) > 300:
        assert all(value is None or value >= before for value in told), told
    if source == "answers":
        assert None not in told
    assert after > before, "and it goes on"


async def test_readings_do_not_become_younger_when_the_wall_clock_is_set_back() -> None:
    """A silent source is held for five minutes and is then an error, whatever the wall clock does."""
    signal = FakeSignal(demand={LLAMA: 60.0})
    async with running({"workloads": WORKLOADS}, signal=signal) as run:
        await run.ticks(20)
        signal.failure = DOWN
        for tick in range(30):
            if tick in (5, 10):
                run.clock.step_wall(-200.0)
            await run.ticks()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await run.desired("inference", "llama")

    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_far_set_back_the_past_is_entered_anew() -> None:
    signal = FakeSignal(demand={LLAMA: 20.0})
    async with running({"workloads": WORKLOADS}, signal=signal) as run:
        await run.ticks(3)
        run.clock.step_wall(-3600.0)
        end = run.clock.wall()
        times = np.asarray(end - 60.0 * np.arange(1440, 0, -1), dtype=np.float64)
        signal.past[LLAMA] = (times, np.full(len(times), 20.0))
        with capture_logs() as logs:
            await run.ticks(2)

    assert [e["seconds"] for e in logs if e["event"] == "wall clock set back"] == [3600]
    assert [e["workloads"] for e in logs if e["event"] == "past entered"] == [1]


async def test_a_workload_that_is_removed_leaves_no_series() -> None:
    """A dashboard must not show what nobody declares any more, nor an alert fire for it."""
    cluster = FakeCluster(
        objects=[scaled_object("inference", name) for name in ("llama", "vision")]
    )
    signal = FakeSignal(demand={LLAMA: 20.0, "inference/vision": 9.0})
    async with running({}, signal=signal, cluster=cluster) as run:
        await run.ticks(3)
        signal.demand["inference/vision"] = 90.0
        await run.ticks(3)
        _, before = await run.text("/metrics")
        cluster.objects.pop()
        await run.ticks()
        _, after = await run.text("/metrics")

    assert 'gpuscale_workload_scale_events_total{namespace="inference",workload="vision"' in before
    assert 'workload="vision"' not in after
    assert 'workload="llama"' in after
