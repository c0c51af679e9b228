"""`gpuscale config`: check, show and describe settings files."""

import click

_DAEMON = click.option(
    "--for",
    "daemon",
    type=click.Choice(["controller", "exporter"]),
    default="controller",
    show_default=True,
    help="Whose settings they are.",
)


@click.group()
def config() -> None:
    """Check settings, show what holds, list every key."""


@config.command("check")
@click.argument("file", type=click.Path(dir_okay=False))
@_DAEMON
def config_check(file: str, daemon: str) -> None:
    """Say whether FILE can be used.

    Exit code 2 and one sentence where it cannot.
    """
    from gpuscale.config import load
    from gpuscale.settings_view import KINDS

    load(file, KINDS[daemon])
    click.echo(f"{file}: good settings of the {daemon}")


@config.command("show")
@click.argument("file", type=click.Path(dir_okay=False), required=False)
@_DAEMON
@click.option("--policy", metavar="NAME", help="Only this policy (`defaults` for the default).")
@click.option("--workload", metavar="NAMESPACE/NAME", help="Only this workload's own policy.")
def config_show(file: str | None, daemon: str, policy: str | None, workload: str | None) -> None:
    """Print the settings that hold with FILE.

    Every default filled in, as YAML.
    """
    from gpuscale import settings_view
    from gpuscale.config import load

    settings = load(file, settings_view.KINDS[daemon])
    plain = settings_view.part(settings, policy=policy, workload=workload)
    click.echo(settings_view.as_yaml(plain), nl=False)


@config.command("schema")
@_DAEMON
def config_schema(daemon: str) -> None:
    """Print the JSON Schema of the settings.

    Every key with its type, range and meaning.
    """
    import json

    from gpuscale import settings_view

    click.echo(json.dumps(settings_view.schema(daemon), indent=2))
