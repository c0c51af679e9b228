"""The simulated cluster as the daemons see it: pods' metrics pages over HTTP, the API server's view, the past."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from aiohttp import web

from gpuscale import httpd
from gpuscale.controller.domain import (
    Floats,
    ReplicaState,
    Signal,
    SignalReading,
    SignalTarget,
    Start,
    Workload,
)
from gpuscale.simulation.cluster import SimulatedCluster, SimulatedPod
from gpuscale.simulation.pages import PAGES

ADDRESS = "127.0.0.1"
PULL_SHARE = 0.25
"""Share of a simulated start that goes into the image; the rest loads the model."""


class PodPages:
    """One HTTP server for the metrics pages of every simulated pod, at /NAMESPACE/WORKLOAD/POD/metrics."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._server: httpd.HttpServer | None = None

    async def start(self) -> int:
        """Listen on a free port of loopback; returns the port."""
        app = web.Application()
        app.router.add_get("/{namespace}/{workload}/{pod}/metrics", self._page)
        self._server = await httpd.HttpServer.start(app, f"{ADDRESS}:0")
        return self._server.address[1]

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            await self._server.close()

    async def _page(self, request: web.Request) -> web.Response:
        key = f"{request.match_info['namespace']}/{request.match_info['workload']}"
        if key in self._cluster.keys:
            for pod in self._cluster.pods(key):
                if pod.name == request.match_info["pod"] and pod.ready:
                    workload = self._cluster.workload(key)
                    return web.Response(text=PAGES[workload.server](pod, workload.name))
        raise web.HTTPNotFound


class ClusterView:
    """What the controller asks of a cluster, answered from the simulated one."""

    def __init__(self, cluster: SimulatedCluster, objects: Sequence[Mapping[str, Any]]) -> None:
        """`objects`: the ScaledObjects, as the API server would give them."""
        self._cluster = cluster
        self._objects = objects
        self._seen_ready: set[str] = set()

    def scaled_objects(self) -> Sequence[Mapping[str, object]]:
        """Every ScaledObject."""
        return self._objects

    def replicas(self, workloads: Sequence[Workload]) -> Mapping[str, ReplicaState]:
        """Replicas by stage, with the start times of pods that became ready since the last call."""
        return {w.key: self._state(w.key) for w in workloads if w.key in self._cluster.keys}

    def unsynced(self) -> str | None:
        """The view is complete from the start."""
        return None

    def _state(self, key: str) -> ReplicaState:
        live = [p for p in self._cluster.pods(key) if p.deleted_at is None]
        ready = [p for p in live if p.ready]
        pending = [p for p in live if p.node is None]
        return ReplicaState(
            key=key,
            asked=self._cluster.asked(key),
            ready=len(ready),
            starting=len(live) - len(ready) - len(pending),
            pending=len(pending),
            endpoints=tuple(p.name for p in ready),
            starts=tuple(self._starts(ready)),
            pending_reason="no node has enough free GPUs" if pending else None,
            build=key,
        )

    def _starts(self, ready: Sequence[SimulatedPod]) -> list[Start]:
        """How pods started that were not seen ready before; those that stood at the beginning did not start."""
        starts = []
        for pod in ready:
            if pod.name in self._seen_ready:
                continue
            self._seen_ready.add(pod.name)
            if pod.ready_at is None or pod.scheduled_at is None or pod.ready_at <= pod.scheduled_at:
                continue
            took_s = pod.ready_at - pod.scheduled_at
            starts.append(
                Start(
                    total_s=took_s,
                    stages={"pull": took_s * PULL_SHARE, "load": took_s * (1 - PULL_SHARE)},
                    unschedulable_s=pod.scheduled_at - pod.created_at,
                    build=pod.key,
                )
            )
        return starts


class SignalWithPast:
    """A signal source that also remembers: the pods are scraped for real, the past is the scenario's.

    Simulated pods have no addresses of their own, so their pages are told apart by path.
    """

    def __init__(self, source: Signal, cluster: SimulatedCluster, pages_port: int) -> None:
        self._source = source
        self._cluster = cluster
        self._pages = f"http://{ADDRESS}:{pages_port}"

    async def read(
        self, targets: Sequence[SignalTarget], now: float
    ) -> Mapping[str, SignalReading | Exception]:
        """What the pods' pages say."""
        return await self._source.read([self._on_loopback(t) for t in targets], now)

    async def history(
        self, targets: Sequence[SignalTarget], start: float, end: float, step_s: float
    ) -> Mapping[str, tuple[Floats, Floats]]:
        """(times, demand) of the scenario between `start` and `end`, as a Prometheus would have kept it."""
        times = np.arange(start, end, step_s, dtype=np.float64)
        return {
            t.key: (
                times,
                np.array([self._cluster.workload(t.key).demand(x) for x in times.tolist()]),
            )
            for t in targets
            if t.key in self._cluster.keys
        }

    def _on_loopback(self, target: SignalTarget) -> SignalTarget:
        ready = (p for p in self._cluster.pods(target.key) if p.ready)
        pages = tuple(f"{self._pages}/{target.key}/{p.name}/metrics" for p in ready)
        return dataclasses.replace(target, endpoints=pages)

    async def close(self) -> None:
        """Close the source."""
        await self._source.close()
