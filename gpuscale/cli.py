"""The command line: reads arguments and files, hands over, prints. Imports its rooms only when a command runs."""

import sys
from typing import NoReturn

import click

from gpuscale import __version__
from gpuscale.errors import GpuscaleError, InputError

CONTROLLER_LIBRARIES = ("numpy", "kubernetes_asyncio", "plotly")
"""What the extra `controller` installs; the exporter's image is without it."""


class _Commands(click.Group):
    """The commands, in the order in which a newcomer meets them; errors are one sentence."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gpuscale")
def cli() -> None:
    """A truthful GPU exporter and a forecasting autoscaler for GPU inference on Kubernetes."""


@cli.command()
@click.option("--config", type=click.Path(dir_okay=False), help="Settings file (YAML).")
@click.option("--listen", metavar="HOST:PORT", help="Address of the HTTP server.")
@click.option("--nvml", metavar="MODE", help="auto, off, or simulated:CARDxCOUNT (h100x8).")
@click.option(
    "--node-name", help="Name of this node in labels; else NODE_NAME, else the host name."
)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]))
@click.option("--log-format", type=click.Choice(["json", "console"]))
def exporter(
    *,
    config: str | None,
    listen: str | None,
    nvml: str | None,
    node_name: str | None,
    log_level: str | None,
    log_format: str | None,
) -> None:
    """Publish the GPUs of this node and who holds them; options win over the settings file."""
    import os

    from gpuscale.config import load
    from gpuscale.exporter import daemon
    from gpuscale.runtime import exit_now
    from gpuscale.settings import ExporterSettings

    settings = daemon.with_options(
        load(config, ExporterSettings),
        {"listen": listen, "nvml": nvml, "node_name": node_name},
        log_options={"level": log_level, "format": log_format},
    )
    # A call that hangs in the driver can never be joined: the process ends around it.
    exit_now(daemon.run(settings, os.environ))


@cli.command()
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
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table")
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
    form: str,
    output: str | None,
) -> None:
    """What each policy would have cost on recorded demand.

    TRACE.csv has the header timestamp,value: seconds at a fixed step, and the demand in units/s,
    empty where it is missing. The last 7 days are judged, or the last half of a shorter trace;
    everything before is history to learn from.
    """
    from pathlib import Path

    from gpuscale.controller import decide
    from gpuscale.simulation import backtest as backtests
    from gpuscale.simulation import peers, report, trace

    # `--policy A B TRACE.csv`: names after the first arrive among the traces.
    named = tuple(t for t in traces if policies and peers.is_policy(t) and not Path(t).exists())
    traces = tuple(t for t in traces if t not in named)
    names = tuple(name for text in (*policies, *named) for name in text.split(",") if name)
    if not traces:
        raise InputError("no trace was given; name a CSV file with the header timestamp,value")
    options = backtests.Options(
        capacity=capacity,
        peak_replicas=peak_replicas,
        cold_starts_s=backtests.cold_starts_of(cold_start),
        replicas_min=low,
        replicas_max=high,
        policies=names or peers.POLICIES,
        from_s=from_s,
        to_s=to_s,
        timeline=timeline is not None,
    )
    if timeline is not None and len(traces) > 1:
        raise InputError("--timeline is for one trace; run the traces one by one")
    recorded = [trace.load(Path(path)) for path in traces]
    with report.progress_on(sys.stderr) as progress:
        outcomes = backtests.backtest(recorded, options, decide, progress)
    for sentence in outcomes.refused:
        click.echo(f"gpuscale: {sentence}", err=True)
    with report.opened(output, sys.stdout) as file:
        if form == "json":
            file.write(report.as_json(outcomes.backtests))
        else:
            report.write_table(outcomes.backtests, file)
    if timeline is not None:
        with report.opened(timeline, sys.stdout) as file:
            report.write_timeline(outcomes.timelines, file)


@cli.command()
@click.option("--config", type=click.Path(dir_okay=False), help="Settings file (YAML).")
@click.option("--listen", metavar="HOST:PORT", help="Address of the page, the API and /metrics.")
@click.option("--listen-grpc", metavar="HOST:PORT", help="Address of KEDA's external scaler.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]))
@click.option("--log-format", type=click.Choice(["json", "console"]))
def controller(
    *,
    config: str | None,
    listen: str | None,
    listen_grpc: str | None,
    log_level: str | None,
    log_format: str | None,
) -> None:
    """Forecast demand and ask for the replicas it needs; options win over the settings file."""
    from gpuscale.config import load
    from gpuscale.controller import daemon
    from gpuscale.settings import ControllerSettings

    settings = daemon.with_options(
        load(config, ControllerSettings),
        {"listen": listen, "listen_grpc": listen_grpc},
        log_options={"level": log_level, "format": log_format},
    )
    sys.exit(daemon.run(settings))


@cli.command()
@click.argument("workload", metavar="NAMESPACE/NAME")
@click.option(
    "--at",
    metavar="TIME",
    help="ISO 8601, seconds since 1970, or how long ago (-15m).  [default: now]",
)
@click.option(
    "--url",
    default="http://127.0.0.1:8080",
    show_default=True,
    help="Address of the controller's page.",
)
@click.option("--journal", metavar="FILE", help="Read a controller's journal instead.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
def explain(*, workload: str, at: str | None, url: str, journal: str | None, form: str) -> None:
    """Why a workload has the replicas it has, in sentences, with every number that entered."""
    import json

    from gpuscale.clock import SystemClock
    from gpuscale.controller import lookup

    key = "/".join(lookup.parse_key(workload))
    now = SystemClock().wall()
    when = lookup.parse_time(at, now)
    decision = (
        lookup.from_api(url, key, when)
        if journal is None
        else lookup.from_journal(journal, key, now if when is None else when)
    )
    click.echo(json.dumps(decision, indent=2) if form == "json" else lookup.as_text(decision))


_DAEMON = click.option(
    "--for",
    "daemon",
    type=click.Choice(["controller", "exporter"]),
    default="controller",
    show_default=True,
    help="Whose settings they are.",
)


@cli.group()
def config() -> None:
    """Settings files: check one, show what holds, list every key."""


@config.command("check")
@click.argument("file", type=click.Path(dir_okay=False))
@_DAEMON
def config_check(file: str, daemon: str) -> None:
    """Say whether FILE can be used; exit code 2 and one sentence where it cannot."""
    from gpuscale.config import load
    from gpuscale.settings_view import KINDS

    load(file, KINDS[daemon])
    click.echo(f"{file}: good settings of the {daemon}")


@config.command("show")
@click.argument("file", type=click.Path(dir_okay=False), required=False)
@_DAEMON
@click.option("--policy", metavar="NAME", help="Only this policy (`defaults` for the default).")
@click.option("--workload", metavar="NAMESPACE/NAME", help="Only this workload's own policy.")
def config_show(file: str | None, daemon: str, policy: str | None, workload: str | None) -> None:
    """Print the settings that hold with FILE, every default filled in, as YAML."""
    from gpuscale import settings_view
    from gpuscale.config import load

    settings = load(file, settings_view.KINDS[daemon])
    plain = settings_view.part(settings, policy=policy, workload=workload)
    click.echo(settings_view.as_yaml(plain), nl=False)


@config.command("schema")
@_DAEMON
def config_schema(daemon: str) -> None:
    """Print the JSON Schema of the settings: every key with its type, range and meaning."""
    import json

    from gpuscale import settings_view

    click.echo(json.dumps(settings_view.schema(daemon), indent=2))


@cli.command()
@click.argument("workload", metavar="NAMESPACE/NAME")
@click.option("--config", type=click.Path(dir_okay=False), help="The controller's settings file.")
@click.option("--policy", metavar="NAME", help="Policy in the settings file.")
@click.option("--kind", default="Deployment", show_default=True, help="Kind of the scale target.")
@click.option("--api-version", default="apps/v1", show_default=True, help="Its API version.")
@click.option("--address", metavar="HOST:PORT", help="Address of gpuscale's gRPC service.")
@click.option("--min", "low", type=int, metavar="N", help="Fewest replicas.")
@click.option("--max", "high", type=int, metavar="N", help="Most replicas.")
@click.option("--server", metavar="NAME", help="Inference server (vllm, triton).")
@click.option("--capacity", type=float, metavar="R", help="Requests/s that one replica serves.")
@click.option(
    "--start-time", type=float, metavar="S", help="Seconds that a replica takes to start."
)
@click.option("--mode", type=click.Choice(["shadow", "act"]), help="Watch, or move replicas.")
@click.option("--auth", metavar="NAME", help="TriggerAuthentication with the client's certificate.")
@click.option("--format", "form", type=click.Choice(["yaml", "json"]), default="yaml")
def scaledobject(
    *,
    workload: str,
    config: str | None,
    policy: str | None,
    kind: str,
    api_version: str,
    address: str | None,
    low: int | None,
    high: int | None,
    server: str | None,
    capacity: float | None,
    start_time: float | None,
    mode: str | None,
    auth: str | None,
    form: str,
) -> None:
    """Print the ScaledObject to commit for a workload: KEDA then asks gpuscale, and follows."""
    import json

    import yaml

    from gpuscale.config import load
    from gpuscale.controller import scaledobject as manifests
    from gpuscale.settings import ControllerSettings

    namespace, separator, name = workload.partition("/")
    if not (namespace and separator and name):
        raise InputError(f"{workload!r} is no workload: write NAMESPACE/NAME")
    given = {
        "min_replicas": low,
        "max_replicas": high,
        "server": server,
        "capacity": capacity,
        "start_time_s": start_time,
        "mode": mode,
    }
    found, metadata = manifests.declare(
        namespace,
        name,
        load(config, ControllerSettings),
        kind=kind,
        api_version=api_version,
        policy=policy,
        fields={field: value for field, value in given.items() if value is not None},
    )
    manifest = manifests.scaledobject(
        found, metadata, address=address or manifests.ADDRESS, authentication=auth
    )
    click.echo(
        json.dumps(manifest, indent=2)
        if form == "json"
        else yaml.safe_dump(manifest, sort_keys=False).rstrip()
    )


@cli.command()
@click.option("--headless", is_flag=True, help="No page to look at: run, then print the outcome.")
@click.option(
    "--duration",
    metavar="S",
    type=click.FloatRange(min=1),
    help="Real seconds; without --headless until Ctrl-C.",
)
@click.option(
    "--speed",
    metavar="N",
    type=click.FloatRange(min=1, max=3600),
    default=60.0,
    show_default=True,
    help="Simulated seconds per real second.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Address of the page; default 127.0.0.1:8080, headless a free port.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="The same seed plays the same demo."
)
@click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True
)
def demo(
    *,
    headless: bool,
    duration: float | None,
    speed: float,
    listen: str | None,
    seed: int,
    form: str,
) -> None:
    """Run the whole loop on simulated GPUs and a simulated cluster: no GPU, cluster or network."""
    from gpuscale.demo import run, show
    from gpuscale.runtime import exit_now

    options = run.Options(
        listen=listen or ("127.0.0.1:0" if headless else "127.0.0.1:8080"),
        duration_s=duration or (60.0 if headless else None),
        speed=speed,
        seed=seed,
    )
    exit_now(show.play(options, form=form, live=not headless))


def main() -> NoReturn:
    """Run a command; a known error is one sentence on standard error and its own exit code."""
    try:
        sys.exit(cli(standalone_mode=True))
    except GpuscaleError as error:
        click.echo(f"gpuscale: {error}", err=True)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in CONTROLLER_LIBRARIES:
            raise
        click.echo(
            f"gpuscale: {error.name} is not installed, and this command needs it: "
            "pip install 'gpuscale[controller]'",
            err=True,
        )
        sys.exit(2)
