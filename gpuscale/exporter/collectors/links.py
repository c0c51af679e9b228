"""What went over PCIe and NVLink: byte counters of the driver's own, as seen from the GPU."""

from collections.abc import Callable

from gpuscale.exporter.device import Device, Traffic
from gpuscale.exporter.gather import Gathering
from gpuscale.exporter.sample import Reading, Tier

PCIE = "gpuscale_gpu_pcie_bytes_total"
REPLAYS = "gpuscale_gpu_pcie_replays_total"
NVLINK = "gpuscale_gpu_nvlink_bytes_total"


class LinkCollector:
    """Bytes by direction, and PCIe packets that had to be sent again."""

    name = "links"
    tier = Tier.MEDIUM
    families = (PCIE, REPLAYS, NVLINK)

    def read(self, device: Device, state: dict[str, float], elapsed_s: float | None) -> Reading:
        """Read every counter once."""
        gathering = Gathering()
        _traffic(gathering, device.pcie_bytes, PCIE)
        replays = gathering.ask(device.pcie_replays, REPLAYS)
        if replays is not None:
            gathering.add(REPLAYS, float(replays))
        _traffic(gathering, device.nvlink_bytes, NVLINK)
        return gathering.reading()


def _traffic(gathering: Gathering, read: Callable[[], Traffic], family: str) -> None:
    traffic = gathering.ask(read, family)
    if traffic is None:
        return
    for direction, count in (("sent", traffic.sent), ("received", traffic.received)):
        if count is not None:
            gathering.add(family, float(count), ("direction", direction))
