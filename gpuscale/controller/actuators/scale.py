"""Direct mode: spec.replicas of a workload's target, written through its scale subresource."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from gpuscale.controller.domain import Target, Workload
from gpuscale.controller.gateway import HPAS, Kinds, KubeGateway
from gpuscale.errors import ApiConflict, ApiError, ApiNotFound

PAGE = 500
PAGES_MAX = 20
"""Of a namespace's autoscalers: ten thousand, more than Kubernetes scales."""


class Contested(ApiError):
    """Somebody else scales the target."""


class ScaleSubresource:
    """A `Scaler` over an API server."""

    def __init__(self, gateway: KubeGateway) -> None:
        self._gateway = gateway
        self._kinds = Kinds(gateway)
        self._writes: Counter[str] = Counter()

    @property
    def writes(self) -> Mapping[str, int]:
        """Calls of `scale` by result: written, unchanged, skipped, contested, conflict, error."""
        return dict(self._writes)

    async def scale(self, workload: Workload, replicas: int) -> None:
        """Set spec.replicas where it differs. Raises ApiError, one sentence with the target.

        Refuses a target that a HorizontalPodAutoscaler scales too: two who scale one thing fight.
        Leaves alone what is not in direct mode, in shadow mode or paused, whatever the caller asks.
        A write is bound to the version that was read; when somebody else wrote in between, it is
        read and tried once more, then ApiConflict.
        """
        if replicas < 0:
            raise ValueError(f"{workload.key}: replicas must not be negative, got {replicas}")
        target = workload.target
        if target is None or not _may_write(workload):
            self._writes["skipped"] += 1
            return
        try:
            changed = await self._set(workload.namespace, target, replicas)
        except Contested:
            self._writes["contested"] += 1
            raise
        except ApiConflict:
            self._writes["conflict"] += 1
            raise
        except ApiError:
            self._writes["error"] += 1
            raise
        self._writes["written" if changed else "unchanged"] += 1

    async def _set(self, namespace: str, target: Target, replicas: int) -> bool:
        resource = await self._kinds.resource(target.api_version, target.kind)
        path = resource.path(namespace, target.name, "scale")
        await self._check_alone(namespace, target)
        try:
            return await self._write(path, replicas)
        except ApiConflict:
            return await self._write(path, replicas)

    async def _check_alone(self, namespace: str, target: Target) -> None:
        """Raises Contested. Asked at every write, of which there is one per change of the replicas."""
        query = {"limit": str(PAGE)}
        for _ in range(PAGES_MAX):
            try:
                metadata, items = await self._gateway.page(HPAS.path(namespace), query)
            except ApiNotFound:
                return  # a cluster without autoscaling
            for item in items:
                if _scales(item, target):
                    raise Contested(
                        f"HorizontalPodAutoscaler {namespace}/{_name(item)} scales {target.kind} "
                        f"{target.name} too, so nothing is written: delete it, or remove `target` "
                        "from the workload in the settings file"
                    )
            token = metadata.get("continue")
            if not isinstance(token, str) or not token:
                return
            query = {"limit": str(PAGE), "continue": token}

    async def _write(self, path: str, replicas: int) -> bool:
        seen = await self._gateway.get(path)
        spec = seen.get("spec")
        # The API server leaves out a count of 0 in a Scale's spec.
        if isinstance(spec, Mapping) and spec.get("replicas", 0) == replicas:
            return False
        body: dict[str, Any] = {"spec": {"replicas": replicas}}
        metadata = seen.get("metadata")
        version = metadata.get("resourceVersion") if isinstance(metadata, Mapping) else None
        if isinstance(version, str):
            body["metadata"] = {"resourceVersion": version}
        await self._gateway.patch(path, body)
        return True


def _may_write(workload: Workload) -> bool:
    """Only direct mode writes, only in act mode, and nothing over a pause."""
    return (
        workload.actuator == "scale" and workload.policy.mode == "act" and workload.paused is None
    )


def _scales(hpa: Mapping[str, Any], target: Target) -> bool:
    """Whether an autoscaler's target is this one, in whatever version of its group."""
    spec = hpa.get("spec")
    reference = spec.get("scaleTargetRef") if isinstance(spec, Mapping) else None
    if not isinstance(reference, Mapping):
        return False
    group = str(reference.get("apiVersion") or "").rpartition("/")[0]
    return (
        reference.get("kind") == target.kind
        and reference.get("name") == target.name
        and group == target.api_version.rpartition("/")[0]
    )


def _name(item: Mapping[str, Any]) -> str:
    metadata = item.get("metadata")
    return str(metadata.get("name")) if isinstance(metadata, Mapping) else "?"
