"""What a backtest says: its results as values, as a table, as JSON, and tick by tick as CSV."""

import csv
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from gpuscale.controller.domain import Floats
from gpuscale.errors import InputError

TIMELINE_HEADER = (
    "timestamp",
    "cold_start_s",
    "policy",
    "demand",
    "desired",
    "ready",
    "starting",
    "draining",
    "backlog",
)

LATE_PRICE = 10.0
"""What the share of late requests weighs in J, in clairvoyant's replica-hours: the default risk,
10/11, prices a late request so."""

DIGITS = 10
"""Significant digits of demand and backlog in a timeline: enough to run it again."""

TABLE_WIDTH = 100
"""Columns of a table that goes to a file or a pipe, where no terminal says how wide it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyScore:
    """One policy on one trace at one cold start, over the ticks that are scored."""

    policy: str
    replica_hours: float
    relative_to_oracle: float
    """Replica-hours over the clairvoyant's."""
    late_ratio: float
    """Share of the requests that wait too long or are dropped."""
    cost_j: float
    """relative_to_oracle + 10 × late_ratio."""
    scale_events_per_day: float
    """Changes of what is asked."""
    peak_replicas: int
    """The most that was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All policies on one trace at one cold start."""

    cold_start_s: float
    capacity_per_replica: float
    tick_s: float
    from_s: float
    to_s: float
    policies: tuple[PolicyScore, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backtest:
    """All runs on one trace."""

    trace: str
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """From replica-hours to GPU-hours and money."""

    gpus_per_replica: float = 1.0
    per_gpu_hour: float | None = None
    """In whatever currency; None where nobody said."""

    def __post_init__(self) -> None:
        """Refuse what is no price, naming the option."""
        if not 0 < self.gpus_per_replica < math.inf:
            raise InputError(f"--gpus is {self.gpus_per_replica:g}; a replica has more than 0 GPUs")
        if self.per_gpu_hour is not None and not 0 <= self.per_gpu_hour < math.inf:
            raise InputError(
                f"--price is {self.per_gpu_hour:g}; give money per GPU-hour, 0 or more"
            )

    def gpu_hours(self, replica_hours: float) -> float:
        """GPU-hours of so many replica-hours."""
        return replica_hours * self.gpus_per_replica

    def money(self, replica_hours: float) -> float | None:
        """What they cost; None without a price."""
        price = self.per_gpu_hour
        return None if price is None else self.gpu_hours(replica_hours) * price


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One policy at one cold start, tick by tick. Arrays of shape (ticks,)."""

    cold_start_s: float
    policy: str
    start_s: float
    """The first tick's beginning, in the trace's own seconds."""
    tick_s: float
    demand: Floats
    """Units/s; NaN where the trace has no value."""
    desired: Floats
    ready: Floats
    starting: Floats
    draining: Floats
    backlog: Floats
    """Units that wait at the tick's end."""


def score(
    policy: str,
    *,
    replica_s: float,
    oracle_replica_s: float,
    late: float,
    arrived: float,
    events: float,
    peak_replicas: float,
    scored_s: float,
) -> PolicyScore:
    """The figures of one policy from its sums; J is defined here and nowhere else."""
    relative = replica_s / oracle_replica_s
    late_ratio = late / arrived
    return PolicyScore(
        policy=policy,
        replica_hours=replica_s / 3600,
        relative_to_oracle=relative,
        late_ratio=late_ratio,
        cost_j=relative + LATE_PRICE * late_ratio,
        scale_events_per_day=events / (scored_s / 86_400),
        peak_replicas=int(peak_replicas),
    )


def _whole(number: float) -> float | int:
    """Whole numbers without a decimal point."""
    return int(number) if number == int(number) else number


def as_json(backtests: Sequence[Backtest], price: Price | None = None) -> str:
    """{"trace", "runs"} for one trace, a list of them for several; with a price also GPU-hours and money."""
    documents: list[dict[str, Any]] = []
    for backtest in backtests:
        document = asdict(backtest)
        for run in document["runs"]:
            for name in ("cold_start_s", "tick_s", "from_s", "to_s"):
                run[name] = _whole(run[name])
            if price is not None and price.per_gpu_hour is not None:
                for entry in run["policies"]:
                    entry["gpu_hours"] = price.gpu_hours(entry["replica_hours"])
                    entry["money"] = price.money(entry["replica_hours"])
        documents.append(document)
    body = documents[0] if len(documents) == 1 else documents
    return json.dumps(body, indent=2, allow_nan=False) + "\n"


def write_table(backtests: Sequence[Backtest], file: IO[str], price: Price | None = None) -> None:
    """A table per trace and cold start, policies by J; the least J but the clairvoyant's in bold."""
    console = Console(file=file, width=None if file.isatty() else TABLE_WIDTH, highlight=False)
    for backtest in backtests:
        for run in backtest.runs:
            title = (
                f"{backtest.trace}: cold start {run.cold_start_s:g} s, "
                f"{run.capacity_per_replica:.4g} units/s per replica, "
                f"{_span(run.to_s - run.from_s)} from {run.from_s:.15g} s"
            )
            console.print(title, soft_wrap=True, markup=False)
            console.print(_table(run, price or Price()))
            console.print()


def _span(seconds: float) -> str:
    """A duration in the unit that a person would use."""
    for unit_s, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= unit_s:
            return f"{seconds / unit_s:.3g} {unit}"
    return f"{seconds:g} s"


def _table(run: Run, price: Price) -> Table:
    table = Table()
    table.add_column("policy", no_wrap=True)
    priced = ("GPU-hours", "money") if price.per_gpu_hour is not None else ()
    for title in ("replica-hours", *priced, "vs. oracle", "late", "J", "events/day", "peak"):
        table.add_column(title, justify="right", no_wrap=True)
    ranked = sorted(run.policies, key=lambda score: score.cost_j)
    best = next((s for s in ranked if s.policy.partition("@")[0] != "oracle"), None)
    for entry in ranked:
        table.add_row(
            entry.policy,
            f"{entry.replica_hours:,.1f}",
            *_priced(entry.replica_hours, price),
            f"{entry.relative_to_oracle:.3f}",
            f"{100 * entry.late_ratio:.2f} %",
            f"{entry.cost_j:.3f}",
            f"{entry.scale_events_per_day:.0f}",
            str(entry.peak_replicas),
            style="bold" if entry is best else None,
        )
    return table


def _priced(replica_hours: float, price: Price) -> tuple[str, ...]:
    money = price.money(replica_hours)
    return () if money is None else (f"{price.gpu_hours(replica_hours):,.1f}", f"{money:,.2f}")


def write_timeline(timelines: Iterable[Timeline], file: IO[str]) -> None:
    """CSV with a row per tick in order, for each cold start and policy."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(TIMELINE_HEADER)
    for line in timelines:
        cold, ticks = f"{line.cold_start_s:.15g}", np.arange(len(line.demand))
        for time_s, demand, desired, ready, starting, draining, backlog in zip(
            (line.start_s + ticks * line.tick_s).tolist(),
            line.demand.tolist(),
            line.desired.tolist(),
            line.ready.tolist(),
            line.starting.tolist(),
            line.draining.tolist(),
            line.backlog.tolist(),
            strict=True,
        ):
            writer.writerow(
                (
                    f"{time_s:.15g}",
                    cold,
                    line.policy,
                    "" if demand != demand else f"{demand:.{DIGITS}g}",  # noqa: PLR0124 - NaN
                    f"{desired:.0f}",
                    f"{ready:.0f}",
                    f"{starting:.0f}",
                    f"{draining:.0f}",
                    f"{backlog:.{DIGITS}g}",
                )
            )


@contextmanager
def opened(path: str | None, otherwise: IO[str]) -> Iterator[IO[str]]:
    """The file to write to, or `otherwise` where no path or `-` is given. Raises InputError."""
    if path is None or path == "-":
        yield otherwise
        return
    try:
        with Path(path).open("w", encoding="utf-8", newline="") as file:
            yield file
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error


@contextmanager
def progress_on(file: IO[str], doing: str = "backtest") -> Iterator[Callable[[float], None] | None]:
    """A bar that is told the share done and leaves no trace; nothing where `file` is no terminal."""
    if not file.isatty():
        yield None
        return
    with Progress(console=Console(file=file), transient=True) as bars:
        task = bars.add_task(doing, total=1.0)
        yield lambda share: bars.update(task, completed=share)
