"""The command line: reads arguments and files, hands over, prints. Imports its rooms only when a command runs."""

import sys
from typing import NoReturn

import click

from gpuscale import __version__
from gpuscale.errors import GpuscaleError


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

    from gpuscale.config import ExporterSettings, load
    from gpuscale.exporter import daemon
    from gpuscale.runtime import exit_now

    settings = daemon.with_options(
        load(config, ExporterSettings),
        {"listen": listen, "nvml": nvml, "node_name": node_name},
        log_options={"level": log_level, "format": log_format},
    )
    # A call that hangs in the driver can never be joined: the process ends around it.
    exit_now(daemon.run(settings, os.environ))


def main() -> NoReturn:
    """Run a command; a known error is one sentence on standard error and its own exit code."""
    try:
        sys.exit(cli(standalone_mode=True))
    except GpuscaleError as error:
        click.echo(f"gpuscale: {error}", err=True)
        sys.exit(error.exit_code)
