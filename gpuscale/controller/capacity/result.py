"""The capacity in use, per workload, and the sentence that says where it comes from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, overload

import numpy as np

from gpuscale.controller.domain import Floats, Ints

Source = Literal["pinned", "declared", "learned", "unknown"]
Limit = Literal["saturation", "utilization", "kv", "carried"]
LIMITS: tuple[Limit, ...] = ("saturation", "utilization", "kv", "carried")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Units per second of one ready replica at full load."""

    value: float | None
    """None where it is not known."""
    source: Source
    declared: float | None = None
    limit: Limit | None = None
    """What it was learned from; None unless `source` is learned."""
    carried: float | None = None
    """The most that was seen carried well; None before there was enough to say."""
    confidence: float = 0.0
    """0-1: how much evidence is behind what is learned."""
    begun: str | None = None
    """Why learning began anew; None where it never did."""
    unit: str = "requests"

    @property
    def sentence(self) -> str:
        """For the explanation."""
        line = _SENTENCES[self.limit or self.source].format(
            value=0.0 if self.value is None else self.value,
            unit=f"{self.unit}/s",
            confidence=self.confidence,
        )
        if self.source == "learned" and self.declared is not None:
            line += f" The policy declares {self.declared:.4g}."
        if self.source in ("declared", "unknown") and self.carried is not None:
            line += f" Up to {self.carried:.3g} {self.unit}/s were carried well so far."
        if self.begun is not None and self.source != "pinned":
            line += f" Learning began anew: {self.begun}."
        return line


_SENTENCES: Mapping[str, str] = {
    "pinned": "One replica carries {value:.4g} {unit}, pinned by the policy.",
    "declared": "One replica carries {value:.4g} {unit}, as the policy declares, until it is learned.",
    "unknown": (
        "The capacity of a replica is unknown: set `capacity` in the policy, or wait until a load "
        "has been seen that replicas cannot carry."
    ),
    "saturation": (
        "One replica carries {value:.4g} {unit}: learned from loads beyond which requests queue or "
        "slow down ({confidence:.0%} sure)."
    ),
    "utilization": (
        "One replica carries {value:.4g} {unit}: learned from the time its GPUs are busy per request "
        "({confidence:.0%} sure)."
    ),
    "kv": (
        "One replica carries {value:.4g} {unit}: learned from how full its KV cache gets "
        "({confidence:.0%} sure)."
    ),
    "carried": (
        "One replica carries at least {value:.4g} {unit}: it was seen to, without slowing down "
        "({confidence:.0%} sure)."
    ),
}


class FleetCapacity(Sequence[Capacity]):
    """The capacities of one tick; one workload's is made when asked for."""

    def __init__(
        self,
        *,
        values: Floats,
        declared: Floats,
        sources: Ints,
        limits: Ints,
        carried: Floats,
        confidence: Floats,
        begun: Sequence[str | None],
        units: Sequence[str],
    ) -> None:
        """Columns of shape (n,); `sources` and `limits` are positions in SOURCES and LIMITS, -1 for none."""
        self.values = values
        """(n,) units/s, NaN where unknown: the column of a `FleetObservation`."""
        self._declared, self._carried, self._confidence = declared, carried, confidence
        self._sources, self._limits = sources, limits
        self._begun, self._units = begun, units

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, index: int) -> Capacity: ...

    @overload
    def __getitem__(self, index: slice) -> list[Capacity]: ...

    def __getitem__(self, index: int | slice) -> Capacity | list[Capacity]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        limit = int(self._limits[index])
        return Capacity(
            value=_number(self.values[index]),
            source=SOURCES[int(self._sources[index])],
            declared=_number(self._declared[index]),
            limit=None if limit < 0 else LIMITS[limit],
            carried=_number(self._carried[index]),
            confidence=float(self._confidence[index]),
            begun=self._begun[index],
            unit=self._units[index],
        )


SOURCES: tuple[Source, ...] = ("pinned", "declared", "learned", "unknown")
PINNED, DECLARED, LEARNED, UNKNOWN = range(4)


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
