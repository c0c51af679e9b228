"""What is asked of an API server, in plain dicts: the port behind which a client library is put.

Beside the port, the resource types that the controller knows and the paths of their objects.
"""

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol
from urllib.parse import quote

from gpuscale.errors import ApiError, ApiNotFound

KINDS_MAX = 256
"""Kinds whose resource is remembered; a cluster has a few with a scale subresource."""

_NOTHING: Mapping[str, str] = MappingProxyType({})


class Throttled(ApiError):
    """429 or 503 with Retry-After: the API server asks for patience."""

    def __init__(self, message: str, *, status: int, retry_after_s: float) -> None:
        super().__init__(message, status=status)
        self.retry_after_s = retry_after_s


class TooLarge(ApiError):
    """More than an answer may have: ask for less at a time."""


class KubeGateway(Protocol):
    """What is asked of an API server. Every method raises ApiError, one sentence with server and cure."""

    @property
    def server(self) -> str:
        """Its address, for messages."""
        ...

    async def get(self, path: str, query: Mapping[str, str] = _NOTHING) -> dict[str, Any]:
        """One object."""
        ...

    async def page(
        self, path: str, query: Mapping[str, str]
    ) -> tuple[Mapping[str, Any], Iterator[dict[str, Any]]]:
        """One page of a list: its metadata, and its objects, each decoded when its turn comes.

        Raises TooLarge for one that is larger than is read; the iterator may raise ApiError.
        """
        ...

    async def patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Apply a JSON merge patch (RFC 7386); the object as it is then."""
        ...

    def watch(
        self, path: str, query: Mapping[str, str], *, silence_s: float
    ) -> AbstractAsyncContextManager[AsyncGenerator[dict[str, Any], None]]:
        """Open a watch; on entering it has been accepted. Iterates over events until the server ends it.

        Raises ApiGone for an ERROR event of code 410, and ApiUnreachable when nothing has come for
        `silence_s`: a connection that died without a word looks the same.
        """
        ...

    async def close(self) -> None:
        """Release connections."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A resource type of the API, and the paths of its objects."""

    group: str
    """Empty for the core group."""
    version: str
    plural: str

    def path(
        self, namespace: str | None = None, name: str | None = None, subresource: str | None = None
    ) -> str:
        """The path of a list (no name), an object, or a subresource of it."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if namespace is not None:
            parts += ["namespaces", namespace]
        parts += [self.plural, *(p for p in (name, subresource) if p is not None)]
        return "/" + "/".join(quote(part, safe="") for part in parts)


PODS = Resource(group="", version="v1", plural="pods")
NODES = Resource(group="", version="v1", plural="nodes")
DEPLOYMENTS = Resource(group="apps", version="v1", plural="deployments")
STATEFUL_SETS = Resource(group="apps", version="v1", plural="statefulsets")
HPAS = Resource(group="autoscaling", version="v2", plural="horizontalpodautoscalers")
SCALED_OBJECTS = Resource(group="keda.sh", version="v1alpha1", plural="scaledobjects")

KINDS: Mapping[tuple[str, str], Resource] = {
    ("apps/v1", "Deployment"): DEPLOYMENTS,
    ("apps/v1", "StatefulSet"): STATEFUL_SETS,
}
"""Kinds whose resource is known without asking, and watched."""


class Kinds:
    """The resource type of a kind: of the built-in ones at once, of others by discovery, remembered."""

    def __init__(self, gateway: KubeGateway) -> None:
        self._gateway = gateway
        self._known = dict(KINDS)

    async def resource(self, api_version: str, kind: str) -> Resource:
        """Raises ApiNotFound where the server has no such kind, ApiError where it does not say."""
        found = self._known.get((api_version, kind))
        if found is not None:
            return found
        group, _, version = api_version.rpartition("/")
        path = "/".join(quote(part, safe="") for part in (group, version) if part)
        listed = (await self._gateway.get(f"/apis/{path}" if group else f"/api/{path}")).get(
            "resources"
        )
        for resource in listed if isinstance(listed, list) else []:
            name = resource.get("name") if isinstance(resource, Mapping) else None
            if isinstance(name, str) and "/" not in name and resource.get("kind") == kind:
                found = Resource(group=group, version=version, plural=name)
                if len(self._known) < KINDS_MAX:
                    self._known[api_version, kind] = found
                return found
        raise ApiNotFound(
            f"the API server {self._gateway.server} has no kind {kind} in {api_version}: correct the "
            "scale target",
            status=404,
        )
