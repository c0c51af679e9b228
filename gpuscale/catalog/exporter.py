"""The families of the exporter."""

from gpuscale.catalog.family import Family, Kind


def _exporter(name: str, kind: Kind, text: str, *labels: str) -> Family:
    return Family(name=name, kind=kind, help=text, labels=labels, wing="exporter")


_GPU = ("gpu", "uuid")

EXPORTER: tuple[Family, ...] = (
    _exporter("gpuscale_exporter_build_info", "info", "Version of the exporter.", "version"),
    _exporter(
        "gpuscale_nvml_up",
        "gauge",
        "1 while NVML answers, 0 while it does not: gpuscale_nvml_error_info says why.",
    ),
    _exporter(
        "gpuscale_nvml_error_info",
        "info",
        "Why NVML does not answer; absent while it does.",
        "reason",
    ),
    _exporter(
        "gpuscale_driver_info",
        "info",
        "Versions of the NVIDIA driver, of NVML and of the CUDA driver API.",
        "driver",
        "nvml",
        "cuda",
    ),
    _exporter("gpuscale_gpus_detected", "gauge", "Physical GPUs that NVML enumerates."),
    _exporter(
        "gpuscale_gpu_info",
        "info",
        "Identity of a GPU; join by uuid.",
        *_GPU,
        "pci_bus_id",
        "device",
        "product",
        "node",
    ),
    _exporter(
        "gpuscale_gpu_up",
        "gauge",
        "1 while the GPU answers, 0 while it is lost or a call on it hangs.",
        *_GPU,
    ),
    _exporter(
        "gpuscale_gpu_error_info",
        "info",
        "Why a GPU does not answer; absent while it does.",
        *_GPU,
        "reason",
    ),
    _exporter(
        "gpuscale_gpu_unsupported_info",
        "info",
        "A family that this GPU does not give, and which is therefore absent.",
        *_GPU,
        "metric",
    ),
    _exporter(
        "gpuscale_gpu_sample_age_seconds",
        "gauge",
        "Age of the newest fast values of the GPU when the page was rendered.",
        *_GPU,
    ),
    _exporter(
        "gpuscale_gpu_utilization_ratio",
        "gauge",
        "Share of the last period in which at least one kernel ran. It saturates at one request: not a measure of load.",
        *_GPU,
    ),
    _exporter(
        "gpuscale_gpu_busy_seconds_total",
        "counter",
        "Seconds in which at least one kernel ran; rate() of it is the exact utilization over any interval.",
        *_GPU,
    ),
    _exporter(
        "gpuscale_gpu_memory_copy_utilization_ratio",
        "gauge",
        "Share of the last period in which device memory was read or written. Activity, not occupancy.",
        *_GPU,
    ),
    _exporter(
        "gpuscale_gpu_memory_copy_busy_seconds_total",
        "counter",
        "Seconds in which device memory was read or written.",
        *_GPU,
    ),
    _exporter("gpuscale_gpu_memory_total_bytes", "gauge", "Device memory, all of it.", *_GPU),
    _exporter(
        "gpuscale_gpu_memory_used_bytes",
        "gauge",
        "Device memory allocated, without what the driver reserves.",
        *_GPU,
    ),
    _exporter(
        "gpuscale_gpu_memory_free_bytes",
        "gauge",
        "Device memory that can still be allocated.",
        *_GPU,
    ),
    _exporter(
        "gpuscale_gpu_memory_reserved_bytes",
        "gauge",
        "Device memory that the driver and firmware reserve.",
        *_GPU,
    ),
    _exporter("gpuscale_gpu_power_watts", "gauge", "Power drawn by the board.", *_GPU),
    _exporter("gpuscale_gpu_power_limit_watts", "gauge", "Power limit that is enforced.", *_GPU),
    _exporter(
        "gpuscale_gpu_energy_joules_total",
        "counter",
        "Energy used since the driver was loaded.",
        *_GPU,
    ),
    _exporter(
        "gpuscale_gpu_temperature_celsius",
        "gauge",
        "Temperature by sensor (gpu, memory).",
        *_GPU,
        "sensor",
    ),
    _exporter(
        "gpuscale_gpu_allocation_info",
        "info",
        "A container that holds a GPU or a share of it; many-to-many, join by uuid.",
        "uuid",
        "namespace",
        "pod",
        "container",
        "resource",
        "replica",
    ),
    _exporter(
        "gpuscale_attribution_up",
        "gauge",
        "1 while the kubelet's PodResources API answers; absent when attribution is off.",
    ),
    _exporter(
        "gpuscale_attribution_age_seconds",
        "gauge",
        "Age of the last answer of the kubelet when the page was rendered.",
    ),
    _exporter(
        "gpuscale_attribution_unmatched_devices",
        "gauge",
        "Device ids that the kubelet lists and no GPU of this node matches.",
    ),
    _exporter(
        "gpuscale_collector_duration_seconds",
        "gauge",
        "Time the last read of a collector took, all GPUs together.",
        "collector",
    ),
    _exporter(
        "gpuscale_collector_errors_total",
        "counter",
        "Reads of a collector that failed, by what NVML answered.",
        "collector",
        "error",
    ),
    _exporter("gpuscale_exporter_cycles_total", "counter", "Finished collection cycles."),
)
