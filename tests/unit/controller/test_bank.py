"""The plan and the bank: monotone arithmetic, virtual costs, and a blend that follows the cheapest."""

import numpy as np
import pytest

from gpuscale.controller import outlook
from gpuscale.controller.bank import PAST_WEIGHT, Bank, Choice, Terms, _blend
from gpuscale.controller.candidates import (
    BLEND,
    CANDIDATES,
    DEFAULT,
    REFERENCE,
    SIGNALS,
    Holds,
)
from gpuscale.controller.domain import Floats
from gpuscale.controller.plan import columns, draining, floors, replicas

TICK_S = 15.0
DAY_TICKS = 4 * 60 * 8
"""A working day: more is slow and shows nothing new."""
BASES = len(outlook.BASES)


def terms(n: int = 1, lead_s: float = 300.0, risk: float = 10 / 11) -> Terms:
    return Terms(
        capacity=np.full(n, 10.0),
        lead_s=np.full(n, lead_s),
        headroom=np.zeros(n),
        risk=np.full(n, risk),
        min_replicas=np.ones(n),
        max_replicas=np.full(n, 100.0),
    )


def lived(
    demand: Floats, own: Terms, start: int = 0, bank: Bank | None = None
) -> tuple[Choice, Bank]:
    """Ticks of this demand (t,) for one workload, whose forecasts are what it is now."""
    bank = bank or Bank(1, TICK_S)
    choice = None
    for tick, value in enumerate(demand):
        seen = np.array([value])
        bases = np.full((1, BASES), value)
        choice = bank.advance((start + tick + 1) * TICK_S, bases, seen, own)
    assert choice is not None
    return choice, bank


def test_replicas_round_up_and_dust_does_not() -> None:
    target = np.array([1.0, 0.8])
    found = replicas(np.array([[30.0, 24.0]]), target, np.array([10.0]), np.array([0.0]))
    assert found.tolist() == [[3.0, 3.0]]
    dusty = replicas(np.array([[30.0000001, 24.1]]), target, np.array([10.0]), np.array([0.0]))
    assert dusty.tolist() == [[3.0, 4.0]]


def test_headroom_is_never_planned_with() -> None:
    target = np.array([1.0, 0.5])
    found = replicas(np.array([[30.0, 30.0]]), target, np.array([10.0]), np.array([0.4]))
    assert found.tolist() == [[5.0, 6.0]]


def test_unknown_capacity_is_no_plan() -> None:
    found = replicas(np.array([[30.0]]), np.array([1.0]), np.array([np.nan]), np.array([0.0]))
    assert np.isnan(found).all()


def drains(
    backlog: float, ready: float, *, level: float = 30.0, lead_s: float = 100.0, price: float = 10.0
) -> float:
    """Replicas of 10 units/s that `draining` asks for."""
    found = draining(
        backlog=np.array([backlog]),
        level=np.array([level]),
        ready=np.array([ready]),
        capacity=np.array([10.0]),
        lead_s=np.array([lead_s]),
        price=np.array([price]),
    )
    return float(found[0])


@pytest.mark.parametrize(
    ("backlog", "ready"),
    [
        (0.0, 3.0),
        (150.0, 3.0),  # five seconds' work of what is needed: not waited for
        (float("nan"), 3.0),
        (float("nan"), float("nan")),
    ],
)
def test_what_is_served_soon_enough_asks_for_nothing(backlog: float, ready: float) -> None:
    assert drains(backlog, ready, lead_s=15.0) == 0.0


def test_a_backlog_is_worked_off_as_fast_as_its_lateness_is_dear() -> None:
    # 165 replica seconds beyond the wait limit: sqrt(10 × 3 × 165 / 130) = 6.2 on top of 3.
    assert drains(1800.0, 3.0) == 10.0
    assert drains(1800.0, 3.0, price=1.0) == 5.0
    assert drains(1800.0, 3.0, lead_s=600.0) == 6.0


def test_nobody_waits_for_longer_than_clients_do() -> None:
    assert drains(1e9, 3.0) == drains(1800.0, 3.0)


def test_a_shortage_is_a_backlog_to_come() -> None:
    """One replica for a demand of three: it will queue until others are ready."""
    assert drains(0.0, 1.0) > 3.0
    assert drains(0.0, 3.0) == 0.0


def test_every_candidate_reads_a_signal_that_exists_and_has_a_name_of_its_own() -> None:
    picks, target = columns(CANDIDATES, SIGNALS)
    assert len(picks) == len(CANDIDATES)
    assert ((target > 0) & (target <= 1)).all()
    names = [c.name for c in CANDIDATES]
    assert len(set(names)) == len(names)
    assert DEFAULT in names
    assert REFERENCE in names
    assert BLEND not in names


def test_a_candidate_that_looks_back_serves_what_arrives_now_too() -> None:
    at, _, targets = floors(CANDIDATES, SIGNALS)
    slow = {
        i for i, c in enumerate(CANDIDATES) if not c.signal.startswith(("recent", "burst", "q"))
    }
    assert set(at) == slow
    assert (targets <= 1.0).all()
    bank = Bank(1, TICK_S)
    bases = np.full((1, BASES), 5.0)
    bases[0, outlook.BASES.index("recent")] = 100.0
    bank.advance(TICK_S, bases, np.array([100.0]), terms())
    assert (bank.want[0, at] >= 100.0 / 10.0 / targets).all()


def test_the_highest_of_the_span_holds_and_then_goes() -> None:
    holds = Holds(1, 1)
    span = np.array([300.0])
    held = [
        float(holds.add(tick * TICK_S, span, np.array([[9.0 if tick == 4 else 1.0]]))[0, 0])
        for tick in range(60)
    ]
    assert held[3] == 1.0
    assert held[4:24] == [9.0] * 20
    assert held[4 + 25 :] == [1.0] * (60 - 29)


def test_a_new_workload_starts_with_the_default() -> None:
    choice, bank = lived(np.array([80.0]), terms())
    assert bank.candidates[choice.candidate[0]].name == DEFAULT
    assert choice.planned[0] == 8
    assert np.isnan(choice.costs).all()


def test_calm_demand_makes_the_bank_thrifty() -> None:
    choice, bank = lived(np.full(DAY_TICKS, 80.0), terms())
    assert bank.candidates[choice.candidate[0]].target == 1.0
    assert choice.planned[0] == 8


def test_sudden_demand_makes_the_bank_careful() -> None:
    """Demand that doubles for ten minutes of every forty, and takes five minutes to answer."""
    wave = np.where(np.arange(DAY_TICKS) % 160 < 40, 80.0, 40.0)
    calm, _ = lived(np.full(DAY_TICKS, 40.0), terms())
    choice, _ = lived(wave, terms())
    assert calm.planned[0] == 4
    assert choice.planned[0] >= 7


def test_a_higher_risk_fractile_buys_more_replicas() -> None:
    wave = np.where(np.arange(DAY_TICKS) % 160 < 40, 80.0, 40.0)
    careful, _ = lived(wave, terms(risk=0.99))
    careless, _ = lived(wave, terms(risk=0.05))
    assert careful.planned[0] > careless.planned[0]


def test_a_gap_enters_no_cost() -> None:
    day = np.full(DAY_TICKS, 80.0)
    _, bank = lived(day, terms())
    before = (bank.billed.copy(), bank.late.copy(), bank.known_s.copy())
    lived(np.full(400, np.nan), terms(), start=len(day), bank=bank)
    for was, now in zip(before, (bank.billed, bank.late, bank.known_s), strict=True):
        np.testing.assert_array_equal(was, now)


def test_nobody_is_charged_for_what_queued_before_a_gap() -> None:
    _, bank = lived(np.full(200, 80.0), terms())
    lived(np.full(40, np.nan), terms(), start=200, bank=bank)
    late = bank.late.copy()
    lived(np.full(10, 800.0), terms(), start=240, bank=bank)
    # At eight times the demand all are served from the first tick, since fleets begin anew.
    assert (bank.late[0, :-1] <= late[0, :-1] + 800.0 * TICK_S).all()


def test_the_blend_leaves_out_who_is_nearly_given_up() -> None:
    wants = np.array([[10.0, 12.0, 100_000.0]])
    costs = np.array([[1.0, 1.0, 1.2]])
    assert _blend(wants, costs)[0] == 11.0


def test_a_virtual_fleet_works_off_its_own_backlog() -> None:
    """Demand trebles: who was caught short asks for more than the new demand needs, and lets it go."""
    demand = np.concatenate([np.full(40, 40.0), np.full(80, 120.0)])
    bank = Bank(1, TICK_S)
    asked = []
    for tick, value in enumerate(demand):
        bank.advance(
            (tick + 1) * TICK_S, np.full((1, BASES), value), np.array([value]), terms(lead_s=60.0)
        )
        asked.append(bank.want[0, [c.name for c in CANDIDATES].index("reactive-quick@0.9")])
    assert asked[39] == 5.0
    assert max(asked[40:60]) > 14.0
    assert asked[-1] == 14.0


def test_a_past_is_charged_as_if_it_had_been_lived() -> None:
    """The costs of two days lived minute by minute, and learned in segments, agree."""
    own = terms()
    wave = np.repeat(np.where(np.arange(2 * 1440) % 40 < 10, 80.0, 40.0), 1)
    live = Bank(1, 60.0)
    for tick, value in enumerate(wave):
        live.advance((tick + 1) * 60.0, np.full((1, BASES), value), np.array([value]), own)
    bank = Bank(1, TICK_S)
    bases = np.repeat(wave[:, None], BASES, axis=1)
    bank.learn(0, len(wave) * 60.0, bases, wave, own)
    np.testing.assert_allclose(bank.billed[0, :-1], PAST_WEIGHT * live.billed[0, :-1], rtol=0.05)
    np.testing.assert_allclose(
        bank.late[0, :-1],
        PAST_WEIGHT * live.late[0, :-1],
        rtol=0.15,
        atol=0.02 * PAST_WEIGHT * float(live.arrived[0]),
    )
    assert bank.weight_s[0] == pytest.approx(PAST_WEIGHT * live.weight_s[0], rel=0.02)
    assert bank.known_s[0] == pytest.approx(live.known_s[0], rel=0.01)
