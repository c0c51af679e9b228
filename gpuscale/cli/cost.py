"""`gpuscale cost`: GPU-hours, energy and money, and whose they are."""

from typing import TYPE_CHECKING, Any

import click

from gpuscale.errors import InputError, printable

if TYPE_CHECKING:
    from rich.text import Text

    from gpuscale.cost.bill import Bill, Row
    from gpuscale.settings import PrometheusSettings


@click.command()
@click.option("--prometheus", "url", metavar="URL", help="Prometheus with the exporters' accounts.")
@click.option(
    "--config",
    type=click.Path(dir_okay=False),
    help="The controller's settings, whose `prometheus` says the address and who we are.",
)
@click.option(
    "--cluster",
    metavar="NAME",
    help="Only series whose label `cluster` is that, where one Prometheus has many.",
)
@click.option("--since", default="7d", show_default=True, help="How far back from now.")
@click.option(
    "--by",
    default="namespace",
    show_default=True,
    metavar="namespace|label:NAME|workload",
    help="What a row is; label:NAME is a label of the namespace.",
)
@click.option(
    "--price",
    metavar="FILE|opencost",
    help="Prices of a GPU-hour: a file, or what OpenCost says of the nodes.",
)
@click.option(
    "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True
)
def cost(
    *,
    url: str | None,
    config: str | None,
    cluster: str | None,
    since: str,
    by: str,
    price: str | None,
    form: str,
) -> None:
    """Say whose the GPU-hours, the energy and the money were.

    From the exporters' accounts in a Prometheus: rows, what nobody held and what nobody knows add up
    to the time of all GPUs. Without --price there are hours and energy, and no money.
    """
    import asyncio
    import json

    from gpuscale.simulation.recorded import duration_s

    if by not in ("namespace", "workload") and not by.startswith("label:"):
        raise InputError(f"--by {by[:64]}: write namespace, workload or label:NAME")
    since_s = duration_s(since, "--since")
    found, currency, at = asyncio.run(_read(_settings(url, config), since_s, by, price, cluster))
    if form == "json":
        head = {"at": at, "since_s": since_s, "by": by, "currency": currency}
        click.echo(json.dumps({**head, **_plain(found)}, indent=2))
    else:
        _table(found, by, since, currency, priced=price is not None)


def _settings(url: str | None, config: str | None) -> "PrometheusSettings":
    import msgspec

    from gpuscale.config import convert, load
    from gpuscale.settings import ControllerSettings, PrometheusSettings

    known = load(config, ControllerSettings).prometheus
    if url is None:
        if known is None:
            raise InputError(
                "no Prometheus is named: give --prometheus URL, or --config with prometheus.url"
            )
        return known
    base = {} if known is None else msgspec.to_builtins(known)
    return convert({**base, "url": url}, PrometheusSettings, where="--prometheus")


async def _read(
    settings: "PrometheusSettings", since_s: float, by: str, price: str | None, cluster: str | None
) -> "tuple[Bill, str, float]":
    from dataclasses import replace

    from gpuscale.clock import SystemClock
    from gpuscale.config import load
    from gpuscale.cost.bill import NOBODY, bill
    from gpuscale.cost.prices import Prices
    from gpuscale.cost.read import Reader

    prices: Prices | None = None if price in (None, "opencost") else load(price, Prices)
    reader = Reader(settings, SystemClock(), since_s=since_s, cluster=cluster)
    try:
        accounts = await reader.accounts()
        if price == "opencost":
            prices = await reader.opencost()
        labels = await reader.labels(by.removeprefix("label:")) if by.startswith("label:") else None
        weights = await reader.weights() if by == "workload" else None
        found = bill(
            accounts,
            prices,
            (lambda name: name) if labels is None else (lambda name: labels.get(name, NOBODY)),
            weights,
        )
        begin_s = await reader.begin_s()
    finally:
        await reader.close()
    return (
        replace(found, notes=tuple(_notes(found, begin_s))),
        "" if prices is None else prices.currency,
        reader.at,
    )


def _notes(found: "Bill", begin_s: float | None) -> list[str]:
    notes = []
    if begin_s is not None:
        notes.append(f"the accounts begin {begin_s / 3600:.0f} h ago, later than the window")
    if found.total.unpriced_h > 0 and found.total.cost is not None:
        notes.append(
            f"{found.total.unpriced_h:.1f} GPU-hours have no price and are in no cost: name their products in the prices"
        )
    elif found.total.unpriced_h > 0:
        notes.append("no product has a price: name them in the prices, or set default")
    if found.unknown_h >= 0.05:
        notes.append(f"of {found.unknown_h:.1f} GPU-hours it is not known whose they were")
    return notes


def _plain(found: "Bill") -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "rows": [asdict(row) for row in found.rows],
        "unallocated": asdict(found.unallocated),
        "unknown_h": found.unknown_h,
        "total": asdict(found.total),
        "notes": list(found.notes),
    }


def _table(found: "Bill", by: str, since: str, currency: str, *, priced: bool) -> None:
    import sys

    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"The last {since}, by {by}", title_justify="left")
    table.add_column(by.removeprefix("label:"))
    for name in ("GPU-hours", "active", "idle", "unmeasured", "energy, kWh"):
        table.add_column(name, justify="right")
    if priced:
        unit = f", {escape(currency)}" if currency else ""
        table.add_column(f"cost{unit}", justify="right")
        table.add_column(f"of it idle{unit}", justify="right")
    for row in found.rows:
        table.add_row(*_cells(row, priced=priced))
    table.add_section()
    table.add_row(*_cells(found.unallocated, priced=priced), style="dim")
    table.add_row(*_cells(found.total, priced=priced), style="bold")
    width = None if sys.stdout.isatty() else 120
    console = Console(width=width, highlight=False)
    console.print(table)
    for note in found.notes:
        console.print(f"{note}.", markup=False)


def _cells(row: "Row", *, priced: bool) -> "list[str | Text]":
    """A row's cells; what is unknown is a dash, never 0. Names are text, and no markup."""
    from rich.text import Text

    def number(value: float | None, digits: int) -> str:
        return "–" if value is None else f"{value:,.{digits}f}"

    cells: list[str | Text] = [
        Text(printable(row.name)),
        *(number(v, 1) for v in (row.allocated_h, row.active_h, row.idle_h)),
    ]
    cells += [number(row.unmeasured_h, 1), number(row.energy_kwh, 1)]
    if priced:
        cells += [number(row.cost, 2), number(row.idle_cost, 2)]
    return cells
