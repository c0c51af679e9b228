"""Work on a GPU that no allocation explains: what is found, what is not, and how long it must last."""

import pytest

from gpuscale.exporter.audit import FINDINGS_MAX, Allowed, Audit, Seen, counts
from gpuscale.exporter.cgroup import Kind, Owner
from gpuscale.exporter.device import ComputeProcess, MigInstance
from gpuscale.exporter.pods import Pod
from gpuscale.exporter.processes import Process
from gpuscale.exporter.sample import DeviceSample, ProcessReading, Sample
from gpuscale.exporter.usage import Allocation, Finding
from tests.fakes.gpu import identity
from tests.fakes.node import allocation

GIB = 1 << 30
A, B = identity(0), identity(1)
HOLDER = Pod(namespace="inference", name="vllm-0", uid="uid-holder", since=1.0)
STRAY = Pod(namespace="lab", name="notebook", uid="uid-stray", since=1.0)
DAEMON = Pod(namespace="gpu-operator", name="dcgm-x", uid="uid-daemon", since=1.0)
PODS = {pod.uid: pod for pod in (HOLDER, STRAY, DAEMON)}
ALLOWED = Allowed(
    namespaces=("gpu-*",), pods=("kube-system/nvidia-*",), commands=("nvidia-persiste",)
)


def process(
    pid: int, kind: Kind = Kind.POD, pod: Pod | None = None, comm: str = "python"
) -> Process:
    owner = Owner(
        kind=kind,
        pod_uid=None if pod is None else pod.uid,
        container_id="d" * 64 if kind is Kind.DOCKER else None,
        unit="session-3.scope" if kind is Kind.SESSION else None,
    )
    return Process(pid=pid, started=1, comm=comm, owner=owner)


def device(
    *pids: int, used: float = 20 * GIB, gpu: int = 0, mig: tuple[MigInstance, ...] = ()
) -> DeviceSample:
    return DeviceSample(
        identity=identity(gpu),
        up=True,
        reason=None,
        read_at=1.0,
        samples=(
            Sample(family="gpuscale_gpu_memory_used_bytes", value=used),
            Sample(family="gpuscale_gpu_memory_total_bytes", value=80.0 * GIB),
        ),
        mig=mig,
        processes=ProcessReading(
            processes=tuple(ComputeProcess(pid=pid, used_memory_bytes=GIB) for pid in pids),
            utilization=(),
        ),
    )


def judged(
    *devices: DeviceSample,
    processes: tuple[Process, ...] = (),
    allocations: tuple[Allocation, ...] | None = (allocation(A.uuid),),
    pods: dict[str, Pod] | None = PODS,
    allowed: Allowed = ALLOWED,
) -> tuple[Finding, ...]:
    """What stands after half a minute of the same."""
    audit = Audit(allowed, persist_s=30)
    found: tuple[Finding, ...] = ()
    for at in (0.0, 15.0, 30.0):
        found = audit.look(
            Seen(
                at=at,
                devices=devices,
                processes={p.pid: p for p in processes},
                pods_by_uid=pods,
                allocations=allocations,
            )
        )
    return found


def test_the_holder_of_a_gpu_is_no_finding() -> None:
    assert judged(device(1), processes=(process(1, pod=HOLDER),)) == ()


def test_n01_a_pod_without_any_gpu_is_found_with_its_name_and_memory() -> None:
    (found,) = judged(device(1, 2), processes=(process(1, pod=STRAY), process(2, pod=STRAY)))
    assert (found.rule, found.namespace, found.pod) == ("GPU-N01", "lab", "notebook")
    assert (found.pids, found.processes, found.memory_bytes) == ((1, 2), 2, 2 * GIB)
    assert (found.first_seen, found.last_seen) == (0.0, 30.0)
    assert found.severity == "critical", "the GPU is somebody else's"
    assert found.evidence == "pod lab/notebook runs 2 processes on GPU 0 and holds no GPU"


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (
            Kind.DOCKER,
            "a Docker container (dddddddddddd) runs a process on GPU 1 outside Kubernetes",
        ),
        (Kind.SESSION, "a login session (session-3.scope) runs a process on GPU 1"),
        (Kind.SERVICE, "a service of the host runs"),
        (Kind.SLURM, "a Slurm job runs"),
        (Kind.HOST, "the host runs"),
    ],
)
def test_n01_what_runs_beside_kubernetes_is_found(kind: Kind, says: str) -> None:
    (found,) = judged(device(1, gpu=1), processes=(process(1, kind),))
    assert (found.rule, found.owner_kind, found.severity) == ("GPU-N01", kind, "critical")
    assert says in found.evidence


def test_n01_on_a_node_that_gives_no_gpu_out_is_a_warning() -> None:
    (found,) = judged(device(1), processes=(process(1, Kind.DOCKER),), allocations=())
    assert found.severity == "warning"


def test_n02_a_pod_on_a_gpu_that_is_not_its_own_is_found() -> None:
    (found,) = judged(device(1, gpu=1), processes=(process(1, pod=HOLDER),))
    assert (found.rule, found.severity, found.gpu) == ("GPU-N02", "warning", 1)
    assert "holds another one" in found.evidence


def test_n02_the_holder_of_a_mig_instance_is_at_home_on_its_gpu() -> None:
    instance = Allocation(
        uuid="MIG-1",
        parent_uuid=A.uuid,
        namespace="inference",
        pod="vllm-0",
        container="server",
        resource="nvidia.com/mig-1g.10gb",
        replica="",
    )
    seen = device(1), device(gpu=1, used=0)
    assert judged(*seen, processes=(process(1, pod=HOLDER),), allocations=(instance,)) == ()


def test_n03_memory_without_a_process_is_found() -> None:
    (found,) = judged(device())
    assert (found.rule, found.memory_bytes) == ("GPU-N03", 20 * GIB)
    assert "20.0 GiB of GPU 0 are in use and no process is seen" in found.evidence


@pytest.mark.parametrize("used", [0.0, 0.9 * GIB, 4.0 * GIB])
def test_n03_what_the_driver_keeps_on_an_idle_gpu_is_no_finding(used: float) -> None:
    assert judged(device(used=used)) == ()


def test_n03_is_not_judged_where_the_list_of_processes_is_partial() -> None:
    instance = MigInstance(
        uuid="MIG-1",
        parent_uuid=A.uuid,
        gpu_instance_id=1,
        compute_instance_id=0,
        profile="1g.10gb",
    )
    assert judged(device(mig=(instance,))) == ()


def test_what_is_allowed_is_no_finding() -> None:
    assert judged(device(1), processes=(process(1, pod=DAEMON),)) == ()
    assert judged(device(1), processes=(process(1, Kind.SERVICE, comm="nvidia-persiste"),)) == ()
    assert judged(device(1), processes=(process(1, Kind.OWN),)) == ()


def test_a_container_cannot_call_itself_allowed() -> None:
    disguised = process(1, Kind.DOCKER, comm="nvidia-persiste")
    assert [f.rule for f in judged(device(1), processes=(disguised,))] == ["GPU-N01"]
    pod = process(1, pod=STRAY, comm="nvidia-persiste")
    assert [f.rule for f in judged(device(1), processes=(pod,))] == ["GPU-N01"]


def test_what_cannot_be_judged_is_no_finding() -> None:
    stray = (process(1, pod=STRAY),)
    assert judged(device(1), processes=stray, allocations=None) == ()
    assert judged(device(1), processes=stray, pods=None) == ()
    assert judged(device(1), processes=stray, pods={}) == ()
    assert judged(device(1), processes=()) == (), "it has ended since"


def test_a_finding_must_last_and_ends_with_its_cause() -> None:
    audit = Audit(Allowed(), persist_s=30)

    def look(at: float, *pids: int) -> list[str]:
        found = audit.look(
            Seen(
                at=at,
                devices=(device(*pids, used=0),),
                processes={pid: process(pid, pod=STRAY) for pid in pids},
                pods_by_uid=PODS,
                allocations=(),
            )
        )
        return [finding.rule for finding in found]

    assert look(0, 1) == []
    assert look(29, 1) == []
    assert look(31, 1) == ["GPU-N01"]
    assert look(60, 2) == ["GPU-N01"], "another process of the same pod is the same finding"
    assert look(61) == []
    assert look(62, 1) == []
    assert look(200, 1) == ["GPU-N01"]


def test_strays_without_end_are_listed_up_to_a_limit() -> None:
    pids = range(1, FINDINGS_MAX * 2)
    strays = tuple(process(pid, Kind.HOST, comm=f"p{pid}") for pid in pids)
    assert len(judged(device(*pids), processes=strays)) == FINDINGS_MAX


def test_findings_are_counted_without_naming_a_pod() -> None:
    found = judged(device(1, 2), processes=(process(1, pod=STRAY), process(2, Kind.HOST)))
    assert counts(found) == {("GPU-N01", "critical", "lab"): 1, ("GPU-N01", "critical", ""): 1}
