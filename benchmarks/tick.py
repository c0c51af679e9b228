"""What a tick costs: `decide` for 1,000 and 10,000 workloads, in time and memory.

    make bench-tick
    python benchmarks/tick.py [--workloads N,…] [--ticks N]

Every workload has a past of two days in its history, a start time and a capacity of its own, and
demand with a daily season and noise. Ticks of half an hour are timed, so that whatever is done once
a minute or once in five is among them, at its turn. Printed are the median, the 99th percentile and
the longest tick, beside what one core may take; learning the past of one workload; and the memory
of the process, whose growth over the empty interpreter is what the workloads take.
"""

import argparse
import resource
import time
from dataclasses import dataclass

import numpy as np

from gpuscale.controller import decide
from gpuscale.controller.domain import FleetObservation, FleetPolicy, Floats
from gpuscale.settings import Policy

TICK_S = 15.0
START_S = 1_750_000_000.0
WARM_TICKS = 8
"""First ticks allocate; they are not what a tick costs."""
LEADS_S = (60.0, 180.0, 600.0)
BUDGET_S = {1_000: 0.15, 10_000: 1.0}
"""What one core may take for so many workloads."""
BUDGET_MIB = 1536
"""What 10,000 workloads may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Of one number of workloads."""

    workloads: int
    seconds: Floats
    """Of each tick."""
    past_s: float
    """Learning one workload's past."""
    peak_mib: float


def demand_at(size: Floats, now: float, rng: np.random.Generator) -> Floats:
    """units/s of workloads whose mean is `size` (n,)."""
    season = 1.0 + 0.7 * np.sin(now / 86_400.0 * 2 * np.pi + np.arange(len(size)))
    found: Floats = size * season * rng.gamma(100.0, 0.01, len(size))
    return found


def observed(
    keys: tuple[str, ...], now: float, demand: Floats, policy: FleetPolicy
) -> FleetObservation:
    n = len(keys)
    whole = np.ceil(demand / 10.0)
    return FleetObservation(
        keys=keys,
        now=now,
        tick_s=TICK_S,
        policy=policy,
        demand=demand,
        backlog=np.zeros(n),
        coverage=np.ones(n),
        age_s=np.full(n, 5.0),
        asked=whole,
        ready=whole,
        starting=np.zeros(n),
        pending=np.zeros(n),
        capacity=np.full(n, 10.0),
        lead_s=np.resize(np.array(LEADS_S), n),
        paused=np.zeros(n, dtype=np.bool_),
    )


def measure(workloads: int, ticks: int) -> Measured:
    rng = np.random.default_rng(workloads)
    keys = tuple(f"ns/{i}" for i in range(workloads))
    size: Floats = rng.lognormal(4.0, 0.8, workloads)
    policy = FleetPolicy.of([Policy(mode="act")] * workloads)
    memory = decide.initial_memory(keys, TICK_S)
    times = START_S - 300.0 * np.arange(2 * 288, dtype=np.float64)[::-1]
    for row in range(workloads):
        past = size[row] * (1.0 + 0.7 * np.sin(times / 86_400.0 * 2 * np.pi + row))
        memory.history.put(row, times, past, 300.0)
    memory = decide.backfill(memory, keys[0], times, np.full(len(times), size[0]), 300.0)
    took = np.empty(ticks + WARM_TICKS)
    for tick in range(len(took)):
        now = START_S + (tick + 1) * TICK_S
        seen = observed(keys, now, demand_at(size, now, rng), policy)
        began = time.perf_counter()
        _, memory = decide.decide(seen, memory)
        took[tick] = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    return Measured(
        workloads=workloads, seconds=took[WARM_TICKS:], past_s=float(took[0]), peak_mib=peak
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", default="1000,10000")
    parser.add_argument("--ticks", type=int, default=120, help="timed; 120 are half an hour")
    given = parser.parse_args()
    empty = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    print(
        f"{'workloads':>9s} {'median':>9s} {'p99':>9s} {'longest':>9s} {'budget':>9s}"
        f" {'first tick':>11s} {'memory':>11s}"
    )
    # Fewest first: the process's peak is then that of the number just measured.
    for workloads in sorted(int(part) for part in given.workloads.split(",")):
        found = measure(workloads, given.ticks)
        budget = BUDGET_S.get(workloads)
        print(
            f"{workloads:9,d} {1000 * np.median(found.seconds):6.1f} ms"
            f" {1000 * np.quantile(found.seconds, 0.99):6.1f} ms"
            f" {1000 * found.seconds.max():6.1f} ms"
            f" {'–' if budget is None else f'{1000 * budget:.0f} ms':>9s}"
            f" {1000 * found.past_s:8.1f} ms {found.peak_mib:7.0f} MiB"
        )
    print(
        f"one core; an empty process takes {empty:.0f} MiB, 10,000 workloads may take {BUDGET_MIB}"
        " MiB; the first tick learns the past of one workload besides"
    )


if __name__ == "__main__":
    main()
