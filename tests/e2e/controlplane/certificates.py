"""One authority for the whole control plane, and the files that each program is given of it."""

from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

LOCAL = ("127.0.0.1", "localhost")


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path


class Authority:
    """Issues certificates into one folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._ca = trustme.CA()
        self.certificate = folder / "ca.crt"
        self.certificate.write_bytes(self._ca.cert_pem.bytes())

    def server(self, name: str, *hosts: str) -> Pair:
        """A certificate for loopback and further host names."""
        return self._write(name, self._ca.issue_cert(*LOCAL, *hosts))

    def client(self, user: str, group: str | None = None) -> Pair:
        """A certificate by which the API server knows the user and the group."""
        return self._write(
            user,
            self._ca.issue_cert(f"{user}.gpuscale.test", common_name=user, organization_name=group),
        )

    def _write(self, name: str, issued: trustme.LeafCert) -> Pair:
        safe = name.replace(":", "-")
        pair = Pair(self._folder / f"{safe}.crt", self._folder / f"{safe}.key")
        pair.certificate.write_bytes(b"".join(p.bytes() for p in issued.cert_chain_pems))
        pair.key.write_bytes(issued.private_key_pem.bytes())
        return pair


def signing_key(folder: Path) -> Pair:
    """The key that signs service account tokens, and its public half."""
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
    pair = Pair(folder / "service-accounts.pub", folder / "service-accounts.key")
    pair.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    pair.certificate.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return pair
