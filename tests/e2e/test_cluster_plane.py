"""The control plane of the tests is a real one: what the other stories build on."""

from collections.abc import Iterator

import pytest

from tests.e2e.controlplane import binaries, objects, plane
from tests.e2e.controlplane.processes import wait_until

pytestmark = [binaries.requires(*binaries.KUBERNETES), pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[plane.Plane]:
    with plane.running(tmp_path_factory.mktemp("plane")) as running:
        running.api.create(objects.node("gpu-0", gpus=4))
        running.api.create(objects.namespace("ai"))
        yield running


def ready(cluster: plane.Plane, name: str) -> int:
    found = cluster.api.get("Deployment", name, "ai")
    count: int = found.get("status", {}).get("readyReplicas", 0)
    return count


def test_pods_are_ready_after_their_start_time_and_not_before(cluster: plane.Plane) -> None:
    cluster.api.create(objects.servers("ai", "slow", replicas=2, start_s=4))

    def phases() -> list[str]:
        return [p["status"]["phase"] for p in cluster.api.listed("Pod", "ai")]

    wait_until("both run", lambda: phases() == ["Running", "Running"])
    assert ready(cluster, "slow") == 0
    took_s = wait_until("both are ready", lambda: ready(cluster, "slow") == 2)
    assert took_s > 2
    cluster.api.delete("Deployment", "slow", "ai")
    wait_until("they are gone", lambda: not cluster.api.listed("Pod", "ai"))


def test_a_pod_beyond_the_nodes_gpus_stays_pending(cluster: plane.Plane) -> None:
    cluster.api.create(objects.servers("ai", "wide", replicas=5))

    wait_until("four fit", lambda: ready(cluster, "wide") == 4)
    (waiting,) = [p for p in cluster.api.listed("Pod", "ai") if p["status"]["phase"] == "Pending"]
    (reason,) = [c for c in waiting["status"]["conditions"] if c["type"] == "PodScheduled"]
    assert reason["reason"] == "Unschedulable"
    assert "Insufficient nvidia.com/gpu" in reason["message"]
    cluster.api.delete("Deployment", "wide", "ai")
