"""Faults of the memory: ECC errors, and the rows that were replaced for them."""

from gpuscale.exporter.device import Device
from gpuscale.exporter.gather import Gathering
from gpuscale.exporter.sample import Reading, Tier

ECC = "gpuscale_gpu_ecc_errors_total"
REMAPPED = "gpuscale_gpu_remapped_rows_total"
REMAP_PENDING = "gpuscale_gpu_row_remap_pending"
REMAP_FAILED = "gpuscale_gpu_row_remap_failed"


class EccCollector:
    """By severity, and by whether they are counted since the driver was loaded or for ever."""

    name = "ecc"
    tier = Tier.SLOW
    families = (ECC,)

    def read(self, device: Device, state: dict[str, float], elapsed_s: float | None) -> Reading:
        """Read all counters once."""
        gathering = Gathering()
        errors = gathering.ask(device.ecc_errors, ECC) or {}
        for (severity, persistence), count in errors.items():
            gathering.add(ECC, float(count), ("severity", severity), ("persistence", persistence))
        return gathering.reading()


class RowRemapCollector:
    """Ampere and later: a failed remapping means that the board is to be replaced."""

    name = "row_remapping"
    tier = Tier.SLOW
    families = (REMAPPED, REMAP_PENDING, REMAP_FAILED)

    def read(self, device: Device, state: dict[str, float], elapsed_s: float | None) -> Reading:
        """Read once."""
        gathering = Gathering()
        rows = gathering.ask(device.row_remapping, *self.families)
        if rows is not None:
            gathering.add(REMAPPED, float(rows.correctable), ("cause", "correctable"))
            gathering.add(REMAPPED, float(rows.uncorrectable), ("cause", "uncorrectable"))
            gathering.add(REMAP_PENDING, float(rows.pending))
            gathering.add(REMAP_FAILED, float(rows.failed))
        return gathering.reading()
