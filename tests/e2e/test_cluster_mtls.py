"""KEDA shows a certificate to gpuscale and checks gpuscale's; both are renewed while it runs."""

import base64
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from gpuscale.config import convert
from gpuscale.controller import scaledobject
from gpuscale.settings import ControllerSettings
from tests import tools
from tests.e2e.controlplane import binaries, controller, keda, objects, plane
from tests.e2e.controlplane.certificates import Pair
from tests.e2e.controlplane.processes import wait_until

pytestmark = [
    binaries.requires(*binaries.KUBERNETES, *binaries.KEDA),
    tools.requires("helm"),
    pytest.mark.timeout(400),
    pytest.mark.slow,
]

CAPACITY, LOW, HIGH = 2.0, 6.0, 16.0
START_S = 2.0
FOLLOW_S = 90.0
POLICIES: dict[str, dict[str, Any]] = {
    "model": {
        "mode": "act", "capacity": CAPACITY, "capacity_pinned": True, "start_time_s": START_S,
        "max_replicas": 20,
    }
}  # fmt: skip
NAMES = {"caCert": "ca.crt", "tlsClientCert": "tls.crt", "tlsClientKey": "tls.key"}
"""Parameter of KEDA's external scaler -> key of a Secret as cert-manager writes it."""


@dataclass
class Rig:
    """A cluster with KEDA, and a controller that answers nobody without a certificate."""

    plane: plane.Plane
    keda: keda.Keda
    gpuscale: controller.Controller
    served: Pair

    def deploy(self, name: str, authentication: str | None) -> None:
        """Model servers and their ScaledObject, with a TriggerAuthentication or with plain text."""
        self.plane.api.create(objects.servers("ai", name, start_s=START_S))
        given = {
            n: {**p, "server": "custom", "custom": controller.CUSTOM} for n, p in POLICIES.items()
        }
        settings = convert({"policies": given}, ControllerSettings, where="settings")
        workload, metadata = scaledobject.declare("ai", name, settings, policy="model")
        made = scaledobject.scaledobject(
            workload, metadata, address=self.gpuscale.address, authentication=authentication
        )
        made["spec"]["pollingInterval"] = 1
        self.plane.api.create(made)

    def replicas(self, name: str) -> int:
        """What is asked of the Deployment."""
        replicas: int = self.plane.api.get("Deployment", name, "ai")["spec"]["replicas"]
        return replicas

    def follows(self, name: str, least: float) -> None:
        """Wait until the Deployment is asked for so many."""
        wait_until(f"{name} is scaled", lambda: self.replicas(name) >= least, FOLLOW_S)

    def serial(self) -> int:
        """Serial number of the certificate that gpuscale shows to who connects now."""
        host, port = self.gpuscale.address.rsplit(":", 1)
        context = ssl.create_default_context(cafile=str(self.plane.authority.certificate))
        context.set_alpn_protocols(["h2"])
        mine = self.plane.authority.client("looks")
        context.load_cert_chain(mine.certificate, mine.key)
        with (
            socket.create_connection((host, int(port)), timeout=5) as plain,
            context.wrap_socket(plain, server_hostname=host) as wrapped,
        ):
            shown = wrapped.getpeercert(binary_form=True)
        assert shown is not None
        return x509.load_der_x509_certificate(shown).serial_number


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with (
        plane.running(tmp_path_factory.mktemp("plane")) as running,
        keda.running(running) as operator,
    ):
        for i in range(4):
            running.api.create(objects.node(f"gpu-{i}"))
        running.api.create(objects.namespace("ai"))
        served = running.authority.server("gpuscale-grpc")
        tls = {
            "cert_file": str(served.certificate),
            "key_file": str(served.key),
            "client_ca_file": str(running.authority.certificate),
        }
        with controller.running(running, POLICIES, settings={"grpc_tls": tls}) as gpuscale:
            for made in authentication(
                running.authority.certificate, running.authority.client("keda")
            ):
                running.api.create(made)
            yield Rig(running, operator, gpuscale, served)


def authentication(ca: Path, pair: Pair) -> Iterator[dict[str, Any]]:
    """KEDA's certificate as a Secret, and the TriggerAuthentication that names it."""
    files = {"ca.crt": ca, "tls.crt": pair.certificate, "tls.key": pair.key}
    metadata = {"namespace": "ai", "name": "gpuscale-mtls"}
    yield {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "data": {name: base64.b64encode(f.read_bytes()).decode() for name, f in files.items()},
    }
    yield {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "TriggerAuthentication",
        "metadata": metadata,
        "spec": {
            "secretTargetRef": [
                {"parameter": parameter, "name": "gpuscale-mtls", "key": key}
                for parameter, key in NAMES.items()
            ]
        },
    }


def test_keda_follows_over_mtls_and_a_renewed_certificate_is_shown_and_taken(rig: Rig) -> None:
    rig.gpuscale.demand(chat=LOW, open=HIGH)
    rig.deploy("chat", "gpuscale-mtls")
    rig.deploy("open", None)
    rig.follows("chat", LOW / CAPACITY)
    before = rig.serial()

    rig.plane.authority.server("gpuscale-grpc")  # over the old files, as cert-manager renews
    wait_until("the new certificate is shown", lambda: rig.serial() != before, FOLLOW_S)
    rig.keda.operator.stop()
    rig.keda.operator.start()
    rig.gpuscale.demand(chat=HIGH, open=HIGH)
    rig.follows("chat", HIGH / CAPACITY)

    assert rig.replicas("open") == 1, "who shows no certificate was answered"
