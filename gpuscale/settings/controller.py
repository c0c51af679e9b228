"""Settings of the controller, and the policies by which workloads are scaled."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gpuscale.config import (
    WANTED,
    DnsName,
    HttpUrl,
    Listen,
    MetricsPath,
    Ratio,
    Seconds,
    Strict,
    convert,
)
from gpuscale.errors import ConfigError
from gpuscale.settings.exporters import ExportersSettings
from gpuscale.settings.grpc import GrpcTlsSettings
from gpuscale.settings.log import LogSettings
from gpuscale.settings.prometheus import PrometheusSettings
from gpuscale.settings.scrape import ScrapeSettings
from gpuscale.settings.web import WebSettings

Server = Literal[
    "vllm",
    "sglang",
    "tgi",
    "trtllm-serve",
    "nim",
    "triton",
    "triton-trtllm",
    "torchserve",
    "tf-serving",
    "ray-serve",
    "llama-cpp",
    "custom",
]
"""Inference servers that have a table in controller/servers/, and `custom`, whose PromQL the operator writes."""
SELF_SCALING: frozenset[Server] = frozenset({"ray-serve"})
"""Servers that scale their replicas themselves: two who scale one thing fight, so gpuscale only recommends."""

Promql = Annotated[str, Meta(min_length=1, max_length=4096)]


class CustomQueries(Strict, frozen=True, kw_only=True):
    """PromQL of a workload whose server has no table; each gives one sample, or none where the value is missing.

    {namespace}, {name} and {selector} are replaced.
    """

    arrivals: Annotated[Promql, Meta(description="Requests per second that arrive.")]
    running: Annotated[Promql | None, Meta(description="Requests in execution.")] = None
    waiting: Annotated[Promql | None, Meta(description="Requests that wait.")] = None
    throughput: Annotated[
        Promql | None,
        Meta(description="Requests per second that end; capacity is learned from it."),
    ] = None
    kv_fraction: Annotated[
        Promql | None, Meta(description="Share of the KV cache in use, 0-1, mean over the pods.")
    ] = None
    busy: Annotated[
        Promql | None, Meta(description="Share of time in which the GPUs work, 0-1, mean.")
    ] = None
    pods: Annotated[
        Promql | None,
        Meta(description="Pods whose values are in it; without it all pods count as heard."),
    ] = None
    at: Annotated[
        Promql | None,
        Meta(description="Unix time of the newest sample; without it a sample counts as new."),
    ] = None


class Policy(Strict, frozen=True, kw_only=True):
    """How one workload is scaled. Every field can be set in `defaults`, in a named policy or on a workload."""

    server: Annotated[
        Server, Meta(description="Inference server, whose metric names are looked up.")
    ] = "vllm"
    mode: Annotated[
        Literal["shadow", "act"],
        Meta(
            description="shadow computes, exports and explains, and moves nothing; act moves replicas."
        ),
    ] = "shadow"
    risk: Annotated[
        float,
        Meta(
            gt=0,
            lt=1,
            description="The newsvendor fractile: a late request is priced risk / (1 - risk) times the idle replica time it would have taken.",
        ),
    ] = 10 / 11
    min_replicas: Annotated[int, Meta(ge=0, le=100_000, description="Never fewer.")] = 1
    max_replicas: Annotated[int, Meta(ge=1, le=100_000, description="Never more.")] = 100
    capacity: Annotated[
        Annotated[float, Meta(gt=0, le=1e9)] | None,
        Meta(
            description="Requests per second that one ready replica carries at full load, until it is learned. Without it no plan can be made before that."
        ),
    ] = None
    capacity_pinned: Annotated[
        bool, Meta(description="Plan with the declared `capacity` for ever, whatever is learned.")
    ] = False
    latency_objective_s: Annotated[
        Seconds | None,
        Meta(
            description="Mean seconds that a request may spend in the server: a replica's learned capacity is the load up to which it holds. Default three times what requests take at low load."
        ),
    ] = None
    start_time_s: Annotated[
        Seconds,
        Meta(
            description="Seconds from asking for a replica to its first served request, until it is learned from the pods."
        ),
    ] = 180.0
    headroom: Annotated[
        float,
        Meta(
            ge=0,
            lt=1,
            description="Share of each replica's capacity that is never planned with, since real servers queue within themselves.",
        ),
    ] = 0.0
    step_up_max: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Most replicas added in one decision; none for no limit."),
    ] = None
    step_down_max: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Most replicas removed in one decision; none for no limit."),
    ] = None
    dwell_s: Annotated[
        float,
        Meta(
            ge=0, le=86_400, description="Seconds after a rise during which nothing is scaled down."
        ),
    ] = 60.0
    manual_hold_s: Annotated[
        float,
        Meta(
            ge=0,
            le=7 * 86_400,
            description="Direct mode: replicas that somebody else set (`kubectl scale`) stand for so many seconds; 0 never.",
        ),
    ] = 900.0
    stale_after_s: Annotated[
        Seconds, Meta(description="A signal older than this is stale: the last answer is held.")
    ] = 45.0
    hold_s: Annotated[
        Seconds,
        Meta(
            description="A stale signal is held this long; then the answer is an error and the HPA holds."
        ),
    ] = 300.0
    coverage_min: Annotated[
        Ratio, Meta(description="Share of the pods that must have answered for a scale-down.")
    ] = 0.9
    selector: Annotated[
        str,
        Meta(
            max_length=1024,
            description="PromQL label matchers of the workload's series; {namespace} and {name} are replaced.",
        ),
    ] = 'namespace="{namespace}",pod=~"{name}-.+"'
    metrics_port: Annotated[
        Annotated[int, Meta(ge=1, le=65_535)] | None,
        Meta(
            description="Port of the pods' metrics page when they are scraped directly; default the server's own (docs/servers.md)."
        ),
    ] = None
    metrics_path: Annotated[
        MetricsPath | None,
        Meta(
            description="Path of the pods' metrics page when scraped directly; default the server's own, mostly /metrics."
        ),
    ] = None
    custom: Annotated[
        CustomQueries | None,
        Meta(description="PromQL of the signals, for the server `custom` and no other."),
    ] = None
    namespaces: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=253)], ...],
        Meta(
            max_length=64,
            description="Globs of the namespaces whose ScaledObjects may name this policy.",
        ),
    ] = ("*",)

    def __post_init__(self) -> None:
        """Refuse bounds that exclude each other."""
        if self.min_replicas > self.max_replicas:
            raise ValueError(
                f"min_replicas {self.min_replicas} is above max_replicas {self.max_replicas}: "
                "lower the one or raise the other"
            )
        if self.server in SELF_SCALING and self.mode == "act":
            raise ValueError(
                f"mode act cannot be used with server {self.server}, which scales itself: "
                "leave mode at shadow, and gpuscale only recommends"
            )
        if self.capacity_pinned and self.capacity is None:
            raise ValueError("capacity_pinned is set and capacity is not: declare what is pinned")
        if (self.server == "custom") != (self.custom is not None):
            raise ValueError(
                "server custom and the key custom need each other: write the PromQL under custom, "
                "or name the server that runs"
            )
        if self.hold_s < self.stale_after_s:
            raise ValueError(
                f"hold_s {self.hold_s:g} is below stale_after_s {self.stale_after_s:g}: "
                "a signal cannot be given up before it is stale"
            )


class ScaleTarget(Strict, frozen=True, kw_only=True):
    """The object whose scale subresource is written in direct mode."""

    api_version: Annotated[
        str,
        Meta(
            pattern=r"^([a-z0-9.-]+/)?v[a-z0-9]+$",
            description="As in the object.",
            extra={WANTED: "GROUP/VERSION or VERSION, such as apps/v1"},
        ),
    ] = "apps/v1"
    kind: Annotated[
        str,
        Meta(
            pattern=r"^[A-Z][A-Za-z0-9]+$",
            description="Any kind with a scale subresource.",
            extra={WANTED: "a kind, such as Deployment"},
        ),
    ] = "Deployment"
    name: Annotated[DnsName, Meta(description="Its name.")]


class WorkloadSettings(Strict, frozen=True, kw_only=True):
    """One workload declared in the file (a ScaledObject declares itself)."""

    namespace: Annotated[DnsName, Meta(description="Namespace of the workload.")]
    name: Annotated[
        DnsName, Meta(description="Name of the workload; with the namespace its identity.")
    ]
    policy: Annotated[
        str | None, Meta(description="Name of a policy under `policies`; default `defaults`.")
    ] = None
    overrides: Annotated[
        dict[str, Any],
        Meta(description="Fields of the policy that differ for this workload."),
    ] = {}
    target: Annotated[
        ScaleTarget | None,
        Meta(description="Object to scale directly (no KEDA). None: only answered over gRPC."),
    ] = None
    endpoints: Annotated[
        tuple[HttpUrl, ...],
        Meta(
            max_length=1024,
            description="Metrics pages of the pods, scraped directly; default the pods of the target, from the API server.",
        ),
    ] = ()


class KubernetesSettings(Strict, frozen=True, kw_only=True):
    """The API server: pods, ScaledObjects and the scale subresource."""

    enabled: Annotated[
        Literal["auto", "on", "off"],
        Meta(
            description="auto: when a cluster's credentials are found. off: workloads from the file only."
        ),
    ] = "auto"
    kubeconfig: Annotated[
        str | None,
        Meta(
            description="Path of a kubeconfig; default the pod's service account, else the environment's KUBECONFIG."
        ),
    ] = None
    context: Annotated[str | None, Meta(description="Context in the kubeconfig.")] = None
    timeout_s: Annotated[Seconds, Meta(description="Longest wait for one call.")] = 10.0
    namespaces: Annotated[
        tuple[DnsName, ...],
        Meta(max_length=256, description="Namespaces watched; none for all of them."),
    ] = ()


class JournalSettings(Strict, frozen=True, kw_only=True):
    """The record of observations and decisions (SQLite)."""

    path: Annotated[
        str | None, Meta(description="File; none keeps the journal in memory, lost at exit.")
    ] = None
    keep_s: Annotated[
        float, Meta(gt=0, le=366 * 86_400, description="Records older than this are deleted.")
    ] = 14 * 86_400.0
    replay_bytes_max: Annotated[
        int,
        Meta(
            ge=0,
            le=2**40,
            description="Disk for what decisions are replayed from (`gpuscale replay`), of which the oldest is deleted; 0 keeps none. Kept in a file only.",
        ),
    ] = 256 * 2**20


class PodAuditSettings(Strict, frozen=True, kw_only=True):
    """Pods that may use GPUs which they were not given (rules GPU-A01 to GPU-A09)."""

    period_s: Annotated[
        float, Meta(ge=30, le=86_400, description="Seconds between two looks at all pods.")
    ] = 300.0
    allow_namespaces: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=63)], ...],
        Meta(max_length=64, description="Globs of namespaces whose pods may."),
    ] = ("gpu-operator", "nvidia-gpu-operator", "nvidia-device-plugin", "nvidia-dra-driver-gpu")
    allow_pods: Annotated[
        tuple[Annotated[str, Meta(min_length=3, max_length=512)], ...],
        Meta(max_length=64, description="Globs of NAMESPACE/NAME, of pods and of what makes them."),
    ] = ("kube-system/nvidia-*", "gpuscale/*-exporter*", "monitoring/*dcgm-exporter*")


class ControllerSettings(Strict, frozen=True, kw_only=True):
    """Settings of `gpuscale controller`."""

    listen: Annotated[
        Listen, Meta(description="Address of the page, the API and /metrics, HOST:PORT.")
    ] = ":8080"
    listen_grpc: Annotated[
        Listen, Meta(description="Address of KEDA's external scaler, HOST:PORT.")
    ] = ":6000"
    grpc_tls: Annotated[
        GrpcTlsSettings | None,
        Meta(description="Certificates of the external scaler; none answers without TLS."),
    ] = None
    tick_s: Annotated[float, Meta(ge=1, le=300, description="Seconds between two decisions.")] = (
        15.0
    )
    prometheus: Annotated[
        PrometheusSettings | None,
        Meta(description="Where signals come from; none scrapes the pods directly."),
    ] = None
    scrape: Annotated[ScrapeSettings, Meta(description="Direct scraping.")] = ScrapeSettings()
    exporters: Annotated[
        ExportersSettings, Meta(description="The exporters behind the page's map of GPUs.")
    ] = ExportersSettings()
    kubernetes: Annotated[KubernetesSettings, Meta(description="The API server.")] = (
        KubernetesSettings()
    )
    journal: Annotated[JournalSettings, Meta(description="The record of decisions.")] = (
        JournalSettings()
    )
    defaults: Annotated[Policy, Meta(description="Policy of workloads that name none.")] = Policy()
    policies: Annotated[
        dict[str, Policy],
        Meta(
            max_length=1000,
            description="Policies by name; each stands alone: fields left out have the documented default.",
        ),
    ] = {}
    workloads: Annotated[
        tuple[WorkloadSettings, ...],
        Meta(
            max_length=20_000, description="Workloads declared here rather than by a ScaledObject."
        ),
    ] = ()
    audit: Annotated[PodAuditSettings, Meta(description="Pods that bypass the scheduler.")] = (
        PodAuditSettings()
    )
    web: Annotated[
        WebSettings, Meta(description="TLS, authentication and limits of the HTTP server.")
    ] = WebSettings()
    log: Annotated[LogSettings, Meta(description="Logging.")] = LogSettings()

    def __post_init__(self) -> None:
        """Check what crosses fields: every named policy exists, every workload stands once."""
        seen: set[str] = set()
        for i, workload in enumerate(self.workloads):
            key = f"{workload.namespace}/{workload.name}"
            if key in seen:
                raise ValueError(f"workloads[{i}]: {key} stands twice: remove one")
            seen.add(key)
            try:
                self.policy_of(workload)
            except ConfigError as error:
                raise ValueError(f"workloads[{i}] ({key}): {error}") from error

    def policy_named(self, name: str | None) -> Policy:
        """The policy of that name, `defaults` for None. Raises ConfigError where there is none."""
        if name is None:
            return self.defaults
        if name not in self.policies:
            known = ", ".join(sorted(self.policies)[:20]) or "none is defined"
            raise ConfigError(
                f"policy {name!r} is not defined: define it under policies, or name one of: {known}"
            )
        return self.policies[name]

    def policy_of(self, workload: WorkloadSettings) -> Policy:
        """The workload's policy with its overrides applied. Raises ConfigError naming the field."""
        return override(self.policy_named(workload.policy), workload.overrides)


def override(policy: Policy, fields: dict[str, Any]) -> Policy:
    """`policy` with some fields replaced, validated as a whole. Raises ConfigError naming the field."""
    if not fields:
        return policy
    merged = {**msgspec.to_builtins(policy), **fields}
    return convert(merged, Policy, where="overrides")
