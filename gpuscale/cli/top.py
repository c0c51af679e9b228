"""`gpuscale top`: the fleet and its GPUs in a terminal."""

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from gpuscale.errors import InputError

if TYPE_CHECKING:
    from gpuscale.top import Source

STATES = ("error", "held", "paused", "rising", "falling", "steady")
WIDTH = 160
"""Columns of what goes to a file or a pipe."""


@click.command()
@click.option(
    "--url",
    default="http://127.0.0.1:8080",
    show_default=True,
    help="Address of the controller's page.",
)
@click.option(
    "--exporter",
    "exporters",
    multiple=True,
    metavar="URL",
    help="Show the GPUs of this exporter instead, or of all behind the name. Can be repeated.",
)
@click.option("--gpus", is_flag=True, help="Also the GPUs that the controller's exporters tell of.")
@click.option(
    "-q", "--search", default="", metavar="TEXT", help="Only workloads with this in their name."
)
@click.option(
    "--state", type=click.Choice(STATES), default=None, help="Only workloads in this state."
)
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=40, show_default=True, help="Workloads shown."
)
@click.option(
    "--interval",
    type=click.FloatRange(0.5, 3600),
    default=5.0,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option("--once", is_flag=True, help="One look, as into a pipe.")
@click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True,
    help="json is one look.",
)  # fmt: skip
def top(
    *,
    url: str,
    exporters: tuple[str, ...],
    gpus: bool,
    search: str,
    state: str | None,
    limit: int,
    interval: float,
    once: bool,
    form: str,
) -> None:
    """Watch workloads, replicas and GPUs.

    From a controller's API, those that need a person first; or GPUs straight from exporters. In a
    terminal it goes on until Ctrl-C; a last answer stays on the screen with its age.
    """
    import asyncio
    import json

    from rich.console import Console

    from gpuscale import top as room
    from gpuscale.clock import SystemClock

    clock = SystemClock()
    source = _source(
        url, exporters, limit=limit, search=search, state=state or "", gpus=gpus, interval=interval
    )
    if form == "json" or once or not sys.stdout.isatty():
        view = asyncio.run(room.once(source))
        if form == "json":
            click.echo(json.dumps(view.as_dict(), indent=2))
        else:
            width = None if sys.stdout.isatty() else WIDTH
            Console(width=width, highlight=False).print(room.shown(view, clock.wall()))
        return

    async def live() -> None:
        try:
            await room.watch(source, Console(highlight=False), clock, interval_s=interval)
        finally:
            await source.close()

    with suppress(KeyboardInterrupt):
        asyncio.run(live())


def _source(
    url: str,
    exporters: tuple[str, ...],
    *,
    limit: int,
    search: str,
    state: str,
    gpus: bool,
    interval: float,
) -> "Source":
    from urllib.parse import urlsplit

    from gpuscale import top as room
    from gpuscale.clock import SystemClock
    from gpuscale.config import convert
    from gpuscale.controller.exporters import Exporters
    from gpuscale.settings import ExportersSettings

    clock = SystemClock()
    if exporters:
        fields = {"urls": exporters, "fresh_s": min(interval, 10.0) / 2}
        settings = convert(fields, ExportersSettings, where="--exporter")
        return room.FromExporters(Exporters(settings, clock), ", ".join(exporters[:3]), clock)
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets without an address, a port that is none
        usable = False
    if not usable:
        raise InputError(f"--url {url!r}: write http://HOST:PORT of the controller's page")
    return room.FromController(url, clock, limit=limit, search=search, state=state, gpus=gpus)
