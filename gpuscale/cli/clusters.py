"""The cluster that a command asks: options that name it, and a connection for as long as a question takes."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpuscale.errors import ConfigError

if TYPE_CHECKING:
    from gpuscale.controller.gateway import KubeGateway
    from gpuscale.settings import ControllerSettings

F = TypeVar("F", bound=Callable[..., Any])


def options(command: F) -> F:
    """The options --kubeconfig, --context and -n, and --config for the controller's own."""
    for option in (
        click.option(
            "-n",
            "--namespace",
            "namespaces",
            multiple=True,
            metavar="NAME",
            help="Only this namespace. Can be repeated.",
        ),
        click.option("--context", metavar="NAME", help="Context in the kubeconfig."),
        click.option("--kubeconfig", metavar="FILE", help="Of the cluster.  [default: as kubectl]"),
        click.option(
            "--config", type=click.Path(dir_okay=False), help="The controller's settings file."
        ),
    ):
        command = option(command)
    return command


def settings_for(
    config: str | None, kubeconfig: str | None, context: str | None, namespaces: tuple[str, ...]
) -> "ControllerSettings":
    """The controller's settings with the cluster that the options name. Raises ConfigError."""
    import msgspec

    from gpuscale.config import convert, load
    from gpuscale.settings import ControllerSettings

    settings = load(config, ControllerSettings)
    given = {"kubeconfig": kubeconfig, "context": context, "namespaces": namespaces or None}
    plain = msgspec.to_builtins(settings)
    plain["kubernetes"] |= {key: value for key, value in given.items() if value is not None}
    return convert(plain, ControllerSettings, where="command line")


@asynccontextmanager
async def connected(settings: "ControllerSettings") -> AsyncIterator["KubeGateway"]:
    """The API server, for a while. Raises ConfigError where no credentials name one."""
    import msgspec

    from gpuscale.clock import SystemClock
    from gpuscale.controller import kube

    wanted = msgspec.structs.replace(settings.kubernetes, enabled="on")
    gateway = await kube.connect(wanted, SystemClock())
    if gateway is None:
        raise ConfigError("no cluster is named: give --kubeconfig FILE, or set KUBECONFIG")
    try:
        yield gateway
    finally:
        await gateway.close()
