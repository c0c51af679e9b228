"""etcd, the API server, its controllers, the scheduler and simulated kubelets, on loopback."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.controlplane import binaries, objects
from tests.e2e.controlplane.api import Api, kubeconfig
from tests.e2e.controlplane.certificates import Authority, signing_key
from tests.e2e.controlplane.processes import Program, free_ports, wait_until

HPA_SYNC_S = 3
"""Kubernetes' own is 15 s; the test waits less, and the HPA does the same."""
NODES_LOST_AFTER = "24h0m0s"
"""The simulated kubelets send no heartbeats."""


class Plane:
    """The control plane. `start` it, use `api`, `stop` it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder / "pki")
        etcd, peer, secure, manager, scheduler, kubelet = free_ports(6)
        self.url = f"https://127.0.0.1:{secure}"
        self.audit_log = folder / "audit.jsonl"
        admin = self.authority.client("admin", "system:masters")
        self.api = Api(self.url, self.authority, admin)
        self.kubeconfig = kubeconfig(
            folder / "admin.kubeconfig", self.url, self.authority, pair=admin
        )
        self.etcd = Program("etcd", _etcd(folder, etcd, peer), folder)
        self.apiserver = Program("kube-apiserver", self._apiserver_command(etcd, secure), folder)
        self.controllers = Program(
            "kube-controller-manager", self._controllers_command(manager), folder
        )
        self.scheduler = Program(
            "kube-scheduler",
            [binaries.path("kube-scheduler"), f"--kubeconfig={self.kubeconfig}",
             "--bind-address=127.0.0.1", f"--secure-port={scheduler}", "--leader-elect=false"],
            folder,
        )  # fmt: skip
        stages = folder / "stages.yaml"
        stages.write_text("\n---\n".join(yaml.safe_dump(each) for each in objects.stages()))
        self.kubelets = Program(
            "kwok",
            [binaries.path("kwok"), f"--kubeconfig={self.kubeconfig}", f"--config={stages}",
             "--manage-all-nodes=true", f"--server-address=127.0.0.1:{kubelet}"],
            folder,
        )  # fmt: skip

    def start(self) -> None:
        """Start all and wait until namespaces have their service accounts."""
        self.etcd.start()
        self.apiserver.start(self.api.ready, within_s=120)
        for program in (self.controllers, self.scheduler, self.kubelets):
            program.start()
        wait_until(
            "the controllers work",
            lambda: (
                self.controllers.alive() and self.api.find("ServiceAccount", "default", "default")
            ),
        )

    def stop(self) -> None:
        """End all, in the order in which nobody complains."""
        for program in (
            self.kubelets, self.scheduler, self.controllers, self.apiserver, self.etcd,
        ):  # fmt: skip
            program.stop()

    def audited(self, user: str) -> set[tuple[str, str, str]]:
        """What a user was allowed and did: (API group, resource or resource/subresource, verb)."""
        used: set[tuple[str, str, str]] = set()
        for line in self.audit_log.read_text().splitlines():
            event: dict[str, Any] = json.loads(line)
            what = event.get("objectRef")
            if event["user"].get("username") != user or what is None:
                continue
            name = "/".join(p for p in (what["resource"], what.get("subresource")) if p)
            used.add((what.get("apiGroup", ""), name, event["verb"]))
        return used

    def _apiserver_command(self, etcd: int, secure: int) -> list[str | Path]:
        server = self.authority.server("apiserver", "kubernetes.default.svc")
        proxy = self.authority.client("front-proxy-client")
        tokens = signing_key(self.folder / "pki")
        ca = self.authority.certificate
        policy = self.folder / "audit-policy.yaml"
        policy.write_text(
            "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\n"
            "rules: [{level: Metadata, userGroups: ['system:serviceaccounts']}, {level: None}]\n"
        )
        return [
            binaries.path("kube-apiserver"),
            f"--etcd-servers=http://127.0.0.1:{etcd}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--secure-port={secure}",
            "--service-cluster-ip-range=10.0.0.0/24",
            f"--tls-cert-file={server.certificate}",
            f"--tls-private-key-file={server.key}",
            f"--client-ca-file={ca}",
            "--authorization-mode=RBAC",
            f"--service-account-issuer={self.url}",
            f"--service-account-key-file={tokens.certificate}",
            f"--service-account-signing-key-file={tokens.key}",
            f"--requestheader-client-ca-file={ca}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={proxy.certificate}",
            f"--proxy-client-key-file={proxy.key}",
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self.audit_log}",
            "--watch-cache=true",
        ]

    def _controllers_command(self, port: int) -> list[str | Path]:
        return [
            binaries.path("kube-controller-manager"),
            f"--kubeconfig={self.kubeconfig}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            "--leader-elect=false",
            f"--service-account-private-key-file={self.folder / 'pki' / 'service-accounts.key'}",
            f"--root-ca-file={self.authority.certificate}",
            f"--horizontal-pod-autoscaler-sync-period={HPA_SYNC_S}s",
            f"--node-monitor-grace-period={NODES_LOST_AFTER}",
        ]


def _etcd(folder: Path, client: int, peer: int) -> list[str | Path]:
    return [
        binaries.path("etcd"),
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls=http://127.0.0.1:{client}",
        f"--advertise-client-urls=http://127.0.0.1:{client}",
        f"--listen-peer-urls=http://127.0.0.1:{peer}",
        f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
        f"--initial-cluster=default=http://127.0.0.1:{peer}",
        "--unsafe-no-fsync=true",
        "--log-level=warn",
    ]


@contextmanager
def running(folder: Path) -> Iterator[Plane]:
    """A plane that is stopped whatever happens."""
    plane = Plane(folder)
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()
