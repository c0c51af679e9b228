"""Settings of the exporter."""

from typing import Annotated, Literal

from msgspec import Meta

from gpuscale.config import Listen, Seconds, Strict
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
        Meta(max_length=32, description="Regular expressions of the resource names that are GPUs."),
    ] = (r"^nvidia\.com/(gpu|gpu\.shared|mig-.+)$",)


class DcgmSettings(Strict, frozen=True, kw_only=True):
    """Series under dcgm-exporter's names, so that its dashboards and queries go on working."""

    enabled: Annotated[bool, Meta(description="Publish the DCGM_FI_* series.")] = True
    hostname_label: Annotated[
        Literal["Hostname", "hostname"],
        Meta(
            description="Spelling of the host label; dcgm-exporter changed it from Hostname to hostname in 2026."
        ),
    ] = "Hostname"


class ExporterSettings(Strict, frozen=True, kw_only=True):
    """Settings of `gpuscale exporter`."""

    listen: Annotated[Listen, Meta(description="Address of the HTTP server, HOST:PORT.")] = ":9400"
    nvml: Annotated[
        str,
        Meta(
            pattern=r"^(auto|off|simulated:[a-z0-9-]+x[0-9]{1,2})$",
            description="auto loads libnvidia-ml.so.1; off never touches the driver; simulated:h100x8 invents eight H100.",
        ),
    ] = "auto"
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
    dcgm: Annotated[DcgmSettings, Meta(description="DCGM-compatible series.")] = DcgmSettings()
    web: Annotated[
        WebSettings, Meta(description="TLS, authentication and limits of the HTTP server.")
    ] = WebSettings()
    log: Annotated[LogSettings, Meta(description="Logging.")] = LogSettings()
