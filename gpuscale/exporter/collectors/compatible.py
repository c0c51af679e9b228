"""What only dcgm-exporter's users ask for: read for its fields alone."""

from collections.abc import Collection

from gpuscale.exporter.dcgmfields import LICENSE_STATUS, OPTIONAL
from gpuscale.exporter.device import Device
from gpuscale.exporter.gather import Gathering
from gpuscale.exporter.sample import Collector, Reading, Tier

_COUNTED = {field.name for field in OPTIONAL if field.family is None and field.kind == "counter"}


class LicenseCollector:
    """Whether a vGPU has its licence; absent on every other GPU."""

    name = "vgpu_license"
    tier = Tier.SLOW
    families: tuple[str, ...] = ()

    def read(self, device: Device, state: dict[str, float], elapsed_s: float | None) -> Reading:
        """Read once."""
        gathering = Gathering()
        licensed = gathering.ask(device.is_licensed)
        if licensed is not None:
            gathering.show(LICENSE_STATUS, float(licensed))
        return gathering.reading()


class ErrorCountCollector:
    """Retired pages and errors of NVLink: only where dcgm.extra_fields asks for one of them."""

    name = "error_counts"
    tier = Tier.SLOW
    families: tuple[str, ...] = ()

    def read(self, device: Device, state: dict[str, float], elapsed_s: float | None) -> Reading:
        """Read all of them once."""
        gathering = Gathering()
        for field, count in (gathering.ask(device.error_counts) or {}).items():
            gathering.show(field, float(count))
        return gathering.reading()


def error_counts_for(fields: Collection[str]) -> tuple[Collector, ...]:
    """The collector of error counts where one of these fields needs it: else nothing is read."""
    needs = any(field in _COUNTED for field in fields)
    return (ErrorCountCollector(),) if needs else ()
