"""Rules on Kubernetes manifests: what cannot work, what does not do what it is for, what bypasses the scheduler.

Pure: text goes in, findings come out. `lint` looks for what is wrong by itself (GPU-L), `audit` for
what lets pods use GPUs that they were not given (GPU-A); `rules.RULES` says what each means.
"""

from collections.abc import Iterable, Sequence

from gpuscale.lint import bypass, cluster, scaling, workloads
from gpuscale.lint.finding import SEVERITIES, Finding
from gpuscale.lint.source import Manifest
from gpuscale.lint.subject import Subject, together

FINDINGS_MAX = 100_000
"""Kept at once: whoever has more mends the first, and looks again."""


def lint(manifests: Iterable[Manifest], triggers: scaling.Triggers) -> tuple[Finding, ...]:
    """What is wrong with the objects, the gravest first. They are looked at together: who scales what."""
    subjects = [Subject(manifest) for manifest in manifests]
    others = together(subjects)
    found: list[Finding] = []
    for subject in subjects:
        found.extend(workloads.findings(subject))
        found.extend(cluster.findings(subject))
        found.extend(scaling.findings(subject, others, triggers))
        if len(found) >= FINDINGS_MAX:
            break
    return ordered(found)


def audit(manifests: Iterable[Manifest], allowed: bypass.Allowed) -> tuple[Finding, ...]:
    """What lets the pods of the objects use GPUs that they were not given, the gravest first.

    Where nodes are among the objects, pods are also judged by the node that they run on.
    """
    subjects = [Subject(manifest) for manifest in manifests]
    gpu_nodes = frozenset(s.name for s in subjects if s.kind == "Node" and bypass.has_gpus(s.raw))
    found: list[Finding] = []
    for subject in subjects:
        found.extend(bypass.findings(subject, allowed, gpu_nodes))
        if len(found) >= FINDINGS_MAX:
            break
    return ordered(found)


def ordered(found: Sequence[Finding]) -> tuple[Finding, ...]:
    """In the order in which they are shown; FINDINGS_MAX of them at most."""
    return tuple(sorted(found[:FINDINGS_MAX], key=order_of))


def order_of(finding: Finding) -> tuple[int, str, int, str, str]:
    """What findings are sorted by: the gravest first, then by file and line, then by object."""
    grave = -SEVERITIES.index(finding.severity)
    return (grave, finding.file, finding.line or 0, finding.object, finding.rule.id)
