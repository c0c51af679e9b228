"""Scaling quality: gpuscale and every peer at every setting, on all traces of a folder, in one run.

    make bench-scaling TRACES=FOLDER
    python benchmarks/scaling.py --traces FOLDER [--cold-start S,…] [--default-policies] [--json FILE]

FOLDER holds CSV files as `gpuscale backtest` reads them. `windows.csv` (trace,from_s,to_s) in the
folder says which window is judged where it is not the default. Prints J per case beside the best peer of the case (its target chosen in hindsight), then
geometric means over the cases: J, replica-hours, 1 + late share, 1 + changes of the ask per day.
The traces are for measuring; nothing is tuned to them.
"""

import argparse
import csv
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from gpuscale.controller import decide
from gpuscale.errors import InputError
from gpuscale.simulation import backtest, trace
from gpuscale.simulation.options import Options, cold_starts_of
from gpuscale.simulation.peers import POLICIES
from gpuscale.simulation.report import Backtest, PolicyScore, as_json

RATE_TARGETS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 1.0)
KNATIVE_TARGETS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0)
GRID = (
    "gpuscale",
    "oracle",
    "static-peak",
    "hpa-util@0.7",
    *(f"keda-rate@{target}" for target in RATE_TARGETS),
    *(f"knative@{target}" for target in KNATIVE_TARGETS),
)
USUAL = "keda-rate@0.7"
"""What most people run."""
WINDOWS = "windows.csv"

Cases = dict[tuple[str, float], dict[str, PolicyScore]]


def windows(folder: Path) -> dict[str, tuple[float, float]]:
    """The windows that differ from the default."""
    path = folder / WINDOWS
    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        return {
            row["trace"]: (float(row["from_s"]), float(row["to_s"])) for row in csv.DictReader(file)
        }


def judge(folder: Path, options: Options) -> tuple[list[Backtest], list[str]]:
    """All traces: those with the default window as one batch, the others each on its own."""
    special = windows(folder)
    paths = sorted(path for path in folder.glob("*.csv") if path.name != WINDOWS)
    batches = [([path for path in paths if path.stem not in special], options)]
    for path in paths:
        if path.stem in special:
            from_s, to_s = special[path.stem]
            batches.append(([path], replace(options, from_s=from_s, to_s=to_s)))
    results: list[Backtest] = []
    refused: list[str] = []
    for batch, batch_options in batches:
        if batch:
            outcomes = backtest.backtest([trace.load(p) for p in batch], batch_options, decide)
            results += outcomes.backtests
            refused += outcomes.refused
    return sorted(results, key=lambda result: result.trace), refused


def by_case(results: Iterable[Backtest]) -> Cases:
    return {
        (result.trace, run.cold_start_s): {score.policy: score for score in run.policies}
        for result in results
        for run in result.runs
    }


def best_peer(scores: dict[str, PolicyScore]) -> PolicyScore:
    """The least J of all but gpuscale and the clairvoyant."""
    peers = [s for name, s in scores.items() if name not in {"gpuscale", "oracle"}]
    return min(peers, key=lambda score: score.cost_j)


def geometric_mean(values: Iterable[float]) -> float:
    return float(np.exp(np.mean(np.log(list(values)))))


def print_cases(cases: Cases) -> None:
    print(
        f"{'trace':18s} {'cold':>5s} {'J':>7s} {'hours':>7s} {'late %':>7s} {'ev/day':>7s}"
        f"  {'best peer':15s} {'J':>7s} {'hours':>7s} {'late %':>7s} {'ev/day':>7s} {'ratio':>6s}"
    )
    for (name, cold), scores in cases.items():
        ours, peer = scores["gpuscale"], best_peer(scores)
        cells = [
            f"{s.cost_j:7.3f} {s.relative_to_oracle:7.3f} {100 * s.late_ratio:7.2f} {s.scale_events_per_day:7.0f}"
            for s in (ours, peer)
        ]
        print(
            f"{name:18s} {cold:5.0f} {cells[0]}  {peer.policy:15s} {cells[1]} {ours.cost_j / peer.cost_j:6.3f}"
        )


def print_means(cases: Cases) -> None:
    print(f"\ngeometric means over {len(cases)} cases (late share and events: of 1 + x, less 1)")
    hindsight = [best_peer(scores) for scores in cases.values()]
    columns: dict[str, list[PolicyScore]] = {"best peer of each case": hindsight}
    for scores in cases.values():
        for name, score in scores.items():
            columns.setdefault(name, []).append(score)
    ranked = sorted(columns.items(), key=lambda item: geometric_mean(s.cost_j for s in item[1]))
    print(f"{'policy':24s} {'J':>7s} {'hours':>7s} {'late %':>7s} {'ev/day':>7s}")
    for name, column in ranked:
        cost = geometric_mean(s.cost_j for s in column)
        hours = geometric_mean(s.relative_to_oracle for s in column)
        late = 100 * (geometric_mean(1 + s.late_ratio for s in column) - 1)
        events = geometric_mean(1 + s.scale_events_per_day for s in column) - 1
        print(f"{name:24s} {cost:7.3f} {hours:7.3f} {late:7.2f} {events:7.1f}")


def print_verdict(cases: Cases) -> None:
    """gpuscale against the best peer of each case, and against the usual setting in restlessness."""
    ratio = {
        case: scores["gpuscale"].cost_j / best_peer(scores).cost_j for case, scores in cases.items()
    }
    name, cold = max(ratio, key=lambda case: ratio[case])
    print(
        f"\ngpuscale's J is {geometric_mean(ratio.values()):.3f} of the best peer's of each case, chosen"
        f" in hindsight; at most {ratio[name, cold]:.3f} ({name}, cold start {cold:.0f} s)"
    )
    if all(USUAL in scores for scores in cases.values()):
        ours, usual = (
            geometric_mean(1 + scores[policy].scale_events_per_day for scores in cases.values())
            for policy in ("gpuscale", USUAL)
        )
        print(f"its changes of the ask a day, plus one, are {ours / usual:.2f} of {USUAL}'s")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", type=Path, help="folder of traces; without it nothing is run")
    parser.add_argument("--cold-start", default="60,180,600")
    parser.add_argument(
        "--default-policies", action="store_true", help="not the peers' whole grid: for timing"
    )
    parser.add_argument("--json", type=Path, help="write all scores there too")
    given = parser.parse_args()
    if given.traces is None:
        print("no traces: run `make bench-scaling TRACES=FOLDER`")
        return
    policies = POLICIES if given.default_policies else GRID
    began = time.perf_counter()
    try:
        cold_starts = cold_starts_of(given.cold_start)
        results, refused = judge(
            given.traces, Options(cold_starts_s=cold_starts, policies=policies)
        )
    except InputError as error:
        sys.exit(f"scaling: {error}")
    took_s = time.perf_counter() - began
    cases = by_case(results)
    if not cases:
        sys.exit(f"scaling: there is nothing to judge in {given.traces}; it must hold *.csv traces")
    print_cases(cases)
    for sentence in refused:
        print(f"  {sentence}")
    print_means(cases)
    print_verdict(cases)
    print(f"\n{len(cases)} cases × {len(policies)} policies in {took_s:.1f} s")
    if given.json is not None:
        given.json.write_text(as_json(results), encoding="utf-8")


if __name__ == "__main__":
    main()
