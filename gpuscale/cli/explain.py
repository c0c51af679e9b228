"""`gpuscale explain`: why a workload has the replicas it has."""

import click


@click.command()
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
