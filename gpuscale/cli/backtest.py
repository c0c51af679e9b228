"""`gpuscale backtest`: what each policy would have cost on recorded demand."""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from gpuscale.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuscale.simulation.options import Options
    from gpuscale.simulation.report import Price
    from gpuscale.simulation.trace import Trace


@click.command()
@click.argument("traces", nargs=-1, metavar="[TRACE.csv...]")
@click.option(
    "--prometheus",
    "url",
    metavar="URL",
    help="Instead of TRACE: demand that a Prometheus recorded.",
)
@click.option("--query", metavar="PROMQL", help="What the demand is, in units/s, as one series.")
@click.option(
    "--since", metavar="DURATION", default="14d", show_default=True, help="How far back to read."
)
@click.option(
    "--step", metavar="DURATION", help="Step of it.  [default: 1m, coarser beyond a month]"
)
@click.option(
    "--config",
    type=click.Path(dir_okay=False),
    help="The controller's settings, whose `prometheus` says the address and who we are.",
)
@click.option("--bearer-token-file", metavar="FILE", help="Token for the Prometheus.")
@click.option("--ca-file", metavar="FILE", help="Authorities that its certificate is checked by.")
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
@click.option(
    "--timeline",
    metavar="FILE",
    help="Write every tick to a CSV file (one trace); - is standard output, and the table then goes to standard error.",
)
@click.option(
    "--price", type=float, metavar="P", help="Money per GPU-hour: what each policy costs."
)
@click.option(
    "--gpus", type=float, default=1.0, show_default=True, metavar="N", help="GPUs of one replica."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "html"]),
    default="table",
    show_default=True,
)
@click.option("-o", "--output", metavar="FILE", help="Write there instead of standard output.")
def backtest(
    *,
    traces: tuple[str, ...],
    url: str | None,
    query: str | None,
    since: str,
    step: str | None,
    config: str | None,
    bearer_token_file: str | None,
    ca_file: str | None,
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
    """Say what each policy would have cost on recorded demand.

    TRACE.csv has the header timestamp,value: seconds at a fixed step, and the demand in units/s,
    empty where it is missing. Or name a Prometheus and a query, for example
    sum(rate(vllm:request_success_total{namespace="ml"}[1m])). The last 7 days are judged, or the
    last half of a shorter trace; everything before is history to learn from.
    """
    from pathlib import Path

    from gpuscale.simulation import peers, report, trace
    from gpuscale.simulation.options import Options, cold_starts_of

    # `--policy A B TRACE.csv`: names after the first arrive among the traces.
    named = tuple(t for t in traces if policies and peers.is_policy(t) and not Path(t).exists())
    traces = tuple(t for t in traces if t not in named)
    names = tuple(name for text in (*policies, *named) for name in text.split(",") if name)
    if timeline is not None and len(traces) > 1:
        raise InputError("--timeline is for one trace; run the traces one by one")
    if timeline == "-" and output == "-":
        raise InputError("--timeline - and -o - would mix on standard output; name a file for one")
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
    given = {"bearer_token_file": bearer_token_file, "ca_file": ca_file}
    where = _Where(url, query, since, step, config, {k: v for k, v in given.items() if v})
    if where.is_prometheus(traces):
        recorded, source = [where.read()], f"{query} over {since}"
    else:
        recorded = [trace.load(Path(path)) for path in traces]
        source = ", ".join(Path(path).name for path in traces)
    _run(recorded, options, bill, source, form=form, output=output, timeline=timeline)


@dataclass(frozen=True)
class _Where:
    """The Prometheus that a trace is read from, as the options name it."""

    url: str | None
    query: str | None
    since: str
    step: str | None
    config: str | None
    given: "Mapping[str, str]"

    def is_prometheus(self, traces: "Sequence[str]") -> bool:
        """Whether a Prometheus is named rather than files. Raises InputError for both, half or none."""
        if self.url is None and self.query is None and self.config is None and not self.given:
            if not traces:
                raise InputError(
                    "no trace was given; name a CSV file with the header timestamp,value, or --prometheus URL and --query PROMQL"
                )
            return False
        if traces:
            raise InputError("files and --prometheus exclude each other; give one of them")
        if not (self.query or "").strip():
            raise InputError(
                "--prometheus needs --query: what the demand is, e.g. 'sum(rate(http_requests_total[1m]))'"
            )
        if self.url is None and self.config is None:
            raise InputError("--query needs --prometheus URL, or --config with its settings")
        return True

    def read(self) -> "Trace":
        """The trace. Raises InputError, ConfigError or SourceError."""
        import asyncio

        from gpuscale import clock
        from gpuscale.config import convert, load
        from gpuscale.settings import ControllerSettings, PrometheusSettings
        from gpuscale.simulation import recorded, report

        base = load(self.config, ControllerSettings).prometheus
        fields = {} if base is None else {f: getattr(base, f) for f in base.__struct_fields__}
        fields |= self.given
        if self.url is not None:
            fields["url"] = self.url
        if "url" not in fields:
            raise InputError(
                f"{self.config} names no Prometheus; add prometheus.url, or give --prometheus URL"
            )
        settings = convert(fields, PrometheusSettings, where="--prometheus")
        since_s = recorded.duration_s(self.since, "--since")
        step_s = (
            recorded.step_for(since_s)
            if self.step is None
            else recorded.duration_s(self.step, "--step")
        )
        with report.progress_on(sys.stderr, "reading") as progress:
            return asyncio.run(
                recorded.read(
                    settings,
                    self.query or "",
                    since_s=since_s,
                    step_s=step_s,
                    clock=clock.SystemClock(),
                    progress=progress,
                )
            )


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
    aside = sys.stderr if timeline == "-" and output is None else sys.stdout
    with report.opened(output, aside) as file:
        if form == "html":
            htmlreport.write(outcomes.details, price, source, file)
        elif form == "json":
            file.write(report.as_json(outcomes.backtests, price))
        else:
            report.write_table(outcomes.backtests, file, price)
    if timeline is not None:
        with report.opened(timeline, sys.stdout) as file:
            report.write_timeline(outcomes.timelines, file)
