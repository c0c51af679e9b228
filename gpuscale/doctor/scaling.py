"""Checks on KEDA, the HPAs that it makes, ScaledObjects and quotas. Pure: facts in, results out."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gpuscale.controller import trigger
from gpuscale.doctor.facts import Cluster, Pod, Result, Unread, number
from gpuscale.lint import lint
from gpuscale.lint.podspec import listed, mapping, quantity, text
from gpuscale.lint.source import Manifest

KEDA_TOLERANCE = (2, 18)
"""KEDA passes the HPA's tolerance on from here on; before, it drops it in silence."""
KEDA_CPU_TRAP = (2, 20)
"""Before, an HPA without metrics was made when the scaler was away, which the API server fills with CPU 80 %."""
KUBERNETES_TOLERANCE = (1, 35)
"""The HPA's own tolerance is on by default from here on, in one release earlier in some distributions."""
FINDINGS_MAX = 50
_IMAGE = re.compile(r"(^|/)keda(-operator)?:v?(?P<version>\d{1,3}\.\d{1,3}(\.\d{1,3})?)")
_VERSION = re.compile(r"v?(\d{1,3})\.(\d{1,3})")


def checks(cluster: Cluster) -> Iterator[Result]:
    """Every check on autoscaling."""
    yield from _keda(cluster)
    ours = _ours(cluster.scaled_objects)
    if isinstance(cluster.autoscalers, Unread):
        if ours:
            yield Result(
                check="hpa",
                status="unknown",
                sentence=f"HorizontalPodAutoscalers cannot be read: {cluster.autoscalers.reason}",
                cure="Let this account list horizontalpodautoscalers.",
            )
    else:
        yield from _read_back(ours, cluster.autoscalers)
    yield from _rules(cluster)


def version_of(words: str) -> tuple[int, int] | None:
    """(major, minor) of `v1.34.1`; None for what is no version."""
    match = _VERSION.match(words)
    return (int(match[1]), int(match[2])) if match else None


def _ours(found: tuple[Mapping[str, Any], ...] | Unread | None) -> list[Mapping[str, Any]]:
    """The ScaledObjects that name gpuscale."""
    return [
        each
        for each in (found if isinstance(found, tuple) else ())
        if any(
            trigger.names_gpuscale(t) for _, t in listed(mapping(each.get("spec")).get("triggers"))
        )
    ]


# ---------------------------------------------------------------- KEDA


def _keda(cluster: Cluster) -> Iterator[Result]:
    found = cluster.scaled_objects
    if isinstance(found, Unread):
        yield Result(
            check="keda",
            status="unknown",
            sentence=f"ScaledObjects cannot be read: {found.reason}",
            cure="Let this account list scaledobjects of keda.sh.",
        )
        return
    if found is None:
        yield Result(
            check="keda",
            status="info",
            sentence="KEDA is not installed; gpuscale can write the scale subresource by itself",
            cure="Install KEDA 2.18 or later, or give workloads a target in the settings (direct mode).",
        )
        return
    operators = [] if isinstance(cluster.pods, Unread) else _operators(cluster.pods)
    versions = sorted({v for _, v in operators})
    if not operators:
        yield Result(
            check="keda",
            status="unknown" if isinstance(cluster.pods, Unread) else "error",
            sentence="KEDA's types are installed, and no pod of its operator is seen",
            cure="Look for the operator: kubectl get pods -A -l app=keda-operator.",
        )
        return
    if not any(pod.ready for pod, _ in operators):
        yield Result(
            check="keda",
            status="error",
            sentence=f"KEDA's operator is not ready ({operators[0][0].key}): nothing is scaled",
            cure="Read its log: kubectl logs -n NAMESPACE deploy/keda-operator.",
        )
    yield from _keda_version(versions, found)
    yield from _tolerance(cluster.version, _ours(found))


def _operators(pods: tuple[Pod, ...]) -> list[tuple[Pod, str]]:
    """(pod, version) of KEDA's operator; the version is empty where the image's tag is none."""
    found = []
    for pod in pods:
        if (
            pod.labels.get("app") == "keda-operator"
            or pod.labels.get("app.kubernetes.io/name") == "keda-operator"
        ):
            tags = [match["version"] for image in pod.images if (match := _IMAGE.search(image))]
            found.append((pod, tags[0] if tags else ""))
    return found


def _keda_version(versions: list[str], objects: tuple[Mapping[str, Any], ...]) -> Iterator[Result]:
    named = [v for v in versions if v]
    known = version_of(named[0]) if named else None
    what = f"KEDA {named[0]}" if named else "KEDA"
    if known is None:
        yield Result(
            check="keda",
            status="unknown",
            sentence=f"KEDA runs, with {number(len(objects), 'ScaledObject')}; its image does not say which version",
        )
    elif known < KEDA_TOLERANCE:
        yield Result(
            check="keda",
            status="warning",
            sentence=f"{what} drops the HPA's tolerance in silence: steps of less than 10 % are never made",
            cure="Upgrade KEDA to 2.20 or later.",
        )
    elif known < KEDA_CPU_TRAP:
        yield Result(
            check="keda",
            status="warning",
            sentence=f"{what} makes an HPA on CPU 80 % when a ScaledObject appears while its scaler is away, and never mends it",
            cure="Upgrade KEDA to 2.20 or later, or start gpuscale before the ScaledObjects.",
        )
    else:
        yield Result(
            check="keda",
            status="ok",
            sentence=f"{what} with {number(len(objects), 'ScaledObject')}",
        )


def _tolerance(version: str, ours: list[Mapping[str, Any]]) -> Iterator[Result]:
    known = version_of(version)
    if ours and known is not None and known < KUBERNETES_TOLERANCE:
        yield Result(
            check="kubernetes",
            status="info",
            sentence=f"Kubernetes {version} may ignore the HPA's own tolerance (on by default from 1.35): "
            "above 10 replicas steps of one may not be made",
            cure="Switch on the feature gate HPAConfigurableTolerance, or upgrade; the check hpa says "
            "what was kept.",
        )


# ---------------------------------------------------------------- HPAs read back


def _read_back(
    ours: list[Mapping[str, Any]], autoscalers: tuple[Mapping[str, Any], ...]
) -> Iterator[Result]:
    """What became of each ScaledObject of ours: the HPA is what scales, whatever was asked for."""
    made = {_owner(each): each for each in autoscalers}
    good = 0
    for each in ours:
        metadata = mapping(each.get("metadata"))
        key = text(metadata.get("namespace")), text(metadata.get("name"))
        annotations = mapping(metadata.get("annotations"))
        hpa = made.get(key)
        if hpa is None:
            if not any("paused" in str(name) for name in annotations):
                yield Result(
                    check="hpa",
                    status="error",
                    sentence=f"{'/'.join(key)} has no HPA: KEDA did not accept the ScaledObject, or cannot reach gpuscale",
                    cure="Read its conditions (kubectl describe scaledobject NAME), and whether KEDA may "
                    "connect to gpuscale's port 6000.",
                )
            continue
        faults = list(_hpa_faults("/".join(key), each, hpa))
        good += not faults
        yield from faults
    if good:
        yield Result(
            check="hpa",
            status="ok",
            sentence=f"{number(good, 'HPA')} of gpuscale's follow to the letter",
        )


def _owner(hpa: Mapping[str, Any]) -> tuple[str, str]:
    """(namespace, name) of the ScaledObject that an HPA was made for; empty names where there is none."""
    metadata = mapping(hpa.get("metadata"))
    owner = next(
        (o for _, o in listed(metadata.get("ownerReferences")) if o.get("kind") == "ScaledObject"),
        {},
    )
    return text(metadata.get("namespace")), text(owner.get("name"))


def _hpa_faults(key: str, scaled: Mapping[str, Any], hpa: Mapping[str, Any]) -> Iterator[Result]:
    spec = mapping(hpa.get("spec"))
    metrics = [metric for _, metric in listed(spec.get("metrics"))]
    external = [
        mapping(mapping(m.get("external")).get("target"))
        for m in metrics
        if m.get("type") == "External"
    ]
    if not external:
        yield Result(
            check="hpa",
            status="error",
            sentence=f"the HPA of {key} scales by CPU and knows nothing of gpuscale (KEDA could not reach it when it was made)",
            cure="Delete the HPA while gpuscale runs; KEDA makes it anew.",
        )
    elif any(target.get("type") == "Value" for target in external):
        yield Result(
            check="hpa",
            status="error",
            sentence=f"the HPA of {key} multiplies gpuscale's answer with the pods that run (type Value)",
            cure="Set metricType: AverageValue in the ScaledObject's trigger.",
        )
    behavior = mapping(spec.get("behavior"))
    lost = [
        way
        for way in ("scaleUp", "scaleDown")
        if quantity(mapping(behavior.get(way)).get("tolerance")) != 0
    ]
    high = spec.get("maxReplicas")
    if lost and isinstance(high, int) and high > 10:
        asked = mapping(
            mapping(
                mapping(mapping(scaled.get("spec")).get("advanced")).get(
                    "horizontalPodAutoscalerConfig"
                )
            ).get("behavior")
        )
        wrote = any(quantity(mapping(asked.get(way)).get("tolerance")) == 0 for way in lost)
        yield Result(
            check="hpa",
            status="warning",
            sentence=f"the HPA of {key} kept no tolerance of 0 for {' and '.join(lost)}"
            + (", which the ScaledObject asked for" if wrote else ""),
            cure="Upgrade KEDA to 2.18 or later, and Kubernetes to 1.35 or later or switch on HPAConfigurableTolerance."
            if wrote
            else 'Set tolerance: "0" in the ScaledObject (gpuscale scaledobject prints it).',
        )


# ---------------------------------------------------------------- the rules of lint on live objects


def _rules(cluster: Cluster) -> Iterator[Result]:
    """ScaledObjects, HPAs and quotas under the rules GPU-L; pods are the audit's."""
    groups = (
        ("keda.sh/v1alpha1", "ScaledObject", cluster.scaled_objects or ()),
        ("autoscaling/v2", "HorizontalPodAutoscaler", cluster.autoscalers),
        ("v1", "ResourceQuota", cluster.quotas),
        ("apps/v1", "", cluster.workloads),
    )
    manifests = []
    for api_version, kind, found in groups:
        for raw in found if isinstance(found, tuple) else ():
            typed = {"apiVersion": api_version, **({"kind": kind} if kind else {}), **raw}
            manifests.append(Manifest(typed))
    if isinstance(cluster.quotas, Unread):
        yield Result(
            check="quotas",
            status="unknown",
            sentence=f"quotas cannot be read: {cluster.quotas.reason}",
            cure="Let this account list resourcequotas.",
        )
    looked = ("ScaledObject", "HorizontalPodAutoscaler", "ResourceQuota")
    broken = [f for f in lint(manifests, trigger) if f.kind in looked]
    for finding in broken[:FINDINGS_MAX]:
        yield Result(
            check=finding.rule.id,
            status=finding.severity,
            sentence=f"{finding.object}: {finding.sentence}",
            cure=finding.rule.cure,
        )
    if len(broken) > FINDINGS_MAX:
        yield Result(
            check="rules",
            status="warning",
            sentence=f"{len(broken) - FINDINGS_MAX} more findings on autoscalers and quotas",
            cure="See all: kubectl get scaledobjects,hpa,resourcequotas -A -o yaml | gpuscale lint -",
        )
