"""Bring what is derived in `deploy/` up to date: the chart's copies, its settings schema, the static manifest.

Helm reads nothing outside the chart's folder, and Argo CD and Flux do not follow links out of it,
so alerts and dashboards are copied in. `--check` writes nothing and exits 1 where something is not
up to date.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec

from gpuscale.settings import ControllerSettings, ExporterSettings

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "deploy" / "helm" / "gpuscale"
STATIC = ROOT / "deploy" / "static" / "gpuscale.yaml"
NAMESPACE = "gpuscale"

OWN_DEFINITIONS = ("StringMap", "Resources")
"""Definitions of values.schema.json that are written by hand; all others come from the settings."""

STATIC_HEAD = f"""\
# What the chart renders with its default values, for those who do not use Helm:
#   kubectl apply -f deploy/static/gpuscale.yaml
# Written by deploy/build.py: change the chart, not this file.
# The namespace admits the exporter's hostPath, which the levels below `privileged` refuse.
---
apiVersion: v1
kind: Namespace
metadata:
  name: {NAMESPACE}
  labels:
    pod-security.kubernetes.io/enforce: privileged
"""


def main() -> int:
    """Write or check; the exit code: 0 up to date, 1 not, with a line per file on standard error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing, exit 1 on a difference"
    )
    check = parser.parse_args().check
    stale = refresh({**copies(), **schema()}, check=check)
    # The render reads what was just written, hence last.
    helm = find_helm()
    if helm is None:
        sys.stderr.write("deploy/static is left as it is: helm is missing (make tools)\n")
    else:
        stale += refresh(static(helm), check=check)
    for path in stale:
        sys.stderr.write(f"{path}: {'is not up to date: make chart' if check else 'written'}\n")
    return 1 if check and stale else 0


def copies() -> dict[Path, bytes | None]:
    """Alerts and dashboards as the chart carries them; None for a copy whose original is gone."""
    wanted: dict[Path, bytes | None] = {}
    for kind, pattern in (("alerts", "*.yaml"), ("dashboards", "*.json")):
        folder = CHART / "files" / kind
        wanted |= dict.fromkeys(folder.glob("*"))
        wanted |= {folder / p.name: p.read_bytes() for p in (ROOT / kind).glob(pattern)}
    return wanted


def schema() -> dict[Path, bytes | None]:
    """values.schema.json, its definitions of the two settings files taken from the code."""
    path = CHART / "values.schema.json"
    whole = json.loads(path.read_text())
    own = {name: whole["$defs"][name] for name in OWN_DEFINITIONS}
    _, settings = msgspec.json.schema_components(
        [ExporterSettings, ControllerSettings], ref_template="#/$defs/{name}"
    )
    whole["$defs"] = own | dict(sorted(settings.items()))
    return {path: (json.dumps(whole, indent=2, ensure_ascii=False) + "\n").encode()}


def static(helm: str) -> dict[Path, bytes | None]:
    """The default render."""
    command = [helm, "template", "gpuscale", str(CHART), "--namespace", NAMESPACE, "--no-hooks"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - fixed arguments
    # Applied by kubectl, the objects belong to no Helm release, and must not say so.
    text = done.stdout.replace("managed-by: Helm", "managed-by: kubectl")
    return {STATIC: (STATIC_HEAD + text).encode()}


def find_helm() -> str | None:
    """HELM, PATH, then `.tools/helm`, as the tests look."""
    return shutil.which(os.environ.get("HELM") or "helm") or shutil.which(ROOT / ".tools" / "helm")


def refresh(wanted: dict[Path, bytes | None], *, check: bool) -> list[Path]:
    """Files that differ from what is wanted, relative to the repository; written unless `check`."""
    stale = []
    for path, content in sorted(wanted.items()):
        present = path.read_bytes() if path.exists() else None
        if present == content:
            continue
        stale.append(path.relative_to(ROOT))
        if check:
            continue
        if content is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return stale


if __name__ == "__main__":
    sys.exit(main())
