"""A Kubernetes API server in memory, on loopback, as faithful as clients can tell.

Versions that only grow, 409 for a write over a newer one, 410 for a version that is gone, pages with
continue tokens, label selectors, watches with bookmarks, status and scale subresources, discovery
(kubectl works against it), and faults: an answer that hangs, an error status, a watch cut in the
middle of a line, silence on an open connection, a proxy's HTML page.
"""

import asyncio
import json
import re
import uuid
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

import yaml
from aiohttp import web

Object = dict[str, Any]


@dataclass(frozen=True)
class Type:
    group: str
    version: str
    plural: str
    kind: str
    scale: bool = False

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


TYPES = (
    Type("", "v1", "pods", "Pod"),
    Type("", "v1", "nodes", "Node"),
    Type("apps", "v1", "deployments", "Deployment", scale=True),
    Type("apps", "v1", "statefulsets", "StatefulSet", scale=True),
    Type("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler"),
    Type("keda.sh", "v1alpha1", "scaledobjects", "ScaledObject"),
    Type("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet", scale=True),
)


@dataclass
class Fault:
    """What happens to the next `times` requests whose `METHOD path?query` the pattern finds."""

    pattern: str
    status: int | None = None
    retry_after: str | None = None
    hang: bool = False
    html: bool = False
    times: int = 1_000_000
    message: str = "injected"


@dataclass(eq=False)
class Watcher:
    type: Type
    namespace: str | None
    selector: str
    bookmarks: bool
    events: "asyncio.Queue[tuple[str, Object] | None]" = field(default_factory=asyncio.Queue)
    cut: bool = False


class Refused(Exception):
    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason


class FakeKube:
    """`async with FakeKube() as kube:` serves at `kube.url`."""

    def __init__(self, types: tuple[Type, ...] = TYPES, *, token: str | None = None) -> None:
        self.types = types
        self.token = token
        self.version = 100
        self.oldest = 0
        """Versions below it are gone (410)."""
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.history: list[tuple[int, str, Type, Object]] = []
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.watchers: list[Watcher] = []
        self.before_write: list[tuple[str, str, str, Mapping[str, Any]]] = []
        """Writes by somebody else that slip in between a client's read and its next write."""
        self.pages: dict[str, bytes] = {}
        """What a list of this resource is answered, by plural."""
        self.whole_from_cache = False
        """Whether a list of version 0 comes whole, whatever its limit, as from servers' watch caches."""
        self.bookmark_every_s: float | None = None
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self, port: int = 0) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        self.end_watches()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def kubeconfig(self, token: str | None = None) -> str:
        """The text of a kubeconfig for this server."""
        user = {"token": token} if token else {}
        return yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "fake",
                "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
                "users": [{"name": "me", "user": user}],
                "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "me"}}],
            }
        )

    # ------------------------------------------------------------ what a test does

    def put(self, plural: str, obj: Mapping[str, Any]) -> Object:
        """Create or replace an object, as a controller of the cluster would."""
        kind = self._type(plural)
        new = deepcopy(dict(obj))
        metadata = new.setdefault("metadata", {})
        metadata.setdefault("namespace", "default")
        key = (plural, metadata["namespace"], metadata["name"])
        old = self.objects.get(key)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        kept = old["metadata"] if old else {"uid": str(uuid.uuid4()), "creationTimestamp": now}
        for name in ("uid", "creationTimestamp"):
            metadata.setdefault(name, kept[name])
        new["apiVersion"], new["kind"] = kind.api_version, kind.kind
        self._store(kind, key, new, "MODIFIED" if old else "ADDED")
        return new

    def merge(self, plural: str, namespace: str, name: str, patch: Mapping[str, Any]) -> Object:
        """Merge a patch into an object, as somebody else would."""
        return self.put(plural, _merged(self.objects[plural, namespace, name], patch))

    def delete(self, plural: str, namespace: str, name: str) -> None:
        key = (plural, namespace, name)
        gone = deepcopy(self.objects.pop(key))
        self.version += 1
        gone["metadata"]["resourceVersion"] = str(self.version)
        self._tell(self._type(plural), "DELETED", gone)

    def compact(self) -> None:
        """Forget all versions before the present one."""
        self.oldest = self.version
        self.history.clear()

    def bookmark(self) -> None:
        """Send every watch that wants it a bookmark of the present version."""
        for watcher in self.watchers:
            if watcher.bookmarks:
                watcher.events.put_nowait(("BOOKMARK", self._bookmark(watcher.type)))

    def end_watches(self, *, cut: bool = False) -> None:
        """End all watches, cleanly or in the middle of a line."""
        for watcher in self.watchers:
            watcher.cut = cut
            watcher.events.put_nowait(None)

    def count(self, pattern: str) -> int:
        """Requests so far that the pattern finds."""
        return sum(1 for r in self.requests if re.search(pattern, r))

    # ------------------------------------------------------------ storage

    def _type(self, plural: str) -> Type:
        return next(t for t in self.types if t.plural == plural)

    def _bookmark(self, kind: Type) -> Object:
        return {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": {"resourceVersion": str(self.version)},
        }

    def _store(self, kind: Type, key: tuple[str, str, str], obj: Object, event: str) -> None:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        self.objects[key] = obj
        self._tell(kind, event, deepcopy(obj))

    def _tell(self, kind: Type, event: str, obj: Object) -> None:
        self.history.append((self.version, event, kind, obj))
        for watcher in self.watchers:
            if _wanted(watcher, kind, obj):
                watcher.events.put_nowait((event, obj))

    # ------------------------------------------------------------ serving

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        line = f"{request.method} {request.path_qs}"
        self.requests.append(line)
        try:
            answer = await self._fault(line)
            if answer is not None:
                return answer
            self._authenticate(request)
            return await self._route(request)
        except Refused as refused:
            return _status(refused.code, refused.reason, str(refused))

    def _authenticate(self, request: web.Request) -> None:
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            raise Refused(401, "Unauthorized", "Unauthorized")

    async def _fault(self, line: str) -> web.Response | None:
        for fault in self.faults:
            if fault.times > 0 and re.search(fault.pattern, line):
                fault.times -= 1
                if fault.hang:
                    await asyncio.sleep(3600)
                if fault.html:
                    return web.Response(text="<html>sign in</html>", content_type="text/html")
                assert fault.status is not None
                answer = _status(fault.status, "Injected", fault.message)
                if fault.retry_after is not None:
                    answer.headers["Retry-After"] = fault.retry_after
                return answer
        return None

    async def _route(self, request: web.Request) -> web.StreamResponse:
        parts = request.path.strip("/").split("/")
        known: dict[str, Object] = {
            "version": {"major": "1", "minor": "33", "gitVersion": "v1.33.0"},
            "api": {"kind": "APIVersions", "versions": ["v1"]},
            "apis": self._groups(),
        }
        fixed = known.get("/".join(parts))
        if fixed is not None:
            return web.json_response(fixed)
        group, version, rest = (
            ("", parts[1], parts[2:]) if parts[0] == "api" else (parts[1], parts[2], parts[3:])
        )
        types = [t for t in self.types if (t.group, t.version) == (group, version)]
        if not types:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        if not rest:
            return web.json_response(_discovery(types))
        namespace = None
        if rest[0] == "namespaces" and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        kind = next((t for t in types if t.plural == rest[0]), None)
        if kind is None:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        if len(rest) > 1 and namespace is not None:
            return await self._object(
                request, kind, namespace, rest[1], rest[2] if len(rest) > 2 else None
            )
        if request.query.get("watch") in ("true", "1"):
            return await self._watch(request, kind, namespace)
        return self._list(request, kind, namespace)

    def _groups(self) -> Object:
        groups: dict[str, list[str]] = {}
        for kind in self.types:
            if kind.group:
                groups.setdefault(kind.group, [])
                if kind.version not in groups[kind.group]:
                    groups[kind.group].append(kind.version)
        found = []
        for name, versions in groups.items():
            listed = [{"groupVersion": f"{name}/{v}", "version": v} for v in versions]
            found.append({"name": name, "versions": listed, "preferredVersion": listed[0]})
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": found}

    def _list(self, request: web.Request, kind: Type, namespace: str | None) -> web.Response:
        if kind.plural in self.pages:
            return web.Response(body=self.pages[kind.plural], content_type="application/json")
        found = [
            obj
            for (plural, where, _), obj in sorted(self.objects.items())
            if plural == kind.plural
            and namespace in (None, where)
            and selects(request.query.get("labelSelector", ""), obj)
        ]
        start, version = 0, self.version
        token = request.query.get("continue")
        if token:
            version, start = (int(p) for p in token.split("."))
            if version < self.oldest:
                raise Refused(410, "Expired", "The provided continue parameter is too old")
        limit = int(request.query.get("limit", "0")) or len(found)
        if self.whole_from_cache and request.query.get("resourceVersion") == "0":
            limit = len(found)
        metadata: Object = {"resourceVersion": str(version)}
        if start + limit < len(found):
            metadata["continue"] = f"{version}.{start + limit}"
            metadata["remainingItemCount"] = len(found) - start - limit
        return web.json_response(
            {
                "kind": f"{kind.kind}List",
                "apiVersion": kind.api_version,
                "metadata": metadata,
                "items": found[start : start + limit],
            }
        )

    async def _watch(
        self, request: web.Request, kind: Type, namespace: str | None
    ) -> web.StreamResponse:
        since = int(request.query.get("resourceVersion") or "0")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)

        async def send(event: str, obj: Object) -> None:
            await response.write(json.dumps({"type": event, "object": obj}).encode() + b"\n")

        if since < self.oldest:
            await send("ERROR", _body(410, "Expired", f"too old resource version: {since}"))
            return response
        watcher = Watcher(
            kind,
            namespace,
            request.query.get("labelSelector", ""),
            request.query.get("allowWatchBookmarks") == "true",
        )
        for version, event, type_, obj in self.history:
            if version > since and _wanted(watcher, type_, obj):
                watcher.events.put_nowait((event, obj))
        self.watchers.append(watcher)
        try:
            async with asyncio.timeout(float(request.query.get("timeoutSeconds", "1800"))):
                while (item := await watcher.events.get()) is not None:
                    await send(*item)
        except TimeoutError:
            if watcher.bookmarks:
                await send("BOOKMARK", self._bookmark(kind))
        finally:
            self.watchers.remove(watcher)
        if watcher.cut:
            await response.write(b'{"type":"MODIFIED","object":{"metadata":{"na')
            assert request.transport is not None
            request.transport.abort()
        return response

    async def _object(
        self, request: web.Request, kind: Type, namespace: str, name: str, subresource: str | None
    ) -> web.Response:
        key = (kind.plural, namespace, name)
        if subresource not in (None, "status", *(["scale"] if kind.scale else [])):
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        if request.method != "GET" and self.before_write:
            self.merge(*self.before_write.pop(0))
        old = self.objects.get(key)
        if old is None:
            raise Refused(404, "NotFound", f'{kind.plural}.{kind.group} "{name}" not found')
        if request.method == "DELETE":
            self.delete(*key)
            return web.json_response({"kind": "Status", "apiVersion": "v1", "status": "Success"})
        if request.method in ("PUT", "PATCH"):
            shown = _scale(old) if subresource == "scale" else old
            new = await self._changed(request, shown)
            self._check_version(new, shown, request.method)
            if subresource == "scale":
                new = _merged(old, {"spec": {"replicas": new["spec"].get("replicas", 0)}})
            elif subresource == "status":
                new = {**old, "status": new.get("status")}
            elif "status" in old:
                new["status"] = old["status"]
            new["metadata"] = {
                **new["metadata"],
                **{n: old["metadata"][n] for n in ("uid", "creationTimestamp")},
            }
            if new != old:
                self._store(kind, key, deepcopy(new), "MODIFIED")
            old = self.objects[key]
        return web.json_response(_scale(old) if subresource == "scale" else old)

    async def _changed(self, request: web.Request, old: Object) -> Object:
        body = yaml.safe_load(await request.read())
        content = request.content_type
        if request.method == "PUT":
            return dict(body)
        if content not in (
            "application/merge-patch+json",
            "application/strategic-merge-patch+json",
            "application/apply-patch+yaml",
        ) or not isinstance(body, dict):
            raise Refused(
                415,
                "UnsupportedMediaType",
                f"the body of the request was in an unknown format: {content}",
            )
        return _merged(old, body)

    def _check_version(self, new: Object, old: Object, method: str) -> None:
        given = new.get("metadata", {}).get("resourceVersion")
        if given and given != old["metadata"]["resourceVersion"]:
            raise Refused(
                409,
                "Conflict",
                f'Operation cannot be fulfilled on "{old["metadata"]["name"]}": the object has been modified; '
                "please apply your changes to the latest version and try again",
            )


def _merged(old: Mapping[str, Any], patch: Mapping[str, Any]) -> Object:
    """RFC 7386."""
    new = deepcopy(dict(old))
    for key, value in patch.items():
        if value is None:
            new.pop(key, None)
        elif isinstance(value, Mapping):
            inner = new.get(key)
            new[key] = _merged(inner if isinstance(inner, Mapping) else {}, value)
        else:
            new[key] = deepcopy(value)
    return new


def _scale(obj: Object) -> Object:
    """The Scale of an object; like a real one it leaves out a count of 0 in its spec."""
    metadata, replicas = obj["metadata"], obj["spec"].get("replicas", 1)
    labels = obj["spec"].get("selector", {}).get("matchLabels", {})
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {
            k: metadata[k]
            for k in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
        },
        "spec": {"replicas": replicas} if replicas else {},
        "status": {
            "replicas": obj.get("status", {}).get("replicas", 0),
            "selector": ",".join(f"{k}={v}" for k, v in sorted(labels.items())),
        },
    }


def _wanted(watcher: Watcher, kind: Type, obj: Object) -> bool:
    return (
        kind == watcher.type
        and watcher.namespace in (None, obj["metadata"]["namespace"])
        and selects(watcher.selector, obj)
    )


def selects(selector: str, obj: Object) -> bool:
    """Whether a selector of `a=b`, `a!=b`, `a` and `!a`, joined by commas, matches an object's labels."""
    labels = obj["metadata"].get("labels", {})
    for part in filter(None, selector.split(",")):
        if "!=" in part:
            key, value = part.split("!=")
            matched = labels.get(key) != value
        elif "=" in part:
            key, value = re.split("==?", part)
            matched = labels.get(key) == value
        else:
            matched = (part.lstrip("!") in labels) is not part.startswith("!")
        if not matched:
            return False
    return True


def _discovery(types: list[Type]) -> Object:
    verbs = ["get", "list", "watch", "create", "update", "patch", "delete"]
    resources: list[Object] = []
    for kind in types:
        common = {"singularName": kind.kind.lower(), "namespaced": True, "verbs": verbs}
        resources.append({"name": kind.plural, "kind": kind.kind, **common})
        if kind.scale:
            scale = {"kind": "Scale", "group": "autoscaling", "version": "v1"}
            resources.append({"name": f"{kind.plural}/scale", **scale, **common})
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": types[0].api_version,
        "resources": resources,
    }


def _body(code: int, reason: str, message: str) -> Object:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


def _status(code: int, reason: str, message: str) -> web.Response:
    return web.json_response(_body(code, reason, message), status=code)
