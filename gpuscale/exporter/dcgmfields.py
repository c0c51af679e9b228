"""dcgm-exporter's fields: name, type, help and unit as it writes them, and where their values come from here.

Reference: dcgm-exporter 4.5, `etc/default-counters.csv`, whose order this is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

_MIB = 1 << 20

NVLINK_BANDWIDTH = "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"
LICENSE_STATUS = "DCGM_FI_DEV_VGPU_LICENSE_STATUS"
PCIE_SENT = "DCGM_FI_PROF_PCIE_TX_BYTES"
PCIE_RECEIVED = "DCGM_FI_PROF_PCIE_RX_BYTES"
XID = "DCGM_FI_DEV_XID_ERRORS"
FP64 = "DCGM_FI_PROF_PIPE_FP64_ACTIVE"
FP32 = "DCGM_FI_PROF_PIPE_FP32_ACTIVE"
FP16 = "DCGM_FI_PROF_PIPE_FP16_ACTIVE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field, and the family of ours that its value comes from."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    family: str | None
    """None where the value has no family here: it is read for this field alone, under its name."""
    write: Callable[[float], str]
    label: tuple[str, str] | None = None
    """The series of the family that is meant, where it has several."""
    mig_family: str | None = None
    """The family of the MIG instances; where there are any, the whole GPU is not shown as well."""


def whole(factor: float = 1.0) -> Callable[[float], str]:
    """As DCGM writes its integers, in its unit."""
    return lambda value: str(round(value * factor))


def mebibytes(value: float) -> str:
    """Bytes as whole MiB, rounded down as DCGM does."""
    return str(int(value) // _MIB)


def double(value: float) -> str:
    """As DCGM writes its doubles: six digits behind the point."""
    return f"{value:f}"


def _gauge(
    name: str,
    text: str,
    family: str | None,
    write: Callable[[float], str],
    *,
    label: tuple[str, str] | None = None,
    mig: str | None = None,
) -> Field:
    return Field(
        name=name, kind="gauge", help=text, family=family, write=write, label=label, mig_family=mig
    )


def _counter(
    name: str,
    text: str,
    family: str | None,
    write: Callable[[float], str],
    *,
    label: tuple[str, str] | None = None,
) -> Field:
    return Field(name=name, kind="counter", help=text, family=family, write=write, label=label)


_CLOCK = "gpuscale_gpu_clock_hertz"
_TEMPERATURE = "gpuscale_gpu_temperature_celsius"
_ROWS = "gpuscale_gpu_remapped_rows_total"

DEFAULT: tuple[Field, ...] = (
    _gauge(
        "DCGM_FI_DEV_SM_CLOCK",
        "SM clock frequency (in MHz).",
        _CLOCK,
        whole(1e-6),
        label=("domain", "sm"),
    ),
    _gauge(
        "DCGM_FI_DEV_MEM_CLOCK",
        "Memory clock frequency (in MHz).",
        _CLOCK,
        whole(1e-6),
        label=("domain", "memory"),
    ),
    _gauge(
        "DCGM_FI_DEV_MEMORY_TEMP",
        "Memory temperature (in C).",
        _TEMPERATURE,
        whole(),
        label=("sensor", "memory"),
    ),
    _gauge(
        "DCGM_FI_DEV_GPU_TEMP",
        "GPU temperature (in C).",
        _TEMPERATURE,
        whole(),
        label=("sensor", "gpu"),
    ),
    _gauge("DCGM_FI_DEV_POWER_USAGE", "Power draw (in W).", "gpuscale_gpu_power_watts", double),
    _counter(
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "Total energy consumption since boot (in mJ).",
        "gpuscale_gpu_energy_joules_total",
        whole(1e3),
    ),
    _counter(
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
        "Total number of PCIe retries.",
        "gpuscale_gpu_pcie_replays_total",
        whole(),
    ),
    _gauge(
        "DCGM_FI_DEV_GPU_UTIL",
        "GPU utilization (in %).",
        "gpuscale_gpu_utilization_ratio",
        whole(1e2),
    ),
    _gauge(
        "DCGM_FI_DEV_MEM_COPY_UTIL",
        "Memory utilization (in %).",
        "gpuscale_gpu_memory_copy_utilization_ratio",
        whole(1e2),
    ),
    _gauge(
        "DCGM_FI_DEV_ENC_UTIL",
        "Encoder utilization (in %).",
        "gpuscale_gpu_encoder_utilization_ratio",
        whole(1e2),
    ),
    _gauge(
        "DCGM_FI_DEV_DEC_UTIL",
        "Decoder utilization (in %).",
        "gpuscale_gpu_decoder_utilization_ratio",
        whole(1e2),
    ),
    _gauge(
        XID,
        "Value of the last XID error encountered.",
        "gpuscale_gpu_xid_last_timestamp_seconds",
        whole(),
    ),
    _gauge(
        "DCGM_FI_DEV_FB_FREE",
        "Framebuffer memory free (in MiB).",
        "gpuscale_gpu_memory_free_bytes",
        mebibytes,
        mig="gpuscale_mig_memory_free_bytes",
    ),
    _gauge(
        "DCGM_FI_DEV_FB_USED",
        "Framebuffer memory used (in MiB).",
        "gpuscale_gpu_memory_used_bytes",
        mebibytes,
        mig="gpuscale_mig_memory_used_bytes",
    ),
    _gauge(
        "DCGM_FI_DEV_FB_RESERVED",
        "Framebuffer memory reserved (in MiB).",
        "gpuscale_gpu_memory_reserved_bytes",
        mebibytes,
        mig="gpuscale_mig_memory_reserved_bytes",
    ),
    _counter(
        NVLINK_BANDWIDTH,
        "Total number of NVLink bandwidth counters for all lanes.",
        None,
        whole(),
    ),
    _gauge(LICENSE_STATUS, "vGPU License status", None, whole()),
    _counter(
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "Number of remapped rows for uncorrectable errors",
        _ROWS,
        whole(),
        label=("cause", "uncorrectable"),
    ),
    _counter(
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
        "Number of remapped rows for correctable errors",
        _ROWS,
        whole(),
        label=("cause", "correctable"),
    ),
    _gauge(
        "DCGM_FI_DEV_ROW_REMAP_FAILURE",
        "Whether remapping of rows has failed",
        "gpuscale_gpu_row_remap_failed",
        whole(),
    ),
    _gauge(
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "Ratio of time the graphics engine is active.",
        "gpuscale_gpu_graphics_active_ratio",
        double,
        mig="gpuscale_mig_graphics_active_ratio",
    ),
    _gauge(
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "Ratio of cycles the tensor (HMMA) pipe is active.",
        "gpuscale_gpu_tensor_active_ratio",
        double,
        mig="gpuscale_mig_tensor_active_ratio",
    ),
    _gauge(
        "DCGM_FI_PROF_DRAM_ACTIVE",
        "Ratio of cycles the device memory interface is active sending or receiving data.",
        "gpuscale_gpu_dram_active_ratio",
        double,
        mig="gpuscale_mig_dram_active_ratio",
    ),
    _gauge(
        PCIE_SENT,
        "The rate of data transmitted over the PCIe bus - including both protocol headers and data payloads - in bytes per second.",
        None,
        whole(),
    ),
    _gauge(
        PCIE_RECEIVED,
        "The rate of data received over the PCIe bus - including both protocol headers and data payloads - in bytes per second.",
        None,
        whole(),
    ),
)
"""The 25 that dcgm-exporter publishes as it comes; its 26th row, the driver's version, is a label."""

_THROTTLED = "gpuscale_gpu_throttle_seconds_total"
_ECC = "gpuscale_gpu_ecc_errors_total"


def _violation(name: str, text: str, reason: str) -> Field:
    return _counter(name, text, _THROTTLED, whole(1e9), label=("reason", reason))


OPTIONAL: tuple[Field, ...] = (
    _violation(
        "DCGM_FI_DEV_POWER_VIOLATION",
        "Throttling duration due to power constraints (in ns).",
        "sw_power_cap",
    ),
    _violation(
        "DCGM_FI_DEV_THERMAL_VIOLATION",
        "Throttling duration due to thermal constraints (in ns).",
        "thermal",
    ),
    _violation(
        "DCGM_FI_DEV_SYNC_BOOST_VIOLATION",
        "Throttling duration due to sync-boost constraints (in ns).",
        "sync_boost",
    ),
    _violation(
        "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION",
        "Throttling duration due to board limit constraints (in ns).",
        "board_limit",
    ),
    _violation(
        "DCGM_FI_DEV_LOW_UTIL_VIOLATION",
        "Throttling duration due to low utilization (in ns).",
        "low_utilization",
    ),
    _violation(
        "DCGM_FI_DEV_RELIABILITY_VIOLATION",
        "Throttling duration due to reliability constraints (in ns).",
        "reliability",
    ),
    _counter(
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
        "Total number of single-bit volatile ECC errors.",
        _ECC,
        whole(),
        label=("corrected", "volatile"),
    ),
    _counter(
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        "Total number of double-bit volatile ECC errors.",
        _ECC,
        whole(),
        label=("uncorrected", "volatile"),
    ),
    _counter(
        "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL",
        "Total number of single-bit persistent ECC errors.",
        _ECC,
        whole(),
        label=("corrected", "aggregate"),
    ),
    _counter(
        "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL",
        "Total number of double-bit persistent ECC errors.",
        _ECC,
        whole(),
        label=("uncorrected", "aggregate"),
    ),
    _counter(
        "DCGM_FI_DEV_RETIRED_SBE",
        "Total number of retired pages due to single-bit errors.",
        None,
        whole(),
    ),
    _counter(
        "DCGM_FI_DEV_RETIRED_DBE",
        "Total number of retired pages due to double-bit errors.",
        None,
        whole(),
    ),
    _counter(
        "DCGM_FI_DEV_RETIRED_PENDING",
        "Total number of pages pending retirement.",
        None,
        whole(),
    ),
    _counter(
        "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        "Total number of NVLink flow-control CRC errors.",
        None,
        whole(),
    ),
    _counter(
        "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
        "Total number of NVLink data CRC errors.",
        None,
        whole(),
    ),
    _counter(
        "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
        "Total number of NVLink retries.",
        None,
        whole(),
    ),
    _counter(
        "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
        "Total number of NVLink recovery errors.",
        None,
        whole(),
    ),
    _gauge(
        "DCGM_FI_PROF_SM_ACTIVE",
        "The ratio of cycles an SM has at least 1 warp assigned.",
        "gpuscale_gpu_sm_active_ratio",
        double,
        mig="gpuscale_mig_sm_active_ratio",
    ),
    _gauge(
        "DCGM_FI_PROF_SM_OCCUPANCY",
        "The ratio of number of warps resident on an SM.",
        "gpuscale_gpu_sm_occupancy_ratio",
        double,
        mig="gpuscale_mig_sm_occupancy_ratio",
    ),
    _gauge(FP64, "Ratio of cycles the fp64 pipes are active.", None, double),
    _gauge(FP32, "Ratio of cycles the fp32 pipes are active.", None, double),
    _gauge(FP16, "Ratio of cycles the fp16 pipes are active.", None, double),
)
"""Those that are commented out there, and published here where `dcgm.extra_fields` names them."""
