"""A fleet of inference servers whose true capacity is known: Poisson arrivals, batches, a queue.

One replica with b requests in its batch ends b / (alpha + beta · b) a second: each takes alpha alone
and beta more for every request beside it, up to `slots` at once; the rest wait. So the most there
can be is slots / (alpha + beta · slots), and a request takes L seconds at the load (L - alpha) / (beta · L).
With beta = 0 it is M/G/k.
"""

from dataclasses import dataclass

import numpy as np

from gpuscale.controller.capacity import Sight
from gpuscale.controller.domain import Floats

STEP_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """What a replica is."""

    alpha_s: float
    beta_s: float = 0.0
    slots: int = 64

    @property
    def most(self) -> float:
        """Requests per second with every slot taken."""
        return self.slots / (self.alpha_s + self.beta_s * self.slots)

    def within(self, latency_s: float) -> float:
        """Requests per second at which one takes that long."""
        if self.beta_s == 0.0:
            return self.most
        return min(self.most, max(0.0, latency_s - self.alpha_s) / (self.beta_s * latency_s))


class Fleet:
    """Replicas of one kind with a common load, read once a tick."""

    def __init__(self, kind: Batching, *, replicas: int, seed: int) -> None:
        self.kind = kind
        self.replicas = replicas
        self._random = np.random.default_rng(seed)
        self._inside: Floats = np.zeros(replicas)

    def tick(self, rate: float, tick_s: float) -> tuple[float, float, float]:
        """(ended per second, inside, waiting), all replicas together, after `tick_s` at `rate` each."""
        ended = 0.0
        kind = self.kind
        before = self._inside
        for _ in range(round(tick_s / STEP_S)):
            before = self._inside + self._random.poisson(rate * STEP_S, self.replicas)
            self._inside = before.copy()
            batch = np.minimum(self._inside, kind.slots)
            speed = batch / (kind.alpha_s + kind.beta_s * batch)
            done = np.minimum(self._inside, self._random.poisson(speed * STEP_S))
            self._inside -= done
            ended += float(done.sum())
        # Within a step all arrive first and end last: on average, half of either.
        inside = (before + self._inside) / 2.0
        waiting = np.maximum(0.0, inside - kind.slots)
        return ended / tick_s, float(inside.sum()), float(waiting.sum())

    def drain(self) -> None:
        """Give up everything inside."""
        self._inside[:] = 0.0


def sight(
    now: float,
    seen: tuple[float, float, float],
    *,
    replicas: float,
    tick_s: float = 15.0,
    coverage: float = 1.0,
    objective_s: float = np.nan,
    kv: float = np.nan,
    busy: float = np.nan,
    build: str = "",
) -> Sight:
    """One workload's tick as the learner sees it."""
    ended, inside, waiting = seen
    one = {
        "throughput": ended,
        "in_flight": inside,
        "waiting": waiting,
        "kv_fraction": kv,
        "busy": busy,
        "replicas": replicas,
        "coverage": coverage,
        "objective_s": objective_s,
    }
    columns = {name: np.array([value], dtype=np.float64) for name, value in one.items()}
    return Sight(now=now, tick_s=tick_s, builds=[build], **columns)
