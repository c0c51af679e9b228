"""What an exporter costs a node: gpuscale beside nvitop-exporter on the same NVML library, in one run.

    make bench-exporter
    python benchmarks/exporter.py [--seconds S] [--rounds N] [--peer PATH] [--gpus N] [--json FILE]

Both read the same simulated libnvidia-ml.so.1 (built here with the C compiler) through pynvml, at
the same period of one second, by turns: CPU time and resident memory of each process, series it
publishes, then scrapes by ten scrapers at once. gpuscale is also run at fifty times its speed for
an hour's worth of cycles, to show the memory it ends with. A ratio below 1 is less than the peer.
nvitop-exporter comes with `pip install --group bench`; without it gpuscale is measured alone.
"""

import argparse
import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, quantiles
from typing import Self

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.fakes.nvml_library import FakeNvml

WARM_S = 6.0
"""Start-up is paid once: it is left out of what a cycle costs."""
SCRAPERS = 10
SCRAPES_EACH = 50
ACCELERATED_PERIOD_S = 0.02
HOUR_CYCLES = 3600
PAGE = 4096


@dataclass(kw_only=True)
class Cost:
    """One exporter's measurements; one entry per round."""

    name: str
    cpu_ms_per_cycle: list[float] = field(default_factory=list)
    rss_mb: list[float] = field(default_factory=list)
    scrape_p50_ms: list[float] = field(default_factory=list)
    scrape_p99_ms: list[float] = field(default_factory=list)
    series: int = 0


def cpu_s(pid: int) -> float:
    """CPU time of a process's living threads, to the nanosecond (field 1 of each task's schedstat)."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def rss_mb(pid: int) -> float:
    """Resident memory (proc(5), field 2 of statm)."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / 1e6


def free_port() -> int:
    """A port nobody holds now."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def command(name: str, peer: str, port: int, folder: Path, period_s: float) -> list[str]:
    """How to start an exporter."""
    if name == "nvitop-exporter":
        return [peer, "--port", str(port), "--interval", str(period_s)]
    settings = folder / "exporter.yaml"
    settings.write_text(
        f"periods: {{fast_s: {period_s}, medium_s: {10 * period_s}, slow_s: {60 * period_s}}}\n"
        "pod_resources: {enabled: false}\n"
    )
    return [
        *(sys.executable, "-m", "gpuscale", "exporter", "--config", str(settings)),
        *("--listen", f"127.0.0.1:{port}", "--log-level", "error"),
    ]


class Running:
    """An exporter as a process of its own, ended by its id."""

    def __init__(self, argv: list[str], port: int, node: FakeNvml) -> None:
        environment = {**os.environ, **node.environment}
        self._process = subprocess.Popen(
            argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.pid = self._process.pid
        self.url = f"http://127.0.0.1:{port}/metrics"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


async def scrape(url: str) -> tuple[list[float], int]:
    """Milliseconds of each of SCRAPERS × SCRAPES_EACH scrapes, and the series in the last page."""
    took: list[float] = []
    text = ""

    async def one(http: aiohttp.ClientSession) -> None:
        nonlocal text
        for _ in range(SCRAPES_EACH):
            begun = time.perf_counter()
            async with http.get(url) as response:
                text = await response.text()
                assert response.status == 200, response.status
            took.append((time.perf_counter() - begun) * 1000)

    async with aiohttp.ClientSession() as http:
        await asyncio.gather(*(one(http) for _ in range(SCRAPERS)))
    return took, sum(1 for line in text.splitlines() if line and not line.startswith("#"))


def measure(cost: Cost, peer: str, folder: Path, node: FakeNvml, seconds: float) -> None:
    """One round of one exporter at a period of one second."""
    port = free_port()
    with Running(command(cost.name, peer, port, folder, 1.0), port, node) as running:
        time.sleep(WARM_S)
        before = cpu_s(running.pid)
        time.sleep(seconds)
        cost.cpu_ms_per_cycle.append((cpu_s(running.pid) - before) * 1000 / seconds)
        took, cost.series = asyncio.run(scrape(running.url))
        cost.rss_mb.append(rss_mb(running.pid))
        cuts = quantiles(took, n=100)
        cost.scrape_p50_ms.append(cuts[49])
        cost.scrape_p99_ms.append(cuts[98])


def hour(peer: str, folder: Path, node: FakeNvml) -> tuple[float, float]:
    """Memory of gpuscale after a minute's and after an hour's worth of cycles, at full speed."""
    port = free_port()
    argv = command("gpuscale", peer, port, folder, ACCELERATED_PERIOD_S)
    with Running(argv, port, node) as running:
        time.sleep(WARM_S)
        first = rss_mb(running.pid)
        time.sleep(HOUR_CYCLES * ACCELERATED_PERIOD_S)
        return first, rss_mb(running.pid)


def main() -> int:
    """Measure by turns, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--peer", default=shutil.which("nvitop-exporter") or "")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    peer = given.peer or str(Path(sys.executable).with_name("nvitop-exporter"))
    costs = [Cost(name="gpuscale")]
    if Path(peer).exists():
        costs.append(Cost(name="nvitop-exporter"))
    else:
        print("nvitop-exporter is missing (pip install --group bench): gpuscale alone")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        node = FakeNvml(folder / "state", count=given.gpus)
        for _ in range(given.rounds):
            for cost in costs:
                measure(cost, peer, folder, node, given.seconds)
        first_mb, hour_mb = hour(peer, folder, node)
    rows = ("cpu_ms_per_cycle", "rss_mb", "scrape_p50_ms", "scrape_p99_ms")
    means = {cost.name: {row: fmean(getattr(cost, row)) for row in rows} for cost in costs}
    print(f"{given.gpus} GPUs, one cycle a second, {given.rounds} rounds of {given.seconds:.0f} s")
    print(f"{'':18}" + "".join(f"{cost.name:>18}" for cost in costs) + f"{'ratio':>10}")
    for row in rows:
        values = [means[cost.name][row] for cost in costs]
        ratio = f"{values[0] / values[1]:10.2f}" if len(values) > 1 else ""
        print(f"{row:18}" + "".join(f"{value:18.2f}" for value in values) + ratio)
    print(f"{'series':18}" + "".join(f"{cost.series:18}" for cost in costs))
    print(f"gpuscale after {HOUR_CYCLES} cycles: {hour_mb:.1f} MB (at the start {first_mb:.1f} MB)")
    if given.json:
        found = {"means": means, "rounds": [asdict(c) for c in costs], "after_hour_mb": hour_mb}
        given.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
