"""What a table of an inference server says: its metric names by canonical signal, and how they are read.

Types only. The tables themselves are in servers/, one file per server.
"""

from dataclasses import dataclass
from typing import Literal

from gpuscale.settings import Server


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMetric:
    """Where an inference server shows one canonical value on a pod's metrics page."""

    names: tuple[str, ...]
    """Names that the value has had, newest first; the first one on a page is read, the rest ignored."""
    kind: Literal["counter", "gauge"]
    across: Literal["sum", "mean", "max"] = "sum"
    """How the series of one pod (its engines, models, reasons) become one value."""
    factor: float = 1.0
    """What a sample is multiplied with to get requests, seconds or a ratio."""
    plus: tuple[str, ...] = ()
    """Further metrics whose series are added where the page has them (failures beside successes)."""
    where: tuple[tuple[str, str], ...] = ()
    """(label, value) that a series must carry, where one name holds several values."""

    def shown(self, name: str) -> str:
        """The name with its labels, for people."""
        labels = ",".join(f'{label}="{value}"' for label, value in self.where)
        return f"{name}{{{labels}}}" if labels else name


SIGNALS: tuple[str, ...] = (
    "completed",
    "unserved",
    "waiting",
    "running",
    "sojourn_s",
    "queue_s",
    "kv_fraction",
    "prompt_tokens",
    "generation_tokens",
    "busy",
    "startup_s",
)
"""The canonical signals, in the order of documentation and of error messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTable:
    """From the metric names of one inference server to the canonical signals; None: it has no such value."""

    server: Server
    title: str
    """Its name, as its makers write it."""
    since: str
    """The oldest version whose names are here, and what must be switched on, for the documentation."""
    port: int
    """Port of the metrics page where the policy names none."""
    completed: ServerMetric
    """Counter of requests that ended, for whatever reason; of tokens where `unit` says so."""
    path: str = "/metrics"
    """Path of the metrics page where the policy names none."""
    unit: Literal["requests", "tokens"] = "requests"
    """What demand counts: generated tokens where the server counts no requests."""
    recommend_only: bool = False
    """The server scales itself: gpuscale computes and shows, and never acts on it."""
    unserved: ServerMetric | None = None
    """Counter of those among `completed` that got nothing: given up while they waited, or failed.
    They are demand, and no sign of what a replica can carry."""
    waiting: ServerMetric | None = None
    """Gauge of requests that wait for execution."""
    running: ServerMetric | None = None
    """Gauge of requests in execution."""
    sojourn_s: ServerMetric | None = None
    """Counter of seconds that ended requests spent in the server, waiting included: by Little's law
    its rate is the mean number of requests in the server, which stands in for a missing `running`."""
    queue_s: ServerMetric | None = None
    """Counter of seconds that requests waited; its rate stands in for a missing `waiting`."""
    kv_fraction: ServerMetric | None = None
    """Gauge of the share of the KV cache in use, 0-1."""
    prompt_tokens: ServerMetric | None = None
    """Counter of prompt tokens."""
    generation_tokens: ServerMetric | None = None
    """Counter of generated tokens."""
    busy: ServerMetric | None = None
    """Gauge of the share of time in which the pod's GPUs work, 0-1, as the server itself sees it."""
    startup_s: ServerMetric | None = None
    """Gauge of seconds from the engine's start to its readiness."""
    models: tuple[str, ...] = ("model_name",)
    """Labels that name the served model: another model is another capacity."""
    copies: tuple[str, ...] = ()
    """Labels in which only copies of one value differ (ranks of one engine): the largest counts."""
    identity: tuple[str, ...] = ()
    """Labels that tell series apart although a Prometheus uses the same ones for copies."""

    @property
    def metrics(self) -> dict[str, ServerMetric]:
        """The table's metrics by the name of their canonical signal; those that it has."""
        return {name: m for name in SIGNALS if (m := getattr(self, name)) is not None}

    @property
    def names(self) -> tuple[str, ...]:
        """Every metric name that is looked for, in the table's order, each once."""
        return tuple(
            dict.fromkeys(name for m in self.metrics.values() for name in (*m.names, *m.plus))
        )

    @property
    def sought(self) -> str:
        """What is looked for, for an error message."""
        listed = (m.shown(n) for m in self.metrics.values() for n in (*m.names, *m.plus))
        return ", ".join(dict.fromkeys(listed))
