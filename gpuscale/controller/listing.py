"""Every object of a list, once: for those who look now and then, and keep no cache."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

from gpuscale.controller.gateway import KubeGateway, Resource
from gpuscale.errors import ApiError

PAGE = 500
PAGES_MAX = 2_000
"""A million pods: a list that goes on beyond it will not end."""


async def objects(
    gateway: KubeGateway, resource: Resource, namespace: str | None = None
) -> AsyncIterator[Mapping[str, Any]]:
    """The objects, page by page, from the API server's own cache. Raises ApiError."""
    query = {"limit": str(PAGE), "resourceVersion": "0"}
    for _ in range(PAGES_MAX):
        metadata, items = await gateway.page(resource.path(namespace), query)
        for item in items:
            yield item
        token = metadata.get("continue")
        if not isinstance(token, str) or not token:
            return
        query = {"limit": str(PAGE), "continue": token}
    raise ApiError(
        f"{resource.path(namespace)} has more than {PAGES_MAX} pages: check the API server"
    )
