"""The API audit: which live pods may use GPUs that they were not given (rules GPU-A01 to GPU-A09).

A pass every `audit.period_s` reads the pods page by page, judges each as it comes and keeps nothing
but findings, off the path of decisions. Pods of one owner that break a rule alike are one finding: a
Deployment of a hundred is mended in one place. Nothing is ever stopped or changed.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

from gpuscale import log, runtime
from gpuscale.clock import Clock
from gpuscale.controller import gateway as api
from gpuscale.controller import listing
from gpuscale.controller.gateway import KubeGateway
from gpuscale.controller.podstart import listed, mapping
from gpuscale.errors import ApiError
from gpuscale.lint import bypass, order_of
from gpuscale.lint.finding import Finding
from gpuscale.lint.source import Manifest
from gpuscale.lint.subject import Subject
from gpuscale.settings import ControllerSettings, PodAuditSettings

TURN = 25
"""Pods judged in a row, a few milliseconds, before others get a turn on the event loop."""
FINDINGS_MAX = 1_000
"""Kept at once: a cluster full of bypasses needs no longer list to be looked at."""
STALE_PASSES = 3
"""After so many periods without a good pass nothing is said of findings any more."""

_log = log.get("audit")

Key = tuple[str, str, str, str, str]
"""(rule, namespace, kind and name of the owner, container)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFinding:
    """A rule that the pods of one owner break alike."""

    finding: Finding
    """Of one of the pods, under the name of what makes them: Deployment, Job, …; Pod where nothing does."""
    pods: int
    pod: str
    """That one."""
    node: str
    """Where it runs; empty before it does."""
    first_seen: float
    """Unix seconds."""
    last_seen: float

    @property
    def key(self) -> Key:
        """What tells it from others."""
        found = self.finding
        return (found.rule.id, found.namespace, found.kind, found.name, found.container)

    def as_dict(self) -> dict[str, Any]:
        """As /api/v1/audit answers it."""
        found = self.finding
        return {
            "rule": found.rule.id,
            "severity": found.severity,
            "namespace": found.namespace,
            "owner_kind": found.kind,
            "owner": found.name,
            "container": found.container,
            "pods": self.pods,
            "pod": self.pod,
            "node": self.node,
            "path": found.where,
            "first_seen": self.first_seen,
            "last_seen": self.last_seen,
            "evidence": found.sentence,
            "why": found.rule.why,
            "cure": found.rule.cure,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One pass over the cluster."""

    findings: tuple[PodFinding, ...]
    """The gravest first."""
    pods: int
    """Pods that were judged."""
    nodes: int | None
    """Nodes with GPUs; None where nodes may not be read: then no pod is judged by where it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditState:
    """What is known now."""

    reason: str | None
    """Why the last pass failed, or there was none, one sentence."""
    at: float | None
    """When the last good pass ended, Unix seconds."""
    look: Look | None
    """None before the first good pass, and when that is too long ago."""

    def as_dict(self) -> dict[str, Any]:
        """As /api/v1/audit answers it."""
        look = self.look
        return {
            "up": self.reason is None,
            "reason": self.reason,
            "at": self.at,
            "pods": None if look is None else look.pods,
            "gpu_nodes": None if look is None else look.nodes,
            "findings": [] if look is None else [each.as_dict() for each in look.findings],
        }

    def counts(self) -> Mapping[tuple[str, str, str], int]:
        """Findings by (rule, severity, namespace)."""
        counted: dict[tuple[str, str, str], int] = {}
        for each in () if self.look is None else self.look.findings:
            found = each.finding
            key = (found.rule.id, str(found.severity), found.namespace)
            counted[key] = counted.get(key, 0) + 1
        return counted


class PodAudit:
    """Passes for ever. `run` it; `state` answers at once."""

    def __init__(
        self,
        gateway: KubeGateway,
        clock: Clock,
        settings: ControllerSettings,
        *,
        namespace: str | None = None,
    ) -> None:
        """`namespace` is our own, whose exporters are expected to see every GPU; None where it is not known."""
        self._gateway = gateway
        self._allowed = allowed_by(settings.audit, namespace)
        self._clock = clock
        self._settings = settings
        self._look: Look | None = None
        self._at: float | None = None
        self._reason: str | None = "no pass is finished yet"

    async def run(self) -> None:
        """Look every period."""
        await runtime.every(self._clock, self._settings.audit.period_s, self.pass_once)

    async def pass_once(self) -> None:
        """One pass. An API server that does not answer costs the pass and nothing else."""
        try:
            look = await look_at(
                self._gateway,
                self._allowed,
                self._settings.kubernetes.namespaces,
                now=self._clock.wall(),
            )
        except ApiError as error:
            if str(error) != self._reason:
                _log.warning("audit failed", reason=str(error))
            self._reason = str(error)
            return
        self._look = _remembering(look, self._look)
        self._at, self._reason = self._clock.wall(), None

    @property
    def state(self) -> AuditState:
        """What is known; findings whose pass is too long ago are not."""
        old = self._at is None or (
            self._clock.wall() - self._at > STALE_PASSES * self._settings.audit.period_s
        )
        return AuditState(reason=self._reason, at=self._at, look=None if old else self._look)


def allowed_by(settings: PodAuditSettings, own: str | None) -> bypass.Allowed:
    """The allow-list of the settings, and the exporters in our own namespace, whatever it is called."""
    pods = settings.allow_pods if own is None else (*settings.allow_pods, f"{own}/*-exporter*")
    return bypass.Allowed(namespaces=settings.allow_namespaces, pods=pods)


async def look_at(
    gateway: KubeGateway, allowed: bypass.Allowed, namespaces: Sequence[str], *, now: float
) -> Look:
    """One pass over the pods of the namespaces, all of them where none is named. Raises ApiError."""
    nodes = None if namespaces else await _gpu_nodes(gateway)
    groups: dict[Key, PodFinding] = {}
    pods = 0
    for namespace in namespaces or (None,):
        async for raw in listing.objects(gateway, api.PODS, namespace):
            pods += 1
            if pods % TURN == 0:
                await asyncio.sleep(0)
            if mapping(raw.get("status")).get("phase") not in ("Succeeded", "Failed"):
                _group(groups, raw, judged(raw, allowed, nodes or frozenset()), now)
    found = sorted(groups.values(), key=lambda each: order_of(each.finding))
    return Look(findings=tuple(found), pods=pods, nodes=None if nodes is None else len(nodes))


def judged(
    raw: Mapping[str, Any], allowed: bypass.Allowed, gpu_nodes: AbstractSet[str]
) -> Iterable[Finding]:
    """The findings on a live pod: by its own name and by its owner's it may be on the allow-list."""
    subject = Subject(Manifest({"apiVersion": "v1", "kind": "Pod", **raw}))
    if allowed.has(subject.namespace, owner_of(raw)[1]):
        return ()
    return bypass.findings(subject, allowed, gpu_nodes)


def owner_of(raw: Mapping[str, Any]) -> tuple[str, str]:
    """(kind, name) of what makes a pod: a Deployment where its ReplicaSet has the hash of a template."""
    metadata = mapping(raw.get("metadata"))
    name = str(metadata.get("name") or "")
    owners = listed(metadata.get("ownerReferences"))
    owner = next((o for o in owners if o.get("controller") is True), None)
    if owner is None:
        return "Pod", name
    kind, name = str(owner.get("kind") or ""), str(owner.get("name") or "")
    hash_ = mapping(metadata.get("labels")).get("pod-template-hash")
    if kind == "ReplicaSet" and isinstance(hash_, str) and hash_ and name.endswith(f"-{hash_}"):
        return "Deployment", name.removesuffix(f"-{hash_}")
    return kind, name


def _group(
    groups: dict[Key, PodFinding], raw: Mapping[str, Any], findings: Iterable[Finding], now: float
) -> None:
    """Add a pod's findings to those of its owner's other pods; each rule counts a pod once per container."""
    seen: set[Key] = set()
    kind, owner = owner_of(raw)
    for finding in findings:
        key = (finding.rule.id, finding.namespace, kind, owner, finding.container)
        if key in seen:
            continue
        seen.add(key)
        known = groups.get(key)
        if known is not None:
            groups[key] = replace(known, pods=known.pods + 1)
        elif len(groups) < FINDINGS_MAX:
            groups[key] = PodFinding(
                finding=replace(finding, kind=kind, name=owner),
                pods=1,
                pod=finding.name,
                node=str(mapping(raw.get("spec")).get("nodeName") or ""),
                first_seen=now,
                last_seen=now,
            )


def _remembering(look: Look, before: Look | None) -> Look:
    """The look with the times at which its findings were first seen."""
    first = {} if before is None else {each.key: each.first_seen for each in before.findings}
    found = (
        replace(each, first_seen=first.get(each.key, each.first_seen)) for each in look.findings
    )
    return replace(look, findings=tuple(found))


async def _gpu_nodes(gateway: KubeGateway) -> frozenset[str] | None:
    """Names of the nodes that have GPUs; None where nodes may not be read."""
    found = set()
    try:
        async for raw in listing.objects(gateway, api.NODES):
            if bypass.has_gpus(raw):
                found.add(str(mapping(raw.get("metadata")).get("name")))
    except ApiError as error:
        if error.status != 403:
            raise
        return None
    return frozenset(found)
