"""A libnvidia-ml.so.1 without a GPU: built from tests/fakes/nvml, loaded by the real pynvml, steered by a file.

`FakeNvml` is one machine: its `environment` makes a process load the library and read the machine's
state; every change is written as a whole new file, which the library sees at its next call, also
in a process that is running. Build it once per set of exported functions; a test that uses it is
in a module with `pytestmark = LIBRARY_MARKS`.
"""

import ctypes
import functools
import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest

from tests.tools import compiler, requires

SOURCE = Path(__file__).parent / "nvml"
SONAME = "libnvidia-ml.so.1"
STATE_VARIABLE = "GPUSCALE_FAKE_NVML_STATE"
OWN = "fake_nvml_*"
"""The functions that no NVML has: the sizes of the structs, for a test to compare, and what is lent."""
BUILD_S_MAX = 60.0

EVERY = "*"
"""The system, or every device."""

LIBRARY_MARKS = [pytest.mark.compiler, requires("compiler")]
"""For a module's `pytestmark`: skips where there is no C compiler, and says how to get one."""

Test = TypeVar("Test", bound=Callable[..., object])


def requires_library(test: Test) -> Test:
    """The same for one test."""
    for mark in LIBRARY_MARKS:
        test = mark(test)
    return test


def exported() -> frozenset[str]:
    """Names of the NVML functions that the source defines."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(SOURCE.glob("*.c")))
    return frozenset(re.findall(r"^[a-z].*?\b\*?(nvml[A-Z]\w*)\(", text, re.MULTILINE))


@functools.cache
def build(without: frozenset[str] = frozenset()) -> Path:
    """Build the library, leaving out functions as an older driver would; the folder it lies in.

    Built once per process and set, in a folder of its own under the system's temporary folder.
    """
    found = compiler()
    if found is None:
        pytest.skip("a C compiler is missing: apt-get install gcc, or set CC")
    unknown = without - exported()
    if unknown:
        raise ValueError(f"the library has no {', '.join(sorted(unknown))} to leave out")
    # Kept by the cache of this function for as long as the process lives, and removed with it.
    folder = Path(_folders.enter())
    script = folder / "exports.map"
    names = "; ".join(sorted((exported() - without) | {OWN}))
    script.write_text(f"{{ global: {names}; local: *; }};\n", encoding="utf-8")
    command = [
        str(found),
        *("-std=c11", "-D_DEFAULT_SOURCE", "-Wall", "-Wextra", "-Werror", "-O1"),
        *("-shared", "-fPIC", f"-Wl,-soname,{SONAME}", f"-Wl,--version-script={script}"),
        *("-o", str(folder / SONAME)),
        *map(str, sorted(SOURCE.glob("*.c"))),
        "-lpthread",
        "-lm",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S_MAX, check=False)
    if done.returncode:
        raise AssertionError(f"the fake library does not build:\n{done.stderr}")
    return folder


class _Folders:
    """Temporary folders that live as long as the process."""

    def __init__(self) -> None:
        self._kept: list[tempfile.TemporaryDirectory[str]] = []

    def enter(self) -> str:
        folder = tempfile.TemporaryDirectory(prefix="gpuscale-fake-nvml-")
        self._kept.append(folder)
        return folder.name


_folders = _Folders()


def preload() -> ctypes.CDLL:
    """Load the whole library into this process, where pynvml then finds it by its soname."""
    return ctypes.CDLL(str(build() / SONAME))


@dataclass
class Fault:
    """What one function does on one device, or on all."""

    code: int = 0
    delay_ms: int = 0
    hang: bool = False


@dataclass
class FakeNvml:
    """One machine. What is not said is what a healthy board says (see nvml/state.c for the keys)."""

    state: Path
    """The state file; its folder must exist."""
    count: int = 1
    without: frozenset[str] = frozenset()
    """Functions that the library of this machine lacks."""
    _system: dict[str, str] = field(default_factory=dict)
    _devices: dict[int, dict[str, str]] = field(default_factory=dict)
    _listed: dict[int, dict[str, str]] = field(default_factory=dict)
    _xids: list[tuple[int, int]] = field(default_factory=list)
    _faults: dict[tuple[str, str], Fault] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.system(count=self.count)

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to find this machine."""
        return {"LD_LIBRARY_PATH": str(build(self.without)), STATE_VARIABLE: str(self.state)}

    def system(self, **values: object) -> None:
        """Set values of the system: count, driver_version, nvml_version, cuda_version."""
        self._system.update({key: str(value) for key, value in values.items()})
        self._write()

    def device(self, index: int, **values: object) -> None:
        """Set values of a device: utilization, memory_used, power_mw, lost, … (None: healthy again)."""
        kept = self._devices.setdefault(index, {})
        for key, value in values.items():
            if value is None:
                kept.pop(key, None)
            else:
                kept[key] = str(value)
        self._write()

    def samples(
        self, index: int, gpu: list[tuple[int, int]], memory: list[tuple[int, int]]
    ) -> None:
        """Set the sample buffers themselves: (wall time in µs, per cent), in place of passing time."""
        self.device(
            index,
            samples=" ".join(f"{at}:{value}" for at, value in gpu),
            memory_samples=" ".join(f"{at}:{value}" for at, value in memory),
        )

    def field(
        self, index: int, number: int, value: int, *, scope: int = -1, kind: int = 3, code: int = 0
    ) -> None:
        """Set what comes by number: `kind` is the nvmlValueType_t (3: 64 bits), `code` its return."""
        place = str(number) if scope < 0 else f"{number}:{scope}"
        self._list(index, f"field {place}", f"{kind} {value} {code}")

    def gpm(self, index: int, number: int, value: float, *, gpu_instance: int = -1) -> None:
        """Set a GPM metric, of the whole GPU or of one GPU instance."""
        place = str(number) if gpu_instance < 0 else f"{number}@{gpu_instance}"
        self._list(index, f"gpm {place}", repr(value))

    def mig(
        self,
        index: int,
        place: int,
        uuid: str,
        *,
        gpu_instance: int,
        compute_instance: int = 0,
        name: str = "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        slices: int = 1,
        compute_slices: int = 1,
        memory_total: int = 9_984 << 20,
        memory_used: int = 0,
    ) -> None:
        """Put a MIG instance into a place of a GPU (`device(index, mig_mode=1)` switches MIG on)."""
        ids = f"{gpu_instance} {compute_instance} {slices} {compute_slices}"
        self._list(index, f"mig {place}", f"{uuid} {ids} {memory_total} {memory_used} {name}")

    def without_mig(self, index: int) -> None:
        """Take every instance of a GPU away."""
        listed = self._listed.get(index, {})
        self._listed[index] = {k: v for k, v in listed.items() if not k.startswith("mig ")}
        self._write()

    def process(
        self,
        index: int,
        pid: int,
        used: int = -1,
        *,
        gpu_instance: int = -1,
        compute_instance: int = -1,
        mps: bool = False,
    ) -> None:
        """Let a process run; used -1: the driver does not tell."""
        key = f"{'mps_process' if mps else 'process'} {pid}"
        self._list(index, key, f"{used} {gpu_instance} {compute_instance}")

    def process_sample(self, index: int, pid: int, at_us: int, sm: int, memory: int = 0) -> None:
        """Put a sample into the buffer of what processes used."""
        self._list(index, f"process_sample {pid} {at_us}", f"{sm} {memory}")

    def xid(self, index: int, xid: int) -> None:
        """Let the driver announce an error once more."""
        self._xids.append((index, xid))
        self._write()

    def _list(self, index: int, key: str, value: str) -> None:
        self._listed.setdefault(index, {})[key] = value
        self._write()

    def fail(
        self,
        function: str,
        code: int = 0,
        *,
        device: int | str = EVERY,
        delay_ms: int = 0,
        hang: bool = False,
    ) -> None:
        """Let a function (`*`: every one) answer `code`, late, or not at all until `heal`."""
        if function not in exported() | {"*"}:
            raise ValueError(f"the library has no {function}: nothing would fail")
        self._faults[str(device), function] = Fault(code=code, delay_ms=delay_ms, hang=hang)
        self._write()

    def heal(self) -> None:
        """End every fault; calls that hang return."""
        self._faults.clear()
        self._write()

    def unload(self) -> None:
        """Take the driver away: nothing can be opened until the next change."""
        self.state.unlink(missing_ok=True)

    def _write(self) -> None:
        lines = [f"system {key} {value}" for key, value in self._system.items()]
        for index, values in self._devices.items():
            lines += [f"{index} {key} {value}" for key, value in values.items()]
        for index, values in self._listed.items():
            lines += [f"{index} {key} {value}" for key, value in values.items()]
        lines += [f"{index} xid {xid}" for index, xid in self._xids]
        for (device, function), fault in self._faults.items():
            if fault.code:
                lines.append(f"{device} return {function} {fault.code}")
            if fault.delay_ms:
                lines.append(f"{device} delay_ms {function} {fault.delay_ms}")
            if fault.hang:
                lines.append(f"{device} hang {function} 1")
        # A reader sees the old file or the new one, never a half: the name is moved at once.
        handle, name = tempfile.mkstemp(dir=self.state.parent, prefix=".nvml-")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        Path(name).replace(self.state)
