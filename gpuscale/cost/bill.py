"""From accounts to a bill. Pure.

The exporters divide every GPU-second of their node among namespaces by the share held, so that
nothing is counted twice and nothing is lost. A bill keeps that: its rows, what nobody held and what
nobody knows add up to the time of all GPUs.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gpuscale.cost.prices import Prices

JOULES_PER_KWH = 3.6e6
NOBODY = "(no label)"
"""Row of the namespaces that lack the label that is billed by."""
OTHERS = "(others)"
ROWS_MAX = 10_000
"""Rows of a bill; what is beyond is in one row."""


@dataclass(frozen=True, slots=True)
class Held:
    """GPU-seconds that a namespace held, weighted by share."""

    namespace: str
    resource: str
    product: str
    state: str
    """active, idle or unmeasured, which together are what it held."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Weight:
    """How much of a namespace's use was one workload's, in units that only compare."""

    namespace: str
    workload: str
    resource: str
    held: float
    used: float
    """By utilization."""
    power: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """What the exporters counted in a window."""

    held: tuple[Held, ...]
    joules: Mapping[str, float]
    """By namespace; the empty one is what nobody held."""
    nodes: tuple[tuple[str, str, float], ...]
    """(product, state, GPU-seconds) of all physical GPUs: allocated, unallocated, unknown."""


@dataclass(slots=True)
class Row:
    """One line of a bill, while it is added up and after."""

    name: str
    allocated_h: float = 0.0
    active_h: float = 0.0
    idle_h: float = 0.0
    unmeasured_h: float = 0.0
    energy_kwh: float | None = None
    """None where no energy counter was read."""
    cost: float | None = None
    """None where no price is known for any of its hours."""
    idle_cost: float | None = None
    """Of its idle hours."""
    unpriced_h: float = 0.0
    """Hours of products without a price, which `cost` leaves out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Rows, the dearest first, and what is nobody's."""

    rows: tuple[Row, ...]
    unallocated: Row
    unknown_h: float
    """GPU-hours in which nobody could know who held what."""
    total: Row
    notes: tuple[str, ...] = field(default=())


def bill(
    accounts: Accounts,
    prices: Prices | None,
    names: Callable[[str], str],
    weights: Iterable[Weight] | None = None,
) -> Bill:
    """The bill. `names` says in which row a namespace stands; with `weights` a row is a workload.

    A namespace's hours are divided among its workloads by the time for which they held the
    resource, its active hours by their GPUs' utilization and its energy by their GPUs' power.
    """
    rows: dict[str, Row] = {}
    split = _Split(weights) if weights is not None else None
    for held in accounts.held:
        shares = {names(held.namespace): 1.0} if split is None else split.of(held)
        for name, share in shares.items():
            _add(_row(rows, name), held, held.seconds * share / 3600, prices)
    for namespace, joules in accounts.joules.items():
        if not namespace:
            continue
        shares = {names(namespace): 1.0} if split is None else split.energy(namespace)
        for name, share in shares.items():
            _add_energy(_row(rows, name), joules * share / JOULES_PER_KWH, prices)
    free = Row("(unallocated)")
    unknown_h = 0.0
    for product, state, seconds in accounts.nodes:
        if state == "unallocated":
            _add(free, Held("", "", product, "idle", seconds), seconds / 3600, prices)
        elif state == "unknown":
            unknown_h += seconds / 3600
    if "" in accounts.joules:
        _add_energy(free, accounts.joules[""] / JOULES_PER_KWH, prices)
    ordered = sorted(rows.values(), key=lambda r: (-(r.cost or 0.0), -r.allocated_h, r.name))
    return Bill(
        rows=tuple(ordered), unallocated=free, unknown_h=unknown_h, total=_total([*ordered, free])
    )


def _row(rows: dict[str, Row], name: str) -> Row:
    if name not in rows and len(rows) >= ROWS_MAX:
        name = OTHERS
    return rows.setdefault(name, Row(name))


def _add(row: Row, held: Held, hours: float, prices: Prices | None) -> None:
    row.allocated_h += hours
    match held.state:
        case "active":
            row.active_h += hours
        case "idle":
            row.idle_h += hours
        case _:
            row.unmeasured_h += hours
    if prices is None:
        return
    price = prices.of(held.product)
    if price is None:
        row.unpriced_h += hours
        return
    row.cost = (row.cost or 0.0) + hours * price
    row.idle_cost = (row.idle_cost or 0.0) + (hours * price if held.state == "idle" else 0.0)


def _add_energy(row: Row, kwh: float, prices: Prices | None) -> None:
    row.energy_kwh = (row.energy_kwh or 0.0) + kwh
    if prices is not None and prices.energy_per_kwh:
        row.cost = (row.cost or 0.0) + kwh * prices.energy_per_kwh


def _total(rows: Iterable[Row]) -> Row:
    total = Row("total")
    for row in rows:
        total.allocated_h += row.allocated_h
        total.active_h += row.active_h
        total.idle_h += row.idle_h
        total.unmeasured_h += row.unmeasured_h
        total.unpriced_h += row.unpriced_h
        for name in ("energy_kwh", "cost", "idle_cost"):
            value = getattr(row, name)
            if value is not None:
                setattr(total, name, (getattr(total, name) or 0.0) + value)
    return total


class _Split:
    """Shares of a namespace's use by workload."""

    def __init__(self, weights: Iterable[Weight]) -> None:
        self._by_resource: dict[tuple[str, str], list[Weight]] = {}
        self._by_namespace: dict[str, list[Weight]] = {}
        for weight in weights:
            self._by_resource.setdefault((weight.namespace, weight.resource), []).append(weight)
            self._by_namespace.setdefault(weight.namespace, []).append(weight)

    def of(self, held: Held) -> Mapping[str, float]:
        """Workload -> share of what was held in this state; one row of others where no pod is known.

        Active time is divided by utilization, idle time by what was held and not used.
        """
        weights = self._by_resource.get((held.namespace, held.resource), [])
        match held.state:
            case "active":
                parts = [(w, w.used) for w in weights]
            case "idle":
                parts = [(w, max(0.0, w.held - w.used)) for w in weights]
            case _:
                parts = [(w, w.held) for w in weights]
        return (
            _shares(held.namespace, parts)
            or _shares(held.namespace, [(w, w.held) for w in weights])
            or {f"{held.namespace}/{OTHERS}": 1.0}
        )

    def energy(self, namespace: str) -> Mapping[str, float]:
        """Workload -> share of a namespace's energy."""
        weights = self._by_namespace.get(namespace, [])
        return (
            _shares(namespace, [(w, w.power) for w in weights])
            or _shares(namespace, [(w, w.held) for w in weights])
            or {f"{namespace}/{OTHERS}": 1.0}
        )


def _shares(namespace: str, parts: Iterable[tuple[Weight, float]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for weight, part in parts:
        name = f"{namespace}/{weight.workload}"
        found[name] = found.get(name, 0.0) + part
    total = sum(found.values())
    return {name: part / total for name, part in found.items() if part > 0} if total > 0 else {}
