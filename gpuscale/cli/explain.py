"""`gpuscale explain` and `gpuscale replay`: why a workload has the replicas it has, and whether that is so."""

import sys

import click

from gpuscale.errors import InputError


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
@click.option(
    "--replay",
    is_flag=True,
    help="Decide that very tick again from what entered it, and show that.",
)
@click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True
)
def explain(
    *, workload: str, at: str | None, url: str, journal: str | None, replay: bool, form: str
) -> None:
    """Say why a workload has the replicas it has.

    In sentences, with every number that entered.
    """
    import json

    from gpuscale.clock import SystemClock
    from gpuscale.controller import lookup

    key = "/".join(lookup.parse_key(workload))
    now = SystemClock().wall()
    when = lookup.parse_time(at, now)
    if journal is None:
        if replay:
            raise InputError("--replay needs the journal's file: name it with --journal FILE")
        decision = lookup.from_api(url, key, when)
    else:
        read = lookup.from_replay if replay else lookup.from_journal
        decision = read(journal, key, now if when is None else when)
    click.echo(json.dumps(decision, indent=2) if form == "json" else lookup.as_text(decision))


@click.command()
@click.option("--journal", metavar="FILE", required=True, help="A controller's journal.")
@click.option("--from", "start", metavar="TIME", help="As in explain.  [default: the oldest tick]")
@click.option("--to", "end", metavar="TIME", help="As in explain.  [default: now]")
@click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True
)
def replay(*, journal: str, start: str | None, end: str | None, form: str) -> None:
    """Decide every tick of a journal again and compare.

    Says whether each decision comes out the same. Exit code 1 where one does not.
    """
    import json
    from dataclasses import asdict

    from gpuscale.clock import SystemClock
    from gpuscale.controller import lookup

    now = SystemClock().wall()
    found = lookup.check(
        journal, lookup.parse_time(start, now) or 0.0, lookup.parse_time(end, now) or now
    )
    click.echo(json.dumps(asdict(found), indent=2) if form == "json" else lookup.as_verdict(found))
    if found.differing_count:
        sys.exit(1)
