"""Device memory in bytes. `used` is without what the driver reserves, where the driver can tell them apart."""

from gpuscale.errors import NotSupported
from gpuscale.exporter.sample import Device, Reading, Sample, Tier

TOTAL = "gpuscale_gpu_memory_total_bytes"
USED = "gpuscale_gpu_memory_used_bytes"
FREE = "gpuscale_gpu_memory_free_bytes"
RESERVED = "gpuscale_gpu_memory_reserved_bytes"


class MemoryCollector:
    """Total, used, free and reserved."""

    name = "memory"
    tier = Tier.FAST
    families = (TOTAL, USED, FREE, RESERVED)

    def read(self, device: Device, state: dict[str, float], elapsed_s: float | None) -> Reading:
        """Read once."""
        try:
            memory = device.memory_bytes()
        except NotSupported:
            return Reading(samples=(), unsupported=self.families)
        samples = [
            Sample(family=TOTAL, value=float(memory.total)),
            Sample(family=USED, value=float(memory.used)),
            Sample(family=FREE, value=float(memory.free)),
        ]
        if memory.reserved is None:
            return Reading(samples=tuple(samples), unsupported=(RESERVED,))
        samples.append(Sample(family=RESERVED, value=float(memory.reserved)))
        return Reading(samples=tuple(samples))
