"""The ScaledObject to commit for a workload: KEDA and the HPA are told to follow, not to decide."""

import math
from collections.abc import Mapping
from typing import Any

from gpuscale.config import convert
from gpuscale.controller import trigger
from gpuscale.controller.domain import Target, Workload
from gpuscale.errors import ConfigError, InputError
from gpuscale.settings import ControllerSettings, ScaleTarget, override

ADDRESS = "gpuscale-grpc.gpuscale.svc:6000"
"""The chart's headless service, in a release and a namespace called gpuscale."""
NAME_MAX = 63
"""KEDA writes the name into a label."""
POLLING_S = 10
"""Activation and health only: the HPA reads live, every 15 s."""
COOLDOWN_MIN_S = 300
"""KEDA's default; a start that takes longer raises it."""
COOLDOWN_MAX_S = 86_400
UP_PERCENT = 900
UP_PODS_MIN = 20
"""Wide: the HPA's own policies (100 % or 4 pods per 15 s) would spread one jump over a minute."""
DOWN_WINDOW_S = 60
"""The HPA's default of 300 s would double the dwell that gpuscale keeps itself."""
DOWN_PODS_MIN = 2
DOWN_SHARE = 0.1
"""Of the most replicas, at least DOWN_PODS_MIN: what may go per minute if the answer were wrong."""


def declare(
    namespace: str,
    name: str,
    settings: ControllerSettings,
    *,
    kind: str = "Deployment",
    api_version: str = "apps/v1",
    policy: str | None = None,
    fields: Mapping[str, Any] | None = None,
) -> tuple[Workload, dict[str, str]]:
    """(workload, metadata of its trigger) for a target of that name, or as the settings file declares it.

    `fields` are fields of the policy that differ for this workload. Raises ConfigError for a policy
    that is not defined, a value out of range, and a field that no trigger may carry; InputError for
    names that Kubernetes does not admit.
    """
    for part in (namespace, name):
        if not trigger.NAME.fullmatch(part):
            raise InputError(
                f"{part!r} is no name in Kubernetes: write lower-case letters, digits, '-' and '.'"
            )
    if len(name) > NAME_MAX:
        raise InputError(f"{name} is longer than {NAME_MAX} characters: KEDA takes no such name")
    entry = next(
        (w for w in settings.workloads if (w.namespace, w.name) == (namespace, name)), None
    )
    given = convert(
        {"api_version": api_version, "kind": kind, "name": name}, ScaleTarget, where="scale target"
    )
    target = Target(api_version=given.api_version, kind=given.kind, name=given.name)
    changed = dict(fields or {})
    if entry is not None:
        policy = policy or entry.policy
        changed = {**entry.overrides, **changed}
        if entry.target is not None:
            target = Target(
                api_version=entry.target.api_version, kind=entry.target.kind, name=entry.target.name
            )
    workload = Workload(
        namespace=namespace,
        name=name,
        policy=override(settings.policy_named(policy), changed),
        policy_name=policy or "defaults",
        actuator="keda",
        target=target,
    )
    own = {k: v for k, v in changed.items() if k not in ("min_replicas", "max_replicas")}
    return workload, ({} if policy is None else {"policy": policy}) | trigger.written(own)


def scaledobject(
    workload: Workload,
    metadata: Mapping[str, str],
    *,
    address: str = ADDRESS,
    authentication: str | None = None,
) -> dict[str, Any]:
    """The manifest (keda.sh/v1alpha1 ScaledObject, KEDA 2.18 and later).

    `metadata` is the trigger's, beside the address; `authentication` names a TriggerAuthentication
    with the client's certificate. Raises ConfigError for metadata that the controller would refuse.

    The tolerance is 0 because the HPA's own (10 %) would ignore a step from 10 to 11 for ever; the
    fallback acts where gpuscale answers errors, and never removes a replica.
    """
    policy, target = workload.policy, workload.target
    if target is None:
        raise ConfigError(f"{workload.key} has no scale target: name one")
    known = {"scalerAddress": address, **metadata}
    if not trigger.names_gpuscale({"type": trigger.TYPES[1], "metadata": known}):
        known["gpuscale"] = "true"
    fault = trigger.fault(known)
    if fault is not None:
        raise ConfigError(fault)
    down = max(DOWN_PODS_MIN, math.ceil(policy.max_replicas * DOWN_SHARE))
    up = max(UP_PODS_MIN, policy.max_replicas)
    entry: dict[str, Any] = {
        "type": trigger.TYPES[1],
        "name": "gpuscale",
        "metricType": "AverageValue",
        "metadata": known,
    }
    if authentication is not None:
        entry["authenticationRef"] = {"name": authentication}
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": workload.name, "namespace": workload.namespace},
        "spec": {
            "scaleTargetRef": {
                "apiVersion": target.api_version,
                "kind": target.kind,
                "name": target.name,
            },
            "pollingInterval": POLLING_S,
            "cooldownPeriod": _cooldown_s(policy.start_time_s),
            "minReplicaCount": policy.min_replicas,
            "maxReplicaCount": policy.max_replicas,
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior(up, down)}},
            "fallback": {
                "failureThreshold": 3,
                "replicas": max(1, policy.min_replicas),
                "behavior": "currentReplicasIfHigher",
            },
            "triggers": [entry],
        },
    }


def _cooldown_s(start_time_s: float) -> int:
    """At least a start: what was stopped sooner would have been started for nothing."""
    return min(COOLDOWN_MAX_S, max(COOLDOWN_MIN_S, math.ceil(start_time_s)))


def _behavior(up_pods: int, down_pods: int) -> dict[str, Any]:
    return {
        "scaleUp": {
            "stabilizationWindowSeconds": 0,
            "tolerance": "0",
            "selectPolicy": "Max",
            "policies": [
                {"type": "Percent", "value": UP_PERCENT, "periodSeconds": 15},
                {"type": "Pods", "value": up_pods, "periodSeconds": 15},
            ],
        },
        "scaleDown": {
            "stabilizationWindowSeconds": DOWN_WINDOW_S,
            "tolerance": "0",
            "policies": [{"type": "Pods", "value": down_pods, "periodSeconds": 60}],
        },
    }
