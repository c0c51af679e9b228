"""What is known after a tick, as values: the page, the metrics and the journal are made from it alone.

`FleetStatus` keeps the arrays of the tick and makes one workload's view when it is asked for, so
that ten thousand workloads cost nothing until somebody looks at one. `Ring` remembers the recent
past of every workload for the page's charts, in bounded memory.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpuscale.controller.capacity import Capacity
from gpuscale.controller.domain import (
    QUANTILES,
    Decision,
    FleetDecision,
    FleetObservation,
    Floats,
    Hold,
    ReplicaState,
    SignalReading,
    Snapshot,
    Workload,
)
from gpuscale.controller.leadtime import LeadTime

POINTS_MAX = 720
"""Points kept per workload for its chart: three hours at the default tick of 15 s."""
POINTS_MIN = 40
"""Kept however large the fleet is: ten minutes at the default tick are what an operator asks for first."""
RING_BYTES_MAX = 256 * 2**20
"""Memory of the rings of all workloads together; beyond 4,000 workloads each keeps fewer points."""

STAGES: tuple[str, ...] = ("asked", "ready", "starting", "pending")
"""Stages of replicas, in the order in which they are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What the process counted since it started, and how its parts are."""

    ticks: int = 0
    step_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds of the last tick's steps."""
    signal_errors: Mapping[str, int] = field(default_factory=dict)
    """Failed readings by source."""
    scale_events: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Changes of the replicas asked for by workload: (up, down)."""
    actuator_writes: Mapping[str, int] = field(default_factory=dict)
    """Writes to scale subresources by result."""
    scaler_requests: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """External scaler calls by (method, gRPC code)."""
    scaler_streams: Mapping[str, int] = field(default_factory=dict)
    """Open streams by method."""
    cache_synced: Mapping[str, bool] = field(default_factory=dict)
    """Whether the cache of a resource is complete; empty without a cluster."""
    cache_age_s: Mapping[str, float] = field(default_factory=dict)
    """Age of the last event of a resource's cache."""
    audit_findings: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    """Findings of the API audit by (rule, severity, namespace)."""
    audit_at: float | None = None
    """When its last good pass ended; None where there was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadStatus:
    """One workload after a tick."""

    workload: Workload
    outcome: Decision | Hold
    desired: int | None
    """What is answered; None: an error is."""
    reading: SignalReading | None
    """The newest good reading; None before the first."""
    problem: str | None
    """Why this tick's reading failed or lacks values; None when it is whole."""
    replicas: ReplicaState | None
    """None where no cluster shows them."""
    age_s: float | None
    capacity: Capacity
    lead: LeadTime


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStatus:
    """Everything that one tick saw, decided and answered. Sequences are in the order of `observation.keys`."""

    snapshot: Snapshot
    observation: FleetObservation
    decision: FleetDecision
    workloads: tuple[Workload, ...]
    readings: Mapping[str, SignalReading]
    problems: Mapping[str, str]
    replicas: Mapping[str, ReplicaState]
    capacities: Sequence[Capacity]
    leads: Sequence[LeadTime]
    index: Mapping[str, int]
    """Position by key."""
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Key -> why a declaration cannot be used, and what cures it."""
    faults: tuple[str, ...] = ()
    """What is wrong with the controller's surroundings now, one sentence each; empty when all is well."""

    def workload(self, key: str) -> WorkloadStatus | None:
        """The status of one workload; None where it is not known."""
        i = self.index.get(key)
        if i is None:
            return None
        seen = self.observation
        return WorkloadStatus(
            workload=self.workloads[i],
            outcome=self.decision.of(i),
            desired=whole(self.decision.desired[i]),
            reading=self.readings.get(key),
            problem=self.problems.get(key),
            replicas=self.replicas.get(key),
            age_s=known(seen.age_s[i]),
            capacity=self.capacities[i],
            lead=self.leads[i],
        )


def known(value: float) -> float | None:
    """The number, or None where it is NaN or infinite."""
    return float(value) if math.isfinite(value) else None


def whole(value: float) -> int | None:
    """The count, or None where it is NaN or infinite."""
    return round(float(value)) if math.isfinite(value) else None


LEVEL_COLUMNS: tuple[str, ...] = tuple(f"q{level:g}" for level in QUANTILES)
"""Columns of the forecast's quantiles, ascending: q0.5 … q0.99."""
COLUMNS: tuple[str, ...] = (
    "demand",
    "backlog",
    *STAGES,
    "desired",
    "capacity",
    "lead_s",
    *LEVEL_COLUMNS,
)
"""What a ring keeps per workload and tick. `capacity` is what the ready replicas carry together."""


class Ring:
    """The recent past of all workloads: float32, shape (points, n, columns), overwritten in a circle."""

    def __init__(self, *, points_max: int = POINTS_MAX, bytes_max: int = RING_BYTES_MAX) -> None:
        self._points_max = points_max
        self._bytes_max = bytes_max
        self._keys: tuple[str, ...] = ()
        self._at = np.full(0, np.nan)
        self._values = np.full((0, 0, len(COLUMNS)), np.nan, dtype=np.float32)
        self._next = 0

    def points_kept(self, workloads: int) -> int:
        """Points per workload that a fleet of that size is given."""
        row = max(1, workloads) * len(COLUMNS) * 4
        return max(min(POINTS_MIN, self._points_max), min(self._points_max, self._bytes_max // row))

    def append(self, status: FleetStatus) -> None:
        """Remember one tick; a changed set of workloads keeps what is known of those that stay."""
        seen = status.observation
        if seen.keys != self._keys or len(self._at) == 0:
            self._layout(seen.keys)
        forecast = status.decision.forecast
        row = self._values[self._next]
        plain = {
            "demand": seen.demand,
            "backlog": seen.backlog,
            "asked": seen.asked,
            "ready": seen.ready,
            "starting": seen.starting,
            "pending": seen.pending,
            "desired": status.decision.desired,
            "capacity": seen.ready * seen.capacity,
            "lead_s": seen.lead_s,
        }
        for i, name in enumerate(COLUMNS):
            row[:, i] = plain.get(name, np.nan)
        given = {level: j for j, level in enumerate(forecast.levels)}
        for level, name in zip(QUANTILES, LEVEL_COLUMNS, strict=True):
            if level in given:
                row[:, COLUMNS.index(name)] = forecast.quantiles[:, given[level]]
        self._at[self._next] = seen.now
        self._next = (self._next + 1) % len(self._at)

    def series(
        self, key: str, *, points: int | None = None
    ) -> tuple[Floats, Mapping[str, NDArray[np.float32]]]:
        """(times, values by column) of one workload, oldest first, the last `points` of them; NaN where unknown."""
        order = self._order()
        if points is not None:
            order = order[max(0, len(order) - points) :]
        if key not in self._keys:
            order = order[:0]
            values = np.full((0, len(COLUMNS)), np.nan, dtype=np.float32)
        else:
            values = self._values[order, self._keys.index(key), :]
        return self._at[order], {name: values[:, i] for i, name in enumerate(COLUMNS)}

    def _order(self) -> NDArray[np.int64]:
        """Positions of the points that are filled, oldest first."""
        size = len(self._at)
        order: NDArray[np.int64] = (np.arange(size, dtype=np.int64) + self._next) % max(1, size)
        filled: NDArray[np.int64] = order[np.isfinite(self._at[order])]
        return filled

    def _layout(self, keys: tuple[str, ...]) -> None:
        """Make room for these workloads, and move over what is known of those that stay."""
        size = self.points_kept(len(keys))
        order = self._order()[-(size - 1) :] if size > 1 else self._order()[:0]
        at = np.full(size, np.nan)
        values = np.full((size, len(keys), len(COLUMNS)), np.nan, dtype=np.float32)
        before = {key: i for i, key in enumerate(self._keys)}
        stay = [(j, before[key]) for j, key in enumerate(keys) if key in before]
        if stay and len(order):
            new, old = (np.array(side, dtype=np.int64) for side in zip(*stay, strict=True))
            values[: len(order), new, :] = self._values[order][:, old, :]
        at[: len(order)] = self._at[order]
        self._keys, self._at, self._values = keys, at, values
        self._next = len(order) % size
