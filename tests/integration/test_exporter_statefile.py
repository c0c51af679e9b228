"""The accounts on disk: whole or not at all, and never believed when they cannot be true."""

import dataclasses
from pathlib import Path

import pytest

from gpuscale.errors import InputError
from gpuscale.exporter import statefile
from gpuscale.exporter.accounting import Saved

SAVED = Saved(
    at=1_700_000_000.25,
    gpus=("GPU-0", "GPU-1"),
    node=(("allocated", 0.1 + 0.2), ("unallocated", 1e9), ("unknown", 0.0)),
    namespaces=(("chat", "nvidia.com/gpu", 'NVIDIA "H100"\n', "active", 1 / 3),),
    joules=(("", 5e12), ("chat", 1.0)),
    energy=(("GPU-0", 123.456),),
)


def test_what_is_saved_is_what_is_loaded(tmp_path: Path) -> None:
    path = str(tmp_path / "accounts.json")
    assert statefile.load(path) is None
    statefile.save(path, SAVED)
    assert statefile.load(path) == SAVED
    assert [file.name for file in tmp_path.iterdir()] == ["accounts.json"]


def test_a_failed_write_leaves_the_old_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "accounts.json")
    statefile.save(path, SAVED)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        statefile.save(path, Saved(at=1.0, gpus=(), node=(), namespaces=(), joules=(), energy=()))
    assert statefile.load(path) == SAVED
    assert [file.name for file in tmp_path.iterdir()] == ["accounts.json"]


def test_who_reads_while_it_is_written_has_the_old_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "accounts.json"
    statefile.save(str(path), SAVED)
    old = path.read_bytes()
    with path.open("rb") as reader:
        statefile.save(str(path), dataclasses.replace(SAVED, node=()))
        assert reader.read() == old
    assert path.read_bytes() != old


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"at": 1}',
        b"\x00" * 100,
        b'{"at":-1.0,"gpus":[],"node":[],"namespaces":[],"joules":[],"energy":[]}',
        b'{"at":1.0,"gpus":[],"node":[["allocated",-5.0]],"namespaces":[],"joules":[],"energy":[]}',
        b'{"at":1.0,"gpus":[],"node":[["allocated",1e999]],"namespaces":[],"joules":[],"energy":[]}',
        b'{"at":1.0,"gpus":[],"node":[["stolen",1.0]],"namespaces":[],"joules":[],"energy":[]}',
        b'{"at":1.0,"gpus":[],"node":[],"namespaces":[["a","b","c","stolen",1.0]],"joules":[],"energy":[]}',
    ],
)
def test_a_file_that_cannot_be_true_is_named_and_set_aside(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "accounts.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"accounts\.json .*set aside"):
        statefile.load(str(path))
    statefile.set_aside(str(path))
    assert not path.exists()
    assert (tmp_path / "accounts.json.unusable").read_bytes() == content
