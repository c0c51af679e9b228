"""As much of PromQL as the rules read: which series a query selects, and what it makes one value of.

No parser: selectors are found by their shape, with strings and comments taken out first. What it does
not understand it does not find, and a rule then says nothing.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

QUERY_CHARS_MAX = 4_096
"""Of a query that are read: people's are a few hundred long."""
SELECTORS_MAX = 64

_STRING = r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|`[^`]*`'
_MATCHER = re.compile(
    rf"(?P<label>[a-zA-Z_][a-zA-Z0-9_]*)\s*(?P<op>=~|!~|!=|=)\s*(?P<value>{_STRING})"
)
_SELECTOR = re.compile(
    r"(?<![a-zA-Z0-9_.:])(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)?\s*\{(?P<matchers>(?:"
    + _STRING
    + r"|[^{}\"'`])*)\}|(?<![a-zA-Z0-9_.:])(?P<bare>[a-zA-Z_:][a-zA-Z0-9_:]*)(?!\s*[({:a-zA-Z0-9_])"
)
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^()]*)\)")
_OUTER = re.compile(r"^[\s(]*([a-z_]+)\s*(?:by|without)?\s*\(")
_WORDS = frozenset(
    [
        "and",
        "or",
        "unless",
        "by",
        "without",
        "on",
        "ignoring",
        "group_left",
        "group_right",
        "bool",
        "offset",
        "inf",
        "nan",
        "start",
        "end",
        "atan2",
    ]
)


@dataclass(frozen=True, slots=True)
class Selector:
    """Series that a query reads."""

    metric: str
    """Empty where it names none."""
    labels: Mapping[str, str]
    """Label -> what it must be or match; conditions that exclude are left out."""


@dataclass(frozen=True, slots=True)
class Query:
    """What is known of a query."""

    selectors: tuple[Selector, ...]
    outer: str
    """The function or aggregation that makes the result; empty where there is none."""
    grouped: frozenset[str]
    """Labels in by, without, on and the like."""
    arithmetic: bool
    """Whether values are multiplied, divided or added."""
    factor: float
    """What the result is multiplied with, where that is all the arithmetic (`100 * avg(…)`)."""


def read(query: str) -> Query:
    """What a query says, as far as it is understood."""
    text = re.sub(r"#[^\n]*", "", query[:QUERY_CHARS_MAX])
    selectors: list[Selector] = []
    rest = _GROUPING.sub(" ", text)
    for match in _SELECTOR.finditer(rest):
        if len(selectors) >= SELECTORS_MAX:
            break
        name = match["name"] or match["bare"] or ""
        if name.lower() in _WORDS:
            continue
        labels = _labels(match["matchers"] or "")
        selectors.append(Selector(name or labels.pop("__name__", name), labels))
    # Ranges, durations and label values hold letters and signs that mean nothing here.
    plain = re.sub(r"\{[^{}]*\}|\[[^\[\]]*\]", " ", re.sub(_STRING, '""', rest))
    factor, plain = _factor(plain)
    outer = _OUTER.match(plain)
    groups = [g for found in _GROUPING.findall(text) for g in found.split(",")]
    return Query(
        selectors=tuple(selectors),
        outer=outer[1] if outer else "",
        grouped=frozenset(g.strip() for g in groups if g.strip()),
        arithmetic=re.search(r"[*/+^%]|(?<![eE(,])-", plain) is not None,
        factor=factor,
    )


def _labels(matchers: str) -> dict[str, str]:
    found = {}
    for match in _MATCHER.finditer(matchers):
        if match["op"] in ("=", "=~"):
            found[match["label"]] = match["value"][1:-1]
    return found


_FACTOR_BEFORE = re.compile(r"^\s*(\d{1,6}(?:\.\d{1,6})?)\s*\*\s*(?=[a-z(])")
_FACTOR_AFTER = re.compile(r"\)\s*\*\s*(\d{1,6}(?:\.\d{1,6})?)\s*$")


def _factor(text: str) -> tuple[float, str]:
    """(factor, the text without it)."""
    before, after = _FACTOR_BEFORE.match(text), _FACTOR_AFTER.search(text)
    if before:
        return float(before[1]), text[before.end() :]
    if after:
        return float(after[1]), text[: after.start() + 1]
    return 1.0, text
