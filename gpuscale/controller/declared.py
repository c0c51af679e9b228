"""Which workloads there are: those of the settings file, and those whose ScaledObject names gpuscale.

A ScaledObject names gpuscale by a trigger of type `external` or `external-push` for which either
holds:

- a dash-separated part of a DNS label of the host in `scalerAddress` is `gpuscale`
  (`gpuscale-grpc.gpuscale.svc:6000`), as with the chart's default names;
- its metadata has `gpuscale: "true"`, for any other address.

`gpuscale: "false"` says that the trigger is somebody else's in spite of its address.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from operator import is_
from typing import Any, NamedTuple

from gpuscale.controller import trigger as triggers
from gpuscale.controller.domain import Target, Workload
from gpuscale.controller.trigger import NAME, quoted
from gpuscale.errors import ConfigError
from gpuscale.settings import ControllerSettings, Policy, override

WORKLOADS_MAX = 20_000
"""Twice the fleet that one process is built for; beyond it declarations are refused, not half-served."""
POLICIESNAMED_MAX = 20
"""Names of policies that one refusal lists."""

DEFAULT_MIN_REPLICAS = 0
DEFAULT_MAX_REPLICAS = 100
"""KEDA's own, for a ScaledObject that leaves minReplicaCount or maxReplicaCount out."""
REPLICAS_MAX = 100_000

PAUSED = "autoscaling.keda.sh/paused"
PAUSED_REPLICAS = "autoscaling.keda.sh/paused-replicas"
PAUSED_SCALE_IN = "autoscaling.keda.sh/paused-scale-in"
PAUSED_SCALE_OUT = "autoscaling.keda.sh/paused-scale-out"

_KIND = re.compile(r"[A-Z][A-Za-z0-9]{0,62}")
_API_VERSION = re.compile(r"([a-z0-9][-a-z0-9.]{0,251}/)?v[a-z0-9]{1,32}")
_FALSE = ("0", "f", "F", "FALSE", "False", "false")
"""What KEDA reads as false in an annotation; any other value pauses (it errs on the side of pausing)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """Every declaration that was found: as a workload, or as a refusal."""

    workloads: tuple[Workload, ...]
    """Sorted by key."""
    refusals: Mapping[str, str]
    """Key -> one sentence with what is wrong and what cures it. A key stands in both only where a
    ScaledObject was refused because the settings file declares the same name."""


class Declarations:
    """Reads declarations tick after tick; what it has read of an object stands until the object is another."""

    def __init__(self, settings: ControllerSettings) -> None:
        self._settings = settings
        self._file = tuple(_from_file(settings))
        self._objects: tuple[Mapping[str, object], ...] | None = None
        self._reads: dict[int, tuple[Mapping[str, object], _Read]] = {}
        self._last = Declared(workloads=(), refusals={})

    def read(self, scaled_objects: Iterable[Mapping[str, object]] = ()) -> Declared:
        """The workloads of the file and of the ScaledObjects, as the API server gave them. Never raises.

        Objects must not be changed in place: a new version is a new object.
        """
        objects = tuple(scaled_objects)
        last = self._objects
        if last is not None and len(last) == len(objects) and all(map(is_, last, objects)):
            return self._last
        reads: dict[int, tuple[Mapping[str, object], _Read]] = {}
        for scaled_object in objects:
            known = self._reads.get(id(scaled_object))
            reads[id(scaled_object)] = known or (
                scaled_object,
                _read(scaled_object, self._settings),
            )
        # The objects are kept with what was read of them, so that no other has their id meanwhile.
        self._objects, self._reads = objects, reads
        self._last = _collect(self._file, [read for _, read in reads.values()])
        return self._last


def _collect(from_file: Iterable[Workload], reads: Sequence["_Read"]) -> Declared:
    scaled_by = {read.scales: read.key for read in reads if read.scales is not None}
    workloads: dict[str, Workload] = {}
    refusals: dict[str, str] = {}
    for workload in from_file:
        target = workload.target
        owner = scaled_by.get((workload.namespace, target)) if target else None
        if target is None or owner is None:
            workloads[workload.key] = workload
        else:
            refusals[workload.key] = (
                f"{target.kind} {target.name} is already scaled by ScaledObject {owner}: remove "
                "`target` from the settings file, or delete the ScaledObject"
            )
    for key, found, _ in reads:
        if found is None:
            continue
        if isinstance(found, str):
            refusals[key] = found
        elif key in workloads:
            refusals[key] = (
                f"{key} is declared in the settings file too, which stands: remove it from one of the two"
            )
        elif len(workloads) >= WORKLOADS_MAX:
            refusals[key] = (
                f"there are more than {WORKLOADS_MAX} workloads: watch fewer namespaces with "
                "kubernetes.namespaces"
            )
        else:
            workloads[key] = found
    return Declared(workloads=tuple(workloads[k] for k in sorted(workloads)), refusals=refusals)


def pause_of(annotations: Mapping[str, object]) -> str | None:
    """The annotation that freezes the workload, read as KEDA reads it; None where none does.

    A pause of one direction only (paused-scale-in, paused-scale-out) is kept by KEDA on its HPA and
    does not freeze the answer; both together do.
    """
    if PAUSED_REPLICAS in annotations:
        return PAUSED_REPLICAS
    if _is_on(annotations, PAUSED):
        return PAUSED
    if _is_on(annotations, PAUSED_SCALE_IN) and _is_on(annotations, PAUSED_SCALE_OUT):
        return f"{PAUSED_SCALE_IN} with {PAUSED_SCALE_OUT}"
    return None


def _is_on(annotations: Mapping[str, object], name: str) -> bool:
    value = annotations.get(name)
    return value is not None and value not in _FALSE


def _from_file(settings: ControllerSettings) -> Iterator[Workload]:
    for entry in settings.workloads:
        target = entry.target
        yield Workload(
            namespace=entry.namespace,
            name=entry.name,
            policy=settings.policy_of(entry),
            policy_name=entry.policy or "defaults",
            actuator="none" if target is None else "scale",
            target=None
            if target is None
            else Target(api_version=target.api_version, kind=target.kind, name=target.name),
            endpoints=entry.endpoints,
        )


# ---------------------------------------------------------------- ScaledObjects


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _names_of(scaled_object: Mapping[str, object]) -> tuple[str, str] | None:
    """(namespace, name); None for names that no API server admits."""
    metadata = _mapping(scaled_object.get("metadata"))
    names = metadata.get("namespace"), metadata.get("name")
    if all(isinstance(name, str) and NAME.fullmatch(name) for name in names):
        return str(names[0]), str(names[1])
    return None


def _target_of(scaled_object: Mapping[str, object]) -> Target:
    reference = _mapping(_mapping(scaled_object.get("spec")).get("scaleTargetRef"))
    api_version = reference.get("apiVersion") or "apps/v1"
    kind = reference.get("kind") or "Deployment"
    name = reference.get("name")
    for value, pattern in ((api_version, _API_VERSION), (kind, _KIND), (name, NAME)):
        if not (isinstance(value, str) and pattern.fullmatch(value)):
            raise ConfigError(
                f"spec.scaleTargetRef has {quoted(value)}, which names no object: correct it"
            )
    return Target(api_version=str(api_version), kind=str(kind), name=str(name))


class _Read(NamedTuple):
    """What one ScaledObject says."""

    key: str
    found: Workload | str | None
    """The workload, or why it is refused; None where it does not name gpuscale."""
    scales: tuple[str, Target] | None
    """(namespace, target) of what it scales, for gpuscale or not."""


def _read(scaled_object: Mapping[str, object], settings: ControllerSettings) -> _Read:
    names = _names_of(scaled_object)
    if names is None:
        return _Read("", None, None)
    key = "/".join(names)
    try:
        scales = names[0], _target_of(scaled_object)
    except ConfigError:
        scales = None  # told below, if the object is ours
    given = _mapping(scaled_object.get("spec")).get("triggers")
    listed = [_mapping(t) for t in given] if isinstance(given, list | tuple) else []
    ours = [t for t in listed if triggers.names_gpuscale(t)]
    found: Workload | str | None = None
    if len(ours) > 1:
        found = f"{key} names gpuscale in {len(ours)} triggers, which would answer the same twice: keep one"
    elif ours:
        try:
            found = _workload(names, scaled_object, ours[0], len(listed) == 1, settings)
        except ConfigError as error:
            found = str(error)
    return _Read(key, found, scales)


def _workload(
    names: tuple[str, str],
    scaled_object: Mapping[str, object],
    trigger: Mapping[str, Any],
    only_trigger: bool,
    settings: ControllerSettings,
) -> Workload:
    namespace, name = names
    spec = _mapping(scaled_object.get("spec"))
    policy_name, fields = triggers.parse(_mapping(trigger.get("metadata")))
    base = _policy(policy_name, namespace, settings)
    low, high = _bounds(spec, only_trigger)
    try:
        policy = override(base, {**fields, "min_replicas": low, "max_replicas": high})
    except ConfigError as error:
        raise ConfigError(
            f"the trigger's metadata does not go with policy {policy_name or 'defaults'} ({error})"
        ) from error
    _check_metric_type(spec, trigger, policy)
    annotations = _mapping(_mapping(scaled_object.get("metadata")).get("annotations"))
    return Workload(
        namespace=namespace,
        name=name,
        policy=policy,
        policy_name=policy_name or "defaults",
        actuator="keda",
        target=_target_of(scaled_object),
        paused=pause_of(annotations),
        only_trigger=only_trigger,
    )


def _policy(name: str | None, namespace: str, settings: ControllerSettings) -> Policy:
    """The named policy, if it is open to the namespace; a closed one and a missing one look alike."""
    policy = settings.defaults if name is None else settings.policies.get(name)
    if policy is not None and _open_to(policy, namespace):
        return policy
    known = sorted(n for n, p in settings.policies.items() if _open_to(p, namespace))
    asked = "the default policy" if name is None else f"policy {quoted(name)}"
    raise ConfigError(
        f"{asked} is not open to namespace {namespace}: name one that is "
        f"({', '.join(known[:POLICIESNAMED_MAX]) or 'none'}), or ask the operator to add the namespace "
        "to the policy's `namespaces`"
    )


def _open_to(policy: Policy, namespace: str) -> bool:
    return any(fnmatchcase(namespace, glob) for glob in policy.namespaces)


def _bounds(spec: Mapping[str, Any], only_trigger: bool) -> tuple[int, int]:
    """(fewest, most) replicas of the ScaledObject.

    Nothing shows gpuscale the demand of a workload without pods, so what it scaled to zero it could
    not bring back: as the only trigger it keeps one replica. Beside other triggers, by which KEDA
    activates, the ScaledObject's own minimum holds.
    """
    low = _count(spec, "minReplicaCount", DEFAULT_MIN_REPLICAS)
    high = _count(spec, "maxReplicaCount", DEFAULT_MAX_REPLICAS)
    if high < max(1, low):
        raise ConfigError(
            f"spec.maxReplicaCount {high} is below {max(1, low)}: raise it, or lower spec.minReplicaCount"
        )
    if only_trigger:
        return max(1, low), high
    return (0 if spec.get("idleReplicaCount") == 0 else low), high


def _count(spec: Mapping[str, Any], name: str, default: int) -> int:
    value = spec.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= REPLICAS_MAX:
        raise ConfigError(
            f"spec.{name} is {quoted(value)}: set a whole number from 0 to {REPLICAS_MAX}"
        )
    return value


def _check_metric_type(spec: Mapping[str, Any], trigger: Mapping[str, Any], policy: Policy) -> None:
    """Only AverageValue with target 1 makes the HPA ask for exactly the replicas that are answered."""
    modifiers = _mapping(_mapping(spec.get("advanced")).get("scalingModifiers"))
    composed = bool(modifiers.get("formula"))
    where = "advanced.scalingModifiers.metricType" if composed else "the trigger's metricType"
    given = (modifiers if composed else trigger).get("metricType") or "AverageValue"
    if given != "AverageValue":
        raise ConfigError(
            f"{where} is {quoted(given)}, by which the HPA multiplies the answer with the pods that "
            "run instead of taking it: set AverageValue"
        )
    if composed and policy.mode == "shadow":
        raise ConfigError(
            "advanced.scalingModifiers.formula decides what the answer means, so that shadow mode "
            'cannot promise to move nothing: remove the formula, or set mode: "act"'
        )
