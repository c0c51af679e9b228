"""`gpuscale audit`: what lets pods use GPUs that they were not given."""

from typing import TYPE_CHECKING

import click

from gpuscale.cli import manifests

if TYPE_CHECKING:
    from gpuscale.lint.bypass import Allowed
    from gpuscale.settings import ControllerSettings


@click.command()
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    required=True,
    metavar="FILE|DIR|-",
    help="Manifests to look at. Can be repeated.",
)
@click.option(
    "--config",
    type=click.Path(dir_okay=False),
    help="The controller's settings file, for its allow-list (audit).",
)
@manifests.severity_option
@manifests.format_option
def audit(*, files: tuple[str, ...], config: str | None, severity: str, form: str) -> None:
    """Say which pods may use GPUs that nobody gave them.

    NVIDIA_VISIBLE_DEVICES, privileges, device mounts, runtime classes, CDI annotations, MPS by hand.
    Exit code 1 where a finding is at least of --severity, 2 where a file cannot be read.

    \b
    Examples:
      gpuscale audit -f deploy/
      kubectl get pods -A -o yaml | gpuscale audit -f -
    """
    from gpuscale import lint
    from gpuscale.config import load
    from gpuscale.settings import ControllerSettings

    settings = load(config, ControllerSettings)
    found = manifests.read(files)
    findings = lint.audit(found, allowed(settings))
    count = len(found)
    manifests.show(findings, form, looked_at=f"{count} object{'s' if count != 1 else ''}")
    manifests.exit_for(findings, severity)


def allowed(settings: "ControllerSettings") -> "Allowed":
    """The allow-list of the settings."""
    from gpuscale.lint.bypass import Allowed

    return Allowed(namespaces=settings.audit.allow_namespaces, pods=settings.audit.allow_pods)
