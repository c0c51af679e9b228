"""Collectors, one family of values each: read, name, nothing else. `COLLECTORS` is all of them, in order.

Where two can give the same family, the one that reads the driver's own counter comes first, and the
one that integrates a rate stands in where there is none.
"""

from gpuscale.exporter.collectors.clocks import ClockCollector, ThrottleCollector
from gpuscale.exporter.collectors.codecs import CodecCollector
from gpuscale.exporter.collectors.compatible import LicenseCollector
from gpuscale.exporter.collectors.links import LinkCollector
from gpuscale.exporter.collectors.memory import MemoryCollector
from gpuscale.exporter.collectors.memory_errors import EccCollector, RowRemapCollector
from gpuscale.exporter.collectors.mig import MigCollector
from gpuscale.exporter.collectors.power import EnergyCollector, PowerCollector, PowerLimitCollector
from gpuscale.exporter.collectors.profile import ProfileCollector
from gpuscale.exporter.collectors.thermal import FanCollector, TemperatureCollector
from gpuscale.exporter.collectors.utilization import UtilizationCollector
from gpuscale.exporter.sample import Collector

COLLECTORS: tuple[Collector, ...] = (
    UtilizationCollector(),
    MemoryCollector(),
    EnergyCollector(),
    PowerCollector(),
    LinkCollector(),
    ProfileCollector(),
    MigCollector(),
    TemperatureCollector(),
    ClockCollector(),
    ThrottleCollector(),
    CodecCollector(),
    PowerLimitCollector(),
    EccCollector(),
    RowRemapCollector(),
    FanCollector(),
    LicenseCollector(),
)
