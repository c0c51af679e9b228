"""From the text of a file to Kubernetes objects that know their lines: YAML, JSON, Lists, many documents.

A manifest may come from anybody (a pull request, a chart that was rendered): it is read event by
event, without recursion, and what expands beyond a bound is refused before it is made. Scalars mean
what the API server takes them for: dates, sexagesimal numbers and numbers that no JSON has stay text.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import yaml
from yaml import events
from yaml.resolver import Resolver

from gpuscale.errors import InputError, foreign
from gpuscale.lint.finding import Path

TEXT_CHARS_MAX = 256 * 2**20
"""A whole cluster's manifests; more is no file that somebody keeps."""
VALUES_MAX = 10_000_000
"""Values of one document: a List of twenty thousand pods."""
ALIASED_MAX = 1_000_000
"""Values that aliases of one document stand for, beyond those that are written out: people write
dozens, and the API server refuses an object of 1.5 MiB."""
JSON_FROM_CHARS = 1 << 20
"""Larger JSON, which no person wrote, is read at once, ten times as fast, and without its lines."""
DEPTH_MAX = 100
"""Objects of Kubernetes are some twenty deep; custom resources with schemas in them, forty."""
OBJECTS_MAX = 100_000
"""Objects in one file, as many as a cluster's namespace ever shows."""

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MERGE = "<<"


_LEAF: Mapping[str | int, "Node"] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Node:
    """A value of a document with the line it begins at (from 1)."""

    line: int
    value: Any
    """Plain data: dict, list, str, int, float, bool, None. Shared where the file has an alias."""
    children: Mapping[str | int, "Node"]
    size: int = 1
    """Values in it, aliases expanded."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One Kubernetes object of a file."""

    raw: Mapping[str, Any]
    file: str = ""
    node: Node | None = None
    """None for an object that comes from no file."""

    def line(self, path: Path) -> int | None:
        """The line of a field, or of the innermost part of its path that is there."""
        if self.node is None:
            return None
        found = self.node
        for part in path:
            child = found.children.get(part)
            if child is None:
                break
            found = child
        return found.line


def objects(text: str, file: str = "") -> Iterator[Manifest]:
    """The Kubernetes objects of a file, Lists opened. What is not one is passed over.

    Raises InputError, one sentence with file and line, for what is not YAML and what is too much.
    """
    if len(text) > TEXT_CHARS_MAX:
        raise InputError(f"{_name(file)} has more than {TEXT_CHARS_MAX} characters: split it")
    if len(text) >= JSON_FROM_CHARS and text.lstrip()[:1] == "{":
        yield from _json_objects(text, file)
        return
    count = 0
    for document in _documents(text, file):
        for node in _opened(document):
            if _is_object(node.value):
                count += 1
                if count > OBJECTS_MAX:
                    raise InputError(f"{_name(file)} has more than {OBJECTS_MAX} objects: split it")
                yield Manifest(node.value, file, node)


def _json_objects(text: str, file: str) -> Iterator[Manifest]:
    """The objects of one JSON document, Lists opened; they do not know their lines."""
    try:
        document = json.loads(text, parse_constant=str)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{_name(file)} cannot be read as JSON ({foreign(error)}): correct it"
        ) from error
    kind, items = document.get("kind"), document.get("items")
    if not (isinstance(kind, str) and kind.endswith("List") and isinstance(items, list)):
        items = [document]
    typed = {"kind": str(kind).removesuffix("List"), "apiVersion": document.get("apiVersion")}
    if len(items) > OBJECTS_MAX:
        raise InputError(f"{_name(file)} has more than {OBJECTS_MAX} objects: split it")
    for item in items:
        raw = {**typed, **item} if isinstance(item, dict) else item
        if _is_object(raw) and raw["kind"]:
            yield Manifest(raw, file)


def values(text: str) -> Iterator[Any]:
    """Each document as plain data, read in the same bounds. Raises InputError."""
    return (node.value for node in _documents(text, ""))


def _is_object(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(value.get(key), str) for key in ("apiVersion", "kind")
    )


def _opened(node: Node) -> Iterator[Node]:
    """The node, or the items of the List that it is. A List in a List is none that an API server gives."""
    items = node.children.get("items")
    kind = node.value.get("kind") if isinstance(node.value, dict) else None
    if isinstance(kind, str) and kind.endswith("List") and items and isinstance(items.value, list):
        item_kind = kind.removesuffix("List")
        for child in items.children.values():
            yield _typed(child, item_kind, node.value.get("apiVersion"))
    else:
        yield node


def _typed(node: Node, kind: str, api_version: object) -> Node:
    """An item of a PodList and the like carries neither kind nor apiVersion of its own."""
    if not isinstance(node.value, dict) or "kind" in node.value or not kind:
        return node
    value = {"apiVersion": api_version, "kind": kind, **node.value}
    return Node(node.line, value, node.children, node.size)


# ---------------------------------------------------------------- YAML


def _documents(text: str, file: str) -> Iterator[Node]:
    builder = _Builder(file)
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            done = builder.take(event)
            if done is not None:
                yield done
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(_unreadable(text, file, error)) from error


def _unreadable(text: str, file: str, error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    place = _name(file) if mark is None else f"{_name(file)}, line {mark.line + 1}"
    if "{{" in text:
        return (
            f"{place} is a template of Helm and no YAML yet: render it (helm template CHART | "
            "gpuscale lint -)"
        )
    cause = foreign(getattr(error, "problem", None) or error)
    return f"{place} cannot be read as YAML ({cause}): correct it"


def _name(file: str) -> str:
    return "standard input" if file in ("", "-") else file


@dataclass(slots=True)
class _Open:
    """A mapping or list whose end has not come yet."""

    line: int
    anchor: str | None
    is_map: bool
    key: Node | None = None
    value: Any = None
    children: dict[str | int, Node] = field(default_factory=dict)
    merged: list[Node] = field(default_factory=list)
    size: int = 1


class _Builder:
    """Nodes from events. `take` each event in turn; gives the root of a document that has ended."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._stack: list[_Open] = []
        self._anchors: dict[str, Node] = {}
        self._root: Node | None = None
        self._aliased = 0
        """Values that aliases of this document have stood for so far."""
        self._resolver: Any = Resolver()

    def take(self, event: Any) -> Node | None:
        match event:
            case events.DocumentStartEvent():
                self._stack, self._anchors, self._root, self._aliased = [], {}, None, 0
            case events.DocumentEndEvent():
                return self._root
            case events.MappingStartEvent() | events.SequenceStartEvent():
                self._open(event)
            case events.MappingEndEvent() | events.SequenceEndEvent():
                self._close()
            case events.ScalarEvent():
                self._add(self._keep(event.anchor, self._scalar(event)))
            case events.AliasEvent():
                self._add(self._alias(event))
        return None

    def _open(self, event: Any) -> None:
        if len(self._stack) >= DEPTH_MAX:
            raise self._refused(event, f"is nested more than {DEPTH_MAX} deep")
        is_map = isinstance(event, events.MappingStartEvent)
        self._stack.append(_Open(_line(event), event.anchor, is_map, value={} if is_map else []))

    def _close(self) -> None:
        done = self._stack.pop()
        for source in done.merged:
            for key, child in source.children.items():
                if key not in done.children:
                    done.children[key] = child
                    done.value[key] = child.value
        node = Node(done.line, done.value, done.children, done.size)
        self._add(self._keep(done.anchor, node))

    def _keep(self, anchor: str | None, node: Node) -> Node:
        if anchor is not None:
            self._anchors[anchor] = node
        return node

    def _alias(self, event: Any) -> Node:
        node = self._anchors.get(event.anchor)
        if node is None:
            raise self._refused(
                event, f"has the alias *{event.anchor[:64]}, which stands for nothing or for itself"
            )
        self._aliased += node.size
        if self._aliased > ALIASED_MAX:
            raise self._refused(event, f"expands to more than {ALIASED_MAX} values by its aliases")
        return node

    def _add(self, node: Node) -> None:
        if not self._stack:
            self._root = node
            return
        into = self._stack[-1]
        into.size += node.size
        if into.size > VALUES_MAX:
            raise InputError(
                f"{_name(self._file)}, line {into.line} has more than {VALUES_MAX} values: split it"
            )
        if not into.is_map:
            into.children[len(into.value)] = node
            into.value.append(node.value)
        elif into.key is None:
            into.key = node
        else:
            key, into.key = into.key, None
            self._pair(into, key, node)

    def _pair(self, into: _Open, key: Node, node: Node) -> None:
        if key.value == _MERGE and isinstance(node.value, dict):
            into.merged.append(node)
        elif key.value == _MERGE and isinstance(node.value, list):
            into.merged.extend(c for c in node.children.values() if isinstance(c.value, dict))
        else:
            name = _key_text(key.value)
            # The line of a pair is that of its key: a block that follows begins one further down.
            into.children[name] = Node(key.line, node.value, node.children, node.size)
            into.value[name] = node.value

    def _scalar(self, event: Any) -> Node:
        line, text = _line(event), event.value
        tag = event.tag
        if tag is None or tag == "!":
            tag = self._resolver.resolve(yaml.ScalarNode, text, event.implicit)
        return Node(line, _plain(tag, text), _LEAF)

    def _refused(self, event: Any, fault: str) -> InputError:
        return InputError(f"{_name(self._file)}, line {_line(event)} {fault}: correct it")


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _key_text(value: object) -> str:
    """A key as JSON has it; one that is a list or a mapping is none that an object has."""
    if isinstance(value, str):
        return value
    return json.dumps(value) if isinstance(value, bool | int | float | None) else "?"


_WORDS = {
    **dict.fromkeys(("yes", "true", "on"), True),
    **dict.fromkeys(("no", "false", "off"), False),
}


def _plain(tag: str, text: str) -> Any:
    """The value of a scalar of that tag; the text itself where it is not of its tag's form."""
    match tag.removeprefix("tag:yaml.org,2002:"):
        case "null":
            return None
        case "bool":
            return _WORDS.get(text.lower(), text)
        case "int":
            return _whole(text)
        case "float":
            return _real(text)
        case _:
            return text


def _whole(text: str) -> int | str:
    digits = text.replace("_", "")
    try:
        if digits.lstrip("+-").startswith(("0b", "0x")):
            return int(digits, 0)
        return int(
            digits, 8 if len(digits.lstrip("+-")) > 1 and digits.lstrip("+-")[0] == "0" else 10
        )
    except ValueError:  # sexagesimal, or more digits than Python reads
        return text


def _real(text: str) -> float | str:
    try:
        value = float(text.replace("_", ""))
    except ValueError:
        return text
    return value if math.isfinite(value) else text
