"""Temperatures by sensor. A sensor that the board does not have is absent; the others go on."""

from typing import Literal

from gpuscale.errors import DeviceLost, DriverError, DriverRestartRequired, NotSupported
from gpuscale.exporter.sample import Device, Reading, Sample, Tier

TEMPERATURE = "gpuscale_gpu_temperature_celsius"
SENSORS: tuple[Literal["gpu", "memory"], ...] = ("gpu", "memory")


class TemperatureCollector:
    """Of the die and of the memory."""

    name = "temperature"
    tier = Tier.MEDIUM
    families = (TEMPERATURE,)

    def read(self, device: Device, state: dict[str, float], elapsed_s: float | None) -> Reading:
        """Read every sensor once; one that fails is counted and does not hide the other."""
        samples: list[Sample] = []
        errors: list[DriverError] = []
        for sensor in SENSORS:
            try:
                celsius = device.temperature_celsius(sensor)
            except NotSupported:
                continue
            except (DeviceLost, DriverRestartRequired):
                raise
            except DriverError as error:
                errors.append(error)
                continue
            samples.append(Sample(family=TEMPERATURE, value=celsius, labels=(("sensor", sensor),)))
        if errors and not samples:
            raise errors[0]
        unsupported = () if samples else self.families
        return Reading(samples=tuple(samples), unsupported=unsupported, errors=tuple(errors))
