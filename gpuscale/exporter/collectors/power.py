"""Power, energy and the power limit: three collectors, since they are due at different tiers.

Where the driver counts no energy (before Volta, some vGPUs), power is integrated over time.
"""

from gpuscale.errors import DriverError, NotSupported
from gpuscale.exporter.device import Device
from gpuscale.exporter.gather import Gathering
from gpuscale.exporter.sample import Reading, Tier

POWER = "gpuscale_gpu_power_watts"
LIMIT = "gpuscale_gpu_power_limit_watts"
ENERGY = "gpuscale_gpu_energy_joules_total"

GAP_S_MAX = 60.0
"""Power that was not read for longer than the slowest sensible period is unknown, and adds no energy."""

_INTEGRATED = "the driver counts no energy"


class PowerCollector:
    """What the board draws, and the energy of it where the driver has no counter of its own."""

    name = "power"
    tier = Tier.FAST
    families = (POWER, ENERGY)

    def read(self, device: Device, state: dict[str, float], elapsed_s: float | None) -> Reading:
        """Read once."""
        gathering = Gathering()
        watts = gathering.ask(device.power_watts, POWER)
        before = state.pop("watts", None)
        if watts is not None:
            state["watts"] = watts
            gathering.add(POWER, watts)
            if self._integrates(device, state):
                if before is not None and elapsed_s is not None and 0 < elapsed_s <= GAP_S_MAX:
                    state[ENERGY] = state.get(ENERGY, 0.0) + (before + watts) / 2 * elapsed_s
                gathering.add(ENERGY, state.get(ENERGY, 0.0))
        return gathering.reading()

    def _integrates(self, device: Device, state: dict[str, float]) -> bool:
        """Whether the driver has no counter; asked until it is known."""
        if _INTEGRATED not in state:
            try:
                device.energy_joules()
            except NotSupported:
                state[_INTEGRATED] = 1.0
            except DriverError:
                return False
            else:
                state[_INTEGRATED] = 0.0
        return state[_INTEGRATED] == 1.0


class EnergyCollector:
    """The driver's own energy counter."""

    name = "energy"
    tier = Tier.MEDIUM
    families = (ENERGY,)

    def read(self, device: Device, state: dict[str, float], elapsed_s: float | None) -> Reading:
        """Read once."""
        gathering = Gathering()
        joules = gathering.ask(device.energy_joules, ENERGY)
        if joules is not None:
            gathering.add(ENERGY, joules)
        return gathering.reading()


class PowerLimitCollector:
    """The limit in force; it changes when an administrator changes it."""

    name = "power_limit"
    tier = Tier.SLOW
    families = (LIMIT,)

    def read(self, device: Device, state: dict[str, float], elapsed_s: float | None) -> Reading:
        """Read once."""
        gathering = Gathering()
        watts = gathering.ask(device.power_limit_watts, LIMIT)
        if watts is not None:
            gathering.add(LIMIT, watts)
        return gathering.reading()
