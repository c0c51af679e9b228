"""Values of the pure rooms as bytes and back: what a memory knows, what an observation says.

`load(dump(x))` behaves as `x` does, bit for bit: arrays keep their type, shape and order in memory,
and what is one object in two places stays one. Equal values give equal bytes, so that bytes can be
compared instead of values. Nothing but data is stored: a class is named, and only one of this
package is made again, without its constructor.
"""

import importlib
import math
from dataclasses import fields, is_dataclass
from typing import Any, Literal

import msgspec
import numpy as np

from gpuscale.errors import InputError

PACKAGE = "gpuscale.controller."
"""Only classes from here are stored and made again."""

ITEMS_MAX = 1_000_000
"""Values of one dump: a memory has some hundred, an observation of ten thousand workloads two per
workload. More is not ours."""

DEPTH_MAX = 20
"""Values within values; a memory has six levels."""

_KINDS = "biuf"
"""Arrays of truth values and numbers."""


def dump(value: object) -> bytes:
    """The value as bytes. Raises TypeError for what is not data of the pure rooms."""
    return msgspec.msgpack.encode(_Dumper().plain(value))


def load(raw: bytes) -> Any:
    """The value that `dump` wrote. Raises InputError where the bytes are damaged or of another version."""
    try:
        return _Loader().value(msgspec.msgpack.decode(raw), 0)
    except (msgspec.DecodeError, RecursionError, *_DAMAGES) as error:
        raise InputError(
            f"what was stored cannot be read back ({type(error).__name__}): it is damaged, or was "
            "written by another version of gpuscale"
        ) from error


_DAMAGES = (
    AttributeError,
    ImportError,
    IndexError,
    KeyError,
    OverflowError,
    TypeError,
    ValueError,
)
"""What reading damaged bytes can come to."""


def size(value: object) -> int:
    """Bytes of the arrays within a value: about what its dump takes."""
    return _Dumper().size(value)


_NAMES = {
    "n": "number",
    "t": "tuple",
    "r": "again",
    "a": "array",
    "l": "list",
    "d": "table",
    "o": "object",
}
"""What a list in a dump stands for, by its first item."""


class _Dumper:
    def __init__(self) -> None:
        self._met: dict[int, int] = {}
        self._kept: list[object] = []
        """What was met, so that no address is given to another object meanwhile."""

    def plain(self, value: object) -> object:
        if value is None or isinstance(value, bool | int | float | str | bytes):
            return value
        if isinstance(value, np.generic):
            return ["n", value.dtype.str, value.tobytes()]
        if isinstance(value, tuple):
            return ["t", [self.plain(item) for item in value]]
        if id(value) in self._met:
            return ["r", self._met[id(value)]]
        self._met[id(value)] = len(self._kept)
        self._kept.append(value)
        return self._container(value)

    def _container(self, value: object) -> object:
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, list):
            return ["l", [self.plain(item) for item in value]]
        if isinstance(value, dict):
            return ["d", [[self.plain(k), self.plain(v)] for k, v in value.items()]]
        kind = type(value)
        if not kind.__module__.startswith(PACKAGE):
            raise TypeError(f"{kind.__module__}.{kind.__qualname__} is no data of the pure rooms")
        name = f"{kind.__module__.removeprefix(PACKAGE)}:{kind.__qualname__}"
        return ["o", name, [[key, self.plain(item)] for key, item in _attributes(value)]]

    @staticmethod
    def _array(value: "np.ndarray[Any, Any]") -> object:
        if value.dtype.kind not in _KINDS:
            raise TypeError(f"an array of {value.dtype} is no data of the pure rooms")
        order: Literal["C", "F"] = (
            "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
        )
        return ["a", value.dtype.str, list(value.shape), order, value.tobytes(order)]

    def size(self, value: object) -> int:
        if isinstance(value, np.ndarray):
            return value.nbytes
        if isinstance(value, dict):
            return sum(self.size(item) for item in value.values())
        if isinstance(value, tuple | list):
            return sum(self.size(item) for item in value)
        if type(value).__module__.startswith(PACKAGE):
            return sum(self.size(item) for _, item in _attributes(value))
        return 0


class _Loader:
    def __init__(self) -> None:
        self._met: list[Any] = []
        self._items = 0

    def value(self, plain: Any, depth: int) -> Any:
        self._items += 1
        if self._items > ITEMS_MAX or depth > DEPTH_MAX:
            raise ValueError("too many values, or too deep")
        if not isinstance(plain, list):
            return plain
        kind, *rest = plain
        return getattr(self, f"_{_NAMES[kind]}")(*rest, depth + 1)

    def _number(self, dtype: str, raw: bytes, _: int) -> Any:
        return np.frombuffer(raw, dtype=_dtype(dtype))[0]

    def _tuple(self, items: list[Any], depth: int) -> tuple[Any, ...]:
        return tuple(self.value(item, depth) for item in items)

    def _again(self, place: int, _: int) -> Any:
        return self._met[place]

    def _array(self, dtype: str, shape: list[int], order: str, raw: bytes, _: int) -> Any:
        return self._remember(_array(dtype, shape, order, raw))

    def _list(self, plain: list[Any], depth: int) -> list[Any]:
        items: list[Any] = self._remember([])
        items.extend(self.value(item, depth) for item in plain)
        return items

    def _table(self, plain: list[Any], depth: int) -> dict[Any, Any]:
        table: dict[Any, Any] = self._remember({})
        for key, item in plain:
            table[self.value(key, depth)] = self.value(item, depth)
        return table

    def _object(self, name: str, plain: list[Any], depth: int) -> object:
        made: object = self._remember(object.__new__(_class(name)))
        for attribute, item in plain:
            object.__setattr__(made, attribute, self.value(item, depth))
        return made

    def _remember(self, value: Any) -> Any:
        self._met.append(value)
        return value


def _array(dtype: str, shape: list[int], order: str, raw: bytes) -> "np.ndarray[Any, Any]":
    kind = _dtype(dtype)
    if math.prod(shape) * kind.itemsize != len(raw) or order not in {"C", "F"}:
        raise ValueError("an array of another size")
    flat = np.frombuffer(raw, dtype=kind)
    # A copy, since what was read from bytes cannot be written to.
    return flat.reshape(shape, order="F" if order == "F" else "C").copy(order="K")


def _dtype(name: str) -> "np.dtype[Any]":
    kind = np.dtype(name)
    if kind.kind not in _KINDS:
        raise ValueError(f"no array of {name}")
    return kind


def _class(name: str) -> type:
    module, colon, qualified = name.partition(":")
    if not colon:
        raise ValueError(f"{name} names no class")
    found: Any = importlib.import_module(PACKAGE + module)
    for part in qualified.split("."):
        found = getattr(found, part)
    if not (isinstance(found, type) and found.__module__.startswith(PACKAGE)):
        raise ValueError(f"{name} is no class of the pure rooms")
    return found


def _attributes(value: object) -> list[tuple[str, object]]:
    """(name, value) of everything that an object holds, in a fixed order."""
    if is_dataclass(value):
        return [(f.name, getattr(value, f.name)) for f in fields(value)]
    names = set(getattr(value, "__dict__", ()))
    for kind in type(value).__mro__:
        slots = getattr(kind, "__slots__", ())
        names |= {slots} if isinstance(slots, str) else set(slots)
    return [(name, getattr(value, name)) for name in sorted(names) if hasattr(value, name)]
