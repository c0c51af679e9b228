"""The exporter for a hundred thousand cycles at full speed: its memory must be flat, its series bounded.

    python benchmarks/soak.py [--cycles N] [--seconds-max S]

One process: the real exporter over simulated H100s, a kubelet that answers over its socket, and
scrapes of every form. Pods come and go under new names all the time, MIG is configured anew, GPUs
are lost and return. Ends with exit code 1 where memory has grown after the warm-up, or where the
series are more than the node's GPUs and pods explain.
"""

import argparse
import asyncio
import itertools
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpuscale.config import convert
from gpuscale.exporter import simulated
from gpuscale.settings import ExporterSettings
from tests.fakes.exporter import exporting
from tests.fakes.kubelet import FakeKubelet

GPUS = 4
PERIOD_S = 0.001
WARM_SHARE = 0.25
"""Caches, arenas and the driver's buffers are full after this share of the cycles."""
GROWTH_MB_MAX = 2.0
"""More than the noise of the allocator; a kilobyte kept each cycle would be a hundred megabytes."""
SERIES_MAX = 3_000
"""4 GPUs, up to 7 instances each, some 60 families, 8 pods, the accounts of fifty namespaces, dcgm's names."""
PAGE = 4096


def rss_mb() -> float:
    """Resident memory of this process (proc(5), field 2 of statm)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 1e6


def settings(socket: Path) -> ExporterSettings:
    """As short periods as the loops can follow."""
    data = {
        "listen": "127.0.0.1:0",
        "periods": {
            "fast_s": PERIOD_S,
            "medium_s": 5 * PERIOD_S,
            "slow_s": 50 * PERIOD_S,
            "processes_s": 5 * PERIOD_S,
        },
        "pod_resources": {"socket": str(socket), "period_s": 0.02},
    }
    return convert(data, ExporterSettings, where="soak")


async def stir(driver: simulated.SimulatedDriver, kubelet: FakeKubelet) -> None:
    """Pods under names never seen before, MIG anew, lost GPUs, for ever."""
    parts = simulated.cards.CARDS["h100-mig"].mig
    uuids = [driver.device(index).identity.uuid for index in range(GPUS)]
    for number in itertools.count():
        kubelet.held = [
            (
                f"team-{number % 50}",
                f"pod-{number}-{share}",
                "main",
                "nvidia.com/gpu",
                [f"{uuid}::{share}"],
            )
            for uuid in uuids[: 1 + number % GPUS]
            for share in range(1 + number % 2)
        ]
        device = driver.device(number % GPUS)
        if number % 10 == 0:
            device.divide(*parts[: number // 10 % 8])
        if number % 25 == 24:
            device.lose()
            await asyncio.sleep(0.05)
            device.recover()
        if number % 7 == 0:
            device.raise_xid(number % 200)
        await asyncio.sleep(0.02)


async def watch(url: str, cycles: int, seconds_max: float, done: "Counter") -> int:
    """Scrape and look at memory until the cycles are done; the exit code."""
    begun = time.monotonic()
    memory: list[tuple[int, float]] = []
    most = 0
    async with aiohttp.ClientSession() as http:
        while (now := done()) < cycles and time.monotonic() - begun < seconds_max:
            for accept in ("text/plain", "application/openmetrics-text"):
                async with http.get(url, headers={"Accept": accept}) as response:
                    text = await response.text()
                    series = sum(1 for line in text.splitlines() if line and line[0] != "#")
                    most = max(most, series)
            memory.append((now, rss_mb()))
            await asyncio.sleep(0.2)
    last = done()
    warm = [mb for at, mb in memory if WARM_SHARE * last < at <= 0.5 * last]
    late = [mb for at, mb in memory if at > (1 - WARM_SHARE) * last]
    growth = fmean(late) - fmean(warm)
    print(
        f"{last} cycles in {time.monotonic() - begun:.0f} s; memory {fmean(warm):.1f} MB, at the end "
        f"{fmean(late):.1f} MB ({growth:+.1f}); at most {most} series"
    )
    return int(growth > GROWTH_MB_MAX or most > SERIES_MAX)


class Counter:
    """How many cycles the exporter has done."""

    def __init__(self, exporter: object) -> None:
        self._exporter = exporter

    def __call__(self) -> int:
        sample = self._exporter.sample  # type: ignore[attr-defined]
        return 0 if sample is None else int(sample.cycles)


async def soak(cycles: int, seconds_max: float) -> int:
    """The whole story; the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder) / "kubelet.sock"
        kubelet = FakeKubelet(socket)
        await kubelet.start()
        driver = simulated.driver(f"simulated:h100x{GPUS}", time.monotonic)
        async with exporting(driver, settings(socket)) as exporter:
            stirring = asyncio.ensure_future(stir(driver, kubelet))
            host, port = exporter.address
            code = await watch(
                f"http://{host}:{port}/metrics", cycles, seconds_max, Counter(exporter)
            )
            stirring.cancel()
        await kubelet.stop()
    return code


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=100_000)
    parser.add_argument("--seconds-max", type=float, default=1800.0)
    given = parser.parse_args()
    return asyncio.run(soak(given.cycles, given.seconds_max))


if __name__ == "__main__":
    sys.exit(main())
