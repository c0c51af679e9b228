"""Whose the GPUs are, as values of a snapshot: allocations, pods' use, accounts, findings, and how well all that is known.

Nothing here does input or output, or reads a clock.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A container that holds a GPU, a MIG instance, or a share of one."""

    uuid: str
    """Of the GPU, or of the MIG instance."""
    namespace: str
    pod: str
    container: str
    resource: str
    replica: str
    """Number of the share (time-slicing, MPS); empty for the whole device."""
    parent_uuid: str | None = None
    """Of the physical GPU, where `uuid` is a MIG instance."""
    share: float = 1.0
    """Of the physical GPU, in time or in slices; those of one GPU add up to 1 at most."""
    pod_uid: str | None = None
    claim: str | None = None
    """NAMESPACE/NAME of the ResourceClaim (DRA) behind it."""

    @property
    def gpu_uuid(self) -> str:
        """The physical GPU's."""
        return self.parent_uuid or self.uuid


Trouble = Literal[
    "not_asked_yet",
    "no_socket",
    "unreachable",
    "timeout",
    "rate_limited",
    "unimplemented",
    "refused",
    "malformed",
]
"""Why the kubelet's list is not there; the label `reason`, so the words are few and fixed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributionState:
    """What the kubelet said last."""

    up: bool
    reason: str | None
    """One sentence; None while it is up."""
    at: float | None
    """Wall time of its last answer; None before the first."""
    allocations: tuple[Allocation, ...]
    """Of the last answer, dropped when it is older than the staleness bound."""
    unmatched: int
    trouble: Trouble | None = None
    """The reason in one word."""
    fresh: bool = True
    """Whether the last answer is within the staleness bound: past it, who holds what is unknown."""
    pods_known: bool = False
    """Whether the pods of this node are known by their log directories."""
    dropped: int = 0
    """Devices of pods that have ended, which the kubelet still lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodUsage:
    """What a pod used of one physical GPU."""

    uuid: str
    namespace: str
    pod: str
    container: str
    """Empty where several containers of the pod hold the GPU, or none does."""
    busy: float | None
    """Share (0–1) of the time in which its kernels ran; None where the GPU does not tell."""
    memory_bytes: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingState:
    """Whether processes can be tied to pods."""

    up: bool
    reason: str | None
    """Why not, one sentence; None while they can."""
    trouble: Literal["off", "impossible"] | None = None


Rule = Literal["GPU-N01", "GPU-N02", "GPU-N03"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Work on a GPU that no allocation explains."""

    rule: Rule
    severity: Literal["critical", "warning"]
    gpu: int
    uuid: str
    owner_kind: str
    """What owns it: see cgroup.Kind; empty where no process is seen."""
    namespace: str
    pod: str
    container_id: str | None
    unit: str | None
    comm: str
    pids: tuple[int, ...]
    processes: int
    memory_bytes: int | None
    first_seen: float
    last_seen: float
    evidence: str
    """One sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditState:
    """The node audit's last look."""

    up: bool
    reason: str | None
    """Why there is none, one sentence."""
    at: float | None
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Seconds of one namespace on one kind of GPU, weighted by the share it held."""

    namespace: str
    resource: str
    product: str
    state: str
    """active, idle, or unmeasured: the three add up to what was allocated."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """Totals of one node, which only grow."""

    node: tuple[tuple[str, float], ...]
    """GPU seconds by state: allocated, unallocated, unknown."""
    namespaces: tuple[Account, ...]
    joules: tuple[tuple[str, float], ...]
    """By namespace; what belongs to none is under the empty name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """All of the above at the moment of a snapshot."""

    mapping: MappingState
    pods: tuple[PodUsage, ...]
    audit: AuditState
    accounts: Accounts | None
    """None where accounting is off."""
