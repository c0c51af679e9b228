"""Settings of the exporter."""

from typing import Annotated, Literal

from msgspec import Meta

from gpuscale.config import WANTED, Listen, Seconds, Strict
from gpuscale.settings.log import LogSettings
from gpuscale.settings.web import WebSettings


class PeriodSettings(Strict, frozen=True, kw_only=True):
    """How often each tier of values is read from NVML."""

    fast_s: Annotated[
        Seconds,
        Meta(
            description="Utilization, memory, power, hardware counters (Hopper and later), MIG instances."
        ),
    ] = 1.0
    medium_s: Annotated[
        Seconds,
        Meta(
            description="Temperatures, clocks, throttling, energy, PCIe and NVLink counters, video engines."
        ),
    ] = 10.0
    slow_s: Annotated[
        Seconds,
        Meta(
            description="Inventory, power limits, ECC errors, remapped rows, fans; a new GPU is seen this late at most."
        ),
    ] = 60.0
    processes_s: Annotated[
        Seconds,
        Meta(description="Processes on a GPU, the slowest calls; only where something needs them."),
    ] = 5.0


class PodResourcesSettings(Strict, frozen=True, kw_only=True):
    """Who holds which GPU, from the kubelet's PodResources API."""

    enabled: Annotated[bool, Meta(description="Attribute GPUs to pods.")] = True
    socket: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=100,
            description="Path of the kubelet's socket; mount its directory, since the kubelet recreates the file.",
        ),
    ] = "/var/lib/kubelet/pod-resources/kubelet.sock"
    period_s: Annotated[Seconds, Meta(description="One List call per period.")] = 5.0
    timeout_s: Annotated[
        Seconds, Meta(description="A kubelet that does not answer in this time counts as down.")
    ] = 3.0
    resources: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=256)], ...],
        Meta(
            max_length=32,
            description="Regular expressions of the resource names, and of the DRA drivers' names, that are GPUs. Add yours where the device plugin renames them.",
        ),
    ] = (r"^nvidia\.com/(gpu|gpu\.shared|mig-.+)$", r"^gpu\.nvidia\.com$")
    exclude: Annotated[
        tuple[Annotated[str, Meta(min_length=3, max_length=512)], ...],
        Meta(
            max_length=64,
            description="Globs of NAMESPACE/POD that hold GPUs only to look at them (DRA claims with adminAccess): they are no holders.",
        ),
    ] = ()
    pod_logs: Annotated[
        str,
        Meta(
            max_length=4096,
            description="The kubelet's log directory, of which only the names are read: it tells the UIDs of pods, and which have ended. Empty for not.",
        ),
    ] = "/var/log/pods"


class ProcessSettings(Strict, frozen=True, kw_only=True):
    """Who runs on a GPU: use per pod, and the node audit. Needs the host's PID namespace."""

    enabled: Annotated[
        bool,
        Meta(
            description="Map the driver's processes to pods by /proc/<pid>/cgroup and stat; needs hostPID."
        ),
    ] = False
    proc: Annotated[
        str, Meta(min_length=1, max_length=4096, description="Where the host's /proc is seen.")
    ] = "/proc"


class AuditSettings(Strict, frozen=True, kw_only=True):
    """Work on GPUs that no allocation explains (rules GPU-N01 to GPU-N03); needs `processes`."""

    persist_s: Annotated[
        Seconds,
        Meta(
            description="A finding counts after this time: allocations lag behind a container's start."
        ),
    ] = 30.0
    allow_namespaces: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=63)], ...],
        Meta(
            max_length=64,
            description="Globs of namespaces whose pods may use GPUs without holding one.",
        ),
    ] = ("gpu-operator", "nvidia-gpu-operator", "nvidia-device-plugin", "nvidia-dra-driver-gpu")
    allow_pods: Annotated[
        tuple[Annotated[str, Meta(min_length=3, max_length=512)], ...],
        Meta(max_length=64, description="Globs of NAMESPACE/POD that may."),
    ] = ("kube-system/nvidia-*",)
    allow_commands: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=15)], ...],
        Meta(
            max_length=64,
            description="Names of processes of the host, outside every container, that may. The kernel keeps 15 characters of a name.",
        ),
    ] = (
        "nvidia-persiste",
        "nvidia-smi",
        "nv-fabricmanage",
        "nv-hostengine",
        "nvidia-cuda-mps",
        "Xorg",
        "gnome-shell",
    )


class AccountingSettings(Strict, frozen=True, kw_only=True):
    """GPU seconds and joules by namespace."""

    enabled: Annotated[bool, Meta(description="Count them.")] = True
    state_file: Annotated[
        Annotated[str, Meta(min_length=1, max_length=4096)] | None,
        Meta(
            description="File in which the totals outlive the process; none starts them at zero each time, which Prometheus takes for a counter reset.",
        ),
    ] = None
    save_period_s: Annotated[Seconds, Meta(description="How often the file is written.")] = 60.0


DcgmField = Literal[
    "DCGM_FI_DEV_POWER_VIOLATION",
    "DCGM_FI_DEV_THERMAL_VIOLATION",
    "DCGM_FI_DEV_SYNC_BOOST_VIOLATION",
    "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION",
    "DCGM_FI_DEV_LOW_UTIL_VIOLATION",
    "DCGM_FI_DEV_RELIABILITY_VIOLATION",
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL",
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL",
    "DCGM_FI_DEV_RETIRED_SBE",
    "DCGM_FI_DEV_RETIRED_DBE",
    "DCGM_FI_DEV_RETIRED_PENDING",
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
    "DCGM_FI_PROF_SM_ACTIVE",
    "DCGM_FI_PROF_SM_OCCUPANCY",
    "DCGM_FI_PROF_PIPE_FP64_ACTIVE",
    "DCGM_FI_PROF_PIPE_FP32_ACTIVE",
    "DCGM_FI_PROF_PIPE_FP16_ACTIVE",
]
"""Fields that dcgm-exporter has and does not publish as it comes."""


class DcgmSettings(Strict, frozen=True, kw_only=True):
    """Series under dcgm-exporter's names, so that its dashboards and queries go on working."""

    enabled: Annotated[bool, Meta(description="Publish the DCGM_FI_* series.")] = True
    hostname_label: Annotated[
        Literal["Hostname", "hostname"],
        Meta(
            description="Spelling of the host label; dcgm-exporter changed it from Hostname to hostname in 2026."
        ),
    ] = "Hostname"
    extra_fields: Annotated[
        tuple[DcgmField, ...],
        Meta(
            max_length=32,
            description="Fields beside the default ones: those that are commented out in dcgm-exporter's default-counters.csv.",
        ),
    ] = ()


class ExporterSettings(Strict, frozen=True, kw_only=True):
    """Settings of `gpuscale exporter`."""

    listen: Annotated[Listen, Meta(description="Address of the HTTP server, HOST:PORT.")] = ":9400"
    nvml: Annotated[
        str,
        Meta(
            pattern=r"^(auto|off|simulated:[a-z0-9-]+x[0-9]{1,2})$",
            extra={WANTED: "auto, off or simulated:CARDxCOUNT, such as simulated:h100x8"},
            description="auto loads libnvidia-ml.so.1; off never touches the driver; simulated:h100x8 invents eight H100.",
        ),
    ] = "auto"
    driver_root: Annotated[
        Annotated[str, Meta(min_length=1, max_length=4096)] | None,
        Meta(
            description="Where the root of the driver's file system is mounted (the host's, or /run/nvidia/driver); none where the container runtime gives the library."
        ),
    ] = None
    node_name: Annotated[
        str | None,
        Meta(
            description="Name of this node in labels; default the environment's NODE_NAME, else the host name."
        ),
    ] = None
    periods: Annotated[PeriodSettings, Meta(description="How often values are read.")] = (
        PeriodSettings()
    )
    call_deadline_s: Annotated[
        Seconds,
        Meta(
            description="An NVML call longer than this is named in the log and its GPU reported down until it returns."
        ),
    ] = 5.0
    stale_after_s: Annotated[
        Seconds, Meta(description="Values older than this are no longer published.")
    ] = 30.0
    pod_resources: Annotated[
        PodResourcesSettings, Meta(description="Attribution of GPUs to pods.")
    ] = PodResourcesSettings()
    processes: Annotated[ProcessSettings, Meta(description="Mapping of processes to pods.")] = (
        ProcessSettings()
    )
    audit: Annotated[AuditSettings, Meta(description="Node audit.")] = AuditSettings()
    accounting: Annotated[AccountingSettings, Meta(description="Accounting.")] = (
        AccountingSettings()
    )
    dcgm: Annotated[DcgmSettings, Meta(description="DCGM-compatible series.")] = DcgmSettings()
    web: Annotated[
        WebSettings, Meta(description="TLS, authentication and limits of the HTTP server.")
    ] = WebSettings()
    log: Annotated[LogSettings, Meta(description="Logging.")] = LogSettings()
