"""What one ready replica carries: declared, or learned online from what replicas were seen to carry.

`Capacities` learns: blocks of load go into the bins of `knee`, and into the two laws of `laws`, which
need no saturation and only lower what was declared. What is learned is never above what was seen
carried (but may stay at what was declared), stays within a range of the declaration, and is begun
anew when the pods' build or the model changes. Arrays over all workloads, O(1) per workload and tick.
"""

from gpuscale.controller.capacity.learner import Capacities, Sight, declared
from gpuscale.controller.capacity.result import Capacity, FleetCapacity

__all__ = ["Capacities", "Capacity", "FleetCapacity", "Sight", "declared"]
