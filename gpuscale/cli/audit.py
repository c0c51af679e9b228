"""`gpuscale audit`: what lets pods use GPUs that they were not given."""

from typing import TYPE_CHECKING

import click

from gpuscale.cli import clusters, manifests

if TYPE_CHECKING:
    from gpuscale.controller.audit import Look, PodFinding
    from gpuscale.lint.bypass import Allowed
    from gpuscale.lint.finding import Finding
    from gpuscale.settings import ControllerSettings


@click.command()
@click.option(
    "-f",
    "--filename",
    "files",
    multiple=True,
    metavar="FILE|DIR|-",
    help="Look at manifests instead of a cluster. Can be repeated.",
)
@clusters.options
@manifests.severity_option
@manifests.format_option
def audit(
    *,
    files: tuple[str, ...],
    config: str | None,
    kubeconfig: str | None,
    context: str | None,
    namespaces: tuple[str, ...],
    severity: str,
    form: str,
) -> None:
    """Say which pods may use GPUs that nobody gave them.

    NVIDIA_VISIBLE_DEVICES, privileges, device mounts, runtime classes, CDI annotations, MPS by hand:
    in the pods of a cluster, or in manifests (-f). Exit code 1 where a finding is at least of
    --severity, 2 where a file cannot be read.
    """
    import asyncio

    from gpuscale import lint
    from gpuscale.lint.bypass import Allowed

    settings = clusters.settings_for(config, kubeconfig, context, namespaces)
    allow = settings.audit
    allowed = Allowed(namespaces=allow.allow_namespaces, pods=allow.allow_pods)
    if files:
        found = manifests.read(files)
        findings = lint.audit(found, allowed)
        count = len(found)
        looked_at = f"{count} object{'s' if count != 1 else ''}"
    else:
        look = asyncio.run(_look(settings, allowed))
        findings = lint.ordered([_counted(each) for each in look.findings])
        looked_at = f"{look.pods} pods"
        if look.nodes is None:
            looked_at += " (no nodes could be read, so none was judged by where it runs)"
    manifests.show(findings, form, looked_at=looked_at)
    manifests.exit_for(findings, severity)


async def _look(settings: "ControllerSettings", allowed: "Allowed") -> "Look":
    from gpuscale.clock import SystemClock
    from gpuscale.controller.audit import look_at

    async with clusters.connected(settings) as gateway:
        return await look_at(
            gateway, allowed, settings.kubernetes.namespaces, now=SystemClock().wall()
        )


def _counted(each: "PodFinding") -> "Finding":
    """The finding with the number of pods that it stands for."""
    from dataclasses import replace

    if each.pods == 1:
        return each.finding
    return replace(each.finding, sentence=f"{each.finding.sentence}, in {each.pods} pods")
