"""A decision in words and as JSON: what was seen, what is expected, which plan, and each clamp.

The words are for somebody who reads them at night beside a page: plain sentences, every number
that entered, and for what is held the cure. The dict holds the same facts for machines.
"""

from dataclasses import asdict
from typing import Any

from gpuscale.controller.candidates import BLEND, REFERENCE
from gpuscale.controller.capacity import Capacity
from gpuscale.controller.domain import Decision, Hold, Inputs
from gpuscale.controller.leadtime import LeadTime

COMPARED_MAX = 2
"""Other candidates that are named beside the one in use; the dict has them all."""


def sentences(
    outcome: Decision | Hold,
    *,
    capacity: Capacity | None = None,
    lead: LeadTime | None = None,
) -> tuple[str, ...]:
    """The outcome in sentences, most important first; at least one.

    `capacity` and `lead` add where those two numbers come from, when the caller knows.
    """
    if isinstance(outcome, Hold):
        head = (
            f"{outcome.key} keeps its last answer of {_replicas(outcome.answer)}."
            if outcome.answer is not None
            else f"{outcome.key} gets no answer, so that its autoscaler holds what runs."
        )
        return (head, outcome.reason, *_seen(outcome.inputs))
    lines = [_headline(outcome), *_seen(outcome.inputs), *_expected(outcome), *_candidate(outcome)]
    lines += [
        f"{v.guard} changed {v.before} to {_replicas(v.after)}: {v.reason}"
        for v in outcome.verdicts
    ]
    lines += [source.sentence for source in (capacity, lead) if source is not None]
    return tuple(lines)


def as_dict(
    outcome: Decision | Hold,
    *,
    capacity: Capacity | None = None,
    lead: LeadTime | None = None,
) -> dict[str, Any]:
    """The same as plain data: dicts, lists, strings, numbers and None, fit for JSON."""
    common: dict[str, Any] = {
        "key": outcome.key,
        "now": outcome.now,
        "inputs": asdict(outcome.inputs),
        "capacity_source": None if capacity is None else capacity.source,
        "capacity": None if capacity is None else asdict(capacity),
        "lead_source": None if lead is None else lead.source,
        "lead": None if lead is None else asdict(lead),
        "sentences": list(sentences(outcome, capacity=capacity, lead=lead)),
    }
    if isinstance(outcome, Hold):
        return {**common, "outcome": "hold", "desired": outcome.answer, "reason": outcome.reason}
    return {
        **common,
        "outcome": "decision",
        "desired": outcome.desired,
        "planned": outcome.planned,
        "candidate": outcome.candidate,
        "candidate_costs": dict(outcome.candidate_costs),
        "forecast": {f"{level:g}": value for level, value in outcome.forecast.items()},
        "forecast_coverage": {
            f"{level:g}": value for level, value in outcome.forecast_coverage.items()
        },
        "verdicts": [asdict(v) for v in outcome.verdicts],
    }


def _headline(decision: Decision) -> str:
    asked = decision.inputs.asked
    if asked is None:
        change = "what is asked for at present is not known"
    elif asked == decision.desired:
        change = "as many as are asked for now"
    else:
        change = f"{'up' if decision.desired > asked else 'down'} from {asked}"
    return f"{decision.key} is to have {_replicas(decision.desired)}, {change}."


def _seen(inputs: Inputs) -> list[str]:
    """What was seen, one or two sentences."""
    if inputs.demand is None:
        demand = "Demand is not known"
    else:
        demand = f"Demand is {inputs.demand:.4g} requests/s"
        if inputs.age_s is not None:
            demand += f", {inputs.age_s:.0f} s old"
        if inputs.coverage is not None:
            demand += f", from {inputs.coverage:.0%} of the pods"
    if inputs.backlog is not None and inputs.backlog >= 1:
        demand += f"; {inputs.backlog:.0f} requests wait"
    stages = [
        f"{count} {name}"
        for name, count in (
            ("ready", inputs.ready),
            ("starting", inputs.starting),
            ("pending", inputs.pending),
        )
        if count is not None and (count > 0 or name == "ready")
    ]
    lines = [demand + "."]
    if stages:
        lines.append("Replicas: " + ", ".join(stages) + ".")
    return lines


def _expected(decision: Decision) -> list[str]:
    """The forecast, one sentence or none."""
    if not decision.forecast:
        return ["There is no forecast yet."]
    levels = sorted(decision.forecast)
    middle = min(levels, key=lambda level: abs(level - 0.5))
    high = min(levels, key=lambda level: abs(level - decision.inputs.risk))
    line = (
        f"In the {_span(decision.inputs.lead_s)} that a new replica takes, demand is expected to "
        f"peak at {decision.forecast[middle]:.4g} requests/s, and with {high:.0%} confidence not "
        f"above {decision.forecast[high]:.4g}"
    )
    if high in decision.forecast_coverage:
        line += f" (such forecasts held {decision.forecast_coverage[high]:.0%} of the time)"
    return [line + "."]


def _candidate(decision: Decision) -> list[str]:
    """Which plan was followed and why, one or two sentences."""
    capacity, costs = decision.inputs.capacity, decision.candidate_costs
    each = "" if capacity is None else f" of {capacity:.4g} requests/s each"
    if BLEND not in costs:
        return [
            f"The plan asks for {_replicas(decision.planned)}{each}; until there is experience, it "
            f"follows {decision.candidate}."
        ]
    others = sorted((c, n) for n, c in costs.items() if n not in (BLEND, decision.candidate))
    named = [*others[:COMPARED_MAX]]
    named += [(costs[REFERENCE], REFERENCE)] if REFERENCE in costs else []
    compared = ", ".join(
        f"{name} {cost:.2f}" for cost, name in dict.fromkeys(named) if name != decision.candidate
    )
    return [
        f"The plan asks for {_replicas(decision.planned)}{each}: a blend of the candidates that "
        f"were cheapest lately, led by {decision.candidate}.",
        "On the demand of the last days, idle replicas and late requests together, "
        f"{decision.candidate} would have cost {costs[decision.candidate]:.2f} and this blend "
        f"{costs[BLEND]:.2f}" + (f"; {compared}." if compared else "."),
    ]


def _replicas(count: int | None) -> str:
    return "no replicas" if not count else f"{count} replica{'' if count == 1 else 's'}"


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} minutes"
