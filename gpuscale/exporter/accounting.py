"""Whose the GPU seconds and joules were: counters that grow from snapshot to snapshot, and never lose a second.

Pure. Between two snapshots every physical GPU has exactly as many seconds as passed: allocated (to a
namespace), unallocated, or unknown (nobody could say who held it: the kubelet or the driver did not
answer, or the exporter was away). So

    allocated + unallocated + unknown = wall time × physical GPUs

whatever pods, MIG and restarts do. What is known at a snapshot holds until the next one, but for no
longer than INTERVAL_MAX_S. Energy is what the GPU's own counter says, split by the shares held since
its last reading; what belongs to no namespace is under the empty name, so that the sum is the truth.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from gpuscale.exporter.usage import Account, Accounts, Allocation

INTERVAL_MAX_S = 60.0
"""A snapshot older than this says nothing any more: the seconds beyond it are unknown."""

BUSY_CREDIT_S_MAX = 2.0
"""Busy seconds that the GPU counted before the snapshot saw the time pass for them, carried over."""

ROWS_MAX = 4_096
"""(namespace, resource, product) rows; those beyond are counted together under OTHERS."""

GAP_MAX_S = 7 * 86_400.0
"""Longest absence that is believed; beyond it the clock or the file is wrong."""

OTHERS = "(others)"
"""No namespace can have this name."""

UNATTRIBUTED = ""

NodeState = Literal["allocated", "unallocated", "unknown"]
HeldState = Literal["active", "idle", "unmeasured"]
ALLOCATED: NodeState = "allocated"
UNALLOCATED: NodeState = "unallocated"
UNKNOWN: NodeState = "unknown"
ACTIVE: HeldState = "active"
IDLE: HeldState = "idle"
UNMEASURED: HeldState = "unmeasured"

Key = tuple[str, str, str]
"""(namespace, resource, product)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One physical GPU at a snapshot, as accounting sees it."""

    uuid: str
    product: str
    busy_s: float | None
    """Its counter of busy seconds; None where it has none."""
    energy_j: float | None
    """Its counter of joules; None where it has none."""
    known: bool
    """Whether its holders are known: the kubelet and the driver have answered."""
    held: tuple[Allocation, ...]
    """Their shares add up to 1 at most."""
    instance_busy: Mapping[str, float] = field(default_factory=dict)
    """Busy ratio of MIG instances by uuid, where they give one."""
    pod_busy: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """Busy ratio by (namespace, pod), where processes are mapped."""


@dataclass(slots=True)
class _Meter:
    """What is remembered of one physical GPU between snapshots."""

    credit_s: float = 0.0
    energy_j: float | None = None
    weights: dict[str, float] = field(default_factory=dict)
    """Share-seconds by namespace since the last reading of the energy counter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What outlives the process: totals, and the energy counters that they stand at."""

    at: float
    """Wall time of the last interval's end."""
    gpus: tuple[str, ...]
    """UUIDs of the physical GPUs at that time."""
    node: tuple[tuple[NodeState, float], ...]
    namespaces: tuple[tuple[str, str, str, HeldState, float], ...]
    """(namespace, resource, product, state, seconds)."""
    joules: tuple[tuple[str, float], ...]
    energy: tuple[tuple[str, float], ...]
    """(uuid, joules on its own counter)."""


class Ledger:
    """The totals of one node. Feed it each snapshot with `step`, in order of time."""

    def __init__(
        self, saved: Saved | None = None, *, wall: float = 0.0, now: float | None = None
    ) -> None:
        """Go on from what was saved: the time from `saved.at` to `wall` is unknown.

        `now` is the same moment, monotonic; None where counting begins with the first snapshot.
        """
        self._node: dict[NodeState, float] = {ALLOCATED: 0.0, UNALLOCATED: 0.0, UNKNOWN: 0.0}
        self._namespaces: dict[Key, dict[HeldState, float]] = {}
        self._joules: dict[str, float] = {UNATTRIBUTED: 0.0}
        self._meters: dict[str, _Meter] = {}
        self._gpus: tuple[Gpu, ...] = ()
        self._since = now
        if saved is not None:
            self._resume(saved, wall)

    def _resume(self, saved: Saved, wall: float) -> None:
        self._node |= dict(saved.node)
        for namespace, resource, product, state, seconds in saved.namespaces:
            row = self._namespaces.setdefault((namespace, resource, product), _row())
            row[state] = seconds
        self._joules |= dict(saved.joules)
        self._meters = {uuid: _Meter(energy_j=joules) for uuid, joules in saved.energy}
        self._gpus = tuple(_unseen(uuid) for uuid in saved.gpus)
        gap_s = wall - saved.at
        if 0 < gap_s <= GAP_MAX_S:
            self._node[UNKNOWN] += gap_s * len(saved.gpus)

    # ----- one snapshot

    def step(self, gpus: Iterable[Gpu] | None, now: float) -> None:
        """Count the time since the last snapshot by what that one said, and take this one.

        `now` is monotonic. `gpus` are the physical GPUs of this snapshot, each once; None while the
        driver does not answer: those of before are still there, and nobody knows more.
        """
        seen = (_unseen(gpu.uuid) for gpu in self._gpus) if gpus is None else gpus
        current = tuple(seen)
        elapsed_s = 0.0 if self._since is None else max(0.0, now - self._since)
        known_s = min(elapsed_s, INTERVAL_MAX_S)
        readings = {gpu.uuid: gpu for gpu in current}
        for gpu in self._gpus:
            meter = self._meters.setdefault(gpu.uuid, _Meter())
            self._node[UNKNOWN] += elapsed_s - known_s
            _weigh(meter, UNATTRIBUTED, elapsed_s - known_s)
            self._count(gpu, meter, known_s, _busy(meter, gpu, readings.get(gpu.uuid), known_s))
        for gpu in current:
            self._burn(gpu, self._meters.setdefault(gpu.uuid, _Meter()))
        self._gpus, self._since = current, now

    def _count(self, gpu: Gpu, meter: _Meter, elapsed_s: float, busy_s: float | None) -> None:
        if not gpu.known:
            self._node[UNKNOWN] += elapsed_s
            _weigh(meter, UNATTRIBUTED, elapsed_s)
            return
        allocated = min(1.0, sum(a.share for a in gpu.held))
        self._node[ALLOCATED] += allocated * elapsed_s
        self._node[UNALLOCATED] += (1.0 - allocated) * elapsed_s
        _weigh(meter, UNATTRIBUTED, (1.0 - allocated) * elapsed_s)
        ratio = None if busy_s is None or elapsed_s <= 0 else min(1.0, busy_s / elapsed_s)
        for allocation in gpu.held:
            row = self._row((allocation.namespace, allocation.resource, gpu.product))
            seconds = allocation.share * elapsed_s
            busy = _busy_of(allocation, gpu, ratio)
            if busy is None:
                row[UNMEASURED] += seconds
            else:
                row[ACTIVE] += seconds * busy
                row[IDLE] += seconds * (1.0 - busy)
            _weigh(meter, allocation.namespace, seconds)

    def _row(self, key: Key) -> dict[HeldState, float]:
        if key not in self._namespaces and len(self._namespaces) >= ROWS_MAX:
            key = (OTHERS, "", "")
        return self._namespaces.setdefault(key, _row())

    def _burn(self, gpu: Gpu, meter: _Meter) -> None:
        """Split what the energy counter gained; it starts over when the driver is loaded anew."""
        if gpu.energy_j is None or gpu.energy_j == meter.energy_j:
            return
        before, meter.energy_j = meter.energy_j, gpu.energy_j
        weights, meter.weights = meter.weights, {}
        if before is None:
            return
        gained = gpu.energy_j - before if gpu.energy_j > before else gpu.energy_j
        total = sum(weights.values())
        if total <= 0:
            weights, total = {UNATTRIBUTED: 1.0}, 1.0
        for namespace, weight in weights.items():
            name = namespace
            if name not in self._joules and len(self._joules) >= ROWS_MAX:
                name = OTHERS
            self._joules[name] = self._joules.get(name, 0.0) + gained * weight / total

    # ----- what others see

    def accounts(self) -> Accounts:
        """The totals since the first start that a state is known of."""
        return Accounts(
            node=tuple(self._node.items()),
            namespaces=tuple(
                Account(
                    namespace=namespace,
                    resource=resource,
                    product=product,
                    state=state,
                    seconds=seconds,
                )
                for (namespace, resource, product), row in self._namespaces.items()
                for state, seconds in row.items()
                if seconds > 0
            ),
            joules=tuple(self._joules.items()),
        )

    def saved(self, wall: float) -> Saved:
        """All that a later process needs to go on; `wall` is the time of the last step."""
        return Saved(
            at=wall,
            gpus=tuple(gpu.uuid for gpu in self._gpus),
            node=tuple(self._node.items()),
            namespaces=tuple(
                (*key, state, seconds)
                for key, row in self._namespaces.items()
                for state, seconds in row.items()
            ),
            joules=tuple(self._joules.items()),
            energy=tuple(
                (uuid, meter.energy_j)
                for uuid, meter in self._meters.items()
                if meter.energy_j is not None
            ),
        )


def _unseen(uuid: str) -> Gpu:
    """A GPU of which nothing is known at this moment but that it was there."""
    return Gpu(uuid=uuid, product="", busy_s=None, energy_j=None, known=False, held=())


def _row() -> dict[HeldState, float]:
    return {ACTIVE: 0.0, IDLE: 0.0, UNMEASURED: 0.0}


def _weigh(meter: _Meter, namespace: str, seconds: float) -> None:
    if seconds <= 0 or meter.energy_j is None:
        return  # nothing to split
    if namespace not in meter.weights and len(meter.weights) >= ROWS_MAX:
        namespace = OTHERS
    meter.weights[namespace] = meter.weights.get(namespace, 0.0) + seconds


def _busy(meter: _Meter, before: Gpu, now: Gpu | None, elapsed_s: float) -> float | None:
    """Busy seconds of the interval by the GPU's counter, whose beat is not that of the snapshots."""
    if before.busy_s is None or now is None or now.busy_s is None:
        meter.credit_s = 0.0
        return None
    meter.credit_s += max(0.0, now.busy_s - before.busy_s)
    busy_s = min(elapsed_s, meter.credit_s)
    meter.credit_s = min(BUSY_CREDIT_S_MAX, meter.credit_s - busy_s)
    return busy_s


def _busy_of(allocation: Allocation, gpu: Gpu, ratio: float | None) -> float | None:
    """Share (0–1) of its time in which a holder was active: its own where it is known, else its GPU's.

    A MIG instance does not take part in its GPU's busy time. Of a time-sliced GPU a pod's own share
    of the time counts, against what it holds, where processes are mapped.
    """
    if allocation.parent_uuid is not None:
        own = gpu.instance_busy.get(allocation.uuid)
        return None if own is None else min(1.0, max(0.0, own))
    pod = (allocation.namespace, allocation.pod)
    if allocation.replica and pod in gpu.pod_busy:
        holds = sum(a.share for a in gpu.held if (a.namespace, a.pod) == pod)
        return min(1.0, gpu.pod_busy[pod] / holds) if holds > 0 else None
    return ratio
