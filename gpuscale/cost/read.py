"""Asks a Prometheus for the accounts of a window, for labels of namespaces, and for OpenCost's prices."""

import math
import re
from collections.abc import Mapping, Sequence

import msgspec

from gpuscale.clock import Clock
from gpuscale.controller.queryapi import QueryApi, Series
from gpuscale.cost.bill import Accounts, Held, Weight
from gpuscale.cost.prices import Prices, from_nodes
from gpuscale.errors import InputError
from gpuscale.settings import PrometheusSettings

TIMEOUT_S = 120.0
"""A week of a large fleet is some hundred million samples."""
STEPS_S = (60, 300, 900, 3600)
POINTS_MAX = 2_100
"""Points of a subquery per series: a week at five minutes."""
LATE_S = 2 * 3600.0
"""Accounts that begin so much later than the window are told."""

_WORD = "[bcdfghjklmnpqrstvwxz2456789]"
"""What Kubernetes makes names of: no vowels, so that a name that a person wrote is rarely taken for one."""
_OWNERS = (
    r"(.+?)(?:-[0-9]{1,5}){1,2}",
    rf"(.+)-{_WORD}{{5}}",
    rf"(.+)-{_WORD}{{6,10}}-{_WORD}{{5}}",
)
"""Pod names of StatefulSets, of Jobs and DaemonSets, of Deployments; the last that fits holds."""
_HELD = "gpuscale_namespace_gpu_seconds_total"


class Reader:
    """Questions about the window of `since_s` seconds that ends now. Every method raises SourceError."""

    def __init__(
        self,
        settings: PrometheusSettings,
        clock: Clock,
        *,
        since_s: float,
        cluster: str | None = None,
    ) -> None:
        """`cluster` is the value of the label `cluster` of all series that are read; None reads all."""
        wanted = msgspec.structs.replace(settings, timeout_s=max(TIMEOUT_S, settings.timeout_s))
        self._client = QueryApi(wanted, clock, connections_max=1)
        self._since_s = since_s
        self._window = f"{round(since_s)}s"
        self._cluster = None if cluster is None else f'cluster="{_escaped(cluster)}"'
        self.at = clock.wall()
        self.address = self._client.shown

    async def close(self) -> None:
        """Release connections."""
        await self._client.close()

    async def accounts(self) -> Accounts:
        """What the exporters counted. Raises InputError where there is nothing of theirs."""
        labels = "namespace, resource, product, state"
        held = await self._vector(f"sum by ({labels}) (increase({self._over(_HELD)}))")
        nodes = await self._nodes()
        if not held and not nodes:
            raise InputError(
                f"the Prometheus at {self.address} has no accounts of gpuscale in the last "
                f"{self._since_s / 3600:g} h: let it scrape the exporters (accounting is on by default)"
            )
        energy = await self._vector(
            f"sum by (namespace) (increase({self._over('gpuscale_namespace_gpu_energy_joules_total')}))"
        )
        return Accounts(
            held=tuple(
                Held(
                    m.get("namespace", ""),
                    m.get("resource", ""),
                    m.get("product", ""),
                    m.get("state", ""),
                    value,
                )
                for m, value in held
            ),
            joules={m.get("namespace", ""): value for m, value in energy},
            nodes=nodes,
        )

    async def _nodes(self) -> tuple[tuple[str, str, float], ...]:
        """GPU-seconds by product and state: a target's time, divided by the products that it has."""
        seconds = await self._vector(
            f"sum by (instance, state) (increase({self._over('gpuscale_node_gpu_seconds_total')}))"
        )
        products = await self._products("instance")
        found: dict[tuple[str, str], float] = {}
        for metric, value in seconds:
            instance, state = metric.get("instance", ""), metric.get("state", "")
            counts = products.get(instance) or {"": 1.0}
            total = sum(counts.values())
            for product, count in counts.items():
                key = (product, state)
                found[key] = found.get(key, 0.0) + value * count / total
        return tuple((product, state, value) for (product, state), value in sorted(found.items()))

    async def _products(self, by: str) -> Mapping[str, Mapping[str, float]]:
        """GPUs by a label and product."""
        seen = f"max by ({by}, uuid, product) (last_over_time({self._over('gpuscale_gpu_info')}))"
        found: dict[str, dict[str, float]] = {}
        for metric, value in await self._vector(f"count by ({by}, product) ({seen})"):
            found.setdefault(metric.get(by, ""), {})[metric.get("product", "")] = value
        return found

    async def begin_s(self) -> float | None:
        """How long ago the accounts begin, in seconds, where that is later than the window; else None."""
        step = next((s for s in STEPS_S if self._since_s / s <= POINTS_MAX), STEPS_S[-1])
        query = f"min(min_over_time(timestamp({self._series('gpuscale_node_gpu_seconds_total')})[{self._window}:{step}s]))"
        found = await self._vector(query)
        if not found:
            return None
        ago = self.at - found[0][1]
        return ago if ago < self._since_s - LATE_S - step else None

    async def labels(self, label: str) -> Mapping[str, str]:
        """Namespace -> value of one of its labels, as kube-state-metrics shows it. Raises InputError."""
        if not re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_./]{0,251}[A-Za-z0-9])?", label):
            raise InputError(
                f"--by label:{label[:64]} is no label of Kubernetes: write label:cost-center"
            )
        name = "label_" + re.sub(r"[^a-zA-Z0-9_]", "_", label)
        series = self._series("kube_namespace_labels", f'{name}!=""')
        window = f"last_over_time({series}[{self._window}])"
        found = {}
        # What it is now goes before what it was.
        for query in (window, series):
            for metric, _ in await self._vector(f"max by (namespace, {name}) ({query})"):
                found[metric.get("namespace", "")] = metric.get(name, "")
        if not found:
            raise InputError(
                f"kube_namespace_labels has no {name}: start kube-state-metrics with "
                f"--metric-labels-allowlist=namespaces=[{label}], and label the namespaces"
            )
        return found

    async def weights(self) -> tuple[Weight, ...]:
        """How the use of each namespace divides among its workloads, by the names of their pods."""
        step = next((s for s in STEPS_S if self._since_s / s <= POINTS_MAX), STEPS_S[-1])
        span = f"{self._window}:{step}s"
        info = self._series("gpuscale_gpu_allocation_info")
        used = f"max by (uuid) ({self._series('gpuscale_gpu_utilization_ratio')})"
        power = f"max by (uuid) ({self._series('gpuscale_gpu_power_watts')})"
        parts: dict[tuple[str, str, str], list[float]] = {}
        for i, query in enumerate(
            (
                f"sum_over_time({info}[{span}])",
                f"sum_over_time(({info} * on (uuid) group_left () {used})[{span}])",
                f"sum_over_time(({info} * on (uuid) group_left () {power})[{span}])",
            )
        ):
            named = f'label_replace({query}, "workload", "$1", "pod", "(.*)")'
            for owner in _OWNERS:
                # PromQL reads a backslash as an escape; these patterns have none.
                named = f'label_replace({named}, "workload", "$1", "pod", "{owner}")'
            for metric, value in await self._vector(
                f"sum by (namespace, workload, resource) ({named})"
            ):
                key = (
                    metric.get("namespace", ""),
                    metric.get("workload", ""),
                    metric.get("resource", ""),
                )
                parts.setdefault(key, [0.0, 0.0, 0.0])[i] = value
        return tuple(Weight(*key, *values) for key, values in sorted(parts.items()))

    async def opencost(self) -> Prices:
        """Prices by product from OpenCost's price of a GPU-hour of each node. Raises InputError."""
        nodes = await self._vector(
            f"max by (node) (avg_over_time({self._over('node_gpu_hourly_cost')}))"
        )
        prices = {m.get("node", ""): value for m, value in nodes if value > 0}
        gpus = {
            (node, product): count
            for node, counts in (await self._products("node")).items()
            for product, count in counts.items()
        }
        found = from_nodes(gpus, prices)
        if not found.products:
            raise InputError(
                f"the Prometheus at {self.address} has no node_gpu_hourly_cost of OpenCost for any GPU "
                "node: install OpenCost, or give prices with --price FILE"
            )
        return found

    def _series(self, metric: str, *matchers: str) -> str:
        """A selector, in the cluster that is asked about."""
        kept = [*matchers, *([self._cluster] if self._cluster else [])]
        return f"{metric}{{{','.join(kept)}}}" if kept else metric

    def _over(self, metric: str) -> str:
        """The same over the window."""
        return f"{self._series(metric)}[{self._window}]"

    async def _vector(self, query: str) -> Sequence[tuple[Mapping[str, str], float]]:
        """(labels, value) of an instant query, finite values only."""
        series: Sequence[Series] = await self._client.instant(query, self.at)
        found = []
        for each in series:
            value = math.nan if each.value is None else float(each.value[1])
            if math.isfinite(value):
                found.append((each.metric, value))
        return found


def _escaped(value: str) -> str:
    """A label value as a string of PromQL."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
