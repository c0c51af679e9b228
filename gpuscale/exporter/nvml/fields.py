"""Values that NVML gives by number, several in one call; each has a return code and a type of its own."""

from collections.abc import Mapping, Sequence

from gpuscale.errors import DeviceLost, DriverMissing, DriverRestartRequired, NotSupported
from gpuscale.exporter import nvmlreturn
from gpuscale.exporter.device import (
    Persistence,
    RowRemapping,
    Severity,
    Throttle,
    ThrottleReason,
    Traffic,
)
from gpuscale.exporter.nvml.call import Handle, pynvml
from gpuscale.exporter.nvml.check import (
    COUNT_32_MAX,
    COUNT_MAX,
    ROWS_MAX,
    SECONDS_MAX,
    typed,
)

ALL_LINKS = 0xFFFFFFFF
"""The scope that means the sum over every NVLink."""
LINKS_MAX = 18
"""NVLinks of a board; NVLink 5 counts per link only."""

Field = tuple[int, int]
"""(number, scope); the scope is 0 but for links."""

MEMORY_TEMPERATURE: Field = (82, 0)
_ECC: Mapping[Field, tuple[Severity, Persistence]] = {
    (3, 0): ("corrected", "volatile"),
    (4, 0): ("uncorrected", "volatile"),
    (5, 0): ("corrected", "aggregate"),
    (6, 0): ("uncorrected", "aggregate"),
}
_THROTTLED_NS: Mapping[Field, ThrottleReason] = {
    (74, 0): "sw_power_cap",
    (75, 0): "thermal",
    (76, 0): "sync_boost",
    (77, 0): "board_limit",
    (78, 0): "low_utilization",
    (79, 0): "reliability",
    (269, 0): "sw_thermal",
    (270, 0): "hw_thermal",
    (271, 0): "hw_power_brake",
}
_REASON_BITS: Mapping[int, ThrottleReason] = {
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal",
    0x040: "hw_thermal",
    0x080: "hw_power_brake",
}
"""Of nvmlClocksEventReason*; idle, application clocks and display clocks are no throttling."""
_ERRORS: Mapping[Field, str] = {
    (29, 0): "DCGM_FI_DEV_RETIRED_SBE",
    (30, 0): "DCGM_FI_DEV_RETIRED_DBE",
    (31, 0): "DCGM_FI_DEV_RETIRED_PENDING",
    (38, 0): "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    (45, 0): "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
    (52, 0): "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
    (59, 0): "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
}
_PCIE_SENT: Field = (197, 0)
_PCIE_RECEIVED: Field = (198, 0)
_NVLINK_SENT_KIB: Field = (138, ALL_LINKS)
_NVLINK_RECEIVED_KIB: Field = (139, ALL_LINKS)
_NVLINK5_SENT, _NVLINK5_RECEIVED = 202, 204
_UNSIGNED_32 = 1
_UNSIGNED_64 = (2, 3, 4)
"""nvmlValueType_t of what can count bytes: a counter of 32 bits wraps several times a second."""


def read(handle: Handle, fields: Sequence[Field]) -> dict[Field, tuple[float, int]]:
    """(value, value type) of those fields that the device gives. Raises where it is lost."""
    given: dict[Field, tuple[float, int]] = {}
    for value in handle.ask("nvmlDeviceGetFieldValues", list(fields)):
        code = int(value.nvmlReturn)
        if code != nvmlreturn.SUCCESS:
            error = nvmlreturn.as_error(f"{handle.subject}: field {value.fieldId}", code)
            if isinstance(error, DeviceLost | DriverMissing | DriverRestartRequired):
                raise error
            continue
        number = typed(value.value, int(value.valueType))
        if number is not None:
            given[int(value.fieldId), int(value.scopeId)] = (number, int(value.valueType))
    return given


def counts(handle: Handle, fields: Sequence[Field], most: float) -> dict[Field, float]:
    """The same where a value is a count of 0 to `most`; what is not is left out."""
    return {
        field: value
        for field, (value, value_type) in read(handle, fields).items()
        if 0 <= value <= (min(most, COUNT_32_MAX) if value_type == _UNSIGNED_32 else most)
    }


def ecc_errors(handle: Handle) -> dict[tuple[Severity, Persistence], int]:
    """ECC errors of all memories; NotSupported where ECC is off or there is none."""
    mode = handle.ask("nvmlDeviceGetEccMode")
    if int(mode[0]) != 1:
        raise handle.lack("ECC is switched off")
    given = counts(handle, tuple(_ECC), COUNT_MAX)
    if not given:
        raise handle.lack("no ECC counter")
    return {_ECC[field]: int(value) for field, value in given.items()}


def error_counts(handle: Handle) -> dict[str, int]:
    """Retired pages (before Ampere) and errors of NVLink, by dcgm-exporter's field."""
    given = counts(handle, tuple(_ERRORS), COUNT_MAX)
    return {_ERRORS[field]: int(value) for field, value in given.items()}


def throttle(handle: Handle, active_bits: int | None) -> Throttle:
    """`active_bits`: the mask of reasons in force, None where the driver does not tell it."""
    given = counts(handle, tuple(_THROTTLED_NS), SECONDS_MAX * 1e9)
    if active_bits is None and not given:
        raise handle.lack("no reason for throttling is told")
    return Throttle(
        active=None
        if active_bits is None
        else frozenset(reason for bit, reason in _REASON_BITS.items() if active_bits & bit),
        counted_s={_THROTTLED_NS[field]: value / 1e9 for field, value in given.items()},
    )


def pcie_bytes(handle: Handle) -> Traffic:
    """The counters of the link, where they have 64 bits."""
    given = read(handle, (_PCIE_SENT, _PCIE_RECEIVED))
    wide = {
        field: int(value)
        for field, (value, value_type) in given.items()
        if value_type in _UNSIGNED_64 and 0 <= value <= COUNT_MAX
    }
    if not wide:
        raise handle.lack("no PCIe byte counter of 64 bits")
    return Traffic(sent=wide.get(_PCIE_SENT), received=wide.get(_PCIE_RECEIVED))


def nvlink_bytes(handle: Handle) -> Traffic:
    """Payload over all links: one total up to NVLink 4, a sum over links on NVLink 5."""
    given = counts(handle, (_NVLINK_SENT_KIB, _NVLINK_RECEIVED_KIB), COUNT_MAX / 1024)
    if given:
        sent, received = given.get(_NVLINK_SENT_KIB), given.get(_NVLINK_RECEIVED_KIB)
        return Traffic(
            sent=None if sent is None else int(sent) * 1024,
            received=None if received is None else int(received) * 1024,
        )
    links = range(LINKS_MAX)
    per_link = counts(
        handle,
        [(number, link) for link in links for number in (_NVLINK5_SENT, _NVLINK5_RECEIVED)],
        COUNT_MAX / LINKS_MAX,
    )
    if not per_link:
        raise handle.lack("no NVLink")
    return Traffic(sent=_sum(per_link, _NVLINK5_SENT), received=_sum(per_link, _NVLINK5_RECEIVED))


def _sum(per_link: Mapping[Field, float], number: int) -> int | None:
    values = [int(value) for field, value in per_link.items() if field[0] == number]
    return sum(values) if values else None


def row_remapping(handle: Handle) -> RowRemapping:
    """Ampere and later; not while MIG instances are active."""
    correctable, uncorrectable, pending, failed = handle.ask("nvmlDeviceGetRemappedRows")
    for rows in (correctable, uncorrectable):
        if not 0 <= rows <= ROWS_MAX:
            raise handle.refuse(f"{rows} remapped rows cannot be")
    for flag in (pending, failed):
        if flag not in (0, 1):
            raise handle.refuse(f"row remapping answers {flag} to yes or no")
    return RowRemapping(
        correctable=int(correctable),
        uncorrectable=int(uncorrectable),
        pending=bool(pending),
        failed=bool(failed),
    )


def throttle_bits(handle: Handle) -> int | None:
    """The mask of reasons in force; None where this driver does not tell it."""
    for function in _REASON_CALLS:
        if hasattr(pynvml(), function):
            try:
                bits = int(handle.ask(function))
            except NotSupported as error:
                if error.code != nvmlreturn.FUNCTION_NOT_FOUND:
                    return None
            else:
                return bits if 0 <= bits < 1 << 32 else None
    return None


_REASON_CALLS = (
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
)
"""The second is the name of before driver 535."""
