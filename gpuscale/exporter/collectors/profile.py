"""What the hardware counters of Hopper and later say: the signals that do not saturate at one request."""

from gpuscale.errors import DriverError, NotSupported
from gpuscale.exporter.dcgmfields import FP16, FP32, FP64, PCIE_RECEIVED, PCIE_SENT
from gpuscale.exporter.device import Device, Profile
from gpuscale.exporter.gather import Gathering
from gpuscale.exporter.sample import Reading, Tier

RATIOS = {
    "gpuscale_gpu_graphics_active_ratio": "graphics_active",
    "gpuscale_gpu_sm_active_ratio": "sm_active",
    "gpuscale_gpu_sm_occupancy_ratio": "sm_occupancy",
    "gpuscale_gpu_tensor_active_ratio": "tensor_active",
    "gpuscale_gpu_dram_active_ratio": "dram_active",
}
"""By family, the attribute of `Profile`."""
COMPATIBLE = {
    PCIE_SENT: "pcie_sent_bytes_per_s",
    PCIE_RECEIVED: "pcie_received_bytes_per_s",
    FP64: "fp64_active",
    FP32: "fp32_active",
    FP16: "fp16_active",
}
"""The same by dcgm-exporter's field."""
PCIE = "gpuscale_gpu_pcie_bytes_total"
GAP_S_MAX = 60.0
"""A rate stands for the time since the last read, but for no longer than this."""

_INTEGRATED = "the driver counts no PCIe bytes"


class ProfileCollector:
    """Ratios of the last period; and PCIe bytes from the rates, where the driver counts none."""

    name = "profile"
    tier = Tier.FAST
    families = (*RATIOS, PCIE)

    def read(self, device: Device, state: dict[str, float], elapsed_s: float | None) -> Reading:
        """Read once; the first read gives nothing, since two samples are needed."""
        gathering = Gathering()
        seen = gathering.ask(device.profile, *RATIOS)
        if seen is None:
            return gathering.reading()
        for family, attribute in RATIOS.items():
            ratio: float | None = getattr(seen, attribute)
            if ratio is None:
                gathering.lack(family, "not_supported")
            else:
                gathering.add(family, ratio)
        for field, attribute in COMPATIBLE.items():
            shown: float | None = getattr(seen, attribute)
            if shown is not None:
                gathering.show(field, shown)
        if _integrates(device, state):
            _count(gathering, seen, state, elapsed_s)
        return gathering.reading()


def _count(
    gathering: Gathering, seen: Profile, state: dict[str, float], elapsed_s: float | None
) -> None:
    for direction, bytes_per_s in (
        ("sent", seen.pcie_sent_bytes_per_s),
        ("received", seen.pcie_received_bytes_per_s),
    ):
        if bytes_per_s is None:
            continue
        if elapsed_s is not None and 0 < elapsed_s <= GAP_S_MAX:
            state[direction] = state.get(direction, 0.0) + bytes_per_s * elapsed_s
        gathering.add(PCIE, state.get(direction, 0.0), ("direction", direction))


def _integrates(device: Device, state: dict[str, float]) -> bool:
    """Whether the driver has no byte counter; asked until it is known."""
    if _INTEGRATED not in state:
        try:
            device.pcie_bytes()
        except NotSupported:
            state[_INTEGRATED] = 1.0
        except DriverError:
            return False
        else:
            state[_INTEGRATED] = 0.0
    return state[_INTEGRATED] == 1.0
