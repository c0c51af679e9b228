"""The metadata of a ScaledObject's trigger: whether it names gpuscale, and what it asks for.

Metadata is written by the owners of workloads, who are not the operators of gpuscale: it may choose
a policy that is open to its namespace and set scalars within their ranges, and nothing else. No key
takes an address, a query or a path, since the controller would then call or ask for it.
"""

import re
from collections.abc import Mapping
from typing import Any

from gpuscale.errors import ConfigError

TYPES = ("external", "external-push")
METADATA_KEYS_MAX = 64
"""Far above the keys that exist; more is not metadata for gpuscale."""
VALUE_MAX = 253
"""Longest metadata value: a DNS name, the longest thing that a key takes."""
QUOTED_MAX = 64
"""Characters of a foreign value that a refusal repeats: enough to find it, too few to fill a log."""

NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
"""A DNS subdomain, as objects and namespaces are called."""
_ADDRESS = re.compile(
    r"(?P<host>\[[0-9a-fA-F:]{2,45}\]|[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?):(?P<port>\d{1,5})"
)
_OURS = re.compile(r"(^|[.-])gpuscale($|[.-])")
_POLICY = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._]*")
_NUMBER = re.compile(r"[0-9]{1,12}(\.[0-9]{1,17})?")
_DURATION = re.compile(r"(?P<number>[0-9]{1,9}(\.[0-9]{1,9})?)(?P<unit>[smh])?")
_COUNT = re.compile(r"[0-9]{1,9}")
_WORD = re.compile(r"[a-z][a-z0-9-]{0,31}")
_UNIT_S = {None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}

_NUMBERS = {
    "risk": "risk",
    "capacity": "capacity",
    "headroom": "headroom",
    "coverageMin": "coverage_min",
}
_DURATIONS = {
    "startTime": "start_time_s",
    "dwell": "dwell_s",
    "staleAfter": "stale_after_s",
    "hold": "hold_s",
}
_COUNTS = {
    "stepUpMax": "step_up_max",
    "stepDownMax": "step_down_max",
    "metricsPort": "metrics_port",
}
_WORDS = {"server": "server", "mode": "mode"}
FIELDS: Mapping[str, str] = {**_NUMBERS, **_DURATIONS, **_COUNTS, **_WORDS}
"""Metadata key -> field of the policy that it overrides."""
FORMS: Mapping[str, str] = {
    **dict.fromkeys(_NUMBERS, "a number such as 2.5"),
    **dict.fromkeys(_DURATIONS, "seconds, or a duration such as 3m"),
    **dict.fromkeys(_COUNTS, "a whole number"),
    **dict.fromkeys(_WORDS, "one lower-case word"),
}
"""How the value of a key of FIELDS is written."""
_FLAGS = ("gpuscale", "enableTLS", "unsafeSsl")
KEYS: tuple[str, ...] = ("scalerAddress", *_FLAGS, "policy", *FIELDS)
"""Every key that a trigger may carry; scalerAddress, enableTLS and unsafeSsl are KEDA's own."""

_ELSEWHERE = {
    "minReplicas": "set spec.minReplicaCount of the ScaledObject",
    "maxReplicas": "set spec.maxReplicaCount of the ScaledObject",
    "selector": "ask the operator for a policy with that selector",
    "metricsPath": "ask the operator for a policy with that metrics_path",
    "custom": "ask the operator for a policy with those queries",
    "namespaces": "ask the operator, who opens policies to namespaces",
}


def names_gpuscale(trigger: Mapping[str, Any]) -> bool:
    """Whether a trigger (an entry of spec.triggers) is gpuscale's; the rule stands in `declared`."""
    if trigger.get("type") not in TYPES:
        return False
    metadata = trigger.get("metadata")
    if not isinstance(metadata, Mapping):
        return False
    flag = metadata.get("gpuscale")
    if flag is not None:
        return bool(flag != "false")
    address = metadata.get("scalerAddress")
    if not isinstance(address, str) or len(address) > VALUE_MAX:
        return False
    match = _ADDRESS.fullmatch(address)
    return match is not None and _OURS.search(match["host"].lower()) is not None


def parse(metadata: Mapping[str, object]) -> tuple[str | None, dict[str, Any]]:
    """(policy name, fields of the policy that the metadata overrides).

    Raises ConfigError, one sentence naming the key, for an unknown key, a value that is not a
    string, and a string that is not of the key's form. Ranges are the policy's to check.
    """
    if len(metadata) > METADATA_KEYS_MAX:
        raise ConfigError(
            f"the trigger's metadata has {len(metadata)} keys: keep those of gpuscale"
        )
    policy_name: str | None = None
    fields: dict[str, Any] = {}
    for key, value in metadata.items():
        if key not in KEYS:
            raise ConfigError(_unknown(key))
        if not isinstance(value, str) or not 0 < len(value) <= VALUE_MAX:
            raise ConfigError(
                f"metadata key {key} is {quoted(value)}: write a quoted string of 1 to {VALUE_MAX} characters"
            )
        if key == "policy":
            policy_name = _matched(key, value, _POLICY, "the name of a policy")
        elif key in FIELDS:
            fields[FIELDS[key]] = _scalar(key, value)
        elif key in _FLAGS and value not in ("true", "false"):
            raise ConfigError(f'metadata key {key} is {quoted(value)}: write "true" or "false"')
    address = metadata.get("scalerAddress")
    if address is None:
        raise ConfigError(
            "metadata key scalerAddress is missing: set HOST:PORT of gpuscale's service"
        )
    _matched("scalerAddress", str(address), _ADDRESS, "HOST:PORT")
    return policy_name, fields


def fault(metadata: Mapping[str, object]) -> str | None:
    """What is wrong with a trigger's metadata by itself, one sentence; None where nothing is."""
    try:
        parse(metadata)
    except ConfigError as error:
        return str(error)
    return None


def written(fields: Mapping[str, object]) -> dict[str, str]:
    """Fields of a policy as metadata. Raises ConfigError for one that no trigger may carry."""
    keys = {field: key for key, field in FIELDS.items()}
    for field in fields:
        if field not in keys:
            raise ConfigError(
                f"{field} cannot be set in a trigger's metadata: set it in a policy, and name the policy"
            )
    return {
        keys[field]: f"{value:.12f}".rstrip("0").rstrip(".")
        if isinstance(value, float)
        else str(value)
        for field, value in fields.items()
        if value is not None
    }


def quoted(value: object) -> str:
    """A foreign value on one line, short, in quotes where it is text."""
    if not isinstance(value, str | int | float | bool | None):
        return f"a {type(value).__name__}"
    text = repr(value[: QUOTED_MAX + 1] if isinstance(value, str) else value)
    return text if len(text) <= QUOTED_MAX else f"{text[:QUOTED_MAX]}…"


def _scalar(key: str, value: str) -> float | int | str:
    if key in _NUMBERS:
        return float(_matched(key, value, _NUMBER, FORMS[key]))
    if key in _DURATIONS:
        _matched(key, value, _DURATION, FORMS[key])
        unit = value[-1] if value[-1] in "smh" else None
        return float(value.rstrip("smh")) * _UNIT_S[unit]
    if key in _COUNTS:
        return int(_matched(key, value, _COUNT, FORMS[key]))
    return _matched(key, value, _WORD, FORMS[key])


def _matched(key: str, value: str, pattern: re.Pattern[str], expected: str) -> str:
    if pattern.fullmatch(value) is None:
        raise ConfigError(f"metadata key {key} is {quoted(value)}: write {expected}")
    return value


def _unknown(key: object) -> str:
    name = str(key)
    if name in _ELSEWHERE:
        return f"metadata key {name} is not read from a trigger: {_ELSEWHERE[name]}"
    if name.endswith("FromEnv"):
        return f"metadata key {quoted(name)} names an environment variable, which is never read: write the value"
    return f"unknown metadata key {quoted(name)}: remove it, or write one of {', '.join(KEYS)}"
