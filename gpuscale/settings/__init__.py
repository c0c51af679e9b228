"""What can be set, and to what: one frozen struct per concern, its ranges and meanings beside each field.

`config.load(path, ExporterSettings)` or `config.load(path, ControllerSettings)` reads a file.
"""

from gpuscale.settings.controller import (
    SELF_SCALING,
    ControllerSettings,
    CustomQueries,
    JournalSettings,
    KubernetesSettings,
    PodAuditSettings,
    Policy,
    ScaleTarget,
    Server,
    WorkloadSettings,
    override,
)
from gpuscale.settings.exporter import (
    AccountingSettings,
    AuditSettings,
    DcgmSettings,
    ExporterSettings,
    PeriodSettings,
    PodResourcesSettings,
    ProcessSettings,
)
from gpuscale.settings.exporters import ExportersSettings
from gpuscale.settings.grpc import GrpcTlsSettings
from gpuscale.settings.log import (
    LogSettings,
)
from gpuscale.settings.prometheus import PrometheusSettings
from gpuscale.settings.scrape import ScrapeSettings
from gpuscale.settings.web import (
    WebSettings,
)

__all__ = [
    "SELF_SCALING",
    "AccountingSettings",
    "AuditSettings",
    "ControllerSettings",
    "CustomQueries",
    "DcgmSettings",
    "ExporterSettings",
    "ExportersSettings",
    "GrpcTlsSettings",
    "JournalSettings",
    "KubernetesSettings",
    "LogSettings",
    "PeriodSettings",
    "PodAuditSettings",
    "PodResourcesSettings",
    "Policy",
    "ProcessSettings",
    "PrometheusSettings",
    "ScaleTarget",
    "ScrapeSettings",
    "Server",
    "WebSettings",
    "WorkloadSettings",
    "override",
]
