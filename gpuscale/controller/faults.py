"""What is wrong at present, said once when it begins and once when it ends.

A source that is down fails at every tick, for every workload behind it. The log gets one line at
each change; the page, `/metrics` and `/api/v1/status` show what is wrong for as long as it is.
"""

import re
from collections.abc import Mapping, Sequence

from gpuscale import log

FAULTS_MAX = 50
"""Different sentences of a topic kept and logged; thousands at once are one cause, and say nothing more."""
KEYS_SHOWN = 3
"""Workloads named behind a sentence that concerns many."""

_log = log.get("faults")


class Faults:
    """Sentences by topic; setting a topic replaces what was wrong with it."""

    def __init__(self) -> None:
        self._now: dict[str, dict[str, str]] = {}

    def set(self, topic: str, sentence: str | None) -> None:
        """One thing with at most one fault; None: it is well."""
        self.replace(topic, {} if sentence is None else {sentence: ()})

    def replace(self, topic: str, sentences: Mapping[str, Sequence[str]]) -> None:
        """All that is wrong with a topic: sentence -> the workloads that it concerns (may be none)."""
        before = self._now.get(topic, {})
        # "for 45 s" and then "for 60 s" is the same fault, and not to be logged again.
        found: dict[str, tuple[str, list[str]]] = {}
        for sentence, keys in sentences.items():
            found.setdefault(without_numbers(sentence), (sentence, []))[1].extend(keys)
        after: dict[str, str] = {}
        for same, (sentence, keys) in list(found.items())[:FAULTS_MAX]:
            after[same] = sentence + _concerning(keys)
            if same not in before:
                _log.warning("fault began", topic=topic, reason=sentence, **_named(keys))
        for same, said in before.items():
            if same not in after:
                _log.info("fault ended", topic=topic, was=said)
        if after:
            self._now[topic] = after
        else:
            self._now.pop(topic, None)

    def sentences(self) -> tuple[str, ...]:
        """All that is wrong now, at most FAULTS_MAX of a topic."""
        return tuple(s for said in self._now.values() for s in said.values())


def _named(keys: Sequence[str]) -> dict[str, object]:
    return {"workloads": len(keys), "first": list(keys[:KEYS_SHOWN])} if keys else {}


def _concerning(keys: Sequence[str]) -> str:
    if not keys:
        return ""
    more = f" and {len(keys) - KEYS_SHOWN} more" if len(keys) > KEYS_SHOWN else ""
    return f" ({', '.join(keys[:KEYS_SHOWN])}{more})"


_NUMBER = re.compile(r"[-+]?\d[\d.,]*(e[-+]?\d+)?%?")
_AROUND = "().,;:"


def without_numbers(sentence: str) -> str:
    """The sentence on one line, with N for its numbers: the same while only they change.

    A number is a word of its own: names, addresses and versions may begin with a digit.
    """
    return " ".join(_without_number(word) for word in sentence.split())


def _without_number(word: str) -> str:
    bare = word.strip(_AROUND)
    return word.replace(bare, "N", 1) if _NUMBER.fullmatch(bare) else word
