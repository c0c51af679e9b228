"""Where the programs of the control plane are, and the mark that skips tests where they are not."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CURE = "build it with `make controlplane` (minutes, from the Go module proxy), or set KUBEBUILDER_ASSETS"

KUBERNETES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok")
KEDA = ("keda-operator", "keda-adapter")


def cache() -> Path:
    """The folder that `build` fills; outside the repository, so that every checkout has its use of it."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "gpuscale" / "controlplane"


def find(name: str) -> Path | None:
    """A program in KUBEBUILDER_ASSETS or among what was built; None where it is in neither."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    for folder in (Path(assets) if assets else None, cache() / "bin"):
        if folder is not None and os.access(folder / name, os.X_OK):
            return folder / name
    return None


def path(name: str) -> Path:
    """The program. Raises FileNotFoundError with the cure."""
    found = find(name)
    if found is None:
        raise FileNotFoundError(f"{name} is missing: {CURE}")
    return found


def requires(*names: str) -> pytest.MarkDecorator:
    """The mark that skips a test where any of the programs is missing."""
    missing = [name for name in names if find(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} missing: {CURE}")


def crds() -> Sequence[Path]:
    """KEDA's CustomResourceDefinitions, which `build` copies out of the module it built."""
    return sorted((cache() / "crds").glob("*.yaml"))
