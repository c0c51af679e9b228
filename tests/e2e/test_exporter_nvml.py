"""The exporter as a process on the real pynvml: what a scrape shows while GPUs work, fall off the bus and hang."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fakes.nvml_library import LIBRARY_MARKS, FakeNvml

pytestmark = [*LIBRARY_MARKS, pytest.mark.timeout(90)]

SETTINGS = """
periods: {fast_s: 0.1, medium_s: 0.2, slow_s: 0.5}
call_deadline_s: 0.5
pod_resources: {enabled: false}
"""


class Exporter:
    """`gpuscale exporter` on one machine."""

    def __init__(self, machine: FakeNvml, settings: Path) -> None:
        settings.write_text(SETTINGS)
        command = ["exporter", "--config", str(settings), "--listen", "127.0.0.1:0"]
        self.child = subprocess.Popen(
            [sys.executable, "-m", "gpuscale", *command],
            stderr=subprocess.PIPE,
            text=True,
            env={"PATH": os.environ["PATH"], **machine.environment},
        )
        assert self.child.stderr is not None
        self.url = ""
        for line in self.child.stderr:
            entry = json.loads(line)
            if entry["event"] == "listening":
                self.url = f"http://{entry['host']}:{entry['port']}"
                break
        assert self.url, "it ended without listening"

    def values(self) -> dict[str, float]:
        """Series (as written on the page) to value."""
        try:
            with urllib.request.urlopen(self.url + "/metrics", timeout=5) as response:
                page: str = response.read().decode()
        except urllib.error.HTTPError:
            return {}
        rows = [line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#")]
        return {series: float(value) for series, value in rows}

    def until(self, true: Callable[[dict[str, float]], bool], what: str) -> dict[str, float]:
        """Scrape until `true` holds."""
        give_up = time.monotonic() + 15
        while time.monotonic() < give_up:
            values = self.values()
            if values and true(values):
                return values
            time.sleep(0.05)
        raise AssertionError(f"it never came to: {what}")


@contextlib.contextmanager
def exporter(machine: FakeNvml, folder: Path) -> Iterator[Exporter]:
    running = Exporter(machine, folder / "exporter.yaml")
    try:
        yield running
        running.child.terminate()
        running.child.communicate(timeout=10)
        assert running.child.returncode == 0
    finally:
        if running.child.poll() is None:
            running.child.kill()
            running.child.communicate()


def series(machine_index: int, family: str, **labels: str) -> str:
    own = {"gpu": str(machine_index), "uuid": f"GPU-{machine_index}", **labels}
    return family + "{" + ",".join(f'{name}="{value}"' for name, value in sorted(own.items())) + "}"


def machine(folder: Path, gpus: int) -> FakeNvml:
    fake = FakeNvml(folder / "nvml.state", count=gpus)
    for index in range(gpus):
        fake.device(index, uuid=f"GPU-{index}")
    return fake


def test_what_the_driver_says_is_what_a_scrape_shows(tmp_path: Path) -> None:
    fake = machine(tmp_path, 2)
    fake.device(0, utilization=80, power_mw=512_500, memory_temperature_return=3)
    fake.device(1, utilization=0)
    ratio = series(0, "gpuscale_gpu_utilization_ratio")
    with exporter(fake, tmp_path) as running:
        page = running.until(lambda v: v.get(ratio) == pytest.approx(0.8), "80 % busy")
        assert page["gpuscale_nvml_up"] == 1
        assert page["gpuscale_gpus_detected"] == 2
        assert page[series(0, "gpuscale_gpu_power_watts")] == 512.5
        assert page[series(1, "gpuscale_gpu_utilization_ratio")] == 0
        assert series(0, "gpuscale_gpu_temperature_celsius", sensor="gpu") in page
        assert series(0, "gpuscale_gpu_temperature_celsius", sensor="memory") not in page
        assert series(1, "gpuscale_gpu_temperature_celsius", sensor="memory") in page


def test_the_rate_of_busy_seconds_is_the_utilization_at_any_scrape_interval(tmp_path: Path) -> None:
    """Two scrapes, however far apart: their difference over their distance is what the GPU did."""
    fake = machine(tmp_path, 1)
    fake.device(0, utilization=60)
    busy = series(0, "gpuscale_gpu_busy_seconds_total")
    with exporter(fake, tmp_path) as running:
        first = running.until(lambda v: v.get(busy, 0) > 0.3, "some busy time")[busy]
        began = time.monotonic()
        fake.device(0, utilization=20)
        time.sleep(2.0)
        wall_s = time.monotonic() - began
        rate = (running.values()[busy] - first) / wall_s
        assert 0.14 < rate < 0.30


def test_a_gpu_that_falls_off_the_bus_is_down_and_comes_back_as_itself(tmp_path: Path) -> None:
    fake = machine(tmp_path, 2)
    up, power = (series(1, f"gpuscale_gpu_{name}") for name in ("up", "power_watts"))
    with exporter(fake, tmp_path) as running:
        running.until(lambda v: v.get(up) == 1, "both up")
        fake.device(1, lost=1)
        page = running.until(lambda v: v.get(up) == 0, "GPU 1 down")
        assert power not in page
        assert page[series(0, "gpuscale_gpu_up")] == 1
        fake.device(1, lost=None)
        running.until(lambda v: v.get(up) == 1 and power in v, "GPU 1 back")


def test_a_gpu_whose_calls_hang_is_down_alone_and_the_process_still_leaves(tmp_path: Path) -> None:
    fake = machine(tmp_path, 2)
    ups = [series(index, "gpuscale_gpu_up") for index in (0, 1)]
    with exporter(fake, tmp_path) as running:
        running.until(lambda v: all(v.get(up) == 1 for up in ups), "both up")
        fake.fail("nvmlDeviceGetPowerUsage", device=0, hang=True)
        page = running.until(lambda v: v.get(ups[0]) == 0, "GPU 0 down")
        assert page[ups[1]] == 1
        assert page["gpuscale_nvml_up"] == 1
        # The context manager ends the process while the call still hangs.


def test_promise_29_signals_release_the_driver_for_an_upgrade_and_take_it_back(
    tmp_path: Path,
) -> None:
    up = series(0, "gpuscale_gpu_up")
    with exporter(machine(tmp_path, 1), tmp_path) as running:
        running.until(lambda v: v.get(up) == 1, "up")
        running.child.send_signal(signal.SIGUSR1)
        page = running.until(lambda v: v.get("gpuscale_nvml_up") == 0, "released")
        assert up not in page
        running.child.send_signal(signal.SIGUSR2)
        running.until(lambda v: v.get(up) == 1, "up again")


def test_a_driver_that_is_loaded_later_is_found(tmp_path: Path) -> None:
    fake = machine(tmp_path, 1)
    fake.fail("nvmlInitWithFlags", 9)
    with exporter(fake, tmp_path) as running:
        page = running.until(lambda v: v.get("gpuscale_nvml_up") == 0, "no driver")
        assert not [name for name in page if name.startswith("gpuscale_gpu_")]
        fake.heal()
        running.until(lambda v: v.get("gpuscale_nvml_up") == 1, "the driver is there")


def test_an_upgraded_driver_ends_the_process_with_the_cure(tmp_path: Path) -> None:
    fake = machine(tmp_path, 1)
    fake.fail("nvmlInitWithFlags", 18)
    ended = subprocess.run(
        [sys.executable, "-m", "gpuscale", "exporter", "--listen", "127.0.0.1:0"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={"PATH": os.environ["PATH"], **fake.environment},
    )
    assert ended.returncode == 69
    assert "restart the exporter" in ended.stderr
    assert "Traceback" not in ended.stderr
