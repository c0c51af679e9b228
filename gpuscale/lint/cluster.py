"""Rules on what a cluster's operators write: quotas, the device plugin's settings, monitors of exporters."""

import re
from collections.abc import Iterator
from typing import Any

from gpuscale.errors import InputError
from gpuscale.lint.finding import Finding
from gpuscale.lint.podspec import is_gpu, is_mistaken, listed, mapping, text
from gpuscale.lint.source import values
from gpuscale.lint.subject import Subject, quoted

_EXPORTER = re.compile(r"dcgm|gpuscale|gpu[-_]exporter|nvidia", re.IGNORECASE)
_KEYS_MAX = 1_000
_CONFIG_CHARS_MAX = 1_048_576
"""The API server takes no larger ConfigMap."""


def findings(subject: Subject) -> Iterator[Finding]:
    """What is wrong with an object that is no workload."""
    match subject.group, subject.kind:
        case "", "ResourceQuota":
            yield from _quota(subject)
        case "", "ConfigMap":
            yield from _plugin_config(subject)
        case "monitoring.coreos.com", "ServiceMonitor" | "PodMonitor":
            yield from _monitor(subject)


def _quota(subject: Subject) -> Iterator[Finding]:
    for key in list(mapping(subject.spec.get("hard")))[:_KEYS_MAX]:
        resource = key.removeprefix("limits.").removeprefix("requests.")
        if not (is_gpu(resource) or is_mistaken(resource)):
            continue
        if key != f"requests.{resource}":
            yield subject.found(
                "GPU-L04", ("spec", "hard", key), f"the key {quoted(key)} is never counted"
            )


def _plugin_config(subject: Subject) -> Iterator[Finding]:
    """GPU-L13, L14: settings of the device plugin, which are YAML in a ConfigMap."""
    for key, value in list(mapping(subject.raw.get("data")).items())[:_KEYS_MAX]:
        if (
            not isinstance(value, str)
            or "timeSlicing" not in value
            or len(value) > _CONFIG_CHARS_MAX
        ):
            continue
        config = _config(value)
        slicing = mapping(mapping(config.get("sharing")).get("timeSlicing"))
        resources = list(listed(slicing.get("resources")))
        if not any(r.get("name") == "nvidia.com/gpu" for _, r in resources):
            continue
        renamed = slicing.get("renameByDefault") is True or all(
            r.get("rename") for _, r in resources
        )
        if not renamed:
            yield subject.found(
                "GPU-L13",
                ("data", key),
                f"{quoted(key)} shares nvidia.com/gpu and does not rename it",
            )
        if slicing.get("failRequestsGreaterThanOne") is not True:
            yield subject.found(
                "GPU-L14",
                ("data", key),
                f"{quoted(key)} shares nvidia.com/gpu and lets a pod ask for several shares",
            )


def _config(value: str) -> dict[str, Any]:
    """Settings in a ConfigMap; empty where they are no YAML, which their reader will say."""
    try:
        return next((v for v in values(value) if isinstance(v, dict)), {})
    except InputError:
        return {}


def _monitor(subject: Subject) -> Iterator[Finding]:
    key = "endpoints" if subject.kind == "ServiceMonitor" else "podMetricsEndpoints"
    labels = mapping(mapping(subject.spec.get("selector")).get("matchLabels")).values()
    named = (subject.name, *(text(value) for value in list(labels)[:64]))
    if not any(_EXPORTER.search(name) for name in named) or any("controller" in n for n in named):
        return
    for i, endpoint in listed(subject.spec.get(key)):
        if endpoint.get("honorLabels") is not True:
            yield subject.found(
                "GPU-L15",
                ("spec", key, i),
                f"it scrapes {quoted(subject.name)} without honorLabels",
            )
