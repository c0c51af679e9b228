"""Where libnvidia-ml.so.1 lies when the loader does not know: under the root of a driver's own file system.

A container that was not made by the NVIDIA runtime sees the driver only as a folder: the host's
root, or that of the GPU Operator's driver container (`/run/nvidia/driver`). The library needs
nothing but glibc, so its absolute path is enough; a search path would put the host's glibc before
the container's own.
"""

import ctypes
from pathlib import Path

from gpuscale.errors import DriverMissing, foreign

LIBRARY = "libnvidia-ml.so.1"
PLACES = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "lib64",
    "home/kubernetes/bin/nvidia/lib64",
    "opt/nvidia/lib64",
)
"""Debian and Ubuntu, Red Hat and Amazon Linux, others, Debian's alternatives, GKE, Flatcar."""


def preload(root: Path) -> Path:
    """Load the library of the driver below `root`, which pynvml then finds by its name; its path.

    Raises DriverMissing where there is none, or where it cannot be loaded.
    """
    for place in PLACES:
        path = root / place / LIBRARY
        if not path.is_file():
            continue
        try:
            ctypes.CDLL(str(path))
        except OSError as error:
            raise DriverMissing(f"{path} cannot be loaded: {foreign(error)}") from error
        return path
    raise DriverMissing(
        f"there is no {LIBRARY} below {root}: mount the driver's root there (driver_root), "
        "or install the driver"
    )
