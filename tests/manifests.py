"""Whether a Kubernetes object is what it means to be: strict schemas, in which a key that nobody knows is an error.

Kinds of Kubernetes itself are judged by kubernetes-validate. The schemas of custom kinds in
`tests/schemas` were made by this file, from the CustomResourceDefinitions in these Go modules
(`go mod download -json MODULE@VERSION`, both under the Apache License 2.0):

    github.com/prometheus-operator/prometheus-operator@v0.85.0  example/prometheus-operator-crd/
    github.com/cert-manager/cert-manager@v1.18.2                deploy/crds/

    python -m tests.manifests FILE…   writes them again

KEDA's are read where they lie, in shared/keda-crds beside the checkout, and looked for in vain
elsewhere: `unknown()` then says so.
"""

import functools
import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

from tests import tools

FOLDER = Path(__file__).parent / "schemas"
KEDA = tools.REPOSITORY.parent / "shared" / "keda-crds"
KUBERNETES = ("1.25", "1.31", "1.35")
"""The oldest release that Chart.yaml admits, one between, a recent one."""
KINDS = frozenset({"Certificate", "Issuer", "PodMonitor", "PrometheusRule", "ServiceMonitor"})
OPAQUE = frozenset({"acme", "vault", "venafi"})
"""Kinds of issuer that nothing here uses, and which are most of that definition."""
DROPPED = frozenset({"description", "default", "format", "nullable"})
"""Formats are told to no validator here; what else begins with x-kubernetes- is the API server's."""
SINCE = {
    "resource.k8s.io/v1": "1.35",
    "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy": "1.31",
    "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicyBinding": "1.31",
}
"""Of the releases above, the first that serves an API (or API/kind) that the oldest does not."""


def strict(schema: dict[str, Any], name: str = "") -> dict[str, Any]:
    """A structural schema as JSON Schema, in which a key that is not named is an error."""
    if name in OPAQUE:
        return {"type": "object"}
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    made = {
        key: value
        for key, value in schema.items()
        if key not in DROPPED and not key.startswith("x-kubernetes-")
    }
    if "(?i)" in made.get("pattern", ""):
        del made["pattern"]  # Go's spelling, which is no regular expression here
    if "properties" in made:
        made["properties"] = {k: strict(v, k) for k, v in made["properties"].items()}
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            made["additionalProperties"] = False
    for key in ("items", "additionalProperties"):
        if isinstance(made.get(key), dict):
            made[key] = strict(made[key])
    return made


def schema_of(crd: dict[str, Any]) -> dict[str, Any]:
    """The strict schema of a definition's stored version."""
    (version,) = (v for v in crd["spec"]["versions"] if v["storage"])
    made = strict(version["schema"]["openAPIV3Schema"])
    made["properties"] |= {
        "apiVersion": {"const": f"{crd['spec']['group']}/{version['name']}"},
        "kind": {"const": crd["spec"]["names"]["kind"]},
        "metadata": {"type": "object", "required": ["name"]},
    }
    made["required"] = sorted({*made.get("required", ()), "apiVersion", "kind", "metadata"})
    return made


@functools.cache
def custom() -> dict[str, dict[str, Any]]:
    """Schemas of the custom kinds that are known here, by kind."""
    found = {path.stem: json.loads(path.read_text()) for path in FOLDER.glob("*.json")}
    for path in KEDA.glob("*.yaml"):
        crd = yaml.safe_load(path.read_text())
        found[crd["spec"]["names"]["kind"]] = schema_of(crd)
    return found


def unknown(document: dict[str, Any]) -> bool:
    """Whether it is of a custom kind that cannot be judged here."""
    group = document["apiVersion"].rpartition("/")[0]
    builtin = "." not in group or group.endswith(".k8s.io")
    return not builtin and document["kind"] not in custom()


def check(document: dict[str, Any], *, since: str = KUBERNETES[0]) -> None:
    """Raise where the object is not valid in every release from `since` on that serves its kind."""
    schema = custom().get(document["kind"])
    if schema is not None:
        jsonschema.validate(document, schema)
        return
    api, kind = document["apiVersion"], document["kind"]
    served = SINCE.get(f"{api}/{kind}", SINCE.get(api, since))
    for version in KUBERNETES[max(KUBERNETES.index(since), KUBERNETES.index(served)) :]:
        kubernetes_validate.validate(document, version, strict=True)


def main(paths: list[str]) -> int:
    """Write a schema per kind of the definitions in the files; the exit code."""
    for path in paths:
        for crd in yaml.safe_load_all(Path(path).read_text()):
            if crd and crd["spec"]["names"]["kind"] in KINDS:
                text = json.dumps(schema_of(crd), indent=1, sort_keys=True) + "\n"
                (FOLDER / f"{crd['spec']['names']['kind']}.json").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
