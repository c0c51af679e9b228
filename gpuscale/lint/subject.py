"""An object under the rules: its names, its pods, and the findings that are made of it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gpuscale.errors import printable
from gpuscale.lint.finding import Finding, Path, Severity
from gpuscale.lint.podspec import PodSpec, mapping, pods, text
from gpuscale.lint.rules import RULES
from gpuscale.lint.source import Manifest

QUOTED_MAX = 80
"""Characters of a foreign value that a sentence repeats."""
NAME_MAX = 253
"""Longest name of the API; a longer one is cut."""


def quoted(value: object) -> str:
    """A foreign value on one line, short."""
    if isinstance(value, list | Mapping):
        return "a list" if isinstance(value, list) else "a mapping"
    line = printable(" ".join(str(value)[: QUOTED_MAX * 4].split()))
    return line if len(line) <= QUOTED_MAX else f"{line[:QUOTED_MAX]}…"


class Subject:
    """One object. Its fields may be missing or odd; its names are then empty."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.raw: Mapping[str, Any] = manifest.raw
        metadata = mapping(self.raw.get("metadata"))
        self.kind = printable(text(self.raw.get("kind"))[:NAME_MAX])
        self.group = text(self.raw.get("apiVersion")).rpartition("/")[0][:NAME_MAX]
        name = text(metadata.get("name")) or f"{text(metadata.get('generateName'))}…"
        self.name = quoted(name)[:NAME_MAX]
        self.namespace = printable(text(metadata.get("namespace"))[:NAME_MAX])
        self.spec: Mapping[str, Any] = mapping(self.raw.get("spec"))

    @cached_property
    def pods(self) -> tuple[PodSpec, ...]:
        """The pod specs in it."""
        return tuple(pods(self.raw))

    def found(
        self,
        rule: str,
        path: Path,
        sentence: str,
        *,
        container: str = "",
        severity: Severity | None = None,
    ) -> Finding:
        """A finding on this object; `severity` where it differs from the rule's."""
        known = RULES[rule]
        return Finding(
            rule=known,
            severity=severity or known.severity,
            kind=self.kind,
            namespace=self.namespace,
            name=self.name,
            path=path,
            sentence=sentence,
            container=quoted(container),
            file=self.manifest.file,
            line=self.manifest.line(path),
        )


Target = tuple[str, str, str]
"""(namespace, kind, name) of what is scaled; the namespace is empty where a manifest names none."""


@dataclass(frozen=True, slots=True)
class Together:
    """What is known of the objects that are looked at together."""

    gpu: frozenset[Target]
    """Objects whose pods hold a GPU."""
    known: frozenset[Target]
    """Objects with pods."""
    scalers: Mapping[Target, tuple[str, ...]]
    """ScaledObjects and HPAs, as `Kind name`, by what they scale."""


def together(subjects: Iterable[Subject]) -> Together:
    """What the subjects tell of each other."""
    gpu: set[Target] = set()
    known: set[Target] = set()
    scalers: dict[Target, list[str]] = {}
    for subject in subjects:
        target = target_of(subject)
        if target is not None:
            scalers.setdefault(target, []).append(f"{subject.kind} {subject.name}")
        elif subject.pods:
            place = (subject.namespace, subject.kind, subject.name)
            known.add(place)
            if any(pod.holds_gpu() for pod in subject.pods):
                gpu.add(place)
    return Together(frozenset(gpu), frozenset(known), {k: tuple(v) for k, v in scalers.items()})


def target_of(subject: Subject) -> Target | None:
    """What an autoscaler scales; None for any other object, and where it names none."""
    if not is_autoscaler(subject):
        return None
    reference = mapping(subject.spec.get("scaleTargetRef"))
    name = text(reference.get("name"))
    return (subject.namespace, text(reference.get("kind")) or "Deployment", name) if name else None


def is_autoscaler(subject: Subject) -> bool:
    """Whether it is a ScaledObject or a HorizontalPodAutoscaler that no ScaledObject owns."""
    if (subject.group, subject.kind) == ("keda.sh", "ScaledObject"):
        return True
    if (subject.group, subject.kind) != ("autoscaling", "HorizontalPodAutoscaler"):
        return False
    owners = mapping(subject.raw.get("metadata")).get("ownerReferences")
    owned = owners if isinstance(owners, list) else []
    return not any(mapping(o).get("kind") == "ScaledObject" for o in owned)
