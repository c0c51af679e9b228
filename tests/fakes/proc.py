"""A /proc of files: processes that a test starts, ends and replaces under the same number."""

from pathlib import Path


class FakeProc:
    """Of the host, as `hostPID` shows it: with kthreadd; not so with `host=False`."""

    def __init__(self, root: Path, *, host: bool = True, own_cgroup: str = "/") -> None:
        self.root = root
        self.run(2 if host else 1, cgroup="/", comm="kthreadd" if host else "gpuscale")
        own = root / "self"
        own.mkdir(parents=True)
        (own / "cgroup").write_text(f"0::{own_cgroup}\n")

    def run(self, pid: int, *, cgroup: str, comm: str = "python3", started: int = 100) -> None:
        """A process with this number; one that had it before has ended."""
        folder = self.root / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup").write_text(f"0::{cgroup}\n")
        fields = ["S", "1", *(["0"] * 17), str(started), *(["0"] * 30)]
        (folder / "stat").write_bytes(f"{pid} ({comm}) {' '.join(fields)}\n".encode())

    def end(self, pid: int) -> None:
        """It is gone."""
        folder = self.root / str(pid)
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()


def pod_cgroup(uid: str, container: str = "c" * 64) -> str:
    """As the systemd driver and containerd make it."""
    name = f"kubepods-burstable-pod{uid.replace('-', '_')}.slice"
    return f"/../../{name}/cri-containerd-{container}.scope"
