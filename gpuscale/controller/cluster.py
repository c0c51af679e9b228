"""The cluster as the controller sees it: answered from caches, in no time.

Pods, ScaledObjects, Deployments and StatefulSets are listed and watched. Scale targets of other
kinds, and those that may not be listed, are read through their scale subresource, a few at a time,
every POLL_S. What the API server
has not confirmed for CONTACT_MAX_S is not known any more: a workload then has no entry, and what has
no entry is not scaled down.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gpuscale.clock import Clock
from gpuscale.controller import gateway as api
from gpuscale.controller import inventory
from gpuscale.controller.domain import ReplicaState, Target, Workload
from gpuscale.controller.gateway import Kinds, KubeGateway, Resource
from gpuscale.controller.inventory import Pod, ScaleTarget
from gpuscale.controller.watch import Cache, Timing
from gpuscale.errors import ApiError
from gpuscale.settings import KubernetesSettings

CONTACT_MAX_S = 180.0
"""Twice the silence after which a watch is opened again: only a server that is gone reaches it."""
POLL_S = 15.0
"""Scale subresources are read this often: the tick's own default."""
POLLED_MAX = 2_000
"""Targets of other kinds that are read; at POLLS_AT_ONCE and 50 ms each that takes a period."""
POLLS_AT_ONCE = 8

TARGET_RESOURCES = (api.DEPLOYMENTS.plural, api.STATEFUL_SETS.plural)

Place = tuple[str, Target]
"""(namespace, target)."""


class _Polled(NamedTuple):
    target: ScaleTarget
    at: float


class KubeCluster:
    """A `daemon.Cluster` over an API server. `run` it for ever; everything else answers at once."""

    def __init__(
        self,
        gateway: KubeGateway,
        clock: Clock,
        settings: KubernetesSettings,
        *,
        timing: Timing | None = None,
    ) -> None:
        self._gateway = gateway
        self._kinds = Kinds(gateway)
        self._clock = clock
        namespaces: Sequence[str | None] = settings.namespaces or (None,)

        def paths(resource: Resource) -> list[str]:
            return [resource.path(namespace) for namespace in namespaces]

        def targets(resource: Resource) -> list[Cache[ScaleTarget]]:
            return [
                Cache(gateway, p, clock, inventory.target_of, timing=timing)
                for p in paths(resource)
            ]

        self._pods = [
            Cache(gateway, p, clock, inventory.pod_of, timing=timing) for p in paths(api.PODS)
        ]
        self._scaled_objects = [
            Cache(gateway, p, clock, _declaration, timing=timing) for p in paths(api.SCALED_OBJECTS)
        ]
        self._targets = {
            api.DEPLOYMENTS: targets(api.DEPLOYMENTS),
            api.STATEFUL_SETS: targets(api.STATEFUL_SETS),
        }
        self._nodes = (
            None
            if settings.namespaces
            else Cache(gateway, api.NODES.path(), clock, inventory.node_created_at, timing=timing)
        )
        """When each node came. Nobody waits for it: where nodes may not be read, the time until one
        is provisioned counts as time without a node."""
        self._wanted: frozenset[Place] = frozenset()
        self._polled: dict[Place, _Polled] = {}
        self._poll_problem: str | None = None
        self._seen: dict[str, frozenset[str]] = {}

    def _by_resource(self) -> dict[str, Sequence[Cache[Any]]]:
        caches: dict[str, Sequence[Cache[Any]]] = {
            "pods": self._pods,
            "scaledobjects": self._scaled_objects,
        }
        return caches | {resource.plural: found for resource, found in self._targets.items()}

    async def run(self) -> None:
        """Keep the caches for ever."""
        async with asyncio.TaskGroup() as group:
            for resource, caches in self._by_resource().items():
                for cache in caches:
                    group.create_task(cache.run(), name=f"cache of {resource}")
            if self._nodes is not None:
                group.create_task(self._nodes.run(), name="cache of nodes")
            group.create_task(self._poll_for_ever(), name="poll of scale targets")

    # ------------------------------------------------------------ what is known

    def scaled_objects(self) -> Sequence[Mapping[str, object]]:
        """Every ScaledObject in the watched namespaces: metadata (names, annotations) and spec."""
        return [found for cache in self._scaled_objects for found in cache.objects.values()]

    def replicas(self, workloads: Sequence[Workload]) -> Mapping[str, ReplicaState]:
        """The replicas by key; a workload whose target or pods are not known has no entry.

        A start time is told once, in the first call after its pod became ready.
        """
        self._wanted = frozenset(self._to_poll(workloads))
        targets = self._targets_of(workloads) if self._current(self._pods) else {}
        pods = self._pods_by_label(targets.values())
        nodes = self._node_times()
        states: dict[str, ReplicaState] = {}
        seen: dict[str, frozenset[str]] = {}
        for key, (namespace, target) in targets.items():
            first, *rest = target.selector
            if first.operator == "in":
                mine = [p for v in first.values for p in pods.get((namespace, first.key, v), ())]
            else:
                mine, rest = self._pods_in(namespace), list(target.selector)
            if rest:
                mine = [p for p in mine if inventory.matches(tuple(rest), p.labels)]
            states[key], seen[key] = inventory.state_of(
                key, target.asked, mine, self._seen.get(key), nodes
            )
        # What is not known for a while is remembered: its pods are not new when it is known again.
        self._seen = {w.key: self._seen[w.key] for w in workloads if w.key in self._seen} | seen
        return states

    def _node_times(self) -> Mapping[str, float]:
        found = {} if self._nodes is None else self._nodes.objects
        return {name: at for (_, name), at in found.items() if at is not None}

    def unsynced(self) -> str | None:
        """What the caches still wait for, one sentence; None when they are complete.

        A kind of target that may not be listed is waited for no longer: its objects are read one by
        one, and `problems` says so.
        """
        for resource, caches in self._by_resource().items():
            for cache in caches:
                if not cache.synced and not (cache.refused and resource in TARGET_RESOURCES):
                    return (
                        cache.problem or f"the list of {resource} is not complete yet: wait for it"
                    )
        return None

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the caches are not current, a sentence each; empty while they are."""
        caches = (c for found in self._by_resource().values() for c in found)
        sentences = (*(c.problem for c in caches), self._poll_problem)
        return tuple(dict.fromkeys(s for s in sentences if s))

    @property
    def synced(self) -> Mapping[str, bool]:
        """Whether the cache of a resource is complete, by the resource's plural."""
        return {r: all(c.synced for c in found) for r, found in self._by_resource().items()}

    @property
    def age_s(self) -> Mapping[str, float]:
        """Seconds since the server last said something, by resource; without an entry before it did."""
        ages = {r: [c.age_s for c in found] for r, found in self._by_resource().items()}
        return {
            r: max(a for a in found if a is not None)
            for r, found in ages.items()
            if None not in found
        }

    # ------------------------------------------------------------ from the caches

    def _current(self, caches: Sequence[Cache[Any]]) -> bool:
        return all(c.synced and (c.age_s or 0.0) <= CONTACT_MAX_S for c in caches)

    def _targets_of(self, workloads: Sequence[Workload]) -> dict[str, tuple[str, ScaleTarget]]:
        """Key -> (namespace, target) of the workloads whose target is known and selects something."""
        current: dict[Resource | None, Sequence[Cache[ScaleTarget]]] = {
            r: found for r, found in self._targets.items() if self._current(found)
        }
        now = self._clock.monotonic()
        targets: dict[str, tuple[str, ScaleTarget]] = {}
        for workload in workloads:
            named = workload.target
            if named is None:
                continue
            caches = current.get(api.KINDS.get((named.api_version, named.kind)))
            if caches is not None:
                target = _look_up(caches, (workload.namespace, named.name))
            else:
                polled = self._polled.get((workload.namespace, named))
                fresh = polled is not None and now - polled.at <= CONTACT_MAX_S
                target = polled.target if polled is not None and fresh else None
            if target is not None and target.selector:
                targets[workload.key] = (workload.namespace, target)
        return targets

    def _to_poll(self, workloads: Sequence[Workload]) -> list[Place]:
        """The places of targets that no cache holds, at most POLLED_MAX."""
        watched = {
            kind
            for kind, resource in api.KINDS.items()
            if not any(cache.refused for cache in self._targets[resource])
        }
        found = [
            (w.namespace, w.target)
            for w in workloads
            if w.target is not None and (w.target.api_version, w.target.kind) not in watched
        ]
        return found[:POLLED_MAX]

    def _pods_by_label(
        self, targets: Iterable[tuple[str, ScaleTarget]]
    ) -> Mapping[tuple[str, str, str], list[Pod]]:
        """Pods that are not gone by (namespace, label, value), for the labels that selectors begin with."""
        labels: defaultdict[str, set[str]] = defaultdict(set)
        for namespace, target in targets:
            labels[namespace].add(target.selector[0].key)
        found: defaultdict[tuple[str, str, str], list[Pod]] = defaultdict(list)
        for cache in self._pods:
            for (namespace, _), pod in cache.objects.items():
                if pod.stage == "gone":
                    continue
                for label in labels.get(namespace, ()):
                    value = pod.labels.get(label)
                    if value is not None:
                        found[namespace, label, value].append(pod)
        return found

    def _pods_in(self, namespace: str) -> list[Pod]:
        return [
            pod
            for cache in self._pods
            for (where, _), pod in cache.objects.items()
            if where == namespace and pod.stage != "gone"
        ]

    # ------------------------------------------------------------ targets of other kinds

    async def _poll_for_ever(self) -> None:
        while True:
            wanted = self._wanted
            self._polled = {place: seen for place, seen in self._polled.items() if place in wanted}
            problems: list[str] = []
            gate = asyncio.Semaphore(POLLS_AT_ONCE)

            async def poll(
                place: Place, gate: asyncio.Semaphore = gate, problems: list[str] = problems
            ) -> None:
                async with gate:
                    try:
                        self._polled[place] = await self._read_scale(place)
                    except ApiError as error:
                        problems.append(str(error))

            async with asyncio.TaskGroup() as group:
                for place in wanted:
                    group.create_task(poll(place), name="poll of a scale target")
            self._poll_problem = min(problems, default=None)
            await self._clock.sleep(POLL_S)

    async def _read_scale(self, place: Place) -> _Polled:
        namespace, target = place
        resource = await self._kinds.resource(target.api_version, target.kind)
        raw = await self._gateway.get(resource.path(namespace, target.name, "scale"))
        return _Polled(inventory.scale_of(raw), self._clock.monotonic())


def _look_up(caches: Sequence[Cache[ScaleTarget]], key: tuple[str, str]) -> ScaleTarget | None:
    for cache in caches:
        found = cache.objects.get(key)
        if found is not None:
            return found
    return None


def _declaration(raw: Mapping[str, Any]) -> Mapping[str, object]:
    """What is read of a ScaledObject; its status and managed fields are as large and change often."""
    metadata = raw.get("metadata")
    kept = metadata if isinstance(metadata, Mapping) else {}
    return {
        "metadata": {name: kept.get(name) for name in ("namespace", "name", "annotations")},
        "spec": raw.get("spec"),
    }
