"""Collectors, one family of values each: read, name, nothing else. `COLLECTORS` is all of them, in order."""

from gpuscale.exporter.collectors.memory import MemoryCollector
from gpuscale.exporter.collectors.power import EnergyCollector, PowerCollector, PowerLimitCollector
from gpuscale.exporter.collectors.thermal import TemperatureCollector
from gpuscale.exporter.collectors.utilization import UtilizationCollector
from gpuscale.exporter.sample import Collector

COLLECTORS: tuple[Collector, ...] = (
    UtilizationCollector(),
    MemoryCollector(),
    PowerCollector(),
    EnergyCollector(),
    TemperatureCollector(),
    PowerLimitCollector(),
)
