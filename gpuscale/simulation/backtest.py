"""What each policy would have cost on recorded demand: traces × cold starts × policies.

The definition, per trace: ticks of 15 s (5 s where the step is 10 s or less); demand constant
within a bin times seeded noise; a replica serves `capacity` units/s from one cold start after it
was asked for, and is billed from the ask until it is drained, 30 s after it was taken away. A
request that waits more than 5 s is late, work beyond 60 s is dropped. A missing bin is bridged for
the queue, is missing for every policy, and enters neither cost nor lateness. All start with what
70 % utilization needs at the first tick; the first cold start is not scored.

    J = replica-hours / the clairvoyant's replica-hours + 10 × share of late requests
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuscale.controller.domain import Floats
from gpuscale.controller.fleet import DRAIN_S
from gpuscale.errors import InputError
from gpuscale.settings import Policy
from gpuscale.simulation import peers, trace
from gpuscale.simulation.engine import Case, Decider, Entry, Production, Totals, Watch, run
from gpuscale.simulation.options import Options
from gpuscale.simulation.recording import Digest, Digester, TickRecord
from gpuscale.simulation.report import Backtest, PolicyScore, Run, Timeline, score
from gpuscale.simulation.trace import Trace

WINDOW_COLD_STARTS_MIN = 6
"""A window shorter than this many cold starts judges the start, not the policy."""

_YARDSTICK = "oracle"


# ---------------------------------------------------------------- preparing


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """One trace at one cold start, and the place of its window in the trace."""

    position: int
    """Of the trace among those that were given."""
    case: Case
    from_s: float
    to_s: float


def _prepare(position: int, recorded: Trace, options: Options) -> tuple[list[_Prepared], list[str]]:
    """(cases of a trace, why others of its cold starts do not count)."""
    fine = trace.coarsened(recorded)
    first, last = trace.window(fine, options.from_s, options.to_s)
    window_s = (last - first) * fine.step_s
    per_replica = options.capacity or trace.capacity(
        fine, options.peak_replicas or trace.PEAK_REPLICAS
    )
    demand = trace.ticks(fine, first, last)
    start = math.ceil(demand.demand[0] / (per_replica * trace.UTILIZATION))
    prepared: list[_Prepared] = []
    refused: list[str] = []
    for cold in dict.fromkeys(options.cold_starts_s):
        if window_s < WINDOW_COLD_STARTS_MIN * cold:
            refused.append(
                f"{fine.name}: the window of {window_s:g} s is shorter than six cold starts of {cold:g} s and does not count"
            )
            continue
        case = Case(
            name=fine.name,
            cold_start_s=cold,
            tick_s=demand.tick_s,
            capacity=per_replica,
            replicas_min=options.replicas_min,
            replicas_max=options.replicas_max,
            replicas=min(options.replicas_max, max(options.replicas_min, start)),
            step_s=fine.step_s,
            history=fine.values[:first],
            demand=demand.demand,
            seen=demand.seen,
        )
        _check_arrivals(case)
        prepared.append(
            _Prepared(position=position, case=case, from_s=fine.at(first), to_s=fine.at(last))
        )
    return prepared, refused


def _check_arrivals(case: Case) -> None:
    """Something must arrive while it is scored, or there is nothing to judge."""
    scored = case.seen[max(1, round(case.cold_start_s / case.tick_s)) :]
    if not np.nansum(scored) > 0:
        raise InputError(
            f"{case.name}: nothing arrives in the window after the first cold start of {case.cold_start_s:g} s, so there is nothing to judge; choose another with --from and --to"
        )


# ---------------------------------------------------------------- the policies of a batch


def _entries(
    cases: Sequence[Case],
    policies: Sequence[str],
    decider: Decider[Any],
    watch: Watch | None,
) -> list[Entry]:
    """The contenders for these policies, families together, and the clairvoyant in any case."""
    wanted = list(dict.fromkeys(policies))
    if _YARDSTICK not in wanted:
        wanted.append(_YARDSTICK)
    groups: dict[str, list[str]] = {}
    for name in wanted:
        groups.setdefault(peers.target_of(name)[0], []).append(name)
    return [_entry(family, names, cases, decider, watch) for family, names in groups.items()]


def _entry(
    family: str,
    names: Sequence[str],
    cases: Sequence[Case],
    decider: Decider[Any],
    watch: Watch | None,
) -> Entry:
    if family == "gpuscale":
        policy = Policy(mode="act")
        risks = [peers.target_of(name)[1] or policy.risk for name in names]
        contender = Production(cases, decider, policy, risks=risks, watch=watch)
        return Entry(names=tuple(names), contender=contender)
    targets = [peers.target_of(name)[1] or 1.0 for name in names]
    if family == "oracle":
        return Entry(names=tuple(names), contender=peers.Planned(_plans(cases, targets)))
    if family == "static-peak":
        tops: Floats = np.array([[_top(case, target) for target in targets] for case in cases])
        return Entry(names=tuple(names), contender=peers.Planned(None), replicas=tops)
    capacity: Floats = np.array([case.capacity for case in cases])
    make = peers.FAMILIES[family]
    return Entry(
        names=tuple(names),
        contender=make(capacity=capacity, targets=targets, tick_s=cases[0].tick_s),
    )


def _top(case: Case, target: float) -> float:
    """Replicas that carry the window's highest tick, which nobody knows beforehand."""
    need = math.ceil(float(case.demand.max()) / (case.capacity * target))
    return float(min(case.replicas_max, max(case.replicas_min, need)))


def _plans(cases: Sequence[Case], targets: Sequence[float]) -> Floats:
    """The clairvoyant's asks, shape (ticks, cases, targets)."""
    ticks = max(len(case.demand) for case in cases)
    plans: Floats = np.full((ticks, len(cases), len(targets)), np.nan)
    for row, case in enumerate(cases):
        for column, target in enumerate(targets):
            plans[: len(case.demand), row, column] = peers.clairvoyant(
                case.demand,
                capacity=case.capacity * target,
                lag_ticks=max(1, round(case.cold_start_s / case.tick_s)),
                hold_ticks=(case.cold_start_s + DRAIN_S) / case.tick_s,
                replicas_min=case.replicas_min,
                replicas_max=case.replicas_max,
            )
    return plans


# ---------------------------------------------------------------- running


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """What a report shows of one run beside its scores."""

    trace: str
    run: Run
    curve: tuple[PolicyScore, ...]
    """Of `Options.curve`."""
    digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """What a backtest came to."""

    backtests: tuple[Backtest, ...]
    """In the order of the traces; those of which no cold start counts are left out."""
    refused: tuple[str, ...]
    """A sentence for each trace and cold start that does not count."""
    timelines: tuple[Timeline, ...]
    """For each cold start and policy of the one trace; empty unless asked for."""
    details: tuple[Detail, ...] = ()
    """For each run, in the order of `backtests`; empty unless asked for."""


def backtest(
    traces: Sequence[Trace],
    options: Options,
    decider: Decider[Any],
    progress: Callable[[float], None] | None = None,
) -> Outcomes:
    """Run every policy on every trace at every cold start.

    `decider` is the production core, or what stands in for it; `progress` is told the share that
    is done. Raises InputError where nothing is left to judge.
    """
    prepared: list[_Prepared] = []
    refused: list[str] = []
    for position, recorded in enumerate(traces):
        some, reasons = _prepare(position, recorded, options)
        prepared += some
        refused += reasons
    if not prepared:
        raise InputError(refused[0] if refused else "no trace was given")
    results: dict[tuple[int, float], Run] = {}
    timelines: list[Timeline] = []
    details: dict[tuple[int, float], Detail] = {}
    report = _Progress(prepared, progress)
    for batch in _batches(prepared):
        cases = [item.case for item in batch]
        digester = _digester(cases, options)
        entries = _entries(
            cases,
            (*options.policies, *options.curve),
            decider,
            None if digester is None else digester.watch,
        )
        names = [name for entry in entries for name in entry.names]
        record = TickRecord(cases, len(names)) if options.timeline else None
        if digester is not None:
            digester.over(names)
        totals = run(
            cases,
            entries,
            recorders=[each for each in (record, digester) if each is not None],
            progress=report.on(cases),
        )
        for row, item in enumerate(batch):
            key = (item.position, item.case.cold_start_s)
            results[key] = _run_of(item, row, totals, options.policies)
            if record is not None:
                timelines += record.timelines(
                    item.case,
                    row,
                    start_s=item.from_s,
                    names=totals.names,
                    policies=options.policies,
                )
            if digester is not None:
                details[key] = Detail(
                    trace=item.case.name,
                    run=results[key],
                    curve=_run_of(item, row, totals, options.curve).policies,
                    digest=digester.digest(row, start_s=item.from_s),
                )
    return Outcomes(
        backtests=tuple(_by_trace(traces, options, results)),
        refused=tuple(refused),
        timelines=tuple(timelines),
        details=tuple(details[key] for key in _keys(traces, options) if key in details),
    )


def _shown(options: Options) -> tuple[str, ...]:
    """The policies whose replicas a report draws."""
    return tuple(dict.fromkeys(options.policies))


def _digester(cases: Sequence[Case], options: Options) -> Digester | None:
    if not options.digest_bins:
        return None
    return Digester(
        cases,
        _shown(options),
        bins=options.digest_bins,
        explained_per_bin=options.explained_per_bin,
    )


def _batches(prepared: Sequence[_Prepared]) -> Iterator[list[_Prepared]]:
    """Those that share a tick go through the engine as one."""
    by_tick: dict[float, list[_Prepared]] = {}
    for item in prepared:
        by_tick.setdefault(item.case.tick_s, []).append(item)
    yield from by_tick.values()


def _run_of(item: _Prepared, row: int, totals: Totals, policies: Sequence[str]) -> Run:
    oracle_s = float(totals.replica_s[row, totals.names.index(_YARDSTICK)])
    scores = []
    for policy in dict.fromkeys(policies):
        column = totals.names.index(policy)
        scores.append(
            score(
                policy,
                replica_s=float(totals.replica_s[row, column]),
                oracle_replica_s=oracle_s,
                late=float(totals.late[row, column]),
                arrived=float(totals.arrived[row, column]),
                events=float(totals.events[row, column]),
                peak_replicas=float(totals.peak_replicas[row, column]),
                scored_s=float(totals.scored_s[row]),
            )
        )
    return Run(
        cold_start_s=item.case.cold_start_s,
        capacity_per_replica=item.case.capacity,
        tick_s=item.case.tick_s,
        from_s=item.from_s,
        to_s=item.to_s,
        policies=tuple(scores),
    )


def _keys(traces: Sequence[Trace], options: Options) -> Iterator[tuple[int, float]]:
    for position in range(len(traces)):
        for cold in dict.fromkeys(options.cold_starts_s):
            yield position, cold


def _by_trace(
    traces: Sequence[Trace], options: Options, results: Mapping[tuple[int, float], Run]
) -> Iterator[Backtest]:
    for position, recorded in enumerate(traces):
        keys = [key for key in _keys(traces, options) if key[0] == position]
        runs = tuple(results[key] for key in keys if key in results)
        if runs:
            yield Backtest(trace=recorded.name, runs=runs)


class _Progress:
    """The share of all cases' ticks that is done."""

    def __init__(self, prepared: Sequence[_Prepared], tell: Callable[[float], None] | None) -> None:
        self._total = sum(len(item.case.demand) for item in prepared)
        self._done = 0.0
        self._tell = tell

    def on(self, cases: Sequence[Case]) -> Callable[[int], None] | None:
        """What a batch's run is to call."""
        if self._tell is None:
            return None
        tell = self._tell
        ticks = max(len(case.demand) for case in cases)
        share = sum(len(case.demand) for case in cases) / ticks / self._total

        def advance(done: int) -> None:
            self._done += done * share
            tell(min(1.0, self._done))

        return advance
