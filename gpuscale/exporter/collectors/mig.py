"""MIG instances: which there are, their memory and, on Hopper and later, what their hardware counters say.

What belongs to a GPU instance appears once, under its first compute instance, so that sums are right.
Power and temperature are the whole board's, and stay there.
"""

from functools import partial

from gpuscale.errors import NotSupported
from gpuscale.exporter.device import Device, MemoryBytes, MigInstance
from gpuscale.exporter.gather import Gathering
from gpuscale.exporter.sample import Reading, Tier

INFO = "gpuscale_mig_info"
MEMORY = {
    "gpuscale_mig_memory_total_bytes": "total",
    "gpuscale_mig_memory_used_bytes": "used",
    "gpuscale_mig_memory_free_bytes": "free",
    "gpuscale_mig_memory_reserved_bytes": "reserved",
}
"""By family, the attribute of `MemoryBytes`."""
RATIOS = {
    "gpuscale_mig_graphics_active_ratio": "graphics_active",
    "gpuscale_mig_sm_active_ratio": "sm_active",
    "gpuscale_mig_sm_occupancy_ratio": "sm_occupancy",
    "gpuscale_mig_tensor_active_ratio": "tensor_active",
    "gpuscale_mig_dram_active_ratio": "dram_active",
}
"""By family, the attribute of `Profile`."""


class MigCollector:
    """Enumerates anew at every read: some thirty calls into the driver's tables where MIG is on, one where not."""

    name = "mig"
    tier = Tier.FAST
    families = (INFO, *MEMORY, *RATIOS)

    def read(self, device: Device, state: dict[str, float], elapsed_s: float | None) -> Reading:
        """Read every instance once; one that goes away meanwhile is an error of its own."""
        gathering = Gathering()
        try:
            instances = device.mig_instances()
        except NotSupported:
            return Reading(samples=(), mig=())  # a board without MIG lacks nothing
        seen: set[int] = set()
        for instance in instances:
            gathering.add(
                INFO,
                1.0,
                ("gpu", str(device.identity.index)),
                ("gpu_instance_id", str(instance.gpu_instance_id)),
                ("compute_instance_id", str(instance.compute_instance_id)),
                mig=instance,
            )
            if instance.gpu_instance_id not in seen:
                seen.add(instance.gpu_instance_id)
                _memory(gathering, device, instance)
                _ratios(gathering, device, instance)
        return gathering.reading(mig=instances)


def _memory(gathering: Gathering, device: Device, instance: MigInstance) -> None:
    memory: MemoryBytes | None = gathering.ask(partial(device.mig_memory_bytes, instance), *MEMORY)
    if memory is None:
        return
    for family, attribute in MEMORY.items():
        value: int | None = getattr(memory, attribute)
        if value is None:
            gathering.lack(family, "not_supported")
        else:
            gathering.add(family, float(value), mig=instance)


def _ratios(gathering: Gathering, device: Device, instance: MigInstance) -> None:
    seen = gathering.ask(partial(device.profile, instance), *RATIOS)
    if seen is None:
        return
    for family, attribute in RATIOS.items():
        ratio: float | None = getattr(seen, attribute)
        if ratio is None:
            gathering.lack(family, "not_supported")
        else:
            gathering.add(family, ratio, mig=instance)
