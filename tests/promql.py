"""What a PromQL expression reads: for tests that hold alerts and dashboards against the catalog."""

from collections.abc import Iterator
from dataclasses import dataclass

import promql_parser
import yaml

from gpuscale import catalog
from tests import tools

TARGET_LABELS = frozenset({"job", "instance", "node", "cluster"})
"""Labels that scraping puts on series: the chart's monitors give `node`, many servers a `cluster`."""


PRICE = "gpuscale:gpu_hour_price"
"""Prices by product, a series that the operator gives."""

RECORDED = frozenset(
    rule["record"]
    for group in yaml.safe_load((tools.REPOSITORY / "alerts" / "recording.yaml").read_text())[
        "groups"
    ]
    for rule in group["rules"]
) | {PRICE}
"""Series that rules compute from those of the catalog."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """One selector of an expression."""

    metric: str
    labels: tuple[str, ...]
    """Names of the labels that it matches on."""


def selections(expression: str) -> tuple[Selection, ...]:
    """Every selector in it. Raises ValueError where the expression does not parse."""
    found = []

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            assert node.name is not None, f"a selector without a metric name in {expression}"
            labels = tuple(matcher.name for matcher in node.matchers.matchers)
            found.append(Selection(metric=node.name, labels=labels))

    promql_parser.walk(promql_parser.parse(expression), visit)
    return tuple(found)


def rated(expression: str) -> Iterator[str]:
    """Metrics that are read through rate(), irate() or increase()."""
    inside: list[str] = []

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.Call) and node.func.name in {"rate", "irate", "increase"}:
            inside.extend(
                str(argument.vector_selector.name)
                for argument in node.args
                if isinstance(argument, promql_parser.MatrixSelector)
            )

    promql_parser.walk(promql_parser.parse(expression), visit)
    return iter(inside)


def labels_of(metric: str) -> frozenset[str]:
    """Labels that a series of this metric can have, once scraped."""
    return frozenset(catalog.FAMILIES[metric].labels) | TARGET_LABELS


def faults(expression: str, *, known: frozenset[str] = frozenset()) -> list[str]:
    """What is wrong with it by the catalog: metrics, labels and counters; `known` are foreign metrics."""
    wrong = []
    through_rate = set(rated(expression))
    for selection in selections(expression):
        if selection.metric in known:
            continue
        family = catalog.FAMILIES.get(selection.metric)
        if family is None:
            wrong.append(f"{selection.metric} is not in the catalog")
            continue
        strange = set(selection.labels) - labels_of(selection.metric)
        if strange:
            wrong.append(f"{selection.metric} has no label {', '.join(sorted(strange))}")
        if family.kind == "counter" and selection.metric not in through_rate:
            wrong.append(f"{selection.metric} is a counter, and is read without rate()")
        if family.kind != "counter" and selection.metric in through_rate:
            wrong.append(f"{selection.metric} is no counter, and is read through rate()")
    return wrong
