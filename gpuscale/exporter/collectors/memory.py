"""Device memory in bytes. `used` is without what the driver reserves, where the driver can tell them apart."""

from gpuscale.exporter.device import Device
from gpuscale.exporter.gather import Gathering
from gpuscale.exporter.sample import Reading, Tier

TOTAL = "gpuscale_gpu_memory_total_bytes"
USED = "gpuscale_gpu_memory_used_bytes"
FREE = "gpuscale_gpu_memory_free_bytes"
RESERVED = "gpuscale_gpu_memory_reserved_bytes"
KIND = "gpuscale_gpu_memory_kind_info"


class MemoryCollector:
    """Total, used, free and reserved; and whether it is the GPU's own or the machine's."""

    name = "memory"
    tier = Tier.FAST
    families = (TOTAL, USED, FREE, RESERVED, KIND)

    def read(self, device: Device, state: dict[str, float], elapsed_s: float | None) -> Reading:
        """Read once."""
        gathering = Gathering()
        memory = gathering.ask(device.memory_bytes, *self.families)
        if memory is not None:
            gathering.add(TOTAL, float(memory.total))
            gathering.add(USED, float(memory.used))
            gathering.add(FREE, float(memory.free))
            if memory.reserved is None:
                gathering.lack(RESERVED, "not_supported")
            else:
                gathering.add(RESERVED, float(memory.reserved))
            gathering.add(KIND, 1.0, ("kind", "unified" if memory.unified else "dedicated"))
        return gathering.reading()
