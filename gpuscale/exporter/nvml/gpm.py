"""Hardware counters of Hopper and later (GPM): what happened between two samples, as shares and rates.

Neither DCGM nor a capability is needed. A sample is a buffer of the driver's: two per GPU and per
MIG GPU instance are kept, and given back at the end.
"""

import ctypes
import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gpuscale.clock import Clock
from gpuscale.errors import DriverError
from gpuscale.exporter import nvmlreturn
from gpuscale.exporter.device import Profile
from gpuscale.exporter.nvml.call import Handle, call, pynvml
from gpuscale.exporter.nvml.check import BYTES_PER_S_MAX, share

STEP_MIN_S = 0.1
"""The driver's counters are not updated more often; two samples that are closer give nonsense."""

_MIB = 1 << 20
_RATIOS = {
    1: "graphics_active",
    2: "sm_active",
    3: "sm_occupancy",
    5: "tensor_active",
    10: "dram_active",
    11: "fp64_active",
    12: "fp32_active",
    13: "fp16_active",
}
_MIB_PER_S = {
    20: "pcie_sent_bytes_per_s",
    21: "pcie_received_bytes_per_s",
    60: "nvlink_received_bytes_per_s",
    61: "nvlink_sent_bytes_per_s",
}
_NAMES = _RATIOS | _MIB_PER_S
_METRICS = tuple(_NAMES)
_ANSWER = struct.Struct("=id")
"""nvmlReturn and value of an nvmlGpmMetric_t, which lie next to each other."""


@dataclass(slots=True)
class _Pair:
    """The sample of the last read, a buffer for the next, and what was seen between the last two."""

    last: Any
    spare: Any
    at: float
    seen: Profile | None = None


class Gpm:
    """The samples of one GPU: of the whole (None) and by GPU instance."""

    def __init__(self, handle: Handle, clock: Clock) -> None:
        self._handle = handle
        self._clock = clock
        self._pairs: dict[int | None, _Pair] = {}
        self._supported: bool | None = None
        self._query: Any = None
        self._at = self._step = 0
        """Where the answer to the first metric lies in the query, and how far the next is from it (bytes)."""

    def profile(self, gpu_instance_id: int | None) -> Profile | None:
        """What was seen since the last read; None at the first. Raises NotSupported before Hopper."""
        self._require_support()
        now = self._clock.monotonic()
        pair = self._pairs.get(gpu_instance_id)
        if pair is None:
            self._pairs[gpu_instance_id] = self._first(gpu_instance_id, now)
            return None
        if now - pair.at < STEP_MIN_S:
            return pair.seen
        self._take(gpu_instance_id, pair.spare)
        pair.last, pair.spare, pair.at = pair.spare, pair.last, now
        pair.seen = self._between(pair.spare, pair.last)
        return pair.seen

    def keep(self, gpu_instance_ids: Iterable[int]) -> None:
        """Give back the samples of the instances that are no more."""
        kept = {None, *gpu_instance_ids}
        for gone in self._pairs.keys() - kept:
            _free(self._pairs.pop(gone))

    def close(self) -> None:
        """Give every sample back: before the session ends, since a sample does not outlive it."""
        for pair in self._pairs.values():
            _free(pair)
        self.forget()

    def forget(self) -> None:
        """The session ended and took the samples with it."""
        self._pairs.clear()
        self._supported = None

    def _require_support(self) -> None:
        if self._supported is None:
            answer = self._handle.ask("nvmlGpmQueryDeviceSupport")
            self._supported = int(answer.isSupportedDevice) == 1
        if not self._supported:
            raise self._handle.lack("no hardware counters before Hopper")

    def _first(self, gpu_instance_id: int | None, now: float) -> _Pair:
        last = call("nvmlGpmSampleAlloc", subject=self._handle.subject)
        try:
            self._take(gpu_instance_id, last)
            spare = call("nvmlGpmSampleAlloc", subject=self._handle.subject)
        except DriverError:
            _free_one(last)
            raise
        return _Pair(last=last, spare=spare, at=now)

    def _take(self, gpu_instance_id: int | None, sample: Any) -> None:
        if gpu_instance_id is None:
            self._handle.ask("nvmlGpmSampleGet", sample)
        else:
            self._handle.ask("nvmlGpmMigSampleGet", gpu_instance_id, sample)

    def _between(self, before: Any, after: Any) -> Profile:
        query = self._query or self._new_query()
        query.sample1, query.sample2 = before, after
        call("nvmlGpmMetricsGet", query, subject=self._handle.subject)
        values: dict[str, float] = {}
        for place, metric in enumerate(_METRICS):
            code, number = _ANSWER.unpack_from(query, self._at + place * self._step)
            if code == nvmlreturn.SUCCESS:
                value = _value(metric, number)
                if value is not None:
                    values[_NAMES[metric]] = value
        return Profile(**values)

    def _new_query(self) -> Any:
        """Which metrics are asked for never changes, and filling in their numbers costs as much as the answer."""
        nvml = pynvml()
        query = self._query = nvml.c_nvmlGpmMetricsGet_t()
        query.version = nvml.NVML_GPM_METRICS_GET_VERSION
        query.numMetrics = len(_METRICS)
        for place, metric in enumerate(_METRICS):
            query.metrics[place].metricId = metric
        metric_t = nvml.c_nvmlGpmMetric_t
        self._at = type(query).metrics.offset + metric_t.nvmlReturn.offset
        self._step = ctypes.sizeof(metric_t)
        return query


def _value(metric: int, value: float) -> float | None:
    """A share or bytes/s; None for the NaN of what was not counted, and for what cannot be."""
    if metric in _RATIOS:
        return share(value)
    bytes_per_s = value * _MIB
    return bytes_per_s if math.isfinite(value) and 0 <= bytes_per_s <= BYTES_PER_S_MAX else None


def _free(pair: _Pair) -> None:
    _free_one(pair.last)
    _free_one(pair.spare)


def _free_one(sample: Any) -> None:
    try:
        call("nvmlGpmSampleFree", sample)
    except DriverError:
        return  # the session is gone, and the sample with it
