"""The one door to kubernetes-asyncio: credentials, connections and errors; objects are plain dicts.

The library is loaded when a cluster is connected, not before. Of it are used the reading of
credentials and the HTTP client; its models (seven times slower than the JSON they come from) and its
Watch (retries a 410 with the version that was refused, hangs on a silent server) are not.
"""

import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import aiohttp
import msgspec

from gpuscale.clock import Clock
from gpuscale.controller.gateway import KubeGateway, Throttled, TooLarge
from gpuscale.errors import (
    ApiConflict,
    ApiError,
    ApiGone,
    ApiNotFound,
    ApiRefused,
    ApiUnreachable,
    ConfigError,
    foreign,
)
from gpuscale.settings import KubernetesSettings

BODY_BYTES_MAX = 64 * 2**20
"""A page of 500 pods takes 10 MB. Servers that give a list from their cache give it whole, whatever
page was asked for: above this it is asked for again in pages."""
EVENT_BYTES_MAX = 8 * 2**20
"""etcd's largest object is 1.5 MiB, and an event holds one."""
ERROR_BYTES_MAX = CHUNK_BYTES = 64 * 1024
CONNECT_S = 10.0
RELOAD_S = 30.0
"""Credentials that were refused are read again this often at most: an exec plugin is a process."""
IN_CLUSTER = "KUBERNETES_SERVICE_HOST"
"""The kubelet sets it in every pod."""
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the kubelet mounts who a pod is."""

_REFUSALS: Mapping[int, tuple[type[ApiError], str, str]] = {
    401: (ApiRefused, "does not accept the credentials", "renew the token or the kubeconfig"),
    403: (ApiRefused, "does not allow it", "grant it to gpuscale, as the chart's ClusterRole does"),
    404: (ApiNotFound, "does not have it", "create or install it"),
    409: (ApiConflict, "refused a write over a newer one", "read again"),
    410: (ApiGone, "no longer has that version", "list again"),
}
"""HTTP status -> the error, what the server did, the cure."""

_NOTHING: Mapping[str, str] = MappingProxyType({})
_decode = msgspec.json.decode


# ---------------------------------------------------------------- connecting


async def connect(settings: KubernetesSettings, clock: Clock) -> KubeGateway | None:
    """The cluster that the settings and the environment name; None with `off`, and with `auto` where there is none.

    Looks for, in this order: `kubernetes.kubeconfig`; the pod's service account; the files of
    KUBECONFIG; with `on` also ~/.kube/config. Raises ConfigError for credentials that are there and
    cannot be used. Nothing is asked of the server yet.
    """
    if settings.enabled == "off":
        return None
    try:
        load = _credentials(settings)
        if load is None:
            return None
        from kubernetes_asyncio import client  # noqa: PLC0415 - 0.4 s and 40 MB
    except ImportError as error:
        if settings.enabled == "auto":
            return None
        raise ConfigError(
            "kubernetes.enabled is on, and kubernetes-asyncio is not installed: install gpuscale[controller]"
        ) from error
    configuration = client.Configuration()
    await load(configuration)
    api = client.ApiClient(configuration)
    api.user_agent = "gpuscale"
    return _Gateway(api, load, clock, timeout_s=settings.timeout_s)


def _credentials(settings: KubernetesSettings) -> Callable[[Any], Awaitable[None]] | None:
    """What fills in a client configuration; None where no credentials are found and none are demanded."""
    path = settings.kubeconfig
    if path is None and settings.context is None and os.environ.get(IN_CLUSTER):
        return _load_service_account
    path = path or os.environ.get("KUBECONFIG")
    if path is None and (settings.enabled == "on" or settings.context is not None):
        path = str(Path.home() / ".kube" / "config")
    if path is None:
        return None
    files = [p for p in path.split(os.pathsep) if p]
    if not any(Path(p).expanduser().is_file() for p in files):
        raise ConfigError(
            f"kubeconfig {path}: no such file: set kubernetes.kubeconfig, or kubernetes.enabled to off "
            "to do without a cluster"
        )

    async def load(configuration: Any) -> None:
        from kubernetes_asyncio import config  # noqa: PLC0415 - see connect()

        try:
            await config.load_kube_config(
                config_file=path,
                context=settings.context,
                client_configuration=configuration,
                persist_config=False,
            )
        except (
            Exception
        ) as error:  # the loader lets through whatever a broken file makes it trip over
            raise ConfigError(
                f"kubeconfig {path} cannot be used ({foreign(error) or type(error).__name__}): correct "
                "the file, kubernetes.kubeconfig or kubernetes.context"
            ) from error

    return load


async def _load_service_account(configuration: Any) -> None:
    from kubernetes_asyncio import config  # noqa: PLC0415 - see connect()

    try:
        config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError) as error:
        raise ConfigError(
            f"the pod's service account cannot be used ({foreign(error)}): set "
            "automountServiceAccountToken, or kubernetes.enabled to off to do without a cluster"
        ) from error


def own_namespace(mount: Path = SERVICE_ACCOUNT) -> str | None:
    """The namespace of the pod that this process runs in; None outside of a cluster."""
    try:
        return (mount / "namespace").read_text(encoding="utf-8").strip()[:63] or None
    except (OSError, UnicodeDecodeError):
        return None


# ---------------------------------------------------------------- calling


class _Call(NamedTuple):
    method: str
    path: str
    query: Mapping[str, str]
    body: Mapping[str, Any] | None
    timeout: aiohttp.ClientTimeout


class _Page(msgspec.Struct):
    """A page of a list, whose objects wait to be decoded: all at once they keep the event loop, and
    take ten times the memory."""

    metadata: dict[str, Any] | None = None
    items: list[msgspec.Raw] | None = None


class _Gateway:
    """KubeGateway over the library's HTTP client."""

    def __init__(
        self, api: Any, load: Callable[[Any], Awaitable[None]], clock: Clock, *, timeout_s: float
    ) -> None:
        self._api = api
        self._load = load
        self._clock = clock
        self._timeout_s = timeout_s
        self._loaded_at = clock.monotonic()

    @property
    def server(self) -> str:
        return str(self._api.configuration.host)

    async def get(self, path: str, query: Mapping[str, str] = _NOTHING) -> dict[str, Any]:
        return await self._object("GET", path, query, None)

    async def page(
        self, path: str, query: Mapping[str, str]
    ) -> tuple[Mapping[str, Any], Iterator[dict[str, Any]]]:
        raw = await self._raw("GET", path, query, None)
        try:
            page = _decode(raw, type=_Page)
        except (msgspec.DecodeError, RecursionError) as error:
            raise self._malformed(path) from error
        return page.metadata or {}, (self._decoded(each, path) for each in page.items or ())

    async def patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return await self._object("PATCH", path, _NOTHING, body)

    async def close(self) -> None:
        await self._api.close()

    @asynccontextmanager
    async def watch(
        self, path: str, query: Mapping[str, str], *, silence_s: float
    ) -> AsyncIterator[AsyncGenerator[dict[str, Any], None]]:
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_S, sock_read=silence_s)
        response = await self._send(_Call("GET", path, {**query, "watch": "true"}, None, timeout))
        try:
            yield self._events(response, silence_s)
        finally:
            response.close()

    async def _object(
        self, method: str, path: str, query: Mapping[str, str], body: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        return self._decoded(await self._raw(method, path, query, body), path)

    async def _raw(
        self, method: str, path: str, query: Mapping[str, str], body: Mapping[str, Any] | None
    ) -> bytes:
        timeout = aiohttp.ClientTimeout(total=self._timeout_s, sock_connect=CONNECT_S)
        response = await self._send(_Call(method, path, query, body, timeout))
        try:
            return await _read(response, BODY_BYTES_MAX)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unreachable(error) from error
        finally:
            response.close()  # a connection whose answer was read whole has gone back to the pool

    async def _send(self, call: _Call) -> aiohttp.ClientResponse:
        """The response, once its status is good; on 401 credentials are read again and it is tried once more."""
        response = await self._call(call)
        if response.status == 401 and await self._reload():
            response.close()
            response = await self._call(call)
        if 200 <= response.status < 300:
            return response
        try:
            raw = await _read(response, ERROR_BYTES_MAX)
        except (aiohttp.ClientError, TimeoutError, OSError, ApiError):
            raw = b""  # the status says enough
        finally:
            response.close()
        raise self._refusal(response.status, raw, response.headers.get("Retry-After"))

    async def _call(self, call: _Call) -> aiohttp.ClientResponse:
        headers = {"Accept": "application/json"}
        if call.body is not None:
            headers["Content-Type"] = "application/merge-patch+json"
        try:
            response: aiohttp.ClientResponse = await self._api.call_api(
                call.path,
                call.method,
                query_params=list(call.query.items()),
                header_params=headers,
                body=call.body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _request_timeout=call.timeout,
            )
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise self._unreachable(error) from error
        return response

    async def _reload(self) -> bool:
        """Read the credentials again, RELOAD_S after the last time at the earliest: tokens expire."""
        now = self._clock.monotonic()
        if now - self._loaded_at < RELOAD_S:
            return False
        self._loaded_at = now
        with suppress(ConfigError):  # the 401 is told, and the next one tries again
            await self._load(self._api.configuration)
            return True
        return False

    async def _events(
        self, response: aiohttp.ClientResponse, silence_s: float
    ) -> AsyncGenerator[dict[str, Any], None]:
        rest = b""
        try:
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield self._event(line)
                if len(rest) > EVENT_BYTES_MAX:
                    raise ApiError(
                        f"the API server {self.server} sent an event above {EVENT_BYTES_MAX} bytes: "
                        "check what stands between"
                    )
        except TimeoutError as error:
            raise ApiUnreachable(
                f"the API server {self.server} sent nothing for {silence_s:g} s: check the network between"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error) from error

    def _event(self, line: bytes) -> dict[str, Any]:
        event = self._decoded(line, "watch")
        if event.get("type") == "ERROR":
            status = event.get("object")
            code = status.get("code") if isinstance(status, dict) else None
            raise self._refusal(code if isinstance(code, int) else 500, msgspec.json.encode(status))
        return event

    def _decoded(self, raw: bytes, path: str) -> dict[str, Any]:
        try:
            return _decode(raw, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            raise self._malformed(path) from error

    def _malformed(self, path: str) -> ApiError:
        return ApiError(
            f"the API server {self.server} did not answer {path} with a JSON object: check that the "
            "address is an API server's, and what stands between"
        )

    def _unreachable(self, error: Exception) -> ApiUnreachable:
        cause = foreign(error) or (
            "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
        )
        return ApiUnreachable(
            f"the API server {self.server} cannot be reached ({cause}): check its address, the network "
            "and its certificate"
        )

    def _refusal(self, status: int, raw: bytes, retry_after: str | None = None) -> ApiError:
        """The error of an HTTP status or of an ERROR event; `raw` is a Status object, or a proxy's page."""
        message = _message(raw) or f"status {status}"
        server = f"the API server {self.server}"
        if retry_after is not None and re.fullmatch(r"\d{1,4}", retry_after):
            return Throttled(
                f"{server} is overloaded ({message}): it is asked again in {retry_after} s",
                status=status,
                retry_after_s=float(retry_after),
            )
        kind, fault, cure = _REFUSALS.get(status, (ApiError, "failed", "see its log"))
        return kind(f"{server} {fault} ({message}): {cure}", status=status)


async def _read(response: aiohttp.ClientResponse, most: int) -> bytes:
    """The body. Raises ApiError above `most` bytes."""
    parts: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_chunked(CHUNK_BYTES):
        parts.append(chunk)
        size += len(chunk)
        if size > most:
            raise TooLarge(
                f"{response.url.origin()} answered more than {most} bytes: watch fewer namespaces with "
                "kubernetes.namespaces"
            )
    return b"".join(parts)


def _message(raw: bytes) -> str:
    """The message of a Status object, else the beginning of the text, on one line."""
    try:
        value = _decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return foreign(raw[:1024].decode(errors="replace"))
    message = value.get("message") if isinstance(value, dict) else None
    return foreign(message or "")
