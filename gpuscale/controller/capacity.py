"""What one ready replica carries, and where that number comes from.

Declared in the policy for now; a workload that declares none has none, and its plan waits: a
guessed capacity would turn into wrong replicas without anybody noticing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gpuscale.controller.domain import Floats
from gpuscale.settings import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Units per second of one ready replica at full load."""

    value: float | None
    """None where it is not known."""
    source: Literal["declared", "unknown"]

    @property
    def sentence(self) -> str:
        """For the explanation."""
        if self.value is None:
            return "The capacity of a replica is unknown: set `capacity` in the policy."
        return f"One replica carries {self.value:g} requests/s, as the policy declares."


def capacity(policy: Policy) -> Capacity:
    """The capacity in use under this policy."""
    if policy.capacity is None:
        return Capacity(value=None, source="unknown")
    return Capacity(value=policy.capacity, source="declared")


def capacities(policies: Sequence[Policy]) -> Floats:
    """(n,) units/s, NaN where unknown: the column of a `FleetObservation`."""
    return np.array(
        [np.nan if (value := capacity(p).value) is None else value for p in policies],
        dtype=np.float64,
    )
