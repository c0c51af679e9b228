"""What one collector gathers of a device: values, what the device does not give and why, and what failed."""

from collections.abc import Callable
from typing import TypeVar

from gpuscale.errors import (
    DeviceLost,
    DriverError,
    DriverMissing,
    DriverRestartRequired,
    NotSupported,
)
from gpuscale.exporter import nvmlreturn
from gpuscale.exporter.device import MigInstance
from gpuscale.exporter.sample import Absence, Reading, Sample, Unsupported

Answer = TypeVar("Answer")

_ABSENCES: dict[int | None, Absence] = {
    None: "no_true_value",
    nvmlreturn.NO_PERMISSION: "no_permission",
    nvmlreturn.FUNCTION_NOT_FOUND: "driver_too_old",
    nvmlreturn.ARGUMENT_VERSION_MISMATCH: "driver_too_old",
}


def absence(error: NotSupported) -> Absence:
    """Why a value is not there, in one word."""
    return _ABSENCES.get(error.code, "not_supported")


class Gathering:
    """One reading in the making. One value that fails is counted, and does not hide the others."""

    def __init__(self) -> None:
        self._samples: list[Sample] = []
        self._unsupported: dict[str, Absence] = {}
        self._errors: list[DriverError] = []
        self._compatible: list[Sample] = []

    def ask(self, read: Callable[[], Answer], *families: str) -> Answer | None:
        """What `read` gives; None where it failed, or where the device does not give `families`.

        Raises what ends the reading of the device: that it is lost, or the driver gone.
        """
        try:
            return read()
        except NotSupported as error:
            for family in families:
                self.lack(family, absence(error))
        except (DeviceLost, DriverMissing, DriverRestartRequired):
            raise
        except DriverError as error:
            self._errors.append(error)
        return None

    def add(
        self,
        family: str,
        value: float,
        *labels: tuple[str, str],
        mig: MigInstance | None = None,
    ) -> None:
        """One series more."""
        self._samples.append(Sample(family=family, value=value, labels=labels, mig=mig))

    def show(self, field: str, value: float) -> None:
        """One value that only the compatible series show, under dcgm-exporter's name."""
        self._compatible.append(Sample(family=field, value=value))

    def lack(self, family: str, why: Absence) -> None:
        """The device does not give `family`; the first reason counts."""
        self._unsupported.setdefault(family, why)

    def reading(self, *, mig: tuple[MigInstance, ...] | None = None) -> Reading:
        """All of it. Raises the first failure where nothing else was learned."""
        if self._errors and not self._samples and not self._compatible:
            raise self._errors[0]
        return Reading(
            samples=tuple(self._samples),
            unsupported=self._lacking() if self._unsupported else (),
            errors=tuple(self._errors),
            compatible=tuple(self._compatible),
            mig=mig,
        )

    def _lacking(self) -> tuple[Unsupported, ...]:
        """A family that one call does not give may have come from another."""
        given = {sample.family for sample in self._samples}
        return tuple(
            Unsupported(family=family, reason=why)
            for family, why in self._unsupported.items()
            if family not in given
        )
