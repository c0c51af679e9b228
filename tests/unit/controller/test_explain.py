"""The explanation: every number that entered, in sentences and in JSON."""

import json
from dataclasses import replace

from gpuscale.controller.candidates import BLEND, REFERENCE
from gpuscale.controller.capacity import declared
from gpuscale.controller.decide import initial_memory
from gpuscale.controller.domain import Decision, Hold, Inputs, Verdict
from gpuscale.controller.explain import as_dict, sentences
from gpuscale.controller.leadtime import LeadTimes
from gpuscale.settings import Policy
from tests.fakes.observations import START_S, TICK_S, observation, run

INPUTS = Inputs(
    demand=42.0,
    backlog=17.0,
    coverage=0.5,
    age_s=6.0,
    asked=9,
    ready=7,
    starting=2,
    pending=0,
    capacity=5.0,
    lead_s=600.0,
    min_replicas=1,
    max_replicas=20,
    risk=10 / 11,
    headroom=0.0,
)
DECISION = Decision(
    key="shop/chat",
    now=START_S,
    planned=6,
    desired=9,
    verdicts=(Verdict(guard="partial_data", before=6, after=9, reason="Only 50% answered."),),
    candidate="forecast-q90@1",
    candidate_costs={"forecast-q90@1": 1.0, "burst@0.6": 1.09, REFERENCE: 1.31, BLEND: 1.02},
    forecast={0.5: 50.0, 0.9: 66.0},
    forecast_coverage={0.5: 0.52, 0.9: 0.91},
    inputs=INPUTS,
)


def test_a_decision_names_what_was_seen_expected_chosen_and_clamped() -> None:
    text = " ".join(sentences(DECISION))
    for part in (
        "shop/chat is to have 9 replicas, as many as are asked for now",
        "42 requests/s",
        "6 s old",
        "50% of the pods",
        "17 requests wait",
        "7 ready, 2 starting",
        "10 minutes",
        "peak at 50",
        "90% confidence not above 66",
        "held 91% of the time",
        "asks for 6 replicas of 5 requests/s each",
        "led by forecast-q90@1",
        "reactive@0.8 1.31",
        "this blend 1.02",
        "partial_data changed 6 to 9 replicas: Only 50% answered.",
    ):
        assert part in text, part
    assert "nan" not in text
    assert "None" not in text


def test_sources_of_capacity_and_start_time_are_told() -> None:
    lines = sentences(
        DECISION,
        capacity=declared([Policy(capacity=5.0)])[0],
        lead=LeadTimes().of("shop/chat", declared_s=600.0),
    )
    assert "as the policy declares" in lines[-2]
    assert "600 s to start" in lines[-1]


def test_a_first_decision_admits_that_there_is_no_experience() -> None:
    first = replace(
        DECISION, candidate=REFERENCE, candidate_costs={}, forecast={}, forecast_coverage={}
    )
    text = " ".join(sentences(first))
    assert "There is no forecast yet." in text
    assert "until there is experience, it follows reactive@0.8" in text


def test_a_hold_says_what_stands_and_why() -> None:
    hold = Hold(
        key="shop/chat", now=START_S, reason="The signal is stale.", answer=9, inputs=INPUTS
    )
    assert sentences(hold)[0] == "shop/chat keeps its last answer of 9 replicas."
    assert sentences(hold)[1] == "The signal is stale."
    gone = sentences(replace(hold, answer=None))
    assert "no answer" in gone[0]


def test_the_dict_is_json_and_holds_all_candidates() -> None:
    found = json.loads(json.dumps(as_dict(DECISION), allow_nan=False))
    assert found["outcome"] == "decision"
    assert found["candidate_costs"] == DECISION.candidate_costs
    assert found["forecast"] == {"0.5": 50.0, "0.9": 66.0}
    assert found["verdicts"][0]["guard"] == "partial_data"
    assert found["sentences"] == list(sentences(DECISION))


def test_real_outcomes_explain_themselves_at_every_stage() -> None:
    """From the first tick over a gap to an error, JSON without NaN and sentences without None."""
    keys = ("a/x", "a/y")
    seen = observation(keys, START_S, [30.0, float("nan")], age_s=[5.0, float("inf")])
    decided, memory = run(initial_memory(keys, TICK_S), seen, 80)
    blind = replace(seen, now=seen.now + 80 * TICK_S, demand=seen.demand * float("nan"))
    more, _ = run(memory, blind, 40)
    for one in (*decided[::7], *more[::7]):
        for index in range(2):
            outcome = one.of(index)
            json.dumps(as_dict(outcome), allow_nan=False)
            text = " ".join(sentences(outcome))
            assert "nan" not in text
            assert "None" not in text
            assert "inf" not in text
