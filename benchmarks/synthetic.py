"""Demand made from seeds, of the kinds that are hard in practice: what policies are developed on.

    python benchmarks/synthetic.py FOLDER [--seed N]

Writes one CSV per kind, as `gpuscale backtest` and `benchmarks/scaling.py` read them. Nothing in
them is taken from a recording; a policy that does well here and on recordings alike was not fitted
to either. Another seed gives other traces of the same kinds.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

DAY_S = 86_400


def _grid(step_s: int, days: float) -> tuple[Floats, Floats]:
    """(hour of the day, number of the day) of every bin."""
    seconds = np.arange(round(days * DAY_S / step_s)) * float(step_s)
    hour: Floats = seconds % DAY_S / 3600.0
    day: Floats = np.floor(seconds / DAY_S)
    return hour, day


def _wander(rng: np.random.Generator, n: int, bins: float, spread: float) -> Floats:
    """A factor around 1 that forgets itself within about `bins` bins (a lognormal AR(1))."""
    keep = np.exp(-1.0 / bins)
    steps = rng.normal(0.0, spread * np.sqrt(1.0 - keep**2), n)
    value = rng.normal(0.0, spread)
    out = np.empty(n)
    for i, step in enumerate(steps):
        value = keep * value + step
        out[i] = value
    factor: Floats = np.exp(out - spread**2 / 2)
    return factor


def _arrivals(rng: np.random.Generator, rate: Floats, step_s: float, size: float = 1.0) -> Floats:
    """Rates as counted: Poisson arrivals of `size` requests each."""
    counted = rng.poisson(np.maximum(rate, 0.0) * step_s / size)
    return np.asarray(counted * size / step_s, dtype=np.float64)


def _holes(rng: np.random.Generator, values: Floats, count: int, longest: int) -> Floats:
    out = values.copy()
    for _ in range(count):
        start = int(rng.integers(0, len(out)))
        out[start : start + int(rng.integers(1, longest + 1))] = np.nan
    return out


def _hump(hour: Floats, centre: float, width: float) -> Floats:
    """A bell over the hours of a day, midnight included."""
    away = np.abs((hour - centre + 12.0) % 24.0 - 12.0)
    bell: Floats = np.exp(-0.5 * (away / width) ** 2)
    return bell


# ------------------------------------------------------------------ the kinds


def hour_only(rng: np.random.Generator) -> tuple[int, Floats]:
    """Less than an hour of requests: ramps up and down, no history to speak of."""
    n = 350
    knots = np.sort(rng.choice(np.arange(20, n - 20), 5, replace=False))
    levels = rng.uniform(3.0, 10.0, 7)
    rate = np.interp(np.arange(n), np.concatenate([[0], knots, [n]]), levels)
    return 10, _arrivals(rng, rate * _wander(rng, n, 30.0, 0.08), 10.0)


def hour_of_bursts(rng: np.random.Generator) -> tuple[int, Floats]:
    """Less than an hour of code completion: clusters of requests, quiet between, a slow drift."""
    n = 360
    drift = np.interp(np.arange(n), [0, n / 2, n], rng.uniform(2.0, 8.0, 3))
    rate = drift * _wander(rng, n, 2.0, 0.5) * _wander(rng, n, 40.0, 0.25)
    return 10, _arrivals(rng, rate, 10.0, size=2.0)


def office_calls(rng: np.random.Generator) -> tuple[int, Floats]:
    """Business hours only, a jump at the opening, quiet weekends, two days closed unannounced."""
    hour, day = _grid(300, 42)
    shape = np.clip((hour - 7.0) * 4.0, 0.0, 1.0) * np.clip((18.0 - hour) / 5.0, 0.0, 1.0)
    weekend = np.isin(day % 7, (5, 6))
    rate = 150.0 * shape * (1.0 + 0.15 * np.cos((day % 7) / 7 * 2 * np.pi))
    rate[weekend] = 0.0
    for closed in rng.choice(np.flatnonzero(np.arange(42) % 7 < 5), 2, replace=False):
        rate[day == closed] = 0.0
    return 300, _arrivals(rng, rate * _wander(rng, len(rate), 12.0, 0.08) / 60.0, 300.0) * 60.0


def image_jobs(rng: np.random.Generator) -> tuple[int, Floats]:
    """Sparse batches of jobs in office hours, most bins zero, heavy tails, one spike."""
    hour, day = _grid(300, 22)
    busy = _hump(hour, 11.0, 2.0) + 0.9 * _hump(hour, 16.0, 2.5) + 0.08
    busy *= np.where(np.isin(day % 7, (5, 6)), 0.25, 1.0)
    active = rng.random(len(hour)) < np.clip(0.75 * busy, 0.0, 0.9)
    rate = busy * _wander(rng, len(hour), 6.0, 0.9) * rng.gamma(1.2, 1.0, len(hour)) * active * 4.0
    spike = int(rng.integers(len(rate) // 2, len(rate) - 300))
    rate[spike : spike + 6] += rate.max() * 1.5
    return 300, _arrivals(rng, rate / 60.0, 300.0) * 60.0


def web_site(rng: np.random.Generator) -> tuple[int, Floats]:
    """Days and weekends, bursts, a launch day, a holiday, an outage of a day and a half unseen."""
    hour, day = _grid(300, 35)
    rate = 0.25 + 0.9 * _hump(hour, 14.0, 4.0) + 0.35 * _hump(hour, 21.0, 2.0)
    rate *= np.where(np.isin(day % 7, (5, 6)), 0.6, 1.0)
    rate *= _wander(rng, len(rate), 3.0, 0.3) * _wander(rng, len(rate), 600.0, 0.2)
    launch, holiday = rng.choice(np.arange(20, 34), 2, replace=False)
    rate[day == launch] *= 1.0 + 1.5 * _hump(hour[day == launch], 10.0, 1.0)
    rate[day == holiday] *= 0.5
    out = _arrivals(rng, rate, 300.0)
    start = int(rng.integers(10 * 288, 25 * 288))
    out[start : start + 444] = np.nan
    return 300, out


def clean_then_other(rng: np.random.Generator) -> tuple[int, Floats]:
    """A clean day for nine days, then another regime; rates that change every ten minutes; gaps."""
    hour, day = _grid(60, 14)
    before = 0.4 + _hump(hour, 15.0, 5.0)
    after = 0.5 + 0.5 * _hump(hour, 4.0, 3.0) + 0.3 * _hump(hour, 20.0, 2.0)
    tens = len(hour) // 10
    calm = np.repeat(_wander(rng, tens, 6.0, 0.06), 10)
    wild = np.repeat(_wander(rng, tens, 2.0, 0.35), 10)
    rate = 20.0 * np.where(day < 9.4, before * calm, after * wild)
    return 60, _holes(rng, _arrivals(rng, rate, 60.0), 8, 90)


def evening_tenant(rng: np.random.Generator) -> tuple[int, Floats]:
    """One client with a strong evening peak, one strange day, gaps."""
    hour, day = _grid(60, 14)
    rate = 0.15 + 1.3 * _hump(hour, 20.5, 1.8) + 0.3 * _hump(hour, 12.0, 2.0)
    rate = np.where(day == 10, 0.6 * rate + 0.25, rate)
    rate *= np.repeat(_wander(rng, len(rate) // 10, 6.0, 0.05), 10)
    return 60, _holes(rng, _arrivals(rng, 30.0 * rate, 60.0), 5, 120)


def tenant_steps(rng: np.random.Generator) -> tuple[int, Floats]:
    """A tenant that grows in steps, fivefold within six days, then leaves."""
    _, day = _grid(60, 9)
    n = len(day)
    level = np.ones(n)
    for at in np.sort(rng.integers(n // 6, 2 * n // 3, 5)):
        level[at:] *= rng.uniform(1.2, 1.6)
    level[int(n * rng.uniform(0.75, 0.9)) :] *= 0.05
    rate = 8.0 * level * np.repeat(_wander(rng, n // 10, 12.0, 0.06), 10)
    return 60, _arrivals(rng, rate, 60.0)


def day_and_night(rng: np.random.Generator) -> tuple[int, Floats]:
    """Ten times as much by day, a steep morning, spikes of three minutes at night."""
    hour, _day = _grid(60, 16)
    rate = 0.1 + 0.9 / (1 + np.exp(-(hour - 7.5) * 5.0)) / (1 + np.exp((hour - 21.0) * 2.0))
    rate *= 1.0 + 0.1 * np.sin(hour / 24 * 6 * np.pi)
    for night in range(16):
        at = night * 1440 + int(rng.integers(60, 300))
        rate[at : at + 3] += 0.5
    return 60, 500.0 * rate * _wander(rng, len(rate), 20.0, 0.02)


def flash_crowds(rng: np.random.Generator) -> tuple[int, Floats]:
    """A mild day, and crowds without precedent that come within minutes and fade over an hour."""
    hour, _ = _grid(60, 10)
    rate = 1.0 + 0.3 * np.sin((hour - 9.0) / 24 * 2 * np.pi)
    minutes = np.arange(len(rate))
    for at in rng.integers(0, len(rate), 14):
        since = minutes - at
        shape = np.clip(since / rng.uniform(2, 10), 0, 1) * np.exp(-np.maximum(since, 0) / 40.0)
        rate += rng.uniform(0.8, 4.0) * np.where(since >= 0, shape, 0.0)
    return 60, _arrivals(rng, 25.0 * rate * _wander(rng, len(rate), 10.0, 0.08), 60.0)


def spiky_api(rng: np.random.Generator) -> tuple[int, Floats]:
    """Batches at the full hour and at random on top of office hours, noisy from minute to minute."""
    hour, day = _grid(60, 14)
    rate = 0.3 + _hump(hour, 13.0, 3.5) * np.where(np.isin(day % 7, (5, 6)), 0.4, 1.0)
    minutes = np.arange(len(rate))
    rate *= np.where(minutes % 60 < 6, 1.7, 1.0) * _wander(rng, len(rate), 4.0, 0.25)
    return 60, _arrivals(rng, 10.0 * rate, 60.0, size=4.0)


KINDS: tuple[Callable[[np.random.Generator], tuple[int, Floats]], ...] = (
    hour_only,
    office_calls,
    image_jobs,
    web_site,
    clean_then_other,
    evening_tenant,
    tenant_steps,
    day_and_night,
    flash_crowds,
    spiky_api,
    hour_of_bursts,
)


def write(folder: Path, seed: int) -> None:
    """One file per kind."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, kind in enumerate(KINDS):
        step_s, values = kind(np.random.default_rng([seed, number]))
        rows = [f"{i * step_s},{'' if np.isnan(v) else f'{v:.6g}'}" for i, v in enumerate(values)]
        path = folder / f"{kind.__name__}_{seed}.csv"
        path.write_text("\n".join(["timestamp,value", *rows]) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    write(given.folder, given.seed)


if __name__ == "__main__":
    main()
