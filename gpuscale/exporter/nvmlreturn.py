"""What an nvmlReturn_t means: which error of our tree it is, and what a person does about it."""

from gpuscale.errors import (
    DeviceLost,
    DriverError,
    DriverMissing,
    DriverRestartRequired,
    NotSupported,
)

SUCCESS = 0
UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
LIB_RM_VERSION_MISMATCH = 18
ARGUMENT_VERSION_MISMATCH = 25
GPU_NOT_FOUND = 28
UNKNOWN = 999

_NAMES = {
    UNINITIALIZED: "UNINITIALIZED",
    INVALID_ARGUMENT: "INVALID_ARGUMENT",
    NOT_SUPPORTED: "NOT_SUPPORTED",
    NO_PERMISSION: "NO_PERMISSION",
    5: "ALREADY_INITIALIZED",
    NOT_FOUND: "NOT_FOUND",
    7: "INSUFFICIENT_SIZE",
    8: "INSUFFICIENT_POWER",
    DRIVER_NOT_LOADED: "DRIVER_NOT_LOADED",
    TIMEOUT: "TIMEOUT",
    11: "IRQ_ISSUE",
    LIBRARY_NOT_FOUND: "LIBRARY_NOT_FOUND",
    FUNCTION_NOT_FOUND: "FUNCTION_NOT_FOUND",
    14: "CORRUPTED_INFOROM",
    GPU_IS_LOST: "GPU_IS_LOST",
    RESET_REQUIRED: "RESET_REQUIRED",
    17: "OPERATING_SYSTEM",
    LIB_RM_VERSION_MISMATCH: "LIB_RM_VERSION_MISMATCH",
    19: "IN_USE",
    20: "MEMORY",
    21: "NO_DATA",
    22: "VGPU_ECC_NOT_SUPPORTED",
    23: "INSUFFICIENT_RESOURCES",
    24: "FREQ_NOT_SUPPORTED",
    ARGUMENT_VERSION_MISMATCH: "ARGUMENT_VERSION_MISMATCH",
    26: "DEPRECATED",
    27: "NOT_READY",
    GPU_NOT_FOUND: "GPU_NOT_FOUND",
    29: "INVALID_STATE",
    30: "RESET_TYPE_NOT_SUPPORTED",
    UNKNOWN: "UNKNOWN",
}

_KINDS: dict[int, type[DriverError]] = {
    UNINITIALIZED: DriverMissing,
    DRIVER_NOT_LOADED: DriverMissing,
    LIBRARY_NOT_FOUND: DriverMissing,
    LIB_RM_VERSION_MISMATCH: DriverRestartRequired,
    GPU_IS_LOST: DeviceLost,
    RESET_REQUIRED: DeviceLost,
    GPU_NOT_FOUND: DeviceLost,
    NOT_SUPPORTED: NotSupported,
    NO_PERMISSION: NotSupported,
    FUNCTION_NOT_FOUND: NotSupported,
    22: NotSupported,
    24: NotSupported,
    ARGUMENT_VERSION_MISMATCH: NotSupported,
    26: NotSupported,
}
"""What is not listed is a plain DriverError: it may pass, and is counted."""

_CURES = {
    UNINITIALIZED: "the session ended; it is opened again",
    NO_PERMISSION: "let the exporter read /dev/nvidia*, or run it as root",
    DRIVER_NOT_LOADED: "load the NVIDIA kernel module, or run the exporter on GPU nodes only",
    LIBRARY_NOT_FOUND: "install the NVIDIA driver, or let the container runtime mount its libraries "
    "(runtimeClassName: nvidia)",
    GPU_IS_LOST: "it fell off the bus: find its XID in the kernel's log, drain the node, reset the GPU",
    RESET_REQUIRED: "drain the node and reset the GPU",
    LIB_RM_VERSION_MISMATCH: "the driver was upgraded while this process ran: restart the exporter",
    GPU_NOT_FOUND: "it was removed; it is looked for again",
    UNKNOWN: "if it stays, the container has lost its devices: restart the exporter's pod",
}


def name(code: int) -> str:
    """The vendor's constant and number, e.g. `NVML_ERROR_GPU_IS_LOST (15)`."""
    return f"NVML_ERROR_{_NAMES[code]} ({code})" if code in _NAMES else f"NVML error {code}"


def as_error(what: str, code: int) -> DriverError:
    """The error to raise where `what` (subject and function) answered `code`; one sentence."""
    if code == SUCCESS:
        # pynvml raises its error class with the value "success" where a size query found nothing.
        return DriverError(f"{what} succeeded and gave no data", code=code)
    cure = _CURES.get(code)
    kind = _KINDS.get(code, DriverError)
    return kind(f"{what} answered {name(code)}" + (f": {cure}" if cure else ""), code=code)
