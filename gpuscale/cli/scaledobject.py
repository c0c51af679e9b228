"""`gpuscale scaledobject`: the manifest that hands a workload to gpuscale."""

import click

from gpuscale.errors import InputError


@click.command()
@click.argument("workload", metavar="NAMESPACE/NAME")
@click.option("--config", type=click.Path(dir_okay=False), help="The controller's settings file.")
@click.option("--policy", metavar="NAME", help="Policy in the settings file.")
@click.option("--kind", default="Deployment", show_default=True, help="Kind of the scale target.")
@click.option("--api-version", default="apps/v1", show_default=True, help="Its API version.")
@click.option("--address", metavar="HOST:PORT", help="Address of gpuscale's gRPC service.")
@click.option("--min", "low", type=int, metavar="N", help="Fewest replicas.")
@click.option("--max", "high", type=int, metavar="N", help="Most replicas.")
@click.option("--server", metavar="NAME", help="Inference server; docs/servers.md lists them.")
@click.option("--capacity", type=float, metavar="R", help="Requests/s that one replica serves.")
@click.option(
    "--start-time", type=float, metavar="S", help="Seconds that a replica takes to start."
)
@click.option("--mode", type=click.Choice(["shadow", "act"]), help="Watch, or move replicas.")
@click.option("--auth", metavar="NAME", help="TriggerAuthentication with the client's certificate.")
@click.option(
    "--format", "form", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True
)
def scaledobject(
    *,
    workload: str,
    config: str | None,
    policy: str | None,
    kind: str,
    api_version: str,
    address: str | None,
    low: int | None,
    high: int | None,
    server: str | None,
    capacity: float | None,
    start_time: float | None,
    mode: str | None,
    auth: str | None,
    form: str,
) -> None:
    """Print the ScaledObject to commit for a workload.

    KEDA then asks gpuscale how many replicas it is to have, and follows.
    """
    import json

    import yaml

    from gpuscale.config import load
    from gpuscale.controller import scaledobject as manifests
    from gpuscale.settings import ControllerSettings

    namespace, separator, name = workload.partition("/")
    if not (namespace and separator and name):
        raise InputError(f"{workload!r} is no workload: write NAMESPACE/NAME")
    given = {
        "min_replicas": low,
        "max_replicas": high,
        "server": server,
        "capacity": capacity,
        "start_time_s": start_time,
        "mode": mode,
    }
    found, metadata = manifests.declare(
        namespace,
        name,
        load(config, ControllerSettings),
        kind=kind,
        api_version=api_version,
        policy=policy,
        fields={field: value for field, value in given.items() if value is not None},
    )
    manifest = manifests.scaledobject(
        found, metadata, address=address or manifests.ADDRESS, authentication=auth
    )
    click.echo(
        json.dumps(manifest, indent=2)
        if form == "json"
        else yaml.safe_dump(manifest, sort_keys=False).rstrip()
    )
