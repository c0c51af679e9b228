"""`gpuscale backtest`: what each policy would have cost on recorded demand."""

import sys
from typing import TYPE_CHECKING

import click

from gpuscale.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuscale.simulation.options import Options
    from gpuscale.simulation.report import Price
    from gpuscale.simulation.trace import Trace


@click.command()
@click.argument("traces", nargs=-1, required=True, metavar="TRACE.csv...")
@click.option("--capacity", type=float, metavar="R", help="Units/s that one replica serves.")
@click.option(
    "--peak-replicas",
    type=int,
    metavar="N",
    help="Instead of --capacity: replicas that the p99.5 demand needs at 70 %.  [default: 20]",
)
@click.option(
    "--cold-start",
    default="60,180,600",
    show_default=True,
    metavar="S,...",
    help="Seconds from asking for a replica to its first served request.",
)
@click.option("--min", "low", type=int, default=1, show_default=True, help="Fewest replicas.")
@click.option("--max", "high", type=int, default=80, show_default=True, help="Most replicas.")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME[@TARGET]",
    help="gpuscale, keda-rate, hpa-util, knative, static-peak, oracle; repeat, or separate by commas.  [default: all]",
)
@click.option("--from", "from_s", type=float, metavar="S", help="Begin of the judged window.")
@click.option("--to", "to_s", type=float, metavar="S", help="End of the judged window.")
@click.option("--timeline", metavar="FILE", help="Write every tick to a CSV file (one trace).")
@click.option(
    "--price", type=float, metavar="P", help="Money per GPU-hour: what each policy costs."
)
@click.option(
    "--gpus", type=float, default=1.0, show_default=True, metavar="N", help="GPUs of one replica."
)
@click.option("--format", "form", type=click.Choice(["table", "json", "html"]), default="table")
@click.option("-o", "--output", metavar="FILE", help="Write there instead of standard output.")
def backtest(
    *,
    traces: tuple[str, ...],
    capacity: float | None,
    peak_replicas: int | None,
    cold_start: str,
    low: int,
    high: int,
    policies: tuple[str, ...],
    from_s: float | None,
    to_s: float | None,
    timeline: str | None,
    price: float | None,
    gpus: float,
    form: str,
    output: str | None,
) -> None:
    """What each policy would have cost on recorded demand.

    TRACE.csv has the header timestamp,value: seconds at a fixed step, and the demand in units/s,
    empty where it is missing. The last 7 days are judged, or the last half of a shorter trace;
    everything before is history to learn from.
    """
    from pathlib import Path

    from gpuscale.simulation import peers, report, trace
    from gpuscale.simulation.options import Options, cold_starts_of

    # `--policy A B TRACE.csv`: names after the first arrive among the traces.
    named = tuple(t for t in traces if policies and peers.is_policy(t) and not Path(t).exists())
    traces = tuple(t for t in traces if t not in named)
    names = tuple(name for text in (*policies, *named) for name in text.split(",") if name)
    if not traces:
        raise InputError("no trace was given; name a CSV file with the header timestamp,value")
    if timeline is not None and len(traces) > 1:
        raise InputError("--timeline is for one trace; run the traces one by one")
    if form == "html" and output is None:
        raise InputError("--format html makes a file to open in a browser; name it with -o FILE")
    bill = report.Price(gpus_per_replica=gpus, per_gpu_hour=price)
    options = Options(
        capacity=capacity,
        peak_replicas=peak_replicas,
        cold_starts_s=cold_starts_of(cold_start),
        replicas_min=low,
        replicas_max=high,
        policies=names or peers.POLICIES,
        from_s=from_s,
        to_s=to_s,
        timeline=timeline is not None,
    )
    recorded = [trace.load(Path(path)) for path in traces]
    source = ", ".join(Path(path).name for path in traces)
    _run(recorded, options, bill, source, form=form, output=output, timeline=timeline)


def _run(
    recorded: "Sequence[Trace]",
    options: "Options",
    price: "Price",
    source: str,
    *,
    form: str,
    output: str | None,
    timeline: str | None,
) -> None:
    """Run the backtest and write what it came to."""
    from gpuscale.controller import decide
    from gpuscale.simulation import backtest as backtests
    from gpuscale.simulation import htmlreport, report

    if form == "html":
        options = htmlreport.drawn(options, len(recorded))
    with report.progress_on(sys.stderr) as progress:
        outcomes = backtests.backtest(recorded, options, decide, progress)
    for sentence in outcomes.refused:
        click.echo(f"gpuscale: {sentence}", err=True)
    with report.opened(output, sys.stdout) as file:
        if form == "html":
            htmlreport.write(outcomes.details, price, source, file)
        elif form == "json":
            file.write(report.as_json(outcomes.backtests, price))
        else:
            report.write_table(outcomes.backtests, file, price)
    if timeline is not None:
        with report.opened(timeline, sys.stdout) as file:
            report.write_timeline(outcomes.timelines, file)
