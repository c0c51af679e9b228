"""Build the control plane from the pinned modules into the cache: `python -m tests.e2e.controlplane.build`.

A quarter of an hour on two cores the first time, seconds when nothing changed. What was built stands
beside a record of the modules it came from, so that another checkout does not build it again.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.e2e.controlplane.binaries import HERE, cache

TOOLS: Mapping[str, tuple[str, str]] = {
    "etcd": (".", "go.etcd.io/etcd/server/v3"),
    "kwok": ("kwok", "sigs.k8s.io/kwok/cmd/kwok"),
    "kube-apiserver": (".", "k8s.io/kubernetes/cmd/kube-apiserver"),
    "kube-controller-manager": (".", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    "kube-scheduler": (".", "k8s.io/kubernetes/cmd/kube-scheduler"),
    "keda-adapter": (".", "github.com/kedacore/keda/v2/cmd/adapter"),
    "keda-operator": (".", "github.com/kedacore/keda/v2/cmd/operator"),
}
"""Program -> (folder of its go.mod, package)."""
KEDA_MODULE = "github.com/kedacore/keda/v2"


def digest(folder: Path) -> str:
    """What decides a build: the pinned modules."""
    sums = hashlib.sha256()
    for name in ("go.mod", "go.sum"):
        sums.update((folder / name).read_bytes())
    return sums.hexdigest()


def version_of(folder: Path, module: str) -> str:
    """The version that the folder's go.mod requires of a module."""
    found = re.search(
        rf"^\t?{re.escape(module)} (v\S+)", (folder / "go.mod").read_text(), re.MULTILINE
    )
    if found is None:
        raise ValueError(f"{folder / 'go.mod'} does not require {module}: add it")
    return found[1]


def linker_flags(kubernetes: str) -> str:
    """Without symbols, and with the version that an API server tells its clients (KEDA reads it)."""
    major, minor, _ = kubernetes.removeprefix("v").split(".", 2)
    stamps = {"gitVersion": kubernetes, "gitMajor": major, "gitMinor": minor}
    told = " ".join(f"-X k8s.io/component-base/version.{k}={v}" for k, v in stamps.items())
    return f"-s -w {told}"


def build(name: str, target: Path, flags: str) -> None:
    """Build one program, politely: others work on this machine too."""
    where, package = TOOLS[name]
    folder = HERE / where
    record = target / f".{name}.sum"
    wanted = digest(folder)
    if (target / name).exists() and record.exists() and record.read_text() == wanted:
        return
    print(f"building {name}", flush=True)
    subprocess.run(
        ["nice", "-n", "15", "go", "build", "-mod=readonly", "-trimpath",
         "-ldflags", flags, "-o", str(target / name), package],
        cwd=folder, env={**os.environ, "CGO_ENABLED": "0"}, check=True,
    )  # fmt: skip
    record.write_text(wanted)


def copy_crds(target: Path) -> None:
    """KEDA's CRDs as its module has them."""
    done = subprocess.run(
        ["go", "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", KEDA_MODULE],
        cwd=HERE, capture_output=True, text=True, check=True,
    )  # fmt: skip
    target.mkdir(parents=True, exist_ok=True)
    for source in sorted((Path(done.stdout.strip()) / "config" / "crd" / "bases").glob("*.yaml")):
        # Not shutil.copy: files of the module cache are read-only, and copies would be too.
        (target / source.name).write_bytes(source.read_bytes())


def main() -> int:
    """Build what is missing or old. The exit code says whether all is there."""
    if shutil.which("go") is None:
        print("go is missing: install Go 1.26 or later, then run this again", file=sys.stderr)
        return 69
    target = cache() / "bin"
    target.mkdir(parents=True, exist_ok=True)
    flags = linker_flags(version_of(HERE, "k8s.io/kubernetes"))
    try:
        for name in TOOLS:
            build(name, target, flags)
        copy_crds(cache() / "crds")
    except subprocess.CalledProcessError as error:
        print(f"{' '.join(error.cmd[:5])} … failed: see above", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
