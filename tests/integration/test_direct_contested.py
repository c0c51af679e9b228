"""Direct mode beside a HorizontalPodAutoscaler: two never scale one thing."""

from typing import Any

import pytest

from gpuscale.clock import SystemClock
from gpuscale.controller import kube
from gpuscale.controller.actuators.scale import Contested, ScaleSubresource
from gpuscale.controller.domain import Target, Workload
from gpuscale.errors import ApiError, ApiRefused
from gpuscale.settings import KubernetesSettings, Policy
from tests.fakes.kube import TYPES, FakeKube, Fault

LLAMA = Workload(
    namespace="llm",
    name="llama",
    policy=Policy(mode="act"),
    policy_name="defaults",
    actuator="scale",
    target=Target(api_version="apps/v1", kind="Deployment", name="llama"),
)


def deployed(server: FakeKube) -> None:
    metadata = {"namespace": "llm", "name": "llama"}
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "llama"}}}
    server.put("deployments", {"metadata": metadata, "spec": spec})


def replicas(server: FakeKube) -> object:
    return server.objects["deployments", "llm", "llama"]["spec"]["replicas"]


def autoscaler(called: str = "hpa", namespace: str = "llm", **reference: str) -> dict[str, Any]:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llama"} | reference
    metadata = {"namespace": namespace, "name": called}
    return {"metadata": metadata, "spec": {"scaleTargetRef": target, "maxReplicas": 9}}


async def write(server: FakeKube, path: Any, count: int = 5) -> ScaleSubresource:
    """Set the replicas once; what was counted stays on the exception's side too."""
    file = path / "kubeconfig"
    file.write_text(server.kubeconfig())
    gateway = await kube.connect(
        KubernetesSettings(enabled="on", kubeconfig=str(file)), SystemClock()
    )
    assert gateway is not None
    scaler = ScaleSubresource(gateway)
    try:
        await scaler.scale(LLAMA, count)
    except Contested:
        assert scaler.writes == {"contested": 1}
        raise
    finally:
        await gateway.close()
    return scaler


@pytest.mark.parametrize("others", [0, 700], ids=["alone", "on the second page"])
async def test_a_target_with_an_autoscaler_is_not_written_and_both_are_named(
    tmp_path: Any, others: int
) -> None:
    async with FakeKube() as server:
        deployed(server)
        for i in range(others):
            server.put("horizontalpodautoscalers", autoscaler(f"a{i}", name="other"))
        server.put("horizontalpodautoscalers", autoscaler("zz"))
        with pytest.raises(Contested, match=r"llm/zz scales Deployment llama too.*delete it"):
            await write(server, tmp_path)
        assert replicas(server) == 2
        assert server.count("PATCH") == 0


@pytest.mark.parametrize(
    "elsewhere",
    [
        autoscaler(name="other"),
        autoscaler(kind="StatefulSet"),
        autoscaler(apiVersion="example.com/v1"),
        autoscaler(namespace="other"),
        {"metadata": {"namespace": "llm", "name": "odd"}, "spec": "none"},
    ],
    ids=["name", "kind", "group", "namespace", "odd"],
)
async def test_an_autoscaler_of_something_else_is_in_nobodys_way(
    tmp_path: Any, elsewhere: dict[str, Any]
) -> None:
    async with FakeKube() as server:
        deployed(server)
        server.put("horizontalpodautoscalers", elsewhere)
        scaler = await write(server, tmp_path)
        assert scaler.writes == {"written": 1}
        assert replicas(server) == 5


async def test_a_cluster_that_has_no_autoscalers_is_written(tmp_path: Any) -> None:
    types = tuple(t for t in TYPES if t.group != "autoscaling")
    async with FakeKube(types) as server:
        deployed(server)
        await write(server, tmp_path)
        assert replicas(server) == 5


@pytest.mark.parametrize(("status", "kind"), [(403, ApiRefused), (500, ApiError)])
async def test_where_it_cannot_be_known_nothing_is_written(
    tmp_path: Any, status: int, kind: type[ApiError]
) -> None:
    async with FakeKube() as server:
        deployed(server)
        server.faults = [Fault("horizontalpodautoscalers", status=status)]
        with pytest.raises(kind):
            await write(server, tmp_path)
        assert replicas(server) == 2
