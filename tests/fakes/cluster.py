"""A cluster that a test fills in, and a writer that remembers what it was asked to write."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuscale.controller.domain import ReplicaState, Workload


@dataclass
class FakeCluster:
    """ScaledObjects and replicas by key."""

    objects: list[Mapping[str, object]] = field(default_factory=list)
    states: dict[str, ReplicaState] = field(default_factory=dict)
    waiting: str | None = None

    def scaled_objects(self) -> Sequence[Mapping[str, object]]:
        return self.objects

    def replicas(self, workloads: Sequence[Workload]) -> Mapping[str, ReplicaState]:
        return {w.key: self.states[w.key] for w in workloads if w.key in self.states}

    def unsynced(self) -> str | None:
        return self.waiting


@dataclass
class FakeScaler:
    """A `Scaler`; `failures` by key."""

    writes: list[tuple[str, int]] = field(default_factory=list)
    failures: dict[str, Exception] = field(default_factory=dict)

    async def scale(self, workload: Workload, replicas: int) -> None:
        if workload.key in self.failures:
            raise self.failures[workload.key]
        self.writes.append((workload.key, replicas))


def replica_state(key: str, *, asked: int, ready: int) -> ReplicaState:
    """Replicas that are ready, the rest of those asked for starting."""
    return ReplicaState(
        key=key,
        asked=asked,
        ready=ready,
        starting=max(0, asked - ready),
        pending=0,
        endpoints=tuple(f"10.0.0.{i}" for i in range(ready)),
        starts=(),
    )


def scaled_object(
    namespace: str, name: str, metadata: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """A ScaledObject with gpuscale as its only trigger."""
    return {
        "metadata": {"namespace": namespace, "name": name},
        "spec": {
            "scaleTargetRef": {"name": name},
            "minReplicaCount": 1,
            "maxReplicaCount": 40,
            "triggers": [
                {
                    "type": "external-push",
                    "metadata": {
                        "scalerAddress": "gpuscale.gpuscale:6000",
                        "mode": "act",
                        "capacity": "5",
                        **(metadata or {}),
                    },
                }
            ],
        },
    }
