"""Decisions again: what entered a tick, as bytes on a tape, and the tick run once more.

`decide` is a function of the observation and the memory, so a decision is reproduced exactly by the
memory that some earlier tick began with and by everything that entered since. A segment of the tape
is that: a memory, then one entry per tick. An entry is stored as its difference from the one before
(most of it repeats), beside the fingerprint of what was decided.
"""

import hashlib
import platform
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from gpuscale import __version__
from gpuscale.controller import decide, state
from gpuscale.controller.domain import FleetDecision, FleetObservation, Past
from gpuscale.errors import InputError

FINGERPRINT_BYTES = 16
"""Of everything that one tick decided, for all workloads together."""

ENTRY_BYTES_MAX = 512 * 2**20
"""Of one entry, read back: more is no entry, and would fill the memory."""

_LEVEL = 1
"""Of zlib: the differences are mostly zeros, which the fastest level takes out as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Everything that entered one tick, in the order in which it did."""

    observation: FleetObservation
    set_back: tuple[float, bool] | None = None
    """The clock was set back before: by how many seconds, and whether the memory began anew."""
    pasts: tuple[Past, ...] = ()
    """Entered before the decision."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """By what a segment was decided: elsewhere the last digit of a sum may differ."""

    tick_s: float
    version: str = __version__
    numpy: str = np.__version__
    python: str = platform.python_version()
    machine: str = platform.machine()

    def check(self) -> None:
        """Raises InputError where this is another gpuscale, which may decide otherwise."""
        if self.version != __version__:
            raise InputError(
                f"these ticks were decided by gpuscale {self.version}, and this is {__version__}: "
                "replay them with that version"
            )

    @property
    def elsewhere(self) -> str:
        """How the surroundings differ from these here; empty where they do not."""
        here = Header(tick_s=self.tick_s)
        names = ("numpy", "python", "machine")
        return ", ".join(
            f"{name} {getattr(self, name)} instead of {getattr(here, name)}"
            for name in names
            if getattr(self, name) != getattr(here, name)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One entry as it is stored."""

    body: bytes
    fingerprint: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One tick, decided again."""

    decided: decide.Decided
    same: bool
    """Whether everything that was decided is the same as then, bit for bit."""


class Tape:
    """Writes entries of one segment, each as its difference from the one before."""

    def __init__(self) -> None:
        self._before = b""

    def frame(self, entry: Entry, decided: FleetDecision) -> Frame:
        """The entry, and the fingerprint of what was decided from it."""
        raw = state.dump(entry)
        body = zlib.compress(_difference(raw, self._before), _LEVEL)
        self._before = raw
        return Frame(body=body, fingerprint=fingerprint(decided))


def fingerprint(decided: FleetDecision) -> bytes:
    """FINGERPRINT_BYTES of all that was decided; differs where anything does."""
    return hashlib.blake2b(state.dump(decided), digest_size=FINGERPRINT_BYTES).digest()


def packed(memory: decide.Memory) -> bytes:
    """A memory, compressed; `unpacked` gives one back that decides the same."""
    return zlib.compress(state.dump(memory), _LEVEL)


def unpacked(raw: bytes) -> decide.Memory:
    """The memory that `packed` wrote. Raises InputError."""
    memory = state.load(_inflated(raw))
    if not isinstance(memory, decide.Memory):
        raise InputError(
            "what was stored is no memory: it was written by another version of gpuscale"
        )
    return memory


def replayed(header: Header, memory: bytes | None, frames: Iterable[Frame]) -> Iterator[Replayed]:
    """Decide a segment again; `memory` is what it began with, None for one that knew nothing.

    Raises InputError where the segment is of another version of gpuscale, or damaged.
    """
    header.check()
    mind = decide.initial_memory((), header.tick_s) if memory is None else unpacked(memory)
    before = b""
    for frame in frames:
        before = _difference(_inflated(frame.body), before)
        entry = state.load(before)
        if not isinstance(entry, Entry):
            raise InputError(
                "what was stored is no tick: it is damaged, or was written by another version of gpuscale"
            )
        decided, mind = again(entry, mind)
        yield Replayed(decided=decided, same=fingerprint(decided) == frame.fingerprint)


def again(entry: Entry, memory: decide.Memory) -> tuple[decide.Decided, decide.Memory]:
    """Do what the controller did at one tick. The memory that goes in is consumed."""
    if entry.set_back is not None:
        back_s, anew = entry.set_back
        memory = decide.set_back(memory, back_s, anew=anew)
    memory = decide.align(memory, entry.observation.keys)
    for past in entry.pasts:
        memory = decide.backfill(memory, past.key, past.times, past.demand, past.step_s)
    return decide.decide(entry.observation, memory)


def _difference(raw: bytes, before: bytes) -> bytes:
    """Where the two differ, for bytes of one length; else `raw` itself. Its own inverse."""
    if len(raw) != len(before):
        return raw
    return (np.frombuffer(raw, np.uint8) ^ np.frombuffer(before, np.uint8)).tobytes()


def _inflated(raw: bytes) -> bytes:
    try:
        stream = zlib.decompressobj()
        out = stream.decompress(raw, ENTRY_BYTES_MAX)
    except zlib.error as error:
        raise InputError(f"what was stored is damaged ({error})") from error
    if stream.unconsumed_tail or not stream.eof:
        raise InputError("what was stored is damaged: it does not end")
    return out
