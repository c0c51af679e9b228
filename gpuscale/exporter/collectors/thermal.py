"""Temperatures by sensor, and fans. A sensor that the board does not have is absent; the others go on."""

from functools import partial

from gpuscale.exporter.device import Device, Sensor
from gpuscale.exporter.gather import Gathering
from gpuscale.exporter.sample import Reading, Tier

TEMPERATURE = "gpuscale_gpu_temperature_celsius"
FAN_SPEED = "gpuscale_gpu_fan_speed_ratio"
SENSORS: tuple[Sensor, ...] = ("gpu", "memory")


class TemperatureCollector:
    """Of the die and of the memory."""

    name = "temperature"
    tier = Tier.MEDIUM
    families = (TEMPERATURE,)

    def read(self, device: Device, state: dict[str, float], elapsed_s: float | None) -> Reading:
        """Read every sensor once."""
        gathering = Gathering()
        for sensor in SENSORS:
            celsius = gathering.ask(partial(device.temperature_celsius, sensor), TEMPERATURE)
            if celsius is not None:
                gathering.add(TEMPERATURE, celsius, ("sensor", sensor))
        return gathering.reading()


class FanCollector:
    """Boards for servers have none; theirs belong to the chassis."""

    name = "fans"
    tier = Tier.SLOW
    families = (FAN_SPEED,)

    def read(self, device: Device, state: dict[str, float], elapsed_s: float | None) -> Reading:
        """Read every fan once."""
        gathering = Gathering()
        for fan, ratio in enumerate(gathering.ask(device.fan_speed_ratios, FAN_SPEED) or ()):
            gathering.add(FAN_SPEED, ratio, ("fan", str(fan)))
        return gathering.reading()
