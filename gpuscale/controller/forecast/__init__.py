"""Quantiles of the highest demand until a replica that is asked for now could serve.

Demand here is demand over a minute: replicas queue through shorter noise. Every tick moves the
present level; once a minute the experts (`experts`) say how far above it the coming peak lies, they
are weighted by their recent losses at this very horizon, and forecasts whose time has come are
scored (`conformal`). A blend that did not beat the plain level lately is not used (the gate).

What was not seen enters nothing: neither level, nor losses, nor scores.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuscale.controller.domain import QUANTILES, Bools, FleetForecast, Floats, Ints
from gpuscale.controller.forecast import conformal
from gpuscale.controller.forecast.experts import EXPERTS, combined, rises
from gpuscale.controller.history import BIN_S, BINS_MAX, BINS_PER_DAY, History, Recent, aligned

MINUTE_S = 60.0
LOSS_HALF_LIFE_S = 86_400.0
"""Losses of a day ago count half: experts are good at different hours, and a day holds them all."""
PENDING_MAX = 32
"""Forecasts of one workload that wait for their outcome; longer lead times are scored more rarely."""
KNOWN_MIN = 0.8
"""Share of the steps of a peak that must be known for it to count."""
REFRESH_S = 300.0
"""Quantiles of the scores are read anew this often, a fifth of the workloads per minute."""
COVERAGE_MIN = 60.0
"""Discounted outcomes from which on a coverage is told."""
COLLAPSE_SHARE = 0.1
"""Below this share of the least demand that this hour had on any of the last days is a collapse."""
COLLAPSE_DAYS_MIN = 2
COLLAPSE_S_MAX = 1800.0
"""After this long a collapse is how things are."""

_BLEND = len(EXPERTS)
"""Column of the blend among the losses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What is forecast, and on which grid of time."""

    step_s: float = MINUTE_S
    """Demand here is demand over such a step; forecasts are made and scored once in each."""
    peak: bool = True
    """The highest step of the horizon; otherwise its last one."""
    levels: tuple[float, ...] = QUANTILES
    """Ascending, each within (0, 1)."""

    @property
    def decay(self) -> float:
        """What a loss weighs one step later."""
        return float(0.5 ** (self.step_s / LOSS_HALF_LIFE_S))

    def horizon(self, lead_s: Floats) -> Ints:
        """Seconds ahead as whole steps, one at least."""
        steps: Ints = np.maximum(1, np.ceil(lead_s / self.step_s - 1e-9)).astype(np.int64)
        return steps


@dataclass(slots=True, kw_only=True)
class Pending:
    """Forecasts that wait for their outcome, in slots: arrays of shape (n, PENDING_MAX, …)."""

    issued: Ints
    """Step of the forecast; -1 for an empty slot."""
    level: NDArray[np.float32]
    rise: NDArray[np.float32]
    """(n, PENDING_MAX, experts + 1): of each expert, and of the blend before the gate."""
    point: NDArray[np.float32]
    scale: NDArray[np.float32]
    quantiles: NDArray[np.float32]
    peak: NDArray[np.float32]
    """Highest step since; NaN before the first."""
    known: NDArray[np.float32]
    """Steps known since."""

    @classmethod
    def of(cls, n: int, levels: int) -> "Pending":
        """All slots empty."""

        def floats(*shape: int) -> NDArray[np.float32]:
            return np.full((n, PENDING_MAX, *shape), np.nan, dtype=np.float32)

        return cls(
            issued=np.full((n, PENDING_MAX), -1, dtype=np.int64),
            level=floats(),
            rise=floats(_BLEND + 1),
            point=floats(),
            scale=floats(),
            quantiles=floats(levels),
            peak=floats(),
            known=np.zeros((n, PENDING_MAX), dtype=np.float32),
        )

    def align(self, source: Ints) -> None:
        """Put rows into a new order; -1 is a new workload."""
        self.issued = aligned(self.issued, source, -1)
        for name in ("level", "rise", "point", "scale", "quantiles", "peak"):
            setattr(self, name, aligned(getattr(self, name), source, np.nan))
        self.known = aligned(self.known, source, 0.0)


class Forecaster:
    """Forecasts of all workloads, advanced in place.

    `level` (n,): mean demand of the last minute that was known (of the last step, where steps are
    longer); NaN before there was any.
    `burst` (n,): the same over half a minute.
    `low` (n,): this tick's demand is near zero, as it never was at this hour.
    `collapsed_s` (n,): how long demand has been unprecedentedly near zero; 0 where it is not.
    """

    def __init__(self, n: int, tick_s: float, aim: Aim | None = None) -> None:
        self.aim = aim or Aim()
        self.tick_s = tick_s
        self.recent = Recent(n, tick_s)
        self.level: Floats = np.full(n, np.nan)
        self.burst: Floats = np.full(n, np.nan)
        self.collapsed_s: Floats = np.zeros(n)
        self.low: Bools = np.zeros(n, dtype=np.bool_)
        self.step = -1
        self.rise: Floats = np.full((n, len(EXPERTS)), np.nan)
        self.blend: Floats = np.zeros(n)
        """The rise in use, after the gate."""
        self.blend_raw: Floats = np.zeros(n)
        self.typical: Floats = np.full((n, 2), 0.0)
        """Discounted sum and weight of the level, per step."""
        self.loss: Floats = np.zeros((n, _BLEND + 1, 2))
        """Discounted sum and weight of squared errors: experts, then the blend. Squared, because what
        costs is to be far off in a few minutes of the day, not a little off in all of them."""
        self.slip: Floats = np.zeros((n, len(self.aim.levels)))
        self.hits: Floats = np.zeros((n, len(self.aim.levels) + 1))
        """Discounted outcomes at or below each quantile, and their number."""
        self.score: Floats = np.repeat(self._fresh_scores(), n, axis=0)
        """(n, levels): quantiles of the scores, as of the last refresh."""
        shape = (n, conformal.SCORE_BINS)
        self.errors: NDArray[np.float32] = np.full(shape, np.nan, dtype=np.float32)
        self.scales: NDArray[np.float32] = np.full(shape, np.nan, dtype=np.float32)
        self.floor: Floats = np.full(n, np.nan)
        """Least demand of this hour on past days."""
        self.pending = Pending.of(n, len(self.aim.levels))

    @property
    def _levels(self) -> Floats:
        """(1, levels)"""
        return np.array([self.aim.levels])

    def _fresh_scores(self) -> Floats:
        return conformal.score_quantiles(np.full((1, 1), np.nan), self._levels)

    # ------------------------------------------------------------------ one tick

    def advance(
        self, now: float, demand: Floats, learn: Bools, lead_s: Floats, history: History
    ) -> FleetForecast:
        """One tick: `demand` (n,) NaN where unknown; scored and remembered only where `learn`.

        A demand that is known and not to be learned (some pods are silent) is a lower bound: it
        can raise the level, never lower it.
        """
        bounded = np.where(learn, demand, np.fmax(demand, self.level))
        self.recent.add(np.where(np.isnan(demand), np.nan, bounded))
        level, burst = self.recent.mean(MINUTE_S), self.recent.mean(MINUTE_S / 2)
        self.level = np.where(np.isnan(level), self.level, level)
        self.burst = np.where(np.isnan(burst), self.level, burst)
        with np.errstate(invalid="ignore"):
            self.low = np.fmin(demand, self.level) < COLLAPSE_SHARE * self.floor
            gone = self.level < COLLAPSE_SHARE * self.floor
        self.collapsed_s = np.where(gone, self.collapsed_s + self.tick_s, 0.0)
        step = int(now // self.aim.step_s)
        if step > self.step:
            mean = level if self.aim.step_s == MINUTE_S else self.recent.mean(self.aim.step_s)
            seen = np.where(learn & ~self.collapsed, mean, np.nan)
            self._each_step(step, now, seen, lead_s, history)
        return FleetForecast(
            levels=self.aim.levels,
            quantiles=self.quantiles(),
            level=self.level.copy(),
            coverage=self.coverage(),
        )

    def skip(self, ticks: int) -> None:
        """Let ticks pass of which nothing is known."""
        for _ in range(min(ticks, self.recent.size)):
            self.recent.add(np.full(len(self.level), np.nan))

    @property
    def collapsed(self) -> Bools:
        """(n,) demand fell to almost nothing, as it never did at this hour, and not long ago."""
        return (self.collapsed_s > 0) & (self.collapsed_s <= COLLAPSE_S_MAX)

    @property
    def doubtful(self) -> Bools:
        """(n,) the same, from its very first tick on: too early to learn, not too early to wait."""
        return self.low & (self.collapsed_s <= COLLAPSE_S_MAX)

    def quantiles(self) -> Floats:
        """(n, levels) of the peak over the lead time, from the level of this tick."""
        point = self.level + self.blend
        found: Floats = np.maximum(0.0, point[:, None] + self.score * self.scale(point)[:, None])
        return found

    def coverage(self) -> Floats:
        """(n, levels) share of outcomes at or below the quantile; NaN until there are enough."""
        count = self.hits[:, -1:]
        with np.errstate(invalid="ignore", divide="ignore"):
            share: Floats = np.where(count >= COVERAGE_MIN, self.hits[:, :-1] / count, np.nan)
        return share

    def scale(self, point: Floats) -> Floats:
        """(n,) what errors are measured by: half the point, half the typical level."""
        total, weight = self.typical[:, 0], self.typical[:, 1]
        typical = np.where(weight > 0, total / np.maximum(weight, 1e-12), point)
        return 0.5 * (point + typical)

    # ------------------------------------------------------------------ once a step

    def _each_step(
        self, step: int, now: float, seen: Floats, lead_s: Floats, history: History
    ) -> None:
        """Score what is due, ask the experts, issue anew. `seen` (n,): the step's mean, or NaN."""
        n = len(seen)
        bin_number = int(now // BIN_S)
        step_s, decay = self.aim.step_s, self.aim.decay
        before = bin_number - 1 if self.step < 0 else int(self.step * step_s // BIN_S)
        if bin_number != before:
            skipped = np.arange(max(before + 1, bin_number - conformal.SCORE_BINS), bin_number + 1)
            self.errors[:, skipped % conformal.SCORE_BINS] = np.nan
            self.floor = least_of_hour(history, np.arange(n), np.full(n, bin_number))
        known = ~np.isnan(seen)
        self.typical *= np.where(known, decay, 1.0)[:, None]
        self.typical += np.stack([np.where(known, seen, 0.0), known], axis=1)
        horizon = self.aim.horizon(lead_s)
        stride = -(-horizon // PENDING_MAX)
        self._score(step, seen, horizon, stride)
        self.rise = rises(
            level=self.level,
            recent=_known_or(self.recent.mean(300.0), self.level),
            before=_known_or(self.recent.mean(300.0, 300.0), self.level),
            values=history.values,
            rows=np.arange(n),
            now_s=np.full(n, now),
            lead_s=lead_s,
            peak=self.aim.peak,
        )
        losses = self.losses()
        self.blend_raw = combined(self.rise, losses[:, :_BLEND])
        self.blend = gated(self.blend_raw, losses)
        self._refresh(np.flatnonzero((np.arange(n) + step) % self._refresh_steps == 0), bin_number)
        self._issue(step, known, stride)
        self.step = step

    @property
    def _refresh_steps(self) -> int:
        return max(1, round(REFRESH_S / self.aim.step_s))

    def losses(self) -> Floats:
        """(n, experts + 1) mean squared errors; NaN where there is none yet."""
        with np.errstate(invalid="ignore", divide="ignore"):
            mean: Floats = self.loss[:, :, 0] / self.loss[:, :, 1]
        return mean

    def _refresh(self, rows: Ints, bin_number: int) -> None:
        scale = self.scale(self.level + self.blend)[rows]
        found = conformal.samples(
            self.errors,
            self.scales,
            rows=rows,
            bin_number=np.full(len(rows), bin_number),
            scale=scale,
        )
        levels = conformal.in_use(self._levels, self.slip[rows])
        self.score[rows] = conformal.score_quantiles(found, levels)

    def _issue(self, step: int, known: Bools, stride: Ints) -> None:
        rows = np.flatnonzero(known & (step % stride == 0))
        slot = (step // stride[rows]) % PENDING_MAX
        pending = self.pending
        point = self.level[rows] + self.blend[rows]
        pending.issued[rows, slot] = step
        pending.level[rows, slot] = self.level[rows]
        pending.rise[rows, slot, :_BLEND] = self.rise[rows]
        pending.rise[rows, slot, _BLEND] = self.blend_raw[rows]
        pending.point[rows, slot] = point
        pending.scale[rows, slot] = self.scale(self.level + self.blend)[rows]
        pending.quantiles[rows, slot] = self.quantiles()[rows]
        pending.peak[rows, slot] = np.nan
        pending.known[rows, slot] = 0.0

    def _score(self, step: int, seen: Floats, horizon: Ints, stride: Ints) -> None:
        """Enter the step into all outcomes, and score the forecasts that are due."""
        pending, decayed = self.pending, self.aim.decay
        np.fmax(pending.peak, seen.astype(np.float32)[:, None], out=pending.peak)
        pending.known += ~np.isnan(seen)[:, None]
        due = step - horizon
        slot = (due // stride) % PENDING_MAX
        every = np.arange(len(seen))
        if self.aim.peak:
            enough = pending.known[every, slot] >= KNOWN_MIN * horizon
        else:
            enough = ~np.isnan(seen)
        good = (pending.issued[every, slot] == due) & enough
        rows = np.flatnonzero(good)
        if len(rows) == 0:
            return
        slot = slot[rows]
        peak = pending.peak[rows, slot].astype(np.float64) if self.aim.peak else seen[rows]
        error = (pending.level[rows, slot][:, None] + pending.rise[rows, slot] - peak[:, None]) ** 2
        heard = ~np.isnan(error)
        weight = stride[rows][:, None]
        decay = np.where(heard, decayed**weight, 1.0)
        self.loss[rows, :, 0] = self.loss[rows, :, 0] * decay + np.where(heard, error, 0.0) * weight
        self.loss[rows, :, 1] = self.loss[rows, :, 1] * decay + heard * weight
        column = (due[rows] * self.aim.step_s // BIN_S).astype(np.int64) % conformal.SCORE_BINS
        self.errors[rows, column] = peak - pending.point[rows, slot]
        self.scales[rows, column] = pending.scale[rows, slot]
        hit = peak[:, None] <= pending.quantiles[rows, slot] * (1.0 + 1e-6)
        # A zero lies at or below any quantile: it must not make up for misses at other times.
        told = np.flatnonzero(peak > 0)
        self.slip[rows[told]] = conformal.adapted(self.slip[rows[told]], self._levels, hit[told])
        self.hits[rows] *= decayed**weight
        self.hits[rows, :-1] += hit * weight
        self.hits[rows, -1] += weight[:, 0]
        pending.issued[rows, slot] = -1

    # ------------------------------------------------------------------ change of the rows

    def align(self, source: Ints) -> None:
        """Put rows into a new order; -1 is a new workload."""
        self.recent.align(source)
        self.pending.align(source)
        for name, fill in (
            ("level", np.nan),
            ("burst", np.nan),
            ("collapsed_s", 0.0),
            ("low", False),
            ("rise", np.nan),
            ("blend", 0.0),
            ("blend_raw", 0.0),
            ("typical", 0.0),
            ("loss", 0.0),
            ("slip", 0.0),
            ("hits", 0.0),
            ("errors", np.nan),
            ("scales", np.nan),
            ("floor", np.nan),
        ):
            setattr(self, name, aligned(getattr(self, name), source, fill))
        self.score = aligned(self.score, source, self._fresh_scores()[0])


def _known_or(values: Floats, other: Floats) -> Floats:
    return np.where(np.isnan(values), other, values)


def gated(blend: Floats, losses: Floats) -> Floats:
    """The blend (r,), or no rise where the plain level did better lately; `losses` (r, experts + 1)."""
    with np.errstate(invalid="ignore"):
        worse = losses[:, _BLEND] > losses[:, 0]
    return np.where(worse, 0.0, blend)


def least_of_hour(history: History, rows: Ints, bin_number: Ints) -> Floats:
    """(r,) least demand of this half hour on each of the last seven days; NaN without two of them."""
    around = np.arange(-3, 4)
    days = np.arange(1, 8)[:, None] * BINS_PER_DAY
    back = (days + around).ravel()
    found = history.values[rows[:, None], (bin_number[:, None] - back) % BINS_MAX]
    known = np.count_nonzero(~np.isnan(found), axis=1)
    least = np.fmin.reduce(found, axis=1).astype(np.float64)
    return np.where(known >= COLLAPSE_DAYS_MIN * len(around), least, np.nan)
