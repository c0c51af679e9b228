"""Power, energy and the power limit: three collectors, since they are due at different tiers."""

from gpuscale.errors import NotSupported
from gpuscale.exporter.sample import Device, Reading, Sample, Tier

POWER = "gpuscale_gpu_power_watts"
LIMIT = "gpuscale_gpu_power_limit_watts"
ENERGY = "gpuscale_gpu_energy_joules_total"


class PowerCollector:
    """What the board draws."""

    name = "power"
    tier = Tier.FAST
    families = (POWER,)

    def read(self, device: Device, state: dict[str, float], elapsed_s: float | None) -> Reading:
        """Read once."""
        try:
            watts = device.power_watts()
        except NotSupported:
            return Reading(samples=(), unsupported=self.families)
        return Reading(samples=(Sample(family=POWER, value=watts),))


class EnergyCollector:
    """The driver's own energy counter."""

    name = "energy"
    tier = Tier.MEDIUM
    families = (ENERGY,)

    def read(self, device: Device, state: dict[str, float], elapsed_s: float | None) -> Reading:
        """Read once."""
        try:
            joules = device.energy_joules()
        except NotSupported:
            return Reading(samples=(), unsupported=self.families)
        return Reading(samples=(Sample(family=ENERGY, value=joules),))


class PowerLimitCollector:
    """The limit in force; it changes when an administrator changes it."""

    name = "power_limit"
    tier = Tier.SLOW
    families = (LIMIT,)

    def read(self, device: Device, state: dict[str, float], elapsed_s: float | None) -> Reading:
        """Read once."""
        try:
            watts = device.power_limit_watts()
        except NotSupported:
            return Reading(samples=(), unsupported=self.families)
        return Reading(samples=(Sample(family=LIMIT, value=watts),))
