"""A small client of the API server for tests: JSON in, JSON out."""

import http.client
import json
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.e2e.controlplane.certificates import Authority, Pair

MERGE = "application/merge-patch+json"
Object = dict[str, Any]

PLURALS: Mapping[str, tuple[str, str]] = {
    "Namespace": ("api/v1", "namespaces"),
    "Node": ("api/v1", "nodes"),
    "Pod": ("api/v1", "pods"),
    "Secret": ("api/v1", "secrets"),
    "Service": ("api/v1", "services"),
    "ServiceAccount": ("api/v1", "serviceaccounts"),
    "ResourceQuota": ("api/v1", "resourcequotas"),
    "Deployment": ("apis/apps/v1", "deployments"),
    "StatefulSet": ("apis/apps/v1", "statefulsets"),
    "ReplicaSet": ("apis/apps/v1", "replicasets"),
    "HorizontalPodAutoscaler": ("apis/autoscaling/v2", "horizontalpodautoscalers"),
    "ClusterRole": ("apis/rbac.authorization.k8s.io/v1", "clusterroles"),
    "ClusterRoleBinding": ("apis/rbac.authorization.k8s.io/v1", "clusterrolebindings"),
    "Role": ("apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": ("apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "CustomResourceDefinition": ("apis/apiextensions.k8s.io/v1", "customresourcedefinitions"),
    "APIService": ("apis/apiregistration.k8s.io/v1", "apiservices"),
    "PriorityClass": ("apis/scheduling.k8s.io/v1", "priorityclasses"),
    "ScaledObject": ("apis/keda.sh/v1alpha1", "scaledobjects"),
    "TriggerAuthentication": ("apis/keda.sh/v1alpha1", "triggerauthentications"),
}


class Refused(Exception):
    """An answer other than 2xx."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class Api:
    """Calls with a client certificate; one connection per call, so that restarts leave nothing behind."""

    def __init__(self, url: str, authority: Authority, pair: Pair) -> None:
        split = urlsplit(url)
        assert split.hostname is not None
        assert split.port is not None
        self._host, self._port = split.hostname, split.port
        self._context = ssl.create_default_context(cafile=str(authority.certificate))
        self._context.load_cert_chain(pair.certificate, pair.key)

    def call(
        self, method: str, path: str, body: Any = None, kind: str = "application/json"
    ) -> Object:
        """The decoded answer. Raises Refused, or OSError where nobody listens."""
        connection = http.client.HTTPSConnection(
            self._host, self._port, context=self._context, timeout=30
        )
        try:
            sent = None if body is None else json.dumps(body)
            connection.request(method, f"/{path}", sent, {"Content-Type": kind})
            response = connection.getresponse()
            raw = response.read()
        finally:
            connection.close()
        if not 200 <= response.status < 300:
            raise Refused(response.status, raw.decode(errors="replace")[:2000])
        try:
            decoded: Object = json.loads(raw)
        except ValueError:
            return {}  # health pages say "ok"
        return decoded

    def ready(self, path: str = "readyz") -> bool:
        """Whether the server is up and answers `path` well."""
        try:
            self.call("GET", path)
        except (OSError, http.client.HTTPException, Refused):
            return False
        return True

    def get(self, kind: str, name: str, namespace: str | None = None, sub: str = "") -> Object:
        """One object. Raises Refused 404 where it is not."""
        return self.call("GET", place(kind, name, namespace) + (f"/{sub}" if sub else ""))

    def find(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        """One object, or None."""
        try:
            return self.get(kind, name, namespace)
        except Refused as refused:
            if refused.status == 404:
                return None
            raise

    def listed(self, kind: str, namespace: str | None = None) -> list[Object]:
        """All objects of a kind."""
        found: list[Object] = self.call("GET", place(kind, None, namespace))["items"]
        return found

    def create(self, manifest: Mapping[str, Any]) -> Object:
        """Create the object; what is there already is left as it is."""
        metadata = manifest["metadata"]
        path = place(manifest["kind"], None, metadata.get("namespace"))
        try:
            return self.call("POST", path, manifest)
        except Refused as refused:
            if refused.status != 409:
                raise
            return {}

    def patch(
        self, kind: str, name: str, namespace: str | None, body: Mapping[str, Any], sub: str = ""
    ) -> Object:
        """Merge `body` into the object or into its subresource."""
        return self.call(
            "PATCH", place(kind, name, namespace) + (f"/{sub}" if sub else ""), body, MERGE
        )

    def delete(self, kind: str, name: str, namespace: str | None = None) -> None:
        """Delete the object, if it is there."""
        try:
            self.call("DELETE", place(kind, name, namespace))
        except Refused as refused:
            if refused.status != 404:
                raise

    def token(self, account: str, namespace: str) -> str:
        """A token of a service account, for an hour."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        path = place("ServiceAccount", account, namespace) + "/token"
        token: str = self.call("POST", path, body)["status"]["token"]
        return token


def place(kind: str, name: str | None, namespace: str | None) -> str:
    """The path of an object, or of all of its kind."""
    group, plural = PLURALS[kind]
    within = f"/namespaces/{namespace}" if namespace and kind != "Namespace" else ""
    return f"{group}{within}/{plural}" + (f"/{name}" if name else "")


def when(condition: Callable[[], object]) -> Callable[[], object]:
    """The condition, with a server that does not answer for the moment read as "not yet"."""

    def tried() -> object:
        try:
            return condition()
        except (OSError, http.client.HTTPException, Refused):
            return None

    return tried


def kubeconfig(
    file: Path,
    url: str,
    authority: Authority,
    *,
    pair: Pair | None = None,
    token: str | None = None,
) -> Path:
    """Write a kubeconfig for a client certificate or a token."""
    user: Object = {"token": token} if token is not None else {}
    if pair is not None:
        user = {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}
    file.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [
                    {
                        "name": "plane",
                        "cluster": {
                            "server": url,
                            "certificate-authority": str(authority.certificate),
                        },
                    }
                ],
                "users": [{"name": "user", "user": user}],
                "contexts": [{"name": "plane", "context": {"cluster": "plane", "user": "user"}}],
                "current-context": "plane",
            }
        )
    )
    return file
