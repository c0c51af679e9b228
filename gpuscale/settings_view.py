"""Settings shown to people: what holds, as YAML, and every key with its range, as JSON Schema."""

from typing import Any

import msgspec
import yaml

from gpuscale.errors import InputError
from gpuscale.settings import ControllerSettings, ExporterSettings

KINDS: dict[str, type[ExporterSettings] | type[ControllerSettings]] = {
    "exporter": ExporterSettings,
    "controller": ControllerSettings,
}
"""Settings by daemon."""


def part(
    settings: ExporterSettings | ControllerSettings,
    *,
    policy: str | None = None,
    workload: str | None = None,
) -> dict[str, Any]:
    """The settings as plain data, or one policy, or the policy of one workload with its overrides.

    Raises InputError for a workload or a policy that is not there, ConfigError as `policy_named`.
    """
    if policy is None and workload is None:
        found: object = settings
    elif not isinstance(settings, ControllerSettings):
        raise InputError("the exporter has no policies: leave --policy and --workload out")
    elif workload is None:
        found = settings.policy_named(None if policy == "defaults" else policy)
    else:
        declared = {f"{w.namespace}/{w.name}": w for w in settings.workloads}
        if workload not in declared:
            known = ", ".join(list(declared)[:20]) or "none is declared there"
            raise InputError(f"{workload} does not stand under `workloads` in the file: {known}")
        found = settings.policy_of(declared[workload])
    plain: dict[str, Any] = msgspec.to_builtins(found)
    return plain


def as_yaml(plain: dict[str, Any]) -> str:
    """Plain data as YAML that `config.load` reads back as the same settings."""
    return yaml.safe_dump(_lists(plain), sort_keys=False, allow_unicode=True)


def _lists(value: Any) -> Any:
    """Tuples as lists: YAML has no other sequence."""
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_lists(item) for item in value]
    return value


def schema(daemon: str) -> dict[str, Any]:
    """The JSON Schema of a daemon's settings."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Settings of gpuscale {daemon}",
        **msgspec.json.schema(KINDS[daemon]),
    }
