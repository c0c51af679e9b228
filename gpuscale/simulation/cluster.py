"""A simulated cluster: nodes with GPUs, pods that take minutes to start, servers with queues.

The demo runs the real daemons against it, so it keeps what they observe: pods by stage, cumulative
counters of each server, and how busy each GPU is. It is stepped by `advance(now)`; time is data and
chance is seeded, so the same calls give the same run.

The queue is fluid per pod: arrivals are spread evenly over the ready pods, each serves up to its
capacity, what it cannot serve waits, and what has waited longer than WAIT_MAX_S is lost. A request
is late when it finds more than LATE_S of work before it, lost ones included.
"""

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

STEP_S = 1.0
"""Longest step of the queue: arrivals and capacity are constant within it."""
STEPS_MAX = 7200
"""Most steps of one `advance`: a caller that sleeps for hours loses detail, not the process."""
LATE_S = 5.0
WAIT_MAX_S = 60.0
SERVICE_S = 2.0
"""Mean time in service of a request when nothing waits; with the rate it gives what runs at once."""
DRAIN_S = 30.0
"""A deleted pod holds its GPU this long while it finishes what it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedWorkload:
    """What a simulated deployment is: its server, its demand, and what its replicas really are like."""

    namespace: str
    name: str
    server: str
    demand: Callable[[float], float]
    """Requests per second at a Unix time."""
    capacity: float
    """Requests per second that one ready pod really serves."""
    start_s: float
    """Median seconds from scheduling to Ready."""
    start_spread: float = 0.1
    """Standard deviation of the start time, as a share of the median."""
    gpus: int = 1
    replicas: int = 1

    @property
    def key(self) -> str:
        """NAMESPACE/NAME."""
        return f"{self.namespace}/{self.name}"


@dataclass(slots=True, kw_only=True)
class SimulatedPod:
    """One pod, its GPUs and its server's cumulative counters."""

    name: str
    key: str
    created_at: float
    start_s: float
    node: str | None = None
    gpus: tuple[int, ...] = ()
    scheduled_at: float | None = None
    ready_at: float | None = None
    deleted_at: float | None = None
    completed: float = 0.0
    """Requests served since the server started."""
    lost: float = 0.0
    """Requests given up after WAIT_MAX_S."""
    queue_seconds: float = 0.0
    """Sum over requests of the time spent waiting."""
    service_seconds: float = 0.0
    """Sum over requests of the time in service."""
    waiting: float = 0.0
    running: float = 0.0
    busy: float = 0.0
    """Share of the last step in which the server's GPU worked."""

    @property
    def ready(self) -> bool:
        """Whether requests reach it."""
        return self.ready_at is not None and self.deleted_at is None


@dataclass(slots=True, kw_only=True)
class Totals:
    """What happened to a workload's requests and replicas since the start."""

    arrived: float = 0.0
    late: float = 0.0
    replica_seconds: float = 0.0
    """GPU-holding time: from the ask until the pod is gone."""
    peak_replicas: int = 0


@dataclass(slots=True)
class _Deployment:
    workload: SimulatedWorkload
    asked: int
    pods: list[SimulatedPod] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)
    gateway: float = 0.0
    """Requests that wait for a first ready pod."""
    serial: int = 0


class SimulatedCluster:
    """Nodes, GPUs and deployments at one moment; `advance` moves them on."""

    def __init__(
        self,
        nodes: Mapping[str, int],
        workloads: Iterable[SimulatedWorkload],
        *,
        now: float,
        seed: int = 0,
    ) -> None:
        """`nodes` maps a node's name to its number of GPUs. The first replicas are ready at once."""
        self.now = now
        self._random = random.Random(seed)  # noqa: S311 - a simulation, not a secret
        self._free: dict[str, list[int]] = {name: list(range(n)) for name, n in nodes.items()}
        self._nodes = dict(nodes)
        self._deployments = {w.key: _Deployment(w, w.replicas) for w in workloads}
        for deployment in self._deployments.values():
            self._reconcile(deployment)
        self._schedule()
        for pod in self._all_pods():
            if pod.scheduled_at is not None:
                pod.ready_at = now

    @property
    def nodes(self) -> Mapping[str, int]:
        """GPUs by node."""
        return self._nodes

    @property
    def keys(self) -> tuple[str, ...]:
        """The workloads."""
        return tuple(self._deployments)

    def workload(self, key: str) -> SimulatedWorkload:
        """What the deployment is."""
        return self._deployments[key].workload

    def asked(self, key: str) -> int:
        """spec.replicas."""
        return self._deployments[key].asked

    def pods(self, key: str) -> tuple[SimulatedPod, ...]:
        """All pods of a deployment, draining ones included, oldest first."""
        return tuple(self._deployments[key].pods)

    def totals(self, key: str) -> Totals:
        """Requests and replica time since the start."""
        return self._deployments[key].totals

    def scale(self, key: str, replicas: int) -> None:
        """Set spec.replicas; pods that are not ready go first, newest first, as a ReplicaSet does."""
        if replicas < 0:
            raise ValueError(f"{key}: replicas must not be negative, got {replicas}")
        deployment = self._deployments[key]
        deployment.asked = replicas
        self._reconcile(deployment)
        self._schedule()

    def busy(self, node: str, gpu: int) -> float:
        """Share (0–1) of the last step in which this GPU worked."""
        for pod in self._all_pods():
            if pod.node == node and gpu in pod.gpus:
                return pod.busy
        return 0.0

    def holders(self, node: str) -> tuple[tuple[SimulatedPod, int], ...]:
        """(pod, GPU index) of every GPU of the node that a pod holds."""
        return tuple((p, g) for p in self._all_pods() if p.node == node for g in p.gpus)

    def advance(self, now: float) -> None:
        """Move the cluster to `now`: pods start and end, requests arrive, wait, are served or lost."""
        for _ in range(STEPS_MAX):
            if self.now >= now:
                return
            step = min(STEP_S, now - self.now)
            self.now += step
            self._lifecycle()
            for deployment in self._deployments.values():
                self._serve(deployment, step)
        self.now = max(self.now, now)

    # ------------------------------------------------------------------ pods

    def _all_pods(self) -> Iterable[SimulatedPod]:
        return (p for d in self._deployments.values() for p in d.pods)

    def _reconcile(self, deployment: _Deployment) -> None:
        live = [p for p in deployment.pods if p.deleted_at is None]
        for _ in range(deployment.asked - len(live)):
            deployment.serial += 1
            w = deployment.workload
            spread = max(0.5, self._random.gauss(1.0, w.start_spread))
            deployment.pods.append(
                SimulatedPod(
                    name=f"{w.name}-{deployment.serial:04d}",
                    key=w.key,
                    created_at=self.now,
                    start_s=w.start_s * spread,
                )
            )
        surplus = len(live) - deployment.asked
        if surplus > 0:
            # As a ReplicaSet ranks its victims: unscheduled, then not ready, then the newest.
            live.sort(key=lambda p: (p.node is not None, p.ready, -p.created_at))
            for pod in live[:surplus]:
                pod.deleted_at = self.now
                if pod.ready_at is None:
                    self._remove(deployment, pod)

    def _remove(self, deployment: _Deployment, pod: SimulatedPod) -> None:
        if pod.node is not None:
            self._free[pod.node].extend(pod.gpus)
            self._free[pod.node].sort()
        deployment.pods.remove(pod)

    def _schedule(self) -> None:
        waiting = [p for p in self._all_pods() if p.node is None and p.deleted_at is None]
        for pod in sorted(waiting, key=lambda p: p.created_at):
            need = self._deployments[pod.key].workload.gpus
            fitting = [n for n, free in self._free.items() if len(free) >= need]
            if not fitting:
                continue
            # Fullest node that still fits: bin packing keeps whole nodes free for large pods.
            node = min(fitting, key=lambda n: len(self._free[n]))
            pod.node = node
            pod.gpus = tuple(self._free[node][:need])
            del self._free[node][:need]
            pod.scheduled_at = self.now

    def _lifecycle(self) -> None:
        for deployment in self._deployments.values():
            for pod in list(deployment.pods):
                if pod.deleted_at is not None and self.now - pod.deleted_at >= DRAIN_S:
                    self._remove(deployment, pod)
                elif (
                    pod.ready_at is None
                    and pod.scheduled_at is not None
                    and self.now - pod.scheduled_at >= pod.start_s
                ):
                    pod.ready_at = self.now
        self._schedule()

    # ------------------------------------------------------------------ requests

    def _serve(self, deployment: _Deployment, step: float) -> None:
        w, totals = deployment.workload, deployment.totals
        arriving = max(0.0, w.demand(self.now)) * step
        totals.arrived += arriving
        totals.replica_seconds += len(deployment.pods) * step
        totals.peak_replicas = max(totals.peak_replicas, deployment.asked)
        ready = [p for p in deployment.pods if p.ready]
        if not ready:
            self._wait_at_gateway(deployment, arriving)
            return
        share = (arriving + deployment.gateway) / len(ready)
        deployment.gateway = 0.0
        for pod in deployment.pods:
            incoming = share if pod.ready else 0.0
            totals.late += self._work(pod, incoming, w.capacity * step, step)

    def _wait_at_gateway(self, deployment: _Deployment, arriving: float) -> None:
        """Nothing is ready: everything that arrives is late, and what is older than WAIT_MAX_S is lost."""
        deployment.totals.late += arriving
        limit = deployment.workload.demand(self.now) * WAIT_MAX_S
        deployment.gateway = min(deployment.gateway + arriving, max(0.0, limit))

    @staticmethod
    def _work(pod: SimulatedPod, incoming: float, can_serve: float, step: float) -> float:
        """One step of one pod's queue; the requests of `incoming` that are late."""
        rate = can_serve / step
        late = incoming if pod.waiting > LATE_S * rate else 0.0
        backlog = pod.waiting + incoming
        served = min(backlog, can_serve) if pod.ready_at is not None else 0.0
        rest = backlog - served
        dropped = max(0.0, rest - WAIT_MAX_S * rate)
        pod.waiting = rest - dropped
        pod.lost += dropped
        pod.completed += served
        pod.queue_seconds += pod.waiting * step
        pod.service_seconds += served * SERVICE_S
        pod.running = served / step * SERVICE_S
        pod.busy = min(1.0, served / can_serve) if can_serve > 0 else 0.0
        return late
