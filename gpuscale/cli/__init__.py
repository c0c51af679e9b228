"""The command line: reads arguments and files, hands over, prints.

Each family of commands has its file, which declares options and imports its rooms only when a
command runs: `gpuscale --help` must answer at once.
"""

import sys
from typing import NoReturn

import click

from gpuscale import __version__
from gpuscale.cli.audit import audit
from gpuscale.cli.backtest import backtest
from gpuscale.cli.completion import completion
from gpuscale.cli.config import config
from gpuscale.cli.cost import cost
from gpuscale.cli.daemons import controller, demo, exporter
from gpuscale.cli.doctor import doctor
from gpuscale.cli.examples import epilog
from gpuscale.cli.explain import explain, replay
from gpuscale.cli.forecast import forecast
from gpuscale.cli.lint import lint
from gpuscale.cli.scaledobject import scaledobject
from gpuscale.cli.top import top
from gpuscale.errors import GpuscaleError

PROGRAM = "gpuscale"
"""As it calls itself however it was started: shells complete by this name."""

CONTROLLER_LIBRARIES = ("numpy", "kubernetes_asyncio", "plotly")
"""What the extra `controller` installs; the exporter's image is without it."""

COMMANDS: tuple[click.Command, ...] = (
    exporter,
    backtest,
    forecast,
    controller,
    explain,
    replay,
    config,
    scaledobject,
    top,
    doctor,
    lint,
    audit,
    cost,
    completion,
    demo,
)
"""In the order in which `--help` lists them; a new command is added here."""


class _Commands(click.Group):
    """The commands in the order of `COMMANDS`, not of the alphabet."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gpuscale")
def cli() -> None:
    """A truthful GPU exporter and a forecasting autoscaler for GPU inference on Kubernetes."""


for _command in COMMANDS:
    cli.add_command(_command)
    _command.epilog = epilog(_command.name or "")
    for _inner in _command.commands.values() if isinstance(_command, click.Group) else ():
        _inner.epilog = epilog(f"{_command.name} {_inner.name}")


def main() -> NoReturn:
    """Run a command; a known error is one sentence on standard error and its own exit code."""
    try:
        sys.exit(cli(standalone_mode=True, prog_name=PROGRAM))
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
