"""Reading settings strictly: unknown keys, wrong types and values out of range are refused in one sentence.

`load` reads YAML into a settings type (settings/). Each field's `Meta` carries its range and its description,
from which the error messages, `gpuscale config schema` and docs/configuration.md are made: the
code is the one source.
"""

import re
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import yaml
from msgspec import Meta, Struct

from gpuscale.errors import ConfigError

SETTINGS_BYTES_MAX = 4 * 1024 * 1024
"""A settings file is written by people; beyond this it is a mistake (a log, a dump)."""

T = TypeVar("T")

Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Ratio = Annotated[float, Meta(ge=0, le=1)]
Listen = Annotated[str, Meta(pattern=r"^(\[[0-9a-fA-F:]+\]|[^:\s]*):\d{1,5}$")]
"""HOST:PORT; an empty host means every address; port 0 lets the system choose."""
MetricsPath = Annotated[str, Meta(pattern=r"^/[^\s?#]*$", max_length=256)]
HttpUrl = Annotated[str, Meta(pattern=r"^https?://[^\s]+$", max_length=2048)]
DnsName = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]


class _Yaml(yaml.SafeLoader):
    """YAML with the booleans of version 1.2: `nvml: off` means the word, not false."""


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
        raise ConfigError(f"{where}: {_sentence(error)}") from error


def _sentence(error: msgspec.ValidationError) -> str:
    """msgspec's message with the path first: `periods.fast_s: Expected `float` > 0.0: correct it …`."""
    text = str(error)
    match = re.fullmatch(r"(?s)(.*?)(?: - at `\$\.?(.*)`)?", text)
    message, path = (match.group(1), match.group(2)) if match else (text, None)
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", message)
    if unknown:
        key = f"{path}.{unknown.group(1)}" if path else unknown.group(1)
        return f"unknown key `{key}`: remove it or correct its spelling (`gpuscale config schema` lists every key)"
    missing = re.fullmatch(r"Object missing required field `(.*)`", message)
    if missing:
        key = f"{path}.{missing.group(1)}" if path else missing.group(1)
        return f"key `{key}` is missing: add it"
    if path:
        return f"key `{path}`: {message[:1].lower()}{message[1:]}: correct the value"
    return message


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
    """(host, port) of HOST:PORT; an empty host becomes 0.0.0.0. Raises ConfigError beyond 65535."""
    host, _, port = listen.rpartition(":")
    number = int(port)
    if number > 65_535:
        raise ConfigError(
            f"listen address {listen}: port {number} is above 65535: choose a smaller one"
        )
    return (host.strip("[]") or "0.0.0.0"), number  # noqa: S104 - a daemon in a pod listens on the pod's address
