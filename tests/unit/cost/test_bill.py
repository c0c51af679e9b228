"""A bill loses no second and counts none twice, whatever it is divided by; what is unknown is no zero."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscale.config import convert
from gpuscale.cost.bill import NOBODY, OTHERS, Accounts, Held, Row, Weight, bill
from gpuscale.cost.prices import Prices, from_nodes
from gpuscale.errors import ConfigError

H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB"
PRICES = Prices(currency="EUR", products={"*H100*": 3.0, A100: 1.5}, energy_per_kwh=0.2)
ACCOUNTS = Accounts(
    held=(
        Held("chat", "nvidia.com/gpu", H100, "active", 3 * 3600),
        Held("chat", "nvidia.com/gpu", H100, "idle", 1 * 3600),
        Held("train", "nvidia.com/gpu", A100, "active", 2 * 3600),
        Held("train", "nvidia.com/mig-1g.5gb", A100, "unmeasured", 0.5 * 3600),
    ),
    joules={"chat": 7.2e6, "": 3.6e6},
    nodes=((H100, "allocated", 4 * 3600), (H100, "unallocated", 4 * 3600), (A100, "unknown", 3600)),
)


def rows(found: Any) -> dict[str, Row]:
    return {row.name: row for row in found.rows}


def test_a_bill_by_namespace_adds_up_to_all_gpus() -> None:
    found = bill(ACCOUNTS, PRICES, lambda name: name)
    chat, train = rows(found)["chat"], rows(found)["train"]
    assert (chat.allocated_h, chat.active_h, chat.idle_h) == (4, 3, 1)
    assert chat.cost == pytest.approx(4 * 3.0 + 2 * 0.2)
    assert chat.idle_cost == pytest.approx(3.0)
    assert (train.allocated_h, train.unmeasured_h, train.energy_kwh) == (2.5, 0.5, None)
    assert found.unallocated.allocated_h == 4
    assert found.unallocated.cost == pytest.approx(4 * 3.0 + 1 * 0.2)
    assert found.unknown_h == 1
    assert found.total.allocated_h == pytest.approx(10.5)
    assert [row.name for row in found.rows] == ["chat", "train"]  # the dearest first


def test_without_prices_there_is_no_money_and_not_none() -> None:
    found = bill(ACCOUNTS, None, lambda name: name)
    assert all(row.cost is None and row.idle_cost is None for row in (*found.rows, found.total))


def test_a_product_without_a_price_costs_an_unknown_amount() -> None:
    found = bill(ACCOUNTS, Prices(products={H100: 3.0}), lambda name: name)
    train = rows(found)["train"]
    assert train.cost is None
    assert train.unpriced_h == pytest.approx(2.5)
    assert found.total.cost == pytest.approx(24.0)
    assert found.total.unpriced_h == pytest.approx(2.5)


def test_by_label_namespaces_share_a_row_and_those_without_have_one() -> None:
    labels = {"chat": "a"}
    found = bill(ACCOUNTS, PRICES, lambda name: labels.get(name, NOBODY))
    assert rows(found).keys() == {"a", NOBODY}


def test_a_workload_gets_its_part_of_active_time_and_of_energy() -> None:
    weights = [
        Weight("chat", "llama", "nvidia.com/gpu", held=30, used=27, power=60),
        Weight("chat", "idler", "nvidia.com/gpu", held=10, used=3, power=20),
    ]
    found = rows(bill(ACCOUNTS, PRICES, lambda name: name, weights))
    llama, idler = found["chat/llama"], found["chat/idler"]
    assert llama.active_h == pytest.approx(3 * 0.9)
    assert idler.idle_h == pytest.approx(1 * 7 / 10)
    assert llama.energy_kwh == pytest.approx(2 * 0.75)
    assert found[f"train/{OTHERS}"].allocated_h == pytest.approx(2.5)


AMOUNT = st.floats(0, 1e7)
NAMES = st.sampled_from(["a", "b", "c"])
HELD = st.builds(
    Held,
    NAMES,
    st.sampled_from(["nvidia.com/gpu", "nvidia.com/mig-1g.10gb"]),
    st.sampled_from([H100, A100, "other"]),
    st.sampled_from(["active", "idle", "unmeasured"]),
    AMOUNT,
)
WEIGHTS = st.builds(
    Weight,
    NAMES,
    st.sampled_from(["x", "y"]),
    st.just("nvidia.com/gpu"),
    held=AMOUNT,
    used=AMOUNT,
    power=AMOUNT,
)


@given(
    st.lists(HELD, max_size=12),
    st.dictionaries(st.sampled_from(["a", "b", ""]), AMOUNT),
    st.none() | st.lists(WEIGHTS, max_size=6),
)
def test_nothing_is_lost_and_nothing_counted_twice(
    held: list[Held], joules: dict[str, float], weights: list[Weight] | None
) -> None:
    accounts = Accounts(held=tuple(held), joules=joules, nodes=())
    found = bill(accounts, PRICES, lambda name: name, weights)
    assert sum(r.allocated_h for r in found.rows) == pytest.approx(
        sum(h.seconds for h in held) / 3600
    )
    assert (found.total.energy_kwh or 0.0) == pytest.approx(sum(joules.values()) / 3.6e6)
    for row in found.rows:
        assert row.active_h + row.idle_h + row.unmeasured_h == pytest.approx(row.allocated_h)
        assert min(row.active_h, row.idle_h, row.unmeasured_h) >= 0


def test_prices_by_node_become_the_mean_of_a_products_gpus() -> None:
    prices = from_nodes({("n1", H100): 8, ("n2", H100): 8, ("n3", A100): 4}, {"n1": 3.0, "n2": 5.0})
    assert prices.of(H100) == pytest.approx(4.0)
    assert prices.of(A100) is None


@pytest.mark.parametrize(
    "content", [{"default": -1}, {"products": {"a": "b"}}, {"prices": {}}, {"default": 1e9}]
)
def test_prices_that_are_none_are_refused(content: object) -> None:
    with pytest.raises(ConfigError):
        convert(content, Prices, where="prices.yaml")
