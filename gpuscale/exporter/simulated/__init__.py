"""A driver without hardware behind the same Protocols as NVML.

Each device follows a load: a shape of workload.py, or whatever the caller says (the demo's
simulated pods).
"""

from gpuscale.exporter.simulated.board import STEPS_MAX as STEPS_MAX
from gpuscale.exporter.simulated.cards import CARDS as CARDS
from gpuscale.exporter.simulated.cards import MIB as MIB
from gpuscale.exporter.simulated.device import Quantity as Quantity
from gpuscale.exporter.simulated.device import SimulatedDevice as SimulatedDevice
from gpuscale.exporter.simulated.node import SimulatedDriver as SimulatedDriver
from gpuscale.exporter.simulated.node import driver as driver
