"""Reading settings strictly: unknown keys, wrong types and values out of range are refused in one sentence.

`load` reads YAML into a settings type (settings/). Each field's `Meta` carries its range and its description,
from which the error messages, `gpuscale config schema` and docs/configuration.md are made: the
code is the one source.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import yaml
from msgspec import Meta, Struct, inspect

from gpuscale.errors import ConfigError, foreign

SETTINGS_BYTES_MAX = 4 * 1024 * 1024
"""A settings file is written by people; beyond this it is a mistake (a log, a dump)."""

T = TypeVar("T")

Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Ratio = Annotated[float, Meta(ge=0, le=1)]
WANTED = "wanted"
"""Key in a Meta's `extra`: what a pattern asks for, in words, since errors are read by people."""
_PORT = r"(\d{1,4}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d{2}|655[0-2]\d|6553[0-5])"
Listen = Annotated[
    str,
    Meta(
        pattern=rf"^(\[[0-9a-fA-F:]+\]|[^:\s]*):{_PORT}$",
        extra={WANTED: "HOST:PORT or :PORT with a port up to 65535, such as :9400"},
    ),
]
"""HOST:PORT; an empty host means every address; port 0 lets the system choose."""
MetricsPath = Annotated[
    str,
    Meta(
        pattern=r"^/[^\s?#]*$", max_length=256, extra={WANTED: "a path that begins with /"},
    ),
]  # fmt: skip
HttpUrl = Annotated[
    str,
    Meta(
        pattern=r"^https?://[^\s]+$", max_length=2048,
        extra={WANTED: "an address that begins with http:// or https://"},
    ),
]  # fmt: skip
DnsName = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253,
        extra={WANTED: "a Kubernetes name: lower-case letters, digits, '-' and '.'"},
    ),
]  # fmt: skip


class _Yaml(yaml.SafeLoader):
    """YAML with the booleans of version 1.2 (`nvml: off` means the word, not false), each key once."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """A key that stands twice is refused: YAML would silently take the last one."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.MarkedYAMLError(
                    problem=f"key `{foreign(key.value)}` stands twice", problem_mark=key.start_mark
                )
            seen.add(key.value)
        return node


_Yaml.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if tag != "tag:yaml.org,2002:bool"]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Yaml.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)


class Strict(Struct, frozen=True, forbid_unknown_fields=True):
    """A settings struct: frozen, and an unknown key is an error."""


def convert(data: object, kind: type[T], *, where: str) -> T:
    """Validate builtin data as `kind`; ConfigError names the path below `where`, the fault and the cure."""
    try:
        return msgspec.convert(data, kind, strict=True)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {_sentence(str(error), data, kind)}") from error


def _sentence(text: str, data: object, kind: type) -> str:
    """msgspec's message on `data`, with the whole path first, in the words of who writes the file."""
    match = re.fullmatch(r"(?s)(.*?)(?: - at (`key` in )?`\$\.?(.*)`)?", text)
    assert match is not None  # every part but the first is optional
    message, of_key, raw = match.groups()
    path, value, wanted = _place(raw or "", data, kind)
    if of_key:
        return f"a key{f' of `{path}`' if path else ''} is no text: put it in quotes"
    for begin, cure in (
        ("Object contains unknown field", "unknown key `{}`: remove it or correct its spelling "
         "(docs/configuration.md lists every key)"),
        ("Object missing required field", "key `{}` is missing: add it"),
    ):  # fmt: skip
        if named := re.fullmatch(f"{begin} `(.*)`", message):
            return cure.format(foreign(f"{path}.{named[1]}" if path else named[1]))
    head = f"key `{path}`: " if path else ""
    if wanted and message.startswith("Invalid enum value"):
        return f"{head}{foreign(repr(value))} is not {wanted}: correct the value"
    if wanted and message.startswith("Expected `str` matching regex"):
        # What stands there instead is not repeated: it may be an address with a password in it.
        return f"{head}expected {wanted}: correct the value"
    if message.startswith(("Expected", "Invalid")):
        message = message.replace("object", "mapping").replace("array", "list")
        return f"{head}{message[0].lower()}{message[1:]}: correct the value"
    return head + message  # a sentence of the settings themselves, which names its cure


def _place(raw: str, data: object, kind: type) -> tuple[str, object, str | None]:
    """(path, value there, what is wanted there) of msgspec's path, which says `[...]` for the name in a map."""
    path, node = "", inspect.type_info(kind)
    for step in re.findall(r"\[\d+\]|\[\.\.\.\]|[^.\[\]]+", raw):
        node = _inner(node)
        if step == "[...]" and isinstance(data, Mapping) and isinstance(node, inspect.DictType):
            node = node.value_type
            name = next((key for key, value in data.items() if not _fits(value, node)), None)
            data = None if name is None else data[name]
            path += f".{foreign(name)}" if name is not None else step
        elif isinstance(node, inspect.StructType):
            node = next(f.type for f in node.fields if f.encode_name == step)
            data = data.get(step) if isinstance(data, Mapping) else None
            path += f".{step}" if path else step
        else:
            if isinstance(node, inspect.ListType | inspect.VarTupleType):
                node = node.item_type
            data = data[int(step[1:-1])] if isinstance(data, Sequence) else None
            path += step
    return path, data, _wanted(node)


def _inner(node: inspect.Type) -> inspect.Type:
    """The type without its annotations and without the null that may stand for it."""
    while isinstance(node, inspect.Metadata | inspect.UnionType):
        if isinstance(node, inspect.Metadata):
            node = node.type
        else:
            node = next(t for t in node.types if not isinstance(t, inspect.NoneType))
    return node


def _fits(value: object, node: inspect.Type) -> bool:
    struct = _inner(node)
    if not isinstance(struct, inspect.StructType):
        return True
    try:
        msgspec.convert(value, struct.cls, strict=True)
    except msgspec.ValidationError:
        return False
    return True


def _wanted(node: inspect.Type) -> str | None:
    """What may stand there, in words; None where the type alone says it."""
    while isinstance(node, inspect.Metadata | inspect.UnionType):
        if isinstance(node, inspect.Metadata) and node.extra and WANTED in node.extra:
            return str(node.extra[WANTED])
        if isinstance(node, inspect.Metadata):
            node = node.type
        else:
            node = next(t for t in node.types if not isinstance(t, inspect.NoneType))
    if isinstance(node, inspect.LiteralType):
        return "one of " + ", ".join(map(str, node.values))
    return None


def load(path: str | Path | None, kind: type[T]) -> T:
    """Settings from a YAML file; the defaults where `path` is None.

    Raises ConfigError, one sentence with the file, the key and the cure, for a missing or
    unreadable file, for what is not YAML, and for anything that `kind` does not allow.
    """
    if path is None:
        return convert({}, kind, where="settings")
    file = Path(path)
    try:
        with file.open("rb") as stream:
            raw = stream.read(SETTINGS_BYTES_MAX + 1)
    except FileNotFoundError as error:
        raise ConfigError(f"{file}: no such file: create it or correct --config") from error
    except OSError as error:
        raise ConfigError(
            f"{file}: cannot be read ({error.strerror}): check its permissions"
        ) from error
    if len(raw) > SETTINGS_BYTES_MAX:
        raise ConfigError(
            f"{file}: larger than {SETTINGS_BYTES_MAX} bytes: this is not a settings file"
        )
    try:
        data = yaml.load(raw, Loader=_Yaml)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "not readable as text"
        raise ConfigError(f"{file}: not valid YAML{place} ({problem}): correct the file") from error
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ConfigError(
            f"{file}: expected keys and values at the top, found a {type(data).__name__}: see docs/configuration.md"
        )
    return convert(data, kind, where=str(file))


def split_listen(listen: str) -> tuple[str, int]:
    """(host, port) of a `Listen`; an empty host becomes 0.0.0.0."""
    host, _, port = listen.rpartition(":")
    return (host.strip("[]") or "0.0.0.0"), int(port)  # noqa: S104 - a daemon in a pod listens on the pod's address
