"""What is answered after a decision: act, shadow beside others, shadow alone, held, and unknown."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpuscale.controller import answer
from gpuscale.controller.domain import (
    Answer,
    Bools,
    Decision,
    FleetForecast,
    Floats,
    Hold,
    ReplicaState,
    Workload,
)
from gpuscale.settings import Policy
from tests.fakes.decider import UNKNOWN

KEY = "llm/llama"
ACT = Policy(mode="act")
NOW = 1_700_000_000.0


class Decided:
    """One decision about one workload."""

    def __init__(self, desired: float, *, held: bool = False, key: str = KEY) -> None:
        self.keys = (key,)
        self._desired = desired
        self._held = held

    @property
    def now(self) -> float:
        return NOW

    @property
    def desired(self) -> Floats:
        return np.array([self._desired])

    @property
    def held(self) -> Bools:
        return np.array([self._held])

    @property
    def forecast(self) -> FleetForecast:
        raise AssertionError("an answer needs no forecast")

    def of(self, index: int) -> Decision | Hold:
        assert index == 0
        return Hold(
            key=KEY,
            now=NOW,
            reason="no sample for 400 s: check Prometheus",
            answer=int(self._desired) if 0 <= self._desired < math.inf else None,
            inputs=UNKNOWN,
        )


def workload(**fields: Any) -> Workload:
    base = Workload(
        namespace="llm",
        name="llama",
        policy=ACT,
        policy_name="defaults",
        actuator="keda",
        target=None,
    )
    return replace(base, **fields)


def state(asked: int | None, ready: int = 0) -> ReplicaState:
    return ReplicaState(
        key=KEY, asked=asked, ready=ready, starting=0, pending=0, endpoints=(), starts=()
    )


def answered(decided: Decided, of: Workload, seen: ReplicaState | None = None) -> Answer:
    replicas = {} if seen is None else {KEY: seen}
    found = answer.snapshot(decided, [of], replicas, number=7, now=NOW)
    assert (found.number, found.at) == (7, NOW)
    return found.answers[KEY]


@pytest.mark.parametrize(("desired", "active"), [(0, False), (1, True), (40, True)])
def test_act_mode_answers_the_decision(desired: int, active: bool) -> None:
    found = answered(Decided(desired), workload(), state(3))
    assert (found.desired, found.active) == (desired, active)


def test_a_server_that_scales_itself_is_only_recommended_to_and_the_answer_says_so() -> None:
    ray = Policy(server="ray-serve")
    found = answered(Decided(9), workload(policy=ray), state(3, ready=3))
    assert found.desired == 3
    assert "ray-serve scales itself" in found.reason
    with pytest.raises(ValueError, match="only recommends"):
        Policy(server="ray-serve", mode="act")


def test_what_cannot_be_decided_is_no_number_and_says_why() -> None:
    found = answered(Decided(math.nan, held=True), workload(), state(3))
    assert found == Answer(
        desired=None, reason="no sample for 400 s: check Prometheus", active=None
    )


def test_a_held_number_keeps_what_runs() -> None:
    found = answered(Decided(4, held=True), workload(), state(4))
    assert (found.desired, found.active) == (4, True)
    assert answered(Decided(4, held=True), workload()).active is True


def test_a_held_number_neither_wakes_what_sleeps_nor_puts_to_sleep() -> None:
    assert answered(Decided(4, held=True), workload(), state(0)).active is None
    assert answered(Decided(0, held=True), workload(), state(2)).active is None


@pytest.mark.parametrize(
    "decided", [Decided(9), Decided(9, held=True), Decided(math.nan, held=True)]
)
def test_shadow_beside_other_triggers_never_moves_or_holds_anything(decided: Decided) -> None:
    shadow = workload(policy=Policy(), only_trigger=False)
    for seen in (None, state(None), state(0), state(5)):
        found = answered(decided, shadow, seen)
        assert (found.desired, found.active) == (0, False)


@pytest.mark.parametrize("decided", [Decided(9), Decided(math.nan, held=True)])
@pytest.mark.parametrize(("asked", "active"), [(0, False), (1, True), (6, True)])
def test_shadow_as_the_only_trigger_answers_what_is_asked_for_already(
    decided: Decided, asked: int, active: bool
) -> None:
    found = answered(decided, workload(policy=Policy()), state(asked))
    assert (found.desired, found.active) == (asked, active)


@pytest.mark.parametrize("seen", [None, state(None, ready=3)])
def test_shadow_alone_without_known_replicas_is_an_error(seen: ReplicaState | None) -> None:
    found = answered(Decided(9), workload(policy=Policy()), seen)
    assert (found.desired, found.active) == (None, None)
    assert found.reason.startswith(
        "shadow mode answers the present replicas of llm/llama, and they"
    )


def test_a_workload_declared_after_the_tick_waits_for_the_next() -> None:
    found = answered(Decided(3, key="llm/other"), workload())
    assert found.desired is None
    assert found.reason == "nothing has been decided for llm/llama yet: the next tick decides"


@pytest.mark.parametrize("desired", [math.inf, -1.0])
def test_a_number_that_is_none_is_never_answered(desired: float) -> None:
    assert answered(Decided(desired), workload()).desired is None
