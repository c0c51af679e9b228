"""Replicas and their queue in time: the one model that the policy bank and the simulation both step.

A `Fleet` holds many replica sets at once, as arrays of shape (workloads,) or (workloads, policies).
One tick, in this order:

1. replicas that were asked for `lead_s` ago become ready, and what drained long enough is gone;
2. the caller asks (`step(want, …)`); what is taken away is taken from the replicas that are not
   ready yet, newest first, as Kubernetes does, and only then from the ready ones, which drain;
3. what is asked for and what drains is billed;
4. requests arrive, evenly over the tick, and are served by the ready replicas from a fluid queue.
   A request that finds a backlog B waits B / capacity; it is late beyond `late_s`. Work beyond
   `drop_s` of the fleet's capacity (of one replica's, where none is ready) is dropped.

How it is O(1) per tick: since the newest ask is withdrawn first, the k-th replica is ready at tick
i exactly when at least k replicas were asked for at every one of the ticks i - lag … i. So

    ready(i) = min(asked[i - lag … i])

and a sliding minimum replaces a record per replica. It is kept per workload as two blocks (van
Herk, "A fast algorithm for local minimum and maximum filters", 1992): the suffix minima of the
last full block of `lag` asks, overwritten one by one with the asks of the block in progress, whose
minimum is at hand. The blocks of different workloads end at different ticks, so that the work of
closing a block spreads evenly.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuscale.controller.domain import Bools, Floats, Ints

LATE_S = 5.0
"""A request that waits longer than this is late."""

DROP_S = 60.0
"""Work beyond this much of the capacity is dropped: clients have given up by then."""

DRAIN_S = 30.0
"""A ready replica that is taken away is billed this long (Kubernetes' default grace period)."""

LAG_TICKS_MAX = 1024
"""A longer start is modelled as this many ticks (over four hours at 15 s): it bounds the memory,
and no demand is foreseen so far ahead."""

_NONE_ASKED = np.float32(np.inf)
"""Minimum of a block without asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What happened in one tick. All arrays have the shape of the fleet."""

    known: Bools
    """False where the arrivals or the capacity were unknown: such a tick enters no cost, and
    `billed`, `arrived`, `late` and `dropped` are 0 there, so that they can be added up."""
    asked: Floats
    """Replicas asked for at this tick."""
    ready: Floats
    starting: Floats
    draining: Floats
    """Replicas by stage during the tick; asked = ready + starting."""
    billed: Floats
    """Replicas that cost money during the tick: asked + draining."""
    arrived: Floats
    """Units that arrived."""
    late: Floats
    """Units of them that wait longer than `late_s`, or are dropped."""
    dropped: Floats
    """Units that were dropped at the end of the tick."""
    backlog: Floats
    """Units that wait at the end of the tick."""
    busy: Floats
    """Replicas' worth of work in service on average: all that are ready while there is a backlog;
    NaN where unknown."""


class Fleet:
    """Replica sets of n workloads, optionally under several policies each.

    `capacity` (n,): units/s that one ready replica serves; NaN where unknown.
    `lead_s` (n,): seconds from the ask to the first served request; rounded to ticks, at least one.
    `replicas` (n,) or (n, policies): asked for and ready since long, before the first tick.
    `policies`: number of policies per workload; None for arrays of shape (n,).

    The attributes `asked`, `ready`, `starting`, `draining` and `backlog` are the state at the
    beginning of the coming tick: what became ready is ready, nothing has been asked yet. They are
    to be read, not written.
    """

    def __init__(
        self,
        *,
        tick_s: float,
        capacity: Floats,
        lead_s: Floats,
        replicas: Floats,
        policies: int | None = None,
        drain_s: float = DRAIN_S,
        late_s: float = LATE_S,
        drop_s: float = DROP_S,
    ) -> None:
        if not tick_s > 0:
            raise ValueError(f"tick_s is {tick_s}: a tick takes time")
        self.tick_s = tick_s
        self.late_s = late_s
        self.drop_s = drop_s
        self._tail: tuple[int, ...] = () if policies is None else (policies,)
        self._drain_ticks = max(1, round(drain_s / tick_s))
        self._ticks = 0
        self.capacity: Floats = np.array(capacity, dtype=np.float64)
        n = len(self.capacity)
        self._lag: Ints = self._ticks_of(np.asarray(lead_s, dtype=np.float64))
        self._lead_s: Floats = np.empty(0)
        """What `retune` was last given; empty where rows came or went since."""
        self.asked: Floats = self._spread(replicas, n)
        self.backlog: Floats = np.zeros((n, *self._tail))
        self._drops = np.zeros((self._drain_ticks, n, *self._tail))
        self.draining: Floats = np.zeros((n, *self._tail))
        # A row's block lives in ring[offset : offset + room]; rooms are powers of two, so that a
        # lag that moves a little finds room where it is.
        self._room: Ints = _power_of_two(self._lag)
        self._offset: Ints = _offsets(self._room)
        self._ring: NDArray[np.float32] = np.repeat(
            self.asked.astype(np.float32), self._room, axis=0
        )
        self._position: Ints = np.arange(n, dtype=np.int64) % self._lag
        self._block_min: NDArray[np.float32] = self.asked.astype(np.float32)
        self.ready: Floats = self.asked.copy()

    # ------------------------------------------------------------------ reading

    @property
    def shape(self) -> tuple[int, ...]:
        """(workloads,) or (workloads, policies)."""
        return self.asked.shape

    @property
    def starting(self) -> Floats:
        """Replicas asked for and not ready, at the beginning of the coming tick."""
        return self.asked - self.ready

    @property
    def lag_ticks(self) -> Ints:
        """Shape (n,): ticks from ask to ready in use."""
        return self._lag

    # ------------------------------------------------------------------ one tick

    def step(self, want: Floats, arriving: Floats) -> Outcome:
        """Ask for `want` replicas (NaN: no change), let `arriving` units/s arrive for one tick.

        `want` has the shape of the fleet and holds whole numbers; `arriving` has it too, or is
        (n,) for all policies alike. Bounds are the caller's; only a negative number is refused by being read as 0. Where
        `arriving` or the capacity is NaN, replicas go on starting, draining and being asked for,
        and the queue stands still.
        """
        wanted = np.where(np.isnan(want), self.asked, np.maximum(want, 0.0))
        ready = np.minimum(self.ready, wanted)
        drops = self._drops[self._ticks % self._drain_ticks]
        np.subtract(self.ready, ready, out=drops)
        draining = self.draining + drops
        starting = wanted - ready

        # Adding zeros spreads the rate over the policies, at a tenth of what broadcasting costs here.
        rate = self._column(arriving) + np.zeros(self.shape)
        per_replica = self._column(self.capacity)
        known = ~np.isnan(rate + per_replica)
        late, dropped, backlog, busy = self._serve(ready, rate, per_replica, known)
        outcome = Outcome(
            known=known,
            asked=wanted,
            ready=ready,
            starting=starting,
            draining=draining,
            billed=np.where(known, wanted + draining, 0.0),
            arrived=np.where(known, rate * self.tick_s, 0.0),
            late=late,
            dropped=dropped,
            backlog=backlog,
            busy=busy,
        )
        self.asked = wanted
        self.backlog = backlog
        self._record(wanted)
        self._ticks += 1
        # The oldest drop is gone when the next tick begins.
        self.draining = draining - self._drops[self._ticks % self._drain_ticks]
        self.ready = self._ready_next()
        return outcome

    def _serve(
        self, ready: Floats, rate: Floats, per_replica: Floats, known: Bools
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """(late units, dropped units, backlog after, busy replicas) of a tick."""
        dt = self.tick_s
        capacity = ready * per_replica
        slope = rate - capacity
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            # Share of the tick until the backlog crosses the edge beyond which one waits too long.
            crossing = (self.late_s * capacity - self.backlog) / (slope * dt)
            crossing = np.minimum(np.maximum(crossing, 0.0), 1.0)
            share = np.where(slope > 0, 1.0 - crossing, crossing)
            share = np.where(slope == 0, self.backlog > self.late_s * capacity, share)
            share = np.where(capacity <= 0, 1.0, share)
            backlog = np.maximum(0.0, self.backlog + slope * dt)
            limit = np.maximum(capacity, per_replica) * self.drop_s
            dropped = np.maximum(0.0, backlog - limit)
            backlog = backlog - dropped
            arrived = rate * dt
            late = np.maximum(share * arrived, np.minimum(dropped, arrived))
            busy = np.where(backlog > 0, ready, np.minimum(ready, rate / per_replica))
        return (
            np.where(known, late, 0.0),
            np.where(known, dropped, 0.0),
            np.where(known, backlog, self.backlog),
            np.where(known, busy, np.nan),
        )

    # ------------------------------------------------------------------ change of the rows

    def retune(self, *, capacity: Floats, lead_s: Floats) -> None:
        """Use another capacity and start time from the coming tick on; both (n,).

        Cheap where nothing changes, so it may be called at every tick. Ready replicas stay ready;
        those that start become ready at the new time, at once where that has passed already. A
        NaN in `lead_s` keeps the row's lag.
        """
        self.capacity = np.array(capacity, dtype=np.float64)
        lead = np.asarray(lead_s, dtype=np.float64)
        if len(lead) == len(self._lead_s) and (lead == self._lead_s).all():
            return
        self._lead_s = lead.copy()
        lag = np.where(np.isnan(lead), self._lag, self._ticks_of(lead))
        rows = np.flatnonzero(lag != self._lag)
        if len(rows) == 0:
            return
        history = self._history(rows, int(max(self._lag[rows].max(), lag[rows].max())))
        if (lag > self._room).any():
            self._move(np.maximum(self._room, _power_of_two(lag)))
        self._lag = lag
        self._write(rows, history)
        self.ready = self._ready_next()

    def add(self, *, capacity: Floats, lead_s: Floats, replicas: Floats) -> None:
        """Append rows; arguments as in the constructor, over the new rows alone."""
        other = Fleet(
            tick_s=self.tick_s,
            capacity=capacity,
            lead_s=lead_s,
            replicas=replicas,
            policies=self._tail[0] if self._tail else None,
            drain_s=self._drain_ticks * self.tick_s,
        )
        self._lead_s = np.empty(0)
        self.capacity = np.concatenate([self.capacity, other.capacity])
        self._lag = np.concatenate([self._lag, other._lag])
        self.asked = np.concatenate([self.asked, other.asked])
        self.ready = np.concatenate([self.ready, other.ready])
        self.backlog = np.concatenate([self.backlog, other.backlog])
        self.draining = np.concatenate([self.draining, other.draining])
        self._drops = np.concatenate([self._drops, other._drops], axis=1)
        self._ring = np.concatenate([self._ring, other._ring])
        self._room = np.concatenate([self._room, other._room])
        self._offset = _offsets(self._room)
        self._position = np.concatenate([self._position, other._position])
        self._block_min = np.concatenate([self._block_min, other._block_min])

    def keep(self, rows: Ints) -> None:
        """Keep these rows, in this order, and forget the others (a row may not be named twice)."""
        rows = np.asarray(rows, dtype=np.int64)
        self._lead_s = np.empty(0)
        source = _slots(self._offset[rows], self._room[rows])
        self._ring = self._ring[source]
        self._room = self._room[rows]
        self._offset = _offsets(self._room)
        self.capacity = self.capacity[rows]
        self._lag = self._lag[rows]
        self.asked = self.asked[rows]
        self.ready = self.ready[rows]
        self.backlog = self.backlog[rows]
        self.draining = self.draining[rows]
        self._drops = self._drops[:, rows]
        self._position = self._position[rows]
        self._block_min = self._block_min[rows]

    def reset(self, rows: Ints, replicas: Floats) -> None:
        """Put these rows back to `replicas` ready ones, nothing starting, draining or waiting."""
        rows = np.asarray(rows, dtype=np.int64)
        state = self._spread(replicas, len(rows))
        self.asked[rows] = state
        self.ready[rows] = state
        self.backlog[rows] = 0.0
        self.draining[rows] = 0.0
        self._drops[:, rows] = 0.0
        self._block_min[rows] = state
        self._ring[_slots(self._offset[rows], self._room[rows])] = np.repeat(
            state.astype(np.float32), self._room[rows], axis=0
        )

    # ------------------------------------------------------------------ the sliding minimum

    def _record(self, wanted: Floats) -> None:
        """Enter this tick's ask, and close the blocks that are full."""
        ask = wanted.astype(np.float32)
        self._ring[self._offset + self._position] = ask
        np.minimum(self._block_min, ask, out=self._block_min)
        self._position += 1
        full = np.flatnonzero(self._position == self._lag)
        if len(full) == 0:
            return
        # One pass per room size, at most 11 of them. Slots past the lag repeat the last one, which
        # leaves suffix minima as they are.
        for room in np.unique(self._room[full]):
            rows = full[self._room[full] == room]
            slots = self._offset[rows, None] + np.minimum(
                np.arange(room), self._lag[rows, None] - 1
            )
            block = self._ring[slots]
            self._ring[slots] = np.minimum.accumulate(block[:, ::-1], axis=1)[:, ::-1]
        self._position[full] = 0
        self._block_min[full] = _NONE_ASKED

    def _ready_next(self) -> Floats:
        """Minimum of the last `lag` asks: what is ready when the next tick begins."""
        oldest = self._ring[self._offset + self._position]
        ready: Floats = np.minimum(oldest, self._block_min).astype(np.float64)
        return ready

    def _history(self, rows: Ints, depth: int) -> NDArray[np.float32]:
        """Minimum of the last 1, 2, … `depth` asks of these rows, shape (depth, rows, …).

        Past the lag it stays what is ready: an older ask changes nothing that can still be seen.
        """
        out = np.empty((depth, len(rows), *self._tail), dtype=np.float32)
        running = np.full((len(rows), *self._tail), _NONE_ASKED, dtype=np.float32)
        for back in range(depth):  # at most LAG_TICKS_MAX, and only when a lag changes
            within = np.minimum(back, self._lag[rows] - 1)
            slot = (self._position[rows] - 1 - within) % self._lag[rows]
            np.minimum(running, self._ring[self._offset[rows] + slot], out=running)
            out[back] = running
        return out

    def _write(self, rows: Ints, history: NDArray[np.float32]) -> None:
        """Lay the history down as if these minima had been the asks: nothing can tell them apart."""
        lag = self._lag[rows]
        position = rows % lag
        for room in np.unique(self._room[rows]):
            inside = np.flatnonzero(self._room[rows] == room)
            slot = np.minimum(np.arange(room), lag[inside, None] - 1)
            back = (position[inside, None] - 1 - slot) % lag[inside, None]
            self._ring[self._offset[rows[inside], None] + slot] = history[back, inside[:, None]]
        self._position[rows] = position
        begun = position > 0
        self._block_min[rows] = _NONE_ASKED
        self._block_min[rows[begun]] = history[position[begun] - 1, np.flatnonzero(begun)]

    def _move(self, room: Ints) -> None:
        """Give the rows these rooms (none smaller than before); the contents stay."""
        offset = _offsets(room)
        ring = np.zeros((int(room.sum()), *self._tail), dtype=np.float32)
        ring[_slots(offset, self._room)] = self._ring[_slots(self._offset, self._room)]
        self._ring, self._room, self._offset = ring, room, offset

    # ------------------------------------------------------------------ shapes

    def _ticks_of(self, lead_s: Floats) -> Ints:
        ticks = np.rint(np.nan_to_num(lead_s, nan=0.0, posinf=np.inf) / self.tick_s)
        lag: Ints = np.clip(ticks, 1, LAG_TICKS_MAX).astype(np.int64)
        return lag

    def _column(self, values: Floats) -> Floats:
        """(n,) as (n, 1) where there are policies."""
        return values[:, None] if self._tail and values.ndim == 1 else values

    def _spread(self, values: Floats, n: int) -> Floats:
        column = self._column(np.asarray(values, dtype=np.float64))
        return np.array(np.broadcast_to(column, (n, *self._tail)))


def _power_of_two(lag: Ints) -> Ints:
    """The least power of two that is not below each lag."""
    exponent: Ints = np.ceil(np.log2(lag)).astype(np.int64)
    return np.int64(1) << exponent


def _offsets(room: Ints) -> Ints:
    """Where each row's room begins."""
    return np.concatenate([[0], np.cumsum(room)[:-1]]).astype(np.int64)[: len(room)]


def _slots(offset: Ints, room: Ints) -> Ints:
    """All slots of the rows, in order."""
    start = np.repeat(offset - _offsets(room), room)
    return start + np.arange(int(room.sum()), dtype=np.int64)
