"""The accounts on disk, so that a restart of the exporter starts no counter over.

Written whole beside the old file and moved over it: whoever reads, or loses power, has the one or
the other. A file that cannot be used is named and set aside; the counters then start at zero.
"""

import contextlib
import math
import os
from pathlib import Path

import msgspec

from gpuscale.errors import InputError
from gpuscale.exporter.accounting import Saved

BYTES_MAX = 4 * 1024 * 1024
"""The rows that accounting allows are an eighth of it."""


def load(path: str) -> Saved | None:
    """What was saved; None where there is no file. Raises InputError for one that cannot be used."""
    try:
        with Path(path).open("rb") as file:
            raw = file.read(BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}): check accounting.state_file"
        ) from error
    try:
        saved = msgspec.json.decode(raw, type=Saved)
    except msgspec.DecodeError as error:
        raise InputError(f"{path} is not a file of accounts ({error}): it is set aside") from error
    if len(raw) > BYTES_MAX or not _true(saved):
        raise InputError(f"{path} holds what no account can be: it is set aside")
    return saved


def save(path: str, saved: Saved) -> None:
    """Write it whole or not at all. Raises OSError."""
    target = Path(path)
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with fresh.open("wb") as file:
            file.write(msgspec.json.encode(saved))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(target)
    finally:
        with contextlib.suppress(OSError):
            fresh.unlink()


def set_aside(path: str) -> None:
    """Move a file that cannot be used out of the way, as FILE.unusable."""
    with contextlib.suppress(OSError):
        Path(path).replace(path + ".unusable")


def _true(saved: Saved) -> bool:
    numbers = [saved.at]
    numbers += [seconds for _, seconds in saved.node]
    numbers += [row[-1] for row in saved.namespaces]
    numbers += [joules for _, joules in (*saved.joules, *saved.energy)]
    return all(math.isfinite(number) and number >= 0 for number in numbers)
