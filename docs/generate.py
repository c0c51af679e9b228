"""Writes docs/metrics.md from the catalog, docs/configuration.md from the settings types,
docs/servers.md from the tables of inference servers and docs/rules.md from the rules on manifests.

`make docs` writes them; a test calls the same functions and fails where a committed page differs.
"""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from gpuscale import catalog, settings
from gpuscale.controller import trigger
from gpuscale.controller.servers import SERVERS
from gpuscale.exporter import dcgmfields
from gpuscale.lint import rules

HERE = Path(__file__).parent


def metrics_page() -> str:
    """docs/metrics.md."""
    out = [
        "# Metrics",
        "",
        "Written from `gpuscale/catalog/` by `make docs`. Names, types and labels in this table are",
        "kept: a metric is deprecated for one minor version before it goes. A series whose value is",
        "unknown is absent, never 0: `absent()` and `unless` see it, a sum does not lie.",
        "",
    ]
    for title, families in (("Exporter", catalog.EXPORTER), ("Controller", catalog.CONTROLLER)):
        out += [f"## {title}", "", "| metric | type | labels | meaning |", "|---|---|---|---|"]
        for f in families:
            labels = ", ".join(f"`{name}`" for name in f.labels) or "–"
            out.append(f"| `{f.name}` | {f.kind} | {labels} | {f.help} |")
        out.append("")
    out += [
        "## Series under dcgm-exporter's names",
        "",
        "On by default (`dcgm.enabled`), so that its dashboards and queries go on working, with its",
        "labels `gpu`, `UUID`, `pci_bus_id`, `device`, `modelName`, `GPU_I_PROFILE` and `GPU_I_ID` (MIG",
        "only), `Hostname` (or `hostname`), `DCGM_FI_DRIVER_VERSION`, and `container`, `namespace`,",
        "`pod` where exactly one container holds the GPU or instance. What differs on purpose, and",
        "why, is in [Moving from dcgm-exporter](moving-from-dcgm-exporter.md).",
        "",
        "| series | type | help | from |",
        "|---|---|---|---|",
        *(_dcgm_row(field) for field in dcgmfields.DEFAULT),
        "",
        "Published where `dcgm.extra_fields` names them:",
        "",
        "| series | type | help | from |",
        "|---|---|---|---|",
        *(_dcgm_row(field) for field in dcgmfields.OPTIONAL),
        "",
    ]
    return "\n".join(out)


def _dcgm_row(field: dcgmfields.Field) -> str:
    source = f"`{field.family}`" if field.family else "read for this series alone"
    return f"| `{field.name}` | {field.kind} | {field.help} | {source} |"


def _type_name(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_type_name(part) for part in schema["anyOf"])
    if "$ref" in schema:
        return f"[{schema['$ref'].rsplit('/', 1)[1]}](#{schema['$ref'].rsplit('/', 1)[1].lower()})"
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_type_name(schema.get('items', {}))}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"map of {_type_name(schema['additionalProperties'])}"
    bounds = []
    for key, sign in (
        ("exclusiveMinimum", ">"),
        ("minimum", "≥"),
        ("exclusiveMaximum", "<"),
        ("maximum", "≤"),
    ):
        if key in schema:
            bounds.append(f"{sign} {schema[key]:g}")
    return f"{kind} {', '.join(bounds)}".strip()


def _default(value: object) -> str:
    if value is None:
        return "none"
    text = msgspec.json.encode(value).decode()
    return f"`{text}`" if len(text) <= 60 else "see its own table"


def _section(name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f"## {name}"
    yield ""
    kind = getattr(settings, name)
    yield (inspect.getdoc(kind) or "").splitlines()[0]
    yield ""
    yield "| key | type | default | meaning |"
    yield "|---|---|---|---|"
    required = set(schema.get("required", ()))
    for key, field in schema["properties"].items():
        default = "**required**" if key in required else _default(field.get("default"))
        text = field.get("description", "").replace("|", "\\|")
        shown = _type_name(field).replace("|", "\\|")
        yield f"| `{key}` | {shown} | {default.replace('|', chr(92) + '|')} | {text} |"
    yield ""


def configuration_page() -> str:
    """docs/configuration.md."""
    out = [
        "# Configuration",
        "",
        "Written from `gpuscale/settings/` by `make docs`. Each daemon takes one YAML file",
        "(`--config FILE`); every key has a default unless it says **required**. Unknown keys, wrong",
        "types and values out of range are refused with one sentence. `gpuscale config check FILE`",
        "checks a file, `gpuscale config schema` prints the JSON Schema.",
        "",
    ]
    done: set[str] = set()
    for root in (settings.ExporterSettings, settings.ControllerSettings):
        (_,), components = msgspec.json.schema_components([root], ref_template="#/$defs/{name}")
        order = [root.__name__, *(n for n in components if n != root.__name__)]
        for name in order:
            if name not in done:
                done.add(name)
                out += _section(name, components[name])
    out += _trigger_section()
    return "\n".join(out)


KEDA_KEYS = {
    "scalerAddress": ("HOST:PORT", "Where KEDA calls gpuscale. **Required.**"),
    "gpuscale": (
        "`true` or `false`",
        "Whether the trigger is gpuscale's, where its address does not tell (`gpuscale` as one part "
        "of the host's name does).",
    ),
    "enableTLS": ("`true` or `false`", "Read by KEDA: call over TLS."),
    "unsafeSsl": ("`true` or `false`", "Read by KEDA: do not check the certificate."),
    "policy": ("a name", "The policy to start from, one that is open to the namespace."),
}
"""Keys of a trigger that no field of a policy stands behind: (form, meaning)."""


def _trigger_section() -> Iterator[str]:
    (_,), components = msgspec.json.schema_components([settings.Policy], ref_template="{name}")
    fields = components["Policy"]["properties"]
    yield "## Trigger metadata"
    yield ""
    yield "What a ScaledObject's trigger of type `external` or `external-push` may say under `metadata`,"
    yield "every value a quoted string. It overrides the policy for this workload, within the same ranges;"
    yield "replicas are bounded by the ScaledObject's own `minReplicaCount` and `maxReplicaCount`. Any"
    yield "other key is refused, addresses and queries among them."
    yield ""
    yield "| key | value | overrides | meaning |"
    yield "|---|---|---|---|"
    for key in trigger.KEYS:
        if key in trigger.FIELDS:
            name = trigger.FIELDS[key]
            form, meaning = trigger.FORMS[key], fields[name]["description"]
            shown = f"`{name}`, {_type_name(fields[name])}".removesuffix(" or null")
        else:
            (form, meaning), shown = KEDA_KEYS[key], "–"
        yield f"| `{key}` | {form} | {shown} | {meaning} |"
    yield ""


SIGNAL_TITLES = {
    "completed": "ended",
    "waiting": "waiting",
    "running": "running",
    "sojourn_s": "seconds inside",
    "queue_s": "seconds waited",
    "unserved": "of them unserved",
    "kv_fraction": "KV cache in use",
    "prompt_tokens": "prompt tokens",
    "generation_tokens": "generated tokens",
    "busy": "GPUs busy",
    "startup_s": "engine start",
}


def servers_page() -> str:
    """docs/servers.md."""
    out = [
        "# Inference servers",
        "",
        "Written from `gpuscale/controller/servers/` by `make docs`. A policy's `server` names one; its",
        "metric names are then looked up, newest first, on the pods' pages or in Prometheus. A pod that",
        "shows none of them is an error that lists what was looked for, and never a zero.",
        "",
        "Demand is what ended plus the growth of what waits and runs. A server without gauges of these",
        "is read by Little's law: the rate of the seconds that requests spent is their mean number.",
        "",
        "| `server` | server | from version | page | demand in | acts |",
        "|---|---|---|---|---|---|",
    ]
    for name, table in SERVERS.items():
        acts = (
            "**no**: it scales itself, gpuscale only recommends" if table.recommend_only else "yes"
        )
        out.append(
            f"| `{name}` | {table.title} | {table.since} | `:{table.port}{table.path}` | "
            f"{table.unit}/s | {acts} |"
        )
    out += [
        "| `custom` | any other | Prometheus only | – | requests/s | yes |",
        "",
        "`custom` reads the PromQL under the policy's key `custom` (see",
        "[CustomQueries](configuration.md#customqueries)). It stands in the operator's file alone: a",
        "ScaledObject can name such a policy, and never a query.",
        "",
    ]
    for name, table in SERVERS.items():
        out += [
            f"## {table.title} (`{name}`)",
            "",
            "| signal | metrics, newest first |",
            "|---|---|",
        ]
        for signal, metric in table.metrics.items():
            names = ", ".join(f"`{metric.shown(n)}`" for n in metric.names)
            plus = "".join(f" + `{metric.shown(n)}`" for n in metric.plus)
            scale = "" if metric.factor == 1 else f" (× {metric.factor:g})"
            out.append(f"| {SIGNAL_TITLES[signal]} | {names}{plus}{scale} |")
        if table.copies:
            labels = ", ".join(f"`{label}`" for label in table.copies)
            out += ["", f"Series that differ only in {labels} are copies: the largest counts."]
        out.append("")
    return "\n".join(out)


RULE_GROUPS = (
    ("Pods and what makes them", rules.PODS),
    ("What operators write", rules.CLUSTER),
    ("Autoscalers", rules.SCALING),
    ("GPUs past the scheduler", rules.BYPASS),
)


def rules_page() -> str:
    """docs/rules.md."""
    out = [
        "# Rules",
        "",
        "Written from `gpuscale/lint/rules.py` by `make docs`. `gpuscale lint` looks for GPU-L,",
        "`gpuscale audit` for GPU-A; the exporter's node audit has GPU-N ([allocation](allocation.md)).",
        "An error is refused by the API server or cannot work; a warning does not do what it is for;",
        "an info is right in some clusters. [Audit and lint](audit.md) says how they are run.",
        "",
    ]
    for title, group in RULE_GROUPS:
        out += [
            f"## {title}",
            "",
            "| rule | severity | finds | what follows | cure |",
            "|---|---|---|---|---|",
        ]
        out += [
            f"| {rule.id} | {rule.severity} | {rule.title} | {rule.why} | {rule.cure} |"
            for rule in sorted(group, key=lambda rule: rule.id)
        ]
        out.append("")
    return "\n".join(out)


PAGES = {
    "rules.md": rules_page,
    "servers.md": servers_page,
    "metrics.md": metrics_page,
    "configuration.md": configuration_page,
}

if __name__ == "__main__":
    for file, page in PAGES.items():
        (HERE / file).write_text(page(), encoding="utf-8")
        print(f"wrote docs/{file}")
    sys.exit(0)
