"""`gpuscale lint`: what is wrong with manifests, before they reach a cluster."""

import click

from gpuscale.cli import manifests


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE|DIR|-...")
@manifests.severity_option
@manifests.format_option
def lint(*, files: tuple[str, ...], severity: str, form: str) -> None:
    """Say what is wrong with manifests, with the cure.

    Pods that can never be scheduled, quotas that count nothing, autoscalers that cannot scale.
    Exit code 1 where a finding is at least of --severity, 2 where a file cannot be read.
    """
    from gpuscale import lint as rules
    from gpuscale.controller import trigger

    found = manifests.read(files)
    findings = rules.lint(found, trigger)
    count = len(found)
    manifests.show(findings, form, looked_at=f"{count} object{'s' if count != 1 else ''}")
    manifests.exit_for(findings, severity)
