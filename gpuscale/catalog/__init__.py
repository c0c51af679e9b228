"""Every metric that gpuscale publishes: name, type, unit, labels, help. The contract with dashboards, alerts and docs.

Names follow Prometheus: base units, `_total` for counters, `_ratio` in 0–1, `_info` for constant 1.
`docs/metrics.md` is generated from this table, and tests hold dashboards, alerts and expositions
against it. A series whose value is unknown is absent: never 0, never NaN.
"""

from gpuscale.catalog.controller import CONTROLLER
from gpuscale.catalog.exporter import EXPORTER
from gpuscale.catalog.family import Family, Kind, Wing

__all__ = ["CONTROLLER", "EXPORTER", "FAMILIES", "Family", "Kind", "Wing"]

FAMILIES: dict[str, Family] = {f.name: f for f in (*EXPORTER, *CONTROLLER)}
