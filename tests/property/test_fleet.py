"""What holds of any fleet under any asks: it equals a slow model that keeps a record per replica."""

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuscale.controller.fleet import DROP_S, LATE_S, Fleet

DRAIN_TICKS = 2
TICK_S = 15.0


@dataclass
class SlowFleet:
    """One workload, a list entry per replica: the birthday of each, the last day of the drained."""

    lag: int
    capacity: float
    births: list[int]
    graves: list[int] = field(default_factory=list)
    now: int = 0
    backlog: float = 0.0

    def ready(self) -> int:
        return sum(self.now >= birth + self.lag for birth in self.births)

    def step(self, want: int, arriving: float) -> dict[str, float]:
        self.graves = [gone for gone in self.graves if gone > self.now]
        while len(self.births) < want:
            self.births.append(self.now)
        while len(self.births) > want:
            youngest = self.births.pop()
            if self.now >= youngest + self.lag:
                self.graves.append(self.now + DRAIN_TICKS)
        ready, draining = self.ready(), len(self.graves)
        late, dropped = self.serve(ready, arriving)
        self.now += 1
        return {
            "asked": len(self.births),
            "ready": ready,
            "starting": len(self.births) - ready,
            "draining": draining,
            "billed": len(self.births) + draining,
            "late": late,
            "dropped": dropped,
            "backlog": self.backlog,
        }

    def serve(self, ready: int, arriving: float) -> tuple[float, float]:
        """Late units by brute force: the tick's arrivals in many small slices."""
        capacity, slices = ready * self.capacity, 3000
        slope = arriving - capacity
        middles = (np.arange(slices) + 0.5) * TICK_S / slices
        waiting = self.backlog + slope * middles
        share = float(np.mean(waiting > LATE_S * capacity)) if capacity > 0 else 1.0
        backlog = max(0.0, self.backlog + slope * TICK_S)
        dropped = max(0.0, backlog - max(capacity, self.capacity) * DROP_S)
        self.backlog = backlog - dropped
        arrived = arriving * TICK_S
        return max(share * arrived, min(dropped, arrived)), dropped


LAGS = (1, 2, 3, 5, 8, 13)
asks = st.lists(
    st.tuples(
        st.lists(st.integers(0, 9), min_size=len(LAGS), max_size=len(LAGS)),
        st.floats(0, 120, allow_subnormal=False),
        st.integers(1, 12),
    ),
    min_size=1,
    max_size=12,
)
"""Asks that stand for a while, per workload, and what arrives meanwhile."""


@given(story=asks, replicas=st.integers(0, 9))
def test_the_arrays_equal_a_record_per_replica(
    story: list[tuple[list[int], float, int]], replicas: int
) -> None:
    n = len(LAGS)
    fleet = Fleet(
        tick_s=TICK_S,
        capacity=np.full(n, 10.0),
        lead_s=np.array(LAGS) * TICK_S,
        replicas=np.full(n, float(replicas)),
    )
    slow = [SlowFleet(lag=lag, capacity=10.0, births=[-99] * replicas) for lag in LAGS]
    for wants, arriving, ticks in story:
        for _ in range(ticks):
            assert fleet.ready.tolist() == [s.ready() for s in slow]
            outcome = fleet.step(np.array(wants, dtype=np.float64), np.full(n, arriving))
            expected = [s.step(w, arriving) for s, w in zip(slow, wants, strict=True)]
            for name in ("asked", "ready", "starting", "draining", "billed", "dropped", "backlog"):
                values = [e[name] for e in expected]
                np.testing.assert_allclose(getattr(outcome, name), values, err_msg=name, atol=1e-6)
            late = np.array([e["late"] for e in expected])
            np.testing.assert_allclose(outcome.late, late, atol=arriving * TICK_S / 1000 + 1e-6)


@given(story=asks, more=st.integers(1, 5))
def test_more_replicas_are_never_later_and_never_cheaper(
    story: list[tuple[list[int], float, int]], more: int
) -> None:
    """One policy asks for `more` replicas than the other, always, and nobody gives up waiting.

    (Where work is dropped, those who come later are spared the wait: a smaller fleet may then have
    fewer late ones for a moment.)
    """
    n = len(LAGS)
    fleet = Fleet(
        tick_s=TICK_S,
        capacity=np.full(n, 10.0),
        lead_s=np.array(LAGS) * TICK_S,
        replicas=np.array([[4.0, 4.0 + more]] * n),
        policies=2,
        drop_s=np.inf,
    )
    for wants, arriving, ticks in story:
        want = np.array(wants, dtype=np.float64)
        for _ in range(ticks):
            outcome = fleet.step(np.column_stack([want, want + more]), np.full(n, arriving))
            assert (outcome.ready[:, 1] >= outcome.ready[:, 0]).all()
            assert (outcome.billed[:, 1] >= outcome.billed[:, 0]).all()
            assert (outcome.backlog[:, 1] <= outcome.backlog[:, 0] + 1e-6).all()
            assert (outcome.late[:, 1] <= outcome.late[:, 0] + 1e-6).all()
            assert (outcome.late <= arriving * TICK_S + 1e-9).all()


@given(story=asks, lag=st.integers(1, 20), after=st.integers(0, 30))
def test_a_new_start_time_leaves_ready_what_was_asked_long_enough_ago(
    story: list[tuple[list[int], float, int]], lag: int, after: int
) -> None:
    """After a retune, ready is the minimum of the asks of the new lag, or of what the old one knew."""
    n = len(LAGS)
    fleet = Fleet(
        tick_s=TICK_S,
        capacity=np.full(n, 10.0),
        lead_s=np.array(LAGS) * TICK_S,
        replicas=np.full(n, 3.0),
    )
    past = [[3.0] * 40 for _ in LAGS]

    def advance(wants: list[int]) -> None:
        fleet.step(np.array(wants, dtype=np.float64), np.zeros(n))
        for asked, want in zip(past, wants, strict=True):
            asked.append(float(want))

    for wants, _, ticks in story:
        for _ in range(ticks):
            advance(wants)
    known = [min(lag, own) for own in LAGS]
    begin = [len(asked) - length for asked, length in zip(past, known, strict=True)]
    fleet.retune(capacity=np.full(n, 10.0), lead_s=np.full(n, lag * TICK_S))
    for tick in range(after + 1):
        # The window reaches back `lag` asks, but not past what was still known when it changed.
        expected = [
            min(asked[max(start, len(asked) - lag) :])
            for asked, start in zip(past, begin, strict=True)
        ]
        assert fleet.ready.tolist() == expected, tick
        advance([(tick * 7 + i) % 6 for i in range(n)])
