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


def main() -> NoReturn:
    """Run a command; a known error is one sentence on standard error and its own exit code."""
    try:
        sys.exit(cli(standalone_mode=True))
    except GpuscaleError as error:
        click.echo(f"gpuscale: {error}", err=True)
        sys.exit(error.exit_code)
