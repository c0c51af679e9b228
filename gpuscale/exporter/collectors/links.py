"""What went over PCIe and NVLink: byte counters of the driver's own, as seen from the GPU."""

from collections.abc import Callable

from gpuscale.exporter.dcgmfields import NVLINK_BANDWIDTH
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
        traffic = _traffic(gathering, device.nvlink_bytes, NVLINK)
        _bandwidth(gathering, traffic, state, elapsed_s)
        return gathering.reading()


def _traffic(gathering: Gathering, read: Callable[[], Traffic], family: str) -> Traffic | None:
    traffic = gathering.ask(read, family)
    if traffic is not None:
        for direction, count in (("sent", traffic.sent), ("received", traffic.received)):
            if count is not None:
                gathering.add(family, float(count), ("direction", direction))
    return traffic


def _bandwidth(
    gathering: Gathering, traffic: Traffic | None, state: dict[str, float], elapsed_s: float | None
) -> None:
    """Thousands of KiB a second in both directions since the last read, as dcgm-exporter has it."""
    before = state.pop("nvlink bytes", None)
    if traffic is None or traffic.sent is None or traffic.received is None:
        return
    state["nvlink bytes"] = now = float(traffic.sent + traffic.received)
    if before is not None and before <= now and elapsed_s:
        gathering.show(NVLINK_BANDWIDTH, (now - before) / elapsed_s / 1024 / 1000)
