"""What one pod's metrics page says at one time, in canonical signals, and what of it can be believed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

VALUE_MAX = 1e15
"""Largest believable sample: a counter of requests or seconds beyond it is garbage."""

SERIES_MAX = 1_000
"""Counter series of one pod that are remembered (models × versions × reasons)."""

RATIO_MAX = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSample:
    """The canonical values of one pod at one time; None where the page has none."""

    pod: str
    at: float
    """Wall seconds."""
    completed: Mapping[str, float] | None
    """Requests that ended, since the server's start, per counter series (any stable key)."""
    in_tokens: bool = False
    """`completed` counts generated tokens, and says nothing about requests."""
    unserved: float | None = None
    """Of `completed`, those that got nothing (given up, failed); None where they are not told apart."""
    running: float | None = None
    waiting: float | None = None
    sojourn_s: float | None = None
    """Cumulative seconds that ended requests spent in the server."""
    queue_s: float | None = None
    """Cumulative seconds that requests waited."""
    kv_fraction: float | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    """Cumulative tokens."""
    busy: float | None = None
    """Share of time in which the pod's GPUs work."""
    startup_s: float | None = None
    """Seconds that the engine took to start."""
    started_at: float | None = None
    """Wall time of the server process's start, where the page tells it."""
    models: frozenset[str] = frozenset()
    """Names of the served models; empty where the page tells none."""


def clean(value: float | None, *, ceiling: float = VALUE_MAX) -> float | None:
    """A sample, or None where it is no number that a count, a duration or a ratio can be."""
    if value is None or not math.isfinite(value) or not 0.0 <= value <= ceiling:
        return None
    return float(value)


def cleaned(sample: PodSample) -> PodSample:
    """The sample with everything unbelievable made None, and no more than SERIES_MAX counters."""
    completed = None
    if sample.completed is not None:
        kept: dict[str, float] = {}
        for series, value in sample.completed.items():
            if (count := clean(value)) is not None and len(kept) < SERIES_MAX:
                kept[series] = count
        completed = kept or None
    return replace(
        sample,
        completed=completed,
        unserved=clean(sample.unserved),
        running=clean(sample.running),
        waiting=clean(sample.waiting),
        sojourn_s=clean(sample.sojourn_s),
        queue_s=clean(sample.queue_s),
        kv_fraction=clean(sample.kv_fraction, ceiling=RATIO_MAX),
        prompt_tokens=clean(sample.prompt_tokens),
        generation_tokens=clean(sample.generation_tokens),
        busy=clean(sample.busy, ceiling=RATIO_MAX),
        startup_s=clean(sample.startup_s),
        started_at=clean(sample.started_at),
    )
