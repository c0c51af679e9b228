"""The bank: candidate policies that run as virtual fleets, and the blend of the cheapest.

Demand does not depend on what is asked for, so what any candidate *would have cost* on the demand
just seen can be computed instead of guessed. Every candidate of every workload runs as a virtual
fleet (`fleet.Fleet`) at the start time and capacity in use. Its cost is what design and operators
care about, discounted with a half-life of one day:

    cost = replica time billed + risk / (1 - risk) × late units × replica time per unit

where the replica time per unit is that of the candidate with the least bill, which is close to what
a clairvoyant would need. Its own backlog counts for each: what waits behind a candidate that was
caught short is worked off by that candidate (`plan.draining`). This is online learning with full
feedback: the blend, weighted exponentially by cost (Cesa-Bianchi & Lugosi, "Prediction, Learning,
and Games", 2006, ch. 2), is never much worse than the best candidate in hindsight, and where days
differ it can be better. Late requests are dear, so weights move upwards at once when a candidate is
caught short; downwards they move as slowly as idle time adds up.

Ticks whose demand is unknown, or not to be learned (silent pods, an outage), enter no cost.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuscale.controller.candidates import (
    BLEND,
    CANDIDATES,
    DEFAULT,
    HOLD_LEADS,
    HOLD_LONG_S,
    HOLD_SHORT_S,
    SIGNALS,
    Holds,
)
from gpuscale.controller.domain import FleetObservation, Floats, Ints
from gpuscale.controller.fleet import Fleet
from gpuscale.controller.follow import Follower
from gpuscale.controller.history import aligned
from gpuscale.controller.outlook import BASES
from gpuscale.controller.plan import Candidate, columns, draining, floors, replicas

LEAD_S_MAX = 86_400.0
"""A start that takes longer than a day is not waited for: demand is not known so far ahead."""
HALF_LIFE_S = 86_400.0
"""A day: a shorter memory forgets the morning by night, a longer one is slow where regimes change."""
PRIOR_S = 3600.0
PRIOR_EXCESS = 0.2
"""Before there is experience, every candidate but the default is taken to have cost a fifth more for
an hour: a quiet first half hour must not recommend the most daring one."""
PRIOR_FADE_S = 2 * 3600.0
"""Experience that halves the prior's weight: after a day nothing of it is left."""
BLEND_SCALE = 0.025
"""A candidate that cost two and a half per cent more than the cheapest weighs 1/e of it: less follows
chance, more lets in what is known to be dear."""
WEIGHT_MIN = 0.05
"""Share of the heaviest weight below which a candidate is left out."""
GAP_S = 300.0
"""After a longer gap in the data the virtual fleets start anew: nobody knows what they queued."""

PAST_MINUTES = 3 * 1440
"""Three half-lives: what lies before weighs an eighth."""
SEGMENT_MIN = 90
"""Minutes of a segment of the past, unless the lead-in is longer."""
TWIN_S = 60.0
"""Tick of the past: finer steps were measured to change the choice little, at several times the cost."""
LEAD_IN_S_MAX = 6 * 3600.0
PAST_WEIGHT = 0.3
"""What a minute of the past counts beside one that was lived: the past is known as means, in which
the noise is gone that makes daring candidates late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the bank must know of the workloads, arrays of shape (n,)."""

    capacity: Floats
    lead_s: Floats
    headroom: Floats
    risk: Floats
    min_replicas: Floats
    max_replicas: Floats

    @classmethod
    def of(cls, seen: FleetObservation) -> "Terms":
        """As observed; a capacity or start time that cannot be one is unknown."""
        with np.errstate(invalid="ignore"):
            capacity = np.where(
                np.isfinite(seen.capacity) & (seen.capacity > 0), seen.capacity, np.nan
            )
            lead_s = np.where(seen.lead_s > seen.tick_s, seen.lead_s, seen.tick_s)
        return cls(
            capacity=capacity,
            lead_s=np.minimum(lead_s, LEAD_S_MAX),
            headroom=seen.policy.headroom,
            risk=seen.policy.risk,
            min_replicas=seen.policy.min_replicas,
            max_replicas=seen.policy.max_replicas,
        )

    @property
    def price(self) -> Floats:
        """A late unit in units of the replica time that it needs."""
        return self.risk / (1.0 - self.risk)

    def one(self, row: int, count: int) -> "Terms":
        """One workload's terms, `count` times."""
        return Terms(
            **{
                name: np.repeat(getattr(self, name)[row : row + 1], count)
                for name in Terms.__dataclass_fields__
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What the bank says at one tick."""

    planned: Floats
    """(n,) replicas; NaN where there is nothing to plan from."""
    candidate: Ints
    """(n,) index of the cheapest candidate, which leads the blend."""
    costs: NDArray[np.float32]
    """(n, candidates + 1) discounted virtual costs in replica seconds, the blend's own last; NaN
    until there are some."""


class Bank:
    """Candidates of all workloads, advanced in place."""

    def __init__(self, n: int, tick_s: float, candidates: Sequence[Candidate] = CANDIDATES) -> None:
        self.candidates = tuple(candidates)
        self.tick_s = tick_s
        self._picks, self._target = columns(self.candidates, SIGNALS)
        self._floors = floors(self.candidates, SIGNALS)
        self._prior = _prior(self.candidates)
        self._decay = 0.5 ** (tick_s / HALF_LIFE_S)
        wide = len(self.candidates) + 1
        self._fleet = Fleet(
            tick_s=tick_s,
            capacity=np.full(n, np.nan),
            lead_s=np.full(n, tick_s),
            replicas=np.zeros(n),
            policies=wide,
        )
        self.short = Holds(n, len(BASES))
        self.long = Holds(n, len(BASES))
        self.follower = Follower(n, tick_s)
        self.want: Floats = np.full((n, wide), np.nan)
        self.billed: Floats = np.zeros((n, wide))
        self.late: Floats = np.zeros((n, wide))
        self.arrived: Floats = np.zeros(n)
        self.blind_s: Floats = np.full(n, np.inf)
        self.run_s: Floats = np.zeros(n)
        """(n,) how long the virtual fleets have run since they were put to what they ask for."""
        self.known_s: Floats = np.zeros(n)
        """(n,) time that entered the costs."""
        self.weight_s: Floats = np.zeros(n)
        """(n,) the same, discounted as the costs are."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns of `Choice.costs`."""
        return (*(c.name for c in self.candidates), BLEND)

    # ------------------------------------------------------------------ one tick

    def advance(self, now: float, bases: Floats, demand: Floats, terms: Terms) -> Choice:
        """One tick: charge what was asked for before it, then ask anew.

        `bases` (n, len(BASES)): the outlook as of now, NaN where unknown. `demand` (n,): what
        arrived during the tick; NaN where it is unknown or not to be learned.
        """
        self._charge(demand, terms)
        own = self._own(self._signals(now, bases, terms.lead_s), terms)
        costs = self._costs(terms)
        planned = self.follower.advance(_blend(own, costs[:, :-1]))
        wants = np.concatenate([own, planned[:, None]], axis=1)
        wants = np.maximum(wants, self._drains(bases[:, 0], terms))
        self.want = np.clip(wants, terms.min_replicas[:, None], terms.max_replicas[:, None])
        self._restart(demand)
        return Choice(
            planned=np.clip(planned, terms.min_replicas, terms.max_replicas),
            candidate=costs[:, :-1].argmin(axis=1),
            costs=np.where(self.known_s[:, None] > 0, costs, np.nan).astype(np.float32),
        )

    def _own(self, signals: Floats, terms: Terms) -> Floats:
        """(n, candidates) what each candidate asks for, its own backlog apart."""
        own = replicas(signals[:, self._picks], self._target, terms.capacity, terms.headroom)
        at, picks, targets = self._floors
        least = replicas(signals[:, picks], targets, terms.capacity, terms.headroom)
        own[:, at] = np.maximum(own[:, at], least)
        return np.clip(own, terms.min_replicas[:, None], terms.max_replicas[:, None])

    def _drains(self, level: Floats, terms: Terms) -> Floats:
        """(n, candidates + 1) what the backlog behind each virtual fleet asks for."""
        return draining(
            backlog=self._fleet.backlog,
            level=level[:, None],
            ready=self._fleet.ready,
            capacity=terms.capacity[:, None],
            lead_s=terms.lead_s[:, None],
            price=terms.price[:, None],
        )

    def skip(self, ticks: int) -> None:
        """Let ticks pass of which nothing is known."""
        nothing = np.full(len(self.arrived), np.nan)
        for _ in range(min(ticks, round(GAP_S / self.tick_s) + 1)):
            self._fleet.step(self.want, nothing)
        self.blind_s += ticks * self.tick_s

    def _signals(self, now: float, bases: Floats, lead_s: Floats) -> Floats:
        n = len(bases)
        short = self.short.add(now, np.full(n, HOLD_SHORT_S), bases)
        long = self.long.add(now, np.maximum(HOLD_LONG_S, HOLD_LEADS * lead_s), bases)
        return np.concatenate([bases, short, long], axis=1)

    def _charge(self, demand: Floats, terms: Terms) -> None:
        """Let the tick's demand arrive at every virtual fleet, and add up what that cost."""
        self._fleet.retune(capacity=terms.capacity, lead_s=terms.lead_s)
        outcome = self._fleet.step(self.want, demand)
        running = outcome.known[:, 0] & ~np.isnan(self.want[:, 0])
        # Nobody is charged for the first start time: what ran in it was chosen by nobody.
        known = running & (self.run_s >= terms.lead_s)
        self.run_s += running * self.tick_s
        decay = np.where(known, self._decay, 1.0)
        self.billed *= decay[:, None]
        self.late *= decay[:, None]
        self.billed += np.where(known[:, None], outcome.billed, 0.0) * self.tick_s
        self.late += np.where(known[:, None], outcome.late, 0.0)
        self.arrived = self.arrived * decay + np.where(known, outcome.arrived[:, 0], 0.0)
        self.known_s += known * self.tick_s
        self.weight_s = self.weight_s * decay + known * self.tick_s
        self.blind_s = np.where(np.isnan(demand), self.blind_s + self.tick_s, self.blind_s)

    def _costs(self, terms: Terms) -> Floats:
        """(n, candidates + 1) discounted costs in replica seconds, the prior included."""
        with np.errstate(invalid="ignore", divide="ignore"):
            per_unit = np.where(self.arrived > 0, 1.0 / self.arrived, 0.0)
        least = self.billed[:, :-1].min(axis=1)
        costs = self.billed + (terms.price * per_unit * least)[:, None] * self.late
        # The prior is charged at the rate of the bill so far, and fades as experience comes.
        rate = least / np.maximum(self.weight_s, 1.0) * 0.5 ** (self.known_s / PRIOR_FADE_S)
        total: Floats = costs + self._prior * np.maximum(rate, 1e-6)[:, None]
        return total

    def _restart(self, demand: Floats) -> None:
        """Put virtual fleets to what they ask for, where there were none or a gap ended."""
        known = ~np.isnan(demand)
        rows = np.flatnonzero(known & (self.blind_s > GAP_S) & ~np.isnan(self.want[:, 0]))
        if len(rows):
            self._fleet.reset(rows, self.want[rows])
            self.run_s[rows] = 0.0
        self.blind_s[known & ~np.isnan(self.want[:, 0])] = 0.0

    # ------------------------------------------------------------------ the past

    def learn(self, row: int, now: float, bases: Floats, demand: Floats, terms: Terms) -> None:
        """Run the candidates of one workload through its past.

        `bases` (t, len(BASES)), `demand` (t,): per minute, oldest first, the last one ending at
        about `now`; `terms`: of all workloads. What a fleet does depends on little more than its
        start time, so the past is cut into segments that run side by side, each led in by enough
        minutes to forget how it began.
        """
        lead_s = float(terms.lead_s[row])
        lead_in = int(min(LEAD_IN_S_MAX, max(HOLD_LONG_S, HOLD_LEADS * lead_s) + lead_s) // 60.0)
        length = max(SEGMENT_MIN, lead_in)
        used = min(len(demand), PAST_MINUTES)
        count = max(1, -(-used // length))
        if np.isnan(demand).all():
            return
        twin = Bank(count, TWIN_S, self.candidates)
        parts = round(60.0 / TWIN_S)
        own = terms.one(row, count)
        ends = len(demand) - (count - 1 - np.arange(count)) * length
        for tick in range((lead_in + length) * parts):
            index = ends - length - lead_in + tick // parts
            inside = index >= 0
            at = np.maximum(index, 0)
            twin.advance(
                now - ((lead_in + length) * parts - 1 - tick) * TWIN_S,
                np.where(inside[:, None], bases[at], np.nan),
                np.where(inside, demand[at], np.nan),
                own,
            )
            if tick == lead_in * parts - 1:
                twin.forget_costs()
        self._take(row, twin, length, lead_s)

    def forget_costs(self) -> None:
        """Begin to count anew; fleets and signals go on."""
        self.billed[:] = 0.0
        self.late[:] = 0.0
        self.arrived[:] = 0.0
        self.known_s[:] = 0.0
        self.weight_s[:] = 0.0

    def _take(self, row: int, twin: "Bank", length: int, lead_s: float) -> None:
        """Sum up the segments of `twin`, and go on where its last one ended."""
        count = len(twin.known_s)
        age_s = (count - 1 - np.arange(count)) * length * 60.0
        weight = PAST_WEIGHT * 0.5 ** (age_s / HALF_LIFE_S)
        self.billed[row] = (twin.billed * weight[:, None]).sum(axis=0)
        self.late[row] = (twin.late * weight[:, None]).sum(axis=0)
        self.arrived[row] = (twin.arrived * weight).sum()
        self.known_s[row] = twin.known_s.sum()
        self.weight_s[row] = (twin.weight_s * weight).sum()
        self.short.take(row, twin.short)
        self.long.take(row, twin.long)
        self.follower.start(row, float(twin.follower.asked[-1]))
        self.want[row] = twin.want[-1]
        if np.isnan(self.want[row]).any():
            return
        # The segments' blends knew nothing of each other: until it has run, the blend counts as
        # what it follows.
        leader = int(self.billed[row, :-1].argmin())
        self.billed[row, -1] = self.billed[row, leader]
        self.late[row, -1] = self.late[row, leader]
        rows = np.array([row], dtype=np.int64)
        self._fleet.retune(
            capacity=self._fleet.capacity,
            lead_s=np.where(np.arange(len(self.known_s)) == row, lead_s, np.nan),
        )
        self._fleet.reset(rows, self.want[rows])
        self.run_s[row] = 0.0
        self.blind_s[row] = 0.0

    # ------------------------------------------------------------------ change of the rows

    def align(self, source: Ints) -> None:
        """Put rows into a new order; -1 is a new workload."""
        kept = source[source >= 0]
        added = int((source < 0).sum())
        self._fleet.keep(kept)
        self._fleet.add(
            capacity=np.full(added, np.nan),
            lead_s=np.full(added, self.tick_s),
            replicas=np.zeros(added),
        )
        order = np.empty(len(source), dtype=np.int64)
        order[source >= 0] = np.arange(len(kept))
        order[source < 0] = len(kept) + np.arange(added)
        self._fleet.keep(order)
        self.short.align(source)
        self.long.align(source)
        self.follower.align(source)
        self.want = aligned(self.want, source, np.nan)
        self.billed = aligned(self.billed, source, 0.0)
        self.late = aligned(self.late, source, 0.0)
        self.arrived = aligned(self.arrived, source, 0.0)
        self.blind_s = aligned(self.blind_s, source, np.inf)
        self.run_s = aligned(self.run_s, source, 0.0)
        self.known_s = aligned(self.known_s, source, 0.0)
        self.weight_s = aligned(self.weight_s, source, 0.0)


def _prior(candidates: Sequence[Candidate]) -> Floats:
    """Seconds of one replica set's bill that each column is charged in advance."""
    names = [c.name for c in candidates]
    excess = np.array([0.0 if name == DEFAULT else PRIOR_EXCESS for name in names] + [0.0])
    prior: Floats = PRIOR_S * (1.0 + excess)
    return prior


def _blend(wants: Floats, costs: Floats) -> Floats:
    """(n,) mean of what candidates ask for (n, k), weighted by how little they cost (n, k)."""
    least = costs.min(axis=1, keepdims=True)
    weight = np.exp(-(costs / least - 1.0) / BLEND_SCALE)
    # One that is nearly given up may ask for anything: it has no say.
    weight = np.where(weight < WEIGHT_MIN, 0.0, weight)
    mean: Floats = (weight * wants).sum(axis=1) / weight.sum(axis=1)
    return mean
