"""Every server's table against realistic pages of its present and older releases."""

from collections.abc import Callable
from typing import Any

import pytest

from gpuscale.controller.demand import Demand, DemandState, update
from gpuscale.controller.servers import SERVERS
from gpuscale.controller.servers.table import parse, pod_sample, wanted
from gpuscale.settings import Server
from tests.fakes.serverpages import OLD, PAGES, Load, sglang

Page = Callable[[Load], bytes]

BEFORE = Load(
    done=1000, failed=20, waiting=2, running=6, queue_s=50, sojourn_s=900, kv=0.25,
    prompt=90_000, generated=40_000,
)  # fmt: skip
AFTER = Load(
    done=1140, failed=24, waiting=8, running=12, queue_s=68, sojourn_s=1116, kv=0.5,
    prompt=105_000, generated=46_000,
)  # fmt: skip
"""Twelve seconds later: 144 ended, and twelve more are inside: 156 arrived, 13 a second."""
SECONDS = 12.0
RESTARTED = Load(
    done=36, failed=0, waiting=3, running=9, queue_s=10, sojourn_s=60, kv=0.5,
    prompt=4000, generated=1200,
)  # fmt: skip
"""An engine that began anew: 36 ended and twelve inside have arrived since, 4 a second."""

CASES: list[tuple[Server, Page]] = [(s, PAGES[s]) for s in SERVERS if s != "llama-cpp"]
"""llama.cpp counts tokens, and has stories of its own below."""
OTHERS: list[tuple[Server, Page]] = [(table, page) for table, page in OLD if table in SERVERS]  # type: ignore[misc]

GAUGELESS = {"torchserve", "tf-serving"}
"""Servers that show neither what waits nor what runs: arrivals are what ended."""


def read(server: Server, *pages: bytes, **more: Any) -> Demand:
    """The demand of one pod that showed these pages, one after the other."""
    table = SERVERS[server]
    state, demand = DemandState(), None
    for i, text in enumerate(pages):
        at = 1000.0 + SECONDS * i
        sample = pod_sample(table, parse(text, wanted(table)), pod="pod-0", at=at)
        state, demand = update(state, [sample], expected=1, now=at)
    assert demand is not None
    return demand


def gaugeless(server: str, page: Page) -> bool:
    return server in GAUGELESS or (server == "trtllm-serve" and b"running" not in page(AFTER))


@pytest.mark.parametrize(("server", "page"), CASES + OTHERS)
def test_what_happened_between_two_pages_is_read_from_them(server: Server, page: Page) -> None:
    demand = read(server, page(BEFORE), page(AFTER))
    ended = 140 if server == "torchserve" else 144
    assert demand.reason is None
    given_up = 4 if SERVERS[server].unserved is not None else 0
    assert demand.throughput == pytest.approx((ended - given_up) / SECONDS)
    inside = 0 if gaugeless(server, page) else 12
    if server == "triton":
        inside = 6  # it shows what waits, and not what runs
    assert demand.arrivals == pytest.approx((ended + inside) / SECONDS)
    if gaugeless(server, page):
        # Little's law over the interval: 18 s waited and 216 s spent inside, in 12 s.
        assert demand.waiting == pytest.approx(18 / SECONDS)
        assert demand.in_flight == pytest.approx(216 / SECONDS)
    elif server == "triton":
        assert demand.waiting == 8
        assert demand.in_flight == pytest.approx(216 / SECONDS)
    else:
        assert (demand.waiting, demand.running, demand.in_flight) == (8, 12, 20)
    if SERVERS[server].sojourn_s is not None:
        assert demand.latency_s == pytest.approx(216 / ended)
    if b"acme/chat-8b" in page(AFTER):
        assert demand.models == {"acme/chat-8b"}


@pytest.mark.parametrize(("server", "page"), CASES + OTHERS)
def test_a_restarted_engine_is_neither_a_burst_nor_a_loss(server: Server, page: Page) -> None:
    demand = read(server, page(BEFORE), page(AFTER), page(RESTARTED))
    inside = 0 if gaugeless(server, page) else 3 if server == "triton" else 12
    # Failures stand at zero since the restart, as do the requests that ended before it.
    assert demand.arrivals == pytest.approx((36 + inside) / SECONDS)


@pytest.mark.parametrize(
    ("server", "wanted_kv"),
    [(s, 0.5 if table.kv_fraction else None) for s, table in SERVERS.items()],
)
def test_the_kv_cache_is_a_ratio(server: Server, wanted_kv: float | None) -> None:
    assert read(server, PAGES[server](BEFORE), PAGES[server](AFTER)).kv_fraction == wanted_kv


@pytest.mark.parametrize("server", ["vllm", "sglang", "tgi", "nim", "llama-cpp"])
def test_tokens_per_second_are_read(server: Server) -> None:
    demand = read(server, PAGES[server](BEFORE), PAGES[server](AFTER))
    assert demand.prompt_tokens == pytest.approx(15_000 / SECONDS)
    assert demand.generation_tokens == pytest.approx(6_000 / SECONDS)


def test_llama_cpp_demands_tokens_those_of_waiting_requests_too() -> None:
    """Twelve requests get 500 tokens/s, eight more wait for as much: 833 are wanted."""
    demand = read("llama-cpp", PAGES["llama-cpp"](BEFORE), PAGES["llama-cpp"](AFTER))
    assert demand.throughput == pytest.approx(500.0)
    assert demand.arrivals == pytest.approx(500.0 * 20 / 12)
    # Requests are no tokens: none is added to a plan in tokens.
    assert demand.waiting is None
    assert demand.in_flight == 20


def test_ranks_of_one_engine_are_copies_and_engines_of_data_parallelism_are_not() -> None:
    page = sglang(AFTER).decode()
    engines = page.replace('tp_rank="1"', 'dp_rank="1",tp_rank="0"')
    assert read("sglang", page.encode(), page.encode()).running == 12
    assert read("sglang", engines.encode(), engines.encode()).running == 24


def test_a_rank_that_says_nothing_does_not_hide_the_one_that_does() -> None:
    lines = sglang(AFTER).decode().splitlines()
    broken = [
        f"{line.rsplit(' ', 1)[0]} NaN" if 'tp_rank="0"' in line and "running" in line else line
        for line in lines
    ]
    assert read("sglang", *["\n".join(broken).encode()] * 2).running == 12


@pytest.mark.parametrize(("server", "busy"), [("triton", 0.6), ("torchserve", 0.6)])
def test_the_servers_own_word_on_its_gpus_is_a_ratio(server: Server, busy: float) -> None:
    assert read(server, PAGES[server](AFTER)).busy == pytest.approx(busy)


def test_the_start_of_an_engine_is_read() -> None:
    assert read("sglang", PAGES["sglang"](AFTER)).startup_s == 41.5
