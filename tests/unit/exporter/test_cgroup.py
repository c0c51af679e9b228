"""Whose a process is, by every shape of /proc/<pid>/cgroup that kubelets and container runtimes write."""

import pytest

from gpuscale.exporter.cgroup import Kind, Owner, owner_of

UID = "3f2a9c1e-5b7d-4e8f-9a0b-1c2d3e4f5a6b"
UNDER = UID.replace("-", "_")
HASH = "0123456789abcdef0123456789abcdef"
CID = "a" * 32 + "0123456789abcdef" * 2
OTHER = "ffffffff-5b7d-4e8f-9a0b-1c2d3e4f5a6b"

POD = Owner(kind=Kind.POD, pod_uid=UID, container_id=CID)
BURSTABLE = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDER}.slice"


@pytest.mark.parametrize(
    ("shape", "path"),
    [
        ("cgroupfs guaranteed", f"/kubepods/pod{UID}/{CID}"),
        ("cgroupfs burstable", f"/kubepods/burstable/pod{UID}/{CID}"),
        ("cgroupfs best effort", f"/kubepods/besteffort/pod{UID}/{CID}"),
        ("systemd containerd", f"{BURSTABLE}/cri-containerd-{CID}.scope"),
        ("systemd CRI-O", f"{BURSTABLE}/crio-{CID}.scope"),
        ("systemd CRI-O nested", f"{BURSTABLE}/crio-{CID}.scope/container"),
        ("systemd Docker", f"{BURSTABLE}/docker-{CID}.scope"),
        (
            "systemd guaranteed",
            f"/kubepods.slice/kubepods-pod{UNDER}.slice/cri-containerd-{CID}.scope",
        ),
        (
            "systemd kubelet with cgroupfs containerd",
            f"/system.slice/containerd.service/kubepods-burstable-pod{UNDER}.slice:cri-containerd:{CID}",
        ),
        (
            "kind",
            f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{UNDER}.slice/cri-containerd-{CID}.scope",
        ),
        (
            "private cgroup namespace",
            f"/../../../kubepods-burstable.slice/kubepods-burstable-pod{UNDER}.slice/cri-containerd-{CID}.scope",
        ),
        ("private cgroup namespace, same QoS", f"/../../pod{UID}/{CID}"),
        ("Docker in Docker", f"/kubepods/burstable/pod{UID}/{CID}/docker/{'b' * 64}"),
        (
            "a name made up within the container",
            f"{BURSTABLE}/cri-containerd-{CID}.scope/kubepods/pod{OTHER}/{'b' * 64}",
        ),
        ("k3s", f"/kubepods/besteffort/pod{UID}/{CID}"),
    ],
)
def test_every_shape_of_a_pod_is_that_pod_and_container(shape: str, path: str) -> None:
    assert owner_of(f"0::{path}\n", namespaced=True) == POD, shape
    v1 = f"12:cpuset:/\n4:memory:{path}\n1:name=systemd:{path}\n0::/system.slice/x.service\n"
    assert owner_of(v1) == POD, shape


def test_a_static_pod_has_the_hash_of_its_configuration_for_a_uid() -> None:
    path = f"/kubepods.slice/kubepods-pod{HASH}.slice/cri-containerd-{CID}.scope"
    assert owner_of(f"0::{path}") == Owner(kind=Kind.POD, pod_uid=HASH, container_id=CID)


def test_the_monitor_of_a_container_is_the_pods_and_no_container() -> None:
    assert owner_of(f"0::{BURSTABLE}/crio-conmon-{CID}.scope") == Owner(kind=Kind.POD, pod_uid=UID)


@pytest.mark.parametrize(
    ("path", "kind", "container", "unit"),
    [
        (f"/system.slice/docker-{CID}.scope", Kind.DOCKER, CID, None),
        (f"/docker/{CID}", Kind.DOCKER, CID, None),
        (f"/../../docker/{CID}", Kind.DOCKER, CID, None),
        (
            f"/user.slice/user-1000.slice/user@1000.service/user.slice/docker-{CID}.scope",
            Kind.DOCKER,
            CID,
            None,
        ),
        (f"/machine.slice/libpod-{CID}.scope/container", Kind.PODMAN, CID, None),
        (
            f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{CID}.scope",
            Kind.PODMAN,
            CID,
            None,
        ),
        (f"/libpod_parent/libpod-{CID}", Kind.PODMAN, CID, None),
        (f"/system.slice/nerdctl-{CID}.scope", Kind.NERDCTL, CID, None),
        (f"/default/{CID}", Kind.NERDCTL, CID, None),
        (f"/../../../../default/{CID}", Kind.NERDCTL, CID, None),
        (f"/system.slice/crio-{CID}.scope", Kind.CONTAINER, CID, None),
        ("/lxc.payload.gpu01/init.scope", Kind.CONTAINER, None, "lxc.payload.gpu01"),
        ("/lxc/gpu01", Kind.CONTAINER, None, "lxc/gpu01"),
        (
            "/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0",
            Kind.SLURM,
            None,
            "slurmstepd.scope/job_4711",
        ),
        ("/slurm/uid_1000/job_4711/step_0", Kind.SLURM, None, "slurm/uid_1000/job_4711"),
        (
            "/machine.slice/machine-qemu\\x2d1\\x2dvm.scope/libvirt",
            Kind.VM,
            None,
            "machine-qemu\\x2d1\\x2dvm",
        ),
        ("/user.slice/user-1000.slice/session-3.scope", Kind.SESSION, None, "session-3.scope"),
        (
            "/user.slice/user-1000.slice/user@1000.service/app.slice/vte.scope",
            Kind.SESSION,
            None,
            "user@1000.service",
        ),
        (
            "/system.slice/nvidia-persistenced.service",
            Kind.SERVICE,
            None,
            "nvidia-persistenced.service",
        ),
        ("/../../../../system.slice/x.service", Kind.SERVICE, None, "x.service"),
        ("/", Kind.HOST, None, None),
        ("/init.scope", Kind.HOST, None, None),
        ("/podcast/0123", Kind.HOST, None, None),
        (f"/machine.slice/libpod-conmon-{CID}.scope", Kind.HOST, None, None),
    ],
)
def test_what_runs_beside_kubernetes_is_named_for_what_it_is(
    path: str, kind: Kind, container: str | None, unit: str | None
) -> None:
    expected = Owner(kind=kind, container_id=container, unit=unit)
    assert owner_of(f"0::{path}\n") == expected


@pytest.mark.parametrize(
    "path",
    ["/", f"/../cri-containerd-{CID}.scope", f"/../{CID}", f"/../crio-{CID}.scope/container"],
)
def test_in_a_private_namespace_the_own_pod_is_known_by_being_next_to_the_reader(path: str) -> None:
    found = owner_of(f"0::{path}", own_pod_uid=UID, namespaced=True)
    assert found == Owner(kind=Kind.OWN, pod_uid=UID)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (f"/../docker-{CID}.scope", Kind.DOCKER),
        (f"/../{CID}", Kind.CONTAINER),
        (f"/../crio-{CID}.scope", Kind.CONTAINER),
    ],
)
def test_beside_a_reader_that_is_no_pod_a_sibling_is_anybodys(path: str, kind: Kind) -> None:
    """The exporter was started by Docker itself: another container there is no part of it."""
    found = owner_of(f"0::{path}", namespaced=True)
    assert (found.kind, found.container_id) == (kind, CID)


@pytest.mark.parametrize(
    "text", ["", "\n\n", "nonsense", "0::", "::::", "0:" * 9000, "\x00\xff" * 100]
)
def test_what_no_kernel_writes_is_the_hosts_and_no_error(text: str) -> None:
    assert owner_of(text).kind is Kind.HOST
