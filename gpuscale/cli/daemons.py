"""`gpuscale exporter`, `gpuscale controller`, `gpuscale demo`: what runs until it is stopped."""

import os
import signal

import click


def _leave_when_asked() -> None:
    """Exit with 0 on SIGTERM and SIGINT from now on, until the daemon heeds them itself.

    Loading the libraries takes half a second, in which nothing is open yet that has to be closed;
    the first process of a container would not even hear a signal that nobody handles.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(0))


@click.command()
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
    """Publish the GPUs of this node and whose they are.

    Options win over the settings file.
    """
    _leave_when_asked()
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


@click.command()
@click.option("--config", type=click.Path(dir_okay=False), help="Settings file (YAML).")
@click.option("--listen", metavar="HOST:PORT", help="Address of the page, the API and /metrics.")
@click.option("--listen-grpc", metavar="HOST:PORT", help="Address of KEDA's external scaler.")
@click.option(
    "--exporters", metavar="URL", help="Base address of the exporters, for the page's map of GPUs."
)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]))
@click.option("--log-format", type=click.Choice(["json", "console"]))
def controller(
    *,
    config: str | None,
    listen: str | None,
    listen_grpc: str | None,
    exporters: str | None,
    log_level: str | None,
    log_format: str | None,
) -> None:
    """Forecast demand and ask for the replicas it needs.

    Options win over the settings file.
    """
    _leave_when_asked()
    from gpuscale.clock import SystemClock
    from gpuscale.config import load
    from gpuscale.controller import daemon
    from gpuscale.doctor.visit import Visits
    from gpuscale.runtime import exit_now
    from gpuscale.settings import ControllerSettings

    settings = daemon.with_options(
        load(config, ControllerSettings),
        {"listen": listen, "listen_grpc": listen_grpc},
        exporters=exporters,
        log_options={"level": log_level, "format": log_format},
    )
    # A thread may still wait for a volume that hangs.
    exit_now(daemon.run(settings, doctor=Visits(settings, SystemClock()).results))


@click.command()
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
    """Run the whole loop on a simulated cluster.

    Its GPUs are simulated too: no GPU, cluster or network is needed. The outcome is printed at the end.
    """
    _leave_when_asked()
    from gpuscale.demo import run, show
    from gpuscale.runtime import exit_now

    options = run.Options(
        listen=listen or ("127.0.0.1:0" if headless else "127.0.0.1:8080"),
        duration_s=duration or (60.0 if headless else None),
        speed=speed,
        seed=seed,
    )
    exit_now(show.play(options, form=form, live=not headless))
