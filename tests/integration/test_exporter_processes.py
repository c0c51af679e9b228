"""Reading a process from a /proc of files: nothing but cgroup and stat, and never the wrong process."""

from pathlib import Path

import pytest

from gpuscale.exporter.cgroup import Kind
from gpuscale.exporter.processes import PROCESSES_MAX, Processes
from tests.fakes.proc import FakeProc, pod_cgroup

UID = "3f2a9c1e-5b7d-4e8f-9a0b-1c2d3e4f5a6b"


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path / "proc")


def test_a_process_is_tied_to_its_pod(proc: FakeProc) -> None:
    proc.run(4711, cgroup=pod_cgroup(UID), comm="vllm", started=77)
    found = Processes(str(proc.root)).look([4711])[4711]
    assert (found.started, found.comm) == (77, "vllm")
    assert found.owner.pod_uid == UID


def test_one_that_has_ended_is_left_out(proc: FakeProc) -> None:
    proc.run(5, cgroup="/", started=1)
    proc.end(5)
    assert Processes(str(proc.root)).look([5, 6]) == {}


@pytest.mark.parametrize("comm", ["a) S 1 2 (b", "x y", "(((", ")))", "nl\nnl", ""])
def test_a_name_made_to_mislead_misleads_nobody(proc: FakeProc, comm: str) -> None:
    proc.run(9, cgroup="/", comm=comm, started=123)
    found = Processes(str(proc.root)).look([9])[9]
    assert (found.comm, found.started) == (comm, 123)


def test_a_number_that_is_given_on_between_the_reads_belongs_to_nobody(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cgroup would be the new process's, the start time the old one's."""
    proc.run(9, cgroup="/", started=1)
    processes = Processes(str(proc.root))
    read = processes._read

    def reading(name: str, bytes_max: int) -> bytes | None:
        content = read(name, bytes_max)
        if name == "9/cgroup":
            proc.run(9, cgroup=pod_cgroup(UID), started=2)
        return content

    monkeypatch.setattr(processes, "_read", reading)
    assert processes.look([9]) == {}


def test_without_the_hosts_pid_namespace_it_says_so_with_the_cure(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path / "proc", host=False)
    obstacle = Processes(str(proc.root)).obstacle()
    assert obstacle is not None
    assert "set hostPID" in obstacle
    proc.run(2, cgroup="/", comm="sleep")
    assert Processes(str(proc.root)).obstacle() == obstacle, "the second process of a container"
    missing = Processes(str(tmp_path / "none")).obstacle()
    assert missing is not None
    assert "processes.proc" in missing


def test_in_the_hosts_pid_namespace_nothing_is_in_the_way(proc: FakeProc) -> None:
    assert Processes(str(proc.root)).obstacle() is None


def test_living_pods_are_those_with_a_process(proc: FakeProc) -> None:
    proc.run(10, cgroup=pod_cgroup(UID))
    proc.run(11, cgroup="/system.slice/sshd.service")
    (proc.root / "4999").mkdir()
    assert Processes(str(proc.root)).living_pods() == frozenset({UID})


def test_its_own_processes_are_known_as_its_own(proc: FakeProc) -> None:
    proc.run(12, cgroup="/")
    found = Processes(str(proc.root), own_pod_uid=UID).look([12])[12]
    assert (found.owner.kind, found.owner.pod_uid) == (Kind.OWN, UID)


def test_a_host_that_forks_without_end_is_read_up_to_the_limit(proc: FakeProc) -> None:
    proc.run(3, cgroup="/")
    looked = Processes(str(proc.root)).look(range(1, PROCESSES_MAX * 3))
    assert set(looked) == {2, 3}


@pytest.mark.parametrize(
    "content", [b"", b"5 (x", b"5 (x) S 1", b"\xff\xfe", b"5 (x) " + b"a " * 60]
)
def test_a_stat_that_no_kernel_writes_is_no_process(proc: FakeProc, content: bytes) -> None:
    proc.run(5, cgroup="/")
    (proc.root / "5" / "stat").write_bytes(content)
    assert Processes(str(proc.root)).look([5]) == {}
