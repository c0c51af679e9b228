"""Renderings of the Helm chart, for the tests that look at them."""

import subprocess
from functools import cache
from typing import Any

import yaml

from tests import tools

CHART = tools.REPOSITORY / "deploy" / "helm" / "gpuscale"
MATRIX: dict[str, list[str]] = {
    "defaults": [],
    "exporter-only": ["controller.enabled=false"],
    "controller-only": ["exporter.enabled=false"],
    "service-monitor": [
        "serviceMonitor.enabled=true",
        "serviceMonitor.labels.release=kube-prometheus-stack",
    ],
    "pod-monitor": ["podMonitor.enabled=true"],
    "alerts-and-dashboards": [
        "prometheusRule.enabled=true",
        "prometheusRule.runbookBaseUrl=https://wiki.example/gpuscale/",
        "prometheusRule.disabled={GpuscaleGpuHot}",
        "prometheusRule.alertLabels.team=ml",
        "prometheusRule.gpuHourPrices.NVIDIA H100 80GB HBM3=3.2",
        "dashboards.enabled=true",
    ],
    "persistent": ["controller.persistence.enabled=true", "controller.persistence.size=5Gi"],
    "existing-claim": [
        "controller.persistence.enabled=true",
        "controller.persistence.existingClaim=kept",
    ],
    "direct": [
        "controller.directMode=true",
        "controller.rbac.extraScaleTargets[0].apiGroup=leaderworkerset.x-k8s.io",
        "controller.rbac.extraScaleTargets[0].resource=leaderworkersets",
    ],
    "some-namespaces": ["controller.config.kubernetes.namespaces={models,chat}"],
    "closed-network": ["networkPolicy.enabled=true"],
    "other-ports": [
        "exporter.config.listen=0.0.0.0:9401",
        "controller.config.listen=[::]:8081",
        "controller.config.listen_grpc=:6001",
    ],
    "no-attribution": ["exporter.config.pod_resources.enabled=false"],
    "processes": [
        "exporter.config.processes.enabled=true",
        "exporter.accountsHostPath=/var/lib/gpuscale",
    ],
    "nothing-but-gpus": [
        "exporter.podResources.podLogsHostPath=",
        "exporter.config.accounting.state_file=null",
    ],
    "volume-mounts": ["exporter.gpuAccess.mode=volumeMounts"],
    "cdi": [
        "exporter.gpuAccess.mode=cdi",
        "exporter.gpuAccess.cdi.annotation=nvidia.cdi.k8s.io/container.exporter",
        "exporter.gpuAccess.cdi.device=management.nvidia.com/gpu=all",
    ],
    "privileged": [
        "exporter.gpuAccess.mode=privileged",
        "exporter.gpuAccess.privileged.driverRoot=/run/nvidia/driver",
    ],
    "dra": ["exporter.gpuAccess.mode=dra", "exporter.config.pod_resources.exclude={ops/look-*}"],
    "runtime-class": ["exporter.runtimeClassName=nvidia", "runtimeClass.create=true"],
    "tls-by-cert-manager": ["certManager.enabled=true", "serviceMonitor.enabled=true"],
    "tls-by-an-issuer": [
        "certManager.enabled=true",
        "certManager.issuerRef.name=corporate",
        "certManager.issuerRef.kind=ClusterIssuer",
        "podMonitor.enabled=true",
    ],
    "own-certificates": [
        "exporter.web.certificateSecret=exporter-cert",
        "controller.web.certificateSecret=controller-cert",
        "controller.web.secret=controller-web",
        "serviceMonitor.enabled=true",
        "serviceMonitor.endpoint.tlsConfig.insecureSkipVerify=true",
        "serviceMonitor.endpoint.basicAuth.username.name=scrape",
        "serviceMonitor.endpoint.basicAuth.username.key=username",
    ],
    "grpc-mtls": [
        "controller.grpc.certificateSecret=scaler-cert",
        "controller.grpc.clientCertificates=true",
    ],
    "users-without-tls": ["exporter.web.secret=exporter-web"],
    "everywhere": ["exporter.affinity=null", "exporter.priorityClassName="],
    "named": [
        "fullnameOverride=a-name-that-is-much-longer-than-any-sensible-name-of-a-release",
        "image.registry=registry.example/",
        "image.tag=1.2.3",
        "image.pullSecrets[0].name=regcred",
        "exporter.runtimeClassName=nvidia",
        "commonLabels.owner=platform",
    ],
}


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    binary = tools.helm()
    assert binary is not None
    return subprocess.run(
        [binary, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@cache
def render(*settings: str) -> tuple[dict[str, Any], ...]:
    """Every object that the chart makes of these `--set` values."""
    flags = [part for setting in settings for part in ("--set", setting)]
    done = helm("template", "gpuscale", str(CHART), "--namespace", "gpu-system", *flags)
    assert done.returncode == 0, done.stderr
    return tuple(document for document in yaml.safe_load_all(done.stdout) if document)


def one(objects: tuple[dict[str, Any], ...], kind: str, suffix: str = "") -> dict[str, Any]:
    found = [o for o in objects if o["kind"] == kind and o["metadata"]["name"].endswith(suffix)]
    assert len(found) == 1, [(o["kind"], o["metadata"]["name"]) for o in objects]
    return found[0]


def container(workload: dict[str, Any]) -> dict[str, Any]:
    (found,) = workload["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found
