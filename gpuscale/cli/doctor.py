"""`gpuscale doctor`: what is installed, what is misconfigured, and the cure of each."""

import sys
from typing import TYPE_CHECKING

import click

from gpuscale.cli import clusters
from gpuscale.errors import ConfigError, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuscale.doctor.facts import Facts, Result
    from gpuscale.settings import ControllerSettings


@click.command()
@clusters.options
@click.option(
    "--prometheus", "url", metavar="URL", help="Prometheus to ask.  [default: that of --config]"
)
@click.option("--all", "everything", is_flag=True, help="Also what is as it should be.")
@click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True
)
def doctor(
    *,
    config: str | None,
    kubeconfig: str | None,
    context: str | None,
    namespaces: tuple[str, ...],
    url: str | None,
    everything: bool,
    form: str,
) -> None:
    """Say what is wrong with GPUs, KEDA and gpuscale here.

    Looks at this machine, at the cluster that kubectl would use, at gpuscale's exporters through it,
    and at a Prometheus; what it could not look at, it says. Nothing is changed. Exit code 1 where
    there is an error, 2 where the arguments cannot be used.
    """
    import asyncio
    import json
    from dataclasses import asdict

    from gpuscale import doctor as checks

    settings = clusters.settings_for(config, kubeconfig, context, namespaces)
    facts = asyncio.run(_gather(settings, url, named=bool(kubeconfig or context)))
    results = checks.examine(facts)
    if form == "json":
        click.echo(json.dumps({"results": [asdict(result) for result in results]}, indent=2))
    else:
        _table(results, everything=everything)
    if any(result.status == "error" for result in results):
        sys.exit(1)


async def _gather(settings: "ControllerSettings", url: str | None, *, named: bool) -> "Facts":
    import asyncio

    import msgspec

    from gpuscale.clock import SystemClock
    from gpuscale.config import convert
    from gpuscale.doctor import gather
    from gpuscale.doctor.facts import Cluster, Facts, Unread
    from gpuscale.settings import PrometheusSettings

    clock = SystemClock()
    prometheus = settings.prometheus
    if url is not None:
        base = {} if prometheus is None else msgspec.to_builtins(prometheus)
        prometheus = convert({**base, "url": url}, PrometheusSettings, where="--prometheus")
    cluster: Cluster | Unread
    try:
        async with clusters.connected(settings) as gateway:
            cluster = await gather.cluster(gateway, settings.kubernetes.namespaces)
    except ConfigError as error:
        if named:
            raise
        cluster = Unread(str(error))
    return Facts(
        here=await asyncio.to_thread(gather.here, clock),
        cluster=cluster,
        prometheus=await gather.prometheus(prometheus, clock),
    )


_STYLES = {
    "error": "bold red",
    "warning": "yellow",
    "info": "cyan",
    "unknown": "magenta",
    "ok": "green",
}
TABLE_WIDTH = 120
"""Columns of what goes to a file or a pipe."""


def _table(results: "Sequence[Result]", *, everything: bool) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else TABLE_WIDTH, highlight=False)
    for result in results:
        if result.status == "ok" and not everything:
            continue
        line = Text(f"{result.status:<8}", style=_STYLES[result.status])
        line.append(f"{result.check:<20} ", style="bold")
        line.append(f"{printable(result.sentence)}.", style="default")
        console.print(line)
        if result.cure:
            console.print(Text(f"        {result.cure}", style="dim"))
    counts = [(s, sum(r.status == s for r in results)) for s in _STYLES]
    console.print(
        ", ".join(f"{n} {s}" for s, n in counts if n)
        + ("" if everything else " (--all shows what is ok)")
    )
