"""The driver's sample buffers, read into memory of our own.

Up to a hundred samples a second and GPU: pynvml makes an object of each and asks twice for every
read, which is more than all other work of a cycle together. Here one call fills a buffer that is
kept, and its numbers are unpacked at once.
"""

import ctypes
import struct
from typing import Any

from gpuscale.exporter import nvmlreturn
from gpuscale.exporter.nvml.call import Handle, code_of

SAMPLES_MAX = 4_096
"""Of one buffer; drivers hold some hundred."""

_FUNCTION = "nvmlDeviceGetSamples"
_SAMPLE_BYTES = 16
_FORMATS = ("Qd", "QI4x", "QL", "QQ", "Qq", "Qi4x", "QH6x")
"""Layout of nvmlSample_t by nvmlValueType_t: a time stamp in µs, and the union's member."""


class SampleReader:
    """Reads one kind of samples (nvmlSamplingType_t) of one GPU.

    Not to be read by two threads at a time; another one may `forget` meanwhile, as an enumeration does.
    """

    def __init__(self, handle: Handle, kind: int) -> None:
        self._handle = handle
        self._kind = ctypes.c_uint(kind)
        self._type = ctypes.c_uint()
        self._count = ctypes.c_uint()
        self._kept: tuple[Any, int] | None = None
        """The buffer, and how many samples it holds."""

    def read(self, since_us: int) -> list[tuple[int, float]]:
        """(time stamp in µs, number) of each sample younger than `since_us`. Raises as `Handle.ask` does."""
        kept = self._kept
        if kept is None:
            self._ask(since_us, None)
            room = min(int(self._count.value), SAMPLES_MAX)
            kept = (ctypes.create_string_buffer(max(1, room) * _SAMPLE_BYTES), room)
            self._kept = kept
        buffer, room = kept
        self._count.value = room
        self._ask(since_us, buffer)
        count, kind = min(int(self._count.value), room), int(self._type.value)
        if not 0 <= kind < len(_FORMATS):
            return []
        flat = struct.unpack_from("@" + _FORMATS[kind] * count, buffer)
        return list(zip(flat[::2], map(float, flat[1::2]), strict=True))

    def forget(self) -> None:
        """Another session may hold more samples: ask anew for how many."""
        self._kept = None

    def _ask(self, since_us: int, out: Any) -> None:
        subject = self._handle.subject
        code = code_of(
            _FUNCTION,
            self._handle.raw,
            self._kind,
            ctypes.c_ulonglong(since_us),
            ctypes.byref(self._type),
            ctypes.byref(self._count),
            out,
            subject=subject,
        )
        if code != nvmlreturn.SUCCESS:
            raise nvmlreturn.as_error(f"{subject}: {_FUNCTION}", code)
