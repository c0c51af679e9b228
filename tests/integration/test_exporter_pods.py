"""The pods of a node by the names of the kubelet's log directories."""

import os
from pathlib import Path

from gpuscale.exporter.pods import PODS_MAX, Pod, newest, pods_in

UID = "3f2a9c1e-5b7d-4e8f-9a0b-1c2d3e4f5a6b"
HASH = "0123456789abcdef0123456789abcdef"


def make(root: Path, name: str, at: float = 1000.0) -> None:
    (root / name).mkdir()
    os.utime(root / name, (at, at))


def test_namespace_name_and_uid_are_read_and_static_pods_too(tmp_path: Path) -> None:
    make(tmp_path, f"chat_vllm-0_{UID}", 5.0)
    make(tmp_path, f"kube-system_etcd-node.1_{HASH}", 6.0)
    found = pods_in(str(tmp_path))
    assert found is not None
    assert set(found) == {
        Pod(namespace="chat", name="vllm-0", uid=UID, since=5.0),
        Pod(namespace="kube-system", name="etcd-node.1", uid=HASH, since=6.0),
    }


def test_what_is_no_pods_directory_is_passed_over(tmp_path: Path) -> None:
    for name in (
        "lost+found",
        "a_b",
        f"A_b_{UID}",
        f"a_b_{UID}x",
        f"a_b_c_{UID}",
        'x"}_y_z',
        "_" * 50,
    ):
        make(tmp_path, name)
    assert pods_in(str(tmp_path)) == ()


def test_a_directory_that_cannot_be_read_is_unknown_and_not_empty(tmp_path: Path) -> None:
    assert pods_in(str(tmp_path / "none")) is None
    (tmp_path / "file").touch()
    assert pods_in(str(tmp_path / "file")) is None


def test_a_recreated_pod_is_the_newest_of_its_name() -> None:
    old = Pod(namespace="a", name="web-0", uid="1", since=1.0)
    new = Pod(namespace="a", name="web-0", uid="2", since=2.0)
    assert newest([new, old]) == newest([old, new]) == {("a", "web-0"): new}


def test_left_overs_are_read_up_to_a_limit(tmp_path: Path) -> None:
    for number in range(PODS_MAX + 10):
        (tmp_path / f"a_b-{number}_{UID}").mkdir()
    found = pods_in(str(tmp_path))
    assert found is not None
    assert len(found) == PODS_MAX
