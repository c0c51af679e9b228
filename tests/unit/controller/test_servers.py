"""Tables of inference servers against their pages, and the answers of PromQL against the contract."""

import math
from pathlib import Path
from typing import get_args

import promql_parser
import pytest

from gpuscale.controller.domain import SignalTarget
from gpuscale.controller.servers import SERVERS
from gpuscale.controller.servers.promql import Watch, expressions, reading
from gpuscale.controller.servers.table import SERIES_MAX, parse, pod_sample, wanted
from gpuscale.errors import SourceMalformed
from gpuscale.settings import SELF_SCALING, Server

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


def page(server: Server, text: bytes | None = None) -> dict[str, dict[str, float]]:
    text = (GOLDEN / f"{server}.prom").read_bytes() if text is None else text
    return {name: dict(series) for name, series in parse(text, wanted(SERVERS[server])).items()}


# ---------------------------------------------------------------- pages


def test_a_vllm_page_gives_every_canonical_value() -> None:
    sample = pod_sample(SERVERS["vllm"], page("vllm"), pod="chat-0", at=20.0)
    # Two engines: counts add up, the KV cache is averaged.
    assert sample.completed is not None
    assert len(sample.completed) == 2 * 4
    assert sum(sample.completed.values()) == 157
    assert (sample.running, sample.waiting, sample.kv_fraction) == (8, 135, 1.0)
    assert sample.queue_s == pytest.approx(1297.716, abs=0.001)
    assert sample.started_at == 1_700_000_000.0


def test_a_triton_page_gives_every_canonical_value() -> None:
    sample = pod_sample(SERVERS["triton"], page("triton"), pod="vision-0", at=20.0)
    assert sample.completed is not None
    # Successes of one model, failures of four reasons.
    assert len(sample.completed) == 5
    assert sum(sample.completed.values()) == 157
    assert (sample.running, sample.waiting, sample.kv_fraction) == (None, 135, None)
    # Microseconds on the page, seconds here.
    assert sample.sojourn_s == pytest.approx(1455.157, abs=0.001)
    assert sample.queue_s == pytest.approx(1297.716, abs=0.001)
    assert sample.started_at is None


def test_an_old_name_is_read_where_the_new_one_is_missing() -> None:
    old = b'vllm:num_requests_waiting{model_name="m"} 1\nvllm:gpu_cache_usage_perc 0.25\n'
    assert pod_sample(SERVERS["vllm"], page("vllm", old), pod="p", at=0.0).kv_fraction == 0.25
    both = old + b"vllm:kv_cache_usage_perc 0.5\n"
    assert pod_sample(SERVERS["vllm"], page("vllm", both), pod="p", at=0.0).kv_fraction == 0.5


@pytest.mark.parametrize("server", SERVERS)
def test_a_page_with_none_of_the_names_is_an_error_that_lists_them(server: Server) -> None:
    text = b"process_start_time_seconds 1\nsomething_queue_size 3\n"
    with pytest.raises(SourceMalformed) as caught:
        pod_sample(SERVERS[server], page(server, text), pod="http://10.0.0.1:8000/metrics", at=0.0)
    said = str(caught.value)
    assert "http://10.0.0.1:8000/metrics" in said
    assert "`server`" in said
    for name in SERVERS[server].names:
        assert name in said


def test_every_server_that_may_be_named_has_a_table() -> None:
    assert {*SERVERS, "custom"} == set(get_args(Server))
    assert {s for s, table in SERVERS.items() if table.recommend_only} == SELF_SCALING
    for server, table in SERVERS.items():
        assert table.server == server
        assert len(set(table.names)) == len(table.names)
        for metric in table.metrics.values():
            assert len(set(metric.names)) == len(metric.names)


def test_what_is_absent_is_none_and_never_zero() -> None:
    sample = pod_sample(
        SERVERS["vllm"], page("vllm", b"vllm:num_requests_running 3\n"), pod="p", at=0.0
    )
    assert sample.running == 3
    assert sample.completed is None
    assert sample.waiting is sample.kv_fraction is sample.queue_s is None


# ---------------------------------------------------------------- the text format

NAME = "vllm:num_requests_running"


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (b"vllm:num_requests_running 3", 3.0),
        (b"vllm:num_requests_running\t3.5e0 1700000000000", 3.5),
        (b'vllm:num_requests_running{a="}",b="\\"{,"} 4\r', 4.0),
        (b'vllm:num_requests_running{a="x",}  5', 5.0),
        (b'vllm:num_requests_running{a="x"} 6 # {trace="y"} 1', 6.0),
        (b"vllm:num_requests_running +Inf", math.inf),
        (b"vllm:num_requests_running_total 3", None),
        (b"vllm:num_requests_running", None),
        (b"vllm:num_requests_running three", None),
        (b"vllm:num_requests_running 1_000", None),
        (b"vllm:num_requests_running 0x10", None),
        (b"vllm:num_requests_running 1e5e5", None),
        (b'vllm:num_requests_running{a="x" 3', None),
        (b'vllm:num_requests_running{a="x} 3', None),
        (b"vllm:num_requests_running{a=\xff\xfe 3", None),
        (b"# vllm:num_requests_running 3", None),
        (b" vllm:num_requests_running 3", None),
    ],
)
def test_a_line_is_a_sample_or_nothing(line: bytes, value: float | None) -> None:
    found = parse(b"other 1\n" + line + b"\n", [NAME])
    assert found == ({} if value is None else {NAME: next(iter(found.values()))})
    if value is not None:
        assert list(found[NAME].values()) == [value]


def test_labels_in_another_order_are_the_same_series_and_a_duplicate_counts_once() -> None:
    text = b'm{a="1",b="2"} 5\nm{b="2",a="1"} 7\nm{a="1",b="3"} 1\n'
    assert parse(text, ["m"]) == {"m": {'a="1",b="2"': 5.0, 'a="1",b="3"': 1.0}}


def test_a_million_wanted_series_are_refused() -> None:
    text = b"".join(b'm{a="%d"} 1\n' % i for i in range(SERIES_MAX + 1))
    with pytest.raises(SourceMalformed, match="series"):
        parse(text, ["m"])


# ---------------------------------------------------------------- PromQL


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("window_s", [0.5, 60.0, 3600.0])
def test_every_expression_is_promql(server: Server, window_s: float) -> None:
    selector = 'namespace="ai",pod=~"chat-.+"'
    for expression in expressions(SERVERS[server], selector, window_s).values():
        promql_parser.parse(expression)
        assert selector in expression


TARGET = SignalTarget(
    key="ai/chat",
    namespace="ai",
    name="chat",
    server="vllm",
    selector='namespace="ai"',
    endpoints=(),
    pods_expected=4,
)

FULL = {
    "answered": 4.0,
    "rated": 4.0,
    "arrivals": 20.0,
    "at": 99.0,
    "running": 8.0,
    "waiting": 2.0,
    "served": 1000.0,
}


def watch(expected: int | None = 4, now: float = 0.0) -> Watch:
    return Watch().next({"answered": 1.0}, expected, now)


def test_zero_with_full_coverage_is_demand() -> None:
    values = {**FULL, "arrivals": 0.0, "running": 0.0, "waiting": 0.0}
    seen = reading(SERVERS["vllm"], TARGET, values, watch(), 100.0)
    assert (seen.arrivals, seen.waiting, seen.reason) == (0.0, 0.0, None)
    assert (seen.pods_answered, seen.pods_expected, seen.at) == (4, 4, 99.0)


def test_an_empty_answer_is_missing() -> None:
    seen = reading(SERVERS["vllm"], TARGET, {}, watch(), 100.0)
    assert seen.arrivals is seen.running is seen.waiting is None
    assert seen.at == -math.inf
    assert seen.reason is not None
    assert TARGET.selector in seen.reason


@pytest.mark.parametrize("value", [math.nan, -1.0, math.inf, 1e300])
def test_absurd_answers_are_missing(value: float) -> None:
    seen = reading(
        SERVERS["vllm"], TARGET, {**FULL, "arrivals": value, "waiting": value}, watch(), 100.0
    )
    assert seen.arrivals is seen.waiting is None
    assert seen.running == 8.0
    assert seen.reason is not None


def test_half_the_pods_are_scaled_to_all_of_them() -> None:
    seen = reading(SERVERS["vllm"], TARGET, {**FULL, "answered": 2.0, "rated": 2.0}, watch(), 100.0)
    assert (seen.arrivals, seen.running, seen.waiting) == (40.0, 16.0, 4.0)
    assert (seen.pods_answered, seen.pods_expected) == (2, 4)


def test_pods_that_have_just_become_ready_are_not_silent_yet() -> None:
    """A scale-up from two to four must not read as a doubling of demand."""
    before = Watch().next({"answered": 2.0}, 2, 0.0)
    soon, later = before.next({"answered": 2.0}, 4, 15.0), before.next({"answered": 2.0}, 4, 15.0)
    values = {**FULL, "answered": 2.0, "rated": 2.0}
    assert reading(SERVERS["vllm"], TARGET, values, soon, 15.0).arrivals == 20.0
    for now in (30.0, 60.0, 90.0):
        later = later.next({"answered": 2.0}, 4, now)
    assert reading(SERVERS["vllm"], TARGET, values, later, 90.0).arrivals == 40.0


def test_zeros_right_after_a_cold_start_are_unknown() -> None:
    """The engine's gauges lag its start: zero after nothing has ever been served is not idleness."""
    cold = {**FULL, "arrivals": 0.0, "running": 0.0, "waiting": 0.0, "served": 0.0}
    seen = reading(SERVERS["vllm"], TARGET, cold, watch(now=90.0), 100.0)
    assert seen.arrivals is seen.waiting is seen.running is None
    assert reading(SERVERS["vllm"], TARGET, cold, watch(now=0.0), 100.0).arrivals == 0.0
    assert (
        reading(SERVERS["vllm"], TARGET, {**cold, "served": 5.0}, watch(now=90.0), 100.0).arrivals
        == 0.0
    )
    assert (
        reading(SERVERS["vllm"], TARGET, {**cold, "waiting": 7.0}, watch(now=90.0), 100.0).waiting
        == 7.0
    )


def test_running_by_littles_law_leaves_out_what_waits() -> None:
    values = {**FULL, "sojourn": 12.0, "waiting": 5.0}
    del values["running"]
    assert reading(SERVERS["vllm"], TARGET, values, watch(), 100.0).running == 7.0
