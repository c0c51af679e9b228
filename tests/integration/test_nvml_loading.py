"""The driver's library below a mounted root: a container that the NVIDIA runtime did not make."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpuscale.errors import DriverMissing
from gpuscale.exporter.nvml.loading import LIBRARY, PLACES, preload
from tests.fakes.nvml_library import LIBRARY_MARKS, STATE_VARIABLE, FakeNvml, build

pytestmark = LIBRARY_MARKS

COUNT = """
import sys
from pathlib import Path
from gpuscale.exporter.nvml import NvmlDriver
driver = NvmlDriver(root=Path(sys.argv[1]))
driver.open()
driver.open()
print(len(driver.devices()))
"""


@pytest.mark.parametrize("place", PLACES)
def test_the_gpus_are_seen_through_the_root_of_the_driver(place: str, tmp_path: Path) -> None:
    """Without a search path: whose folder it is, nothing else of it may be loaded."""
    machine = FakeNvml(tmp_path / "nvml.state", count=3)
    folder = tmp_path / "root" / place
    folder.mkdir(parents=True)
    shutil.copy(build() / LIBRARY, folder / LIBRARY)
    done = subprocess.run(
        [sys.executable, "-c", COUNT, str(tmp_path / "root")],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            STATE_VARIABLE: str(machine.state),
        },
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stdout.strip() == "3", done.stderr


def test_a_root_without_a_driver_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DriverMissing, match=f"no {LIBRARY} below {tmp_path}.*driver_root"):
        preload(tmp_path)


def test_a_library_that_is_none_is_named(tmp_path: Path) -> None:
    folder = tmp_path / PLACES[0]
    folder.mkdir(parents=True)
    (folder / LIBRARY).write_text("not a library")
    with pytest.raises(DriverMissing, match=str(folder / LIBRARY)):
        preload(tmp_path)
