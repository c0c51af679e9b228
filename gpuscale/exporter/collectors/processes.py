"""Who runs on a GPU, and what share of its time each process used since the last reading. Gives no series of its own."""

from dataclasses import replace

from gpuscale.errors import DriverError
from gpuscale.exporter.device import Device
from gpuscale.exporter.gather import Gathering
from gpuscale.exporter.sample import ProcessReading, Reading, Tier

SINCE_US = "since_us"


class ProcessCollector:
    """The slowest calls that there are, so it is among the collectors only where processes are mapped."""

    name = "processes"
    tier = Tier.PROCESSES
    families = ()

    def read(self, device: Device, state: dict[str, float], elapsed_s: float | None) -> Reading:
        """Read once. The first reading gives no utilization: the driver's buffer is older than we are."""
        gathered = Gathering()
        processes = gathered.ask(device.compute_processes)
        since_us = int(state.get(SINCE_US, 0))
        samples = gathered.ask(lambda: device.process_utilization(since_us))
        if samples is not None:
            samples = tuple(sample for sample in samples if sample.timestamp_us > since_us)
            newest = max((sample.timestamp_us for sample in samples), default=since_us)
            first, state[SINCE_US] = SINCE_US not in state, float(newest)
            samples = None if first else samples
        try:
            reading = gathered.reading()
        except DriverError as error:
            if processes is None:
                raise
            # Who runs is known, although what they used is not.
            reading = Reading(samples=(), errors=(error,))
        if processes is None:
            return reading
        return replace(reading, processes=ProcessReading(processes=processes, utilization=samples))
