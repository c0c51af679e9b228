"""Certificates in files that somebody else renews: read at the start, and again when they changed.

What is adopted is checked as a whole first (the key belongs to the certificate, the CA can be read),
so that a renewal caught half-way, file by file, keeps the certificate of before until it is complete.
"""

from pathlib import Path
from typing import NamedTuple

import grpc

from gpuscale.errors import ConfigError
from gpuscale.settings import GrpcTlsSettings
from gpuscale.tls import ServerTls, server_context

PEM_BYTES_MAX = 1024 * 1024
"""Far above any chain; more is not a certificate."""
WHERE = "grpc_tls"


class Pem(NamedTuple):
    """What a TLS server is made of; `client_ca` None: certificates of clients are not asked for."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None


class KeyFiles:
    """The files that `grpc_tls` names. Called from gRPC's handshakes, one at a time."""

    def __init__(self, settings: GrpcTlsSettings) -> None:
        self._settings = settings
        self._used: Pem | None = None
        self._stamp: object = None
        self.problem: str | None = None
        """Why what lies in the files is not used, one sentence; None while it is."""

    def first(self) -> Pem:
        """What the files hold. Raises ConfigError, one sentence, where it cannot be used."""
        self._stamp = self._stamped()
        self._used = self._read()
        return self._used

    def renewed(self) -> Pem | None:
        """What the files hold where it is another than before and can be used; else None."""
        stamp = self._stamped()
        if stamp == self._stamp:
            return None
        try:
            pem = self._read()
        except ConfigError as error:
            self.problem = f"the certificate of before stays in use: {error}"
            return None
        self._stamp, self.problem = stamp, None
        if pem == self._used:
            return None
        self._used = pem
        return pem

    def credentials(self) -> grpc.ServerCredentials:
        """Of a gRPC server that looks at each handshake whether the files hold others by now.

        Raises ConfigError where the files cannot be used at the start.
        """
        first = self.first()

        def newest() -> grpc.ServerCertificateConfiguration:
            self.renewed()
            return _configuration(self._used or first)

        return grpc.dynamic_ssl_server_credentials(
            _configuration(first),
            newest,
            require_client_authentication=first.client_ca is not None,
        )

    def _paths(self) -> tuple[tuple[str, str | None], ...]:
        s = self._settings
        return (
            ("cert_file", s.cert_file),
            ("key_file", s.key_file),
            ("client_ca_file", s.client_ca_file),
        )

    def _stamped(self) -> tuple[object, ...]:
        """What changes when a file does: a handshake must not cost three reads and a parse."""
        found: list[object] = []
        for _, path in self._paths():
            try:
                stat = None if path is None else Path(path).stat()
            except OSError:
                stat = None
            found.append(None if stat is None else (stat.st_ino, stat.st_mtime_ns, stat.st_size))
        return tuple(found)

    def _read(self) -> Pem:
        certificate, key, client_ca = (self._content(name, path) for name, path in self._paths())
        assert certificate is not None
        assert key is not None
        pem = Pem(certificate, key, client_ca)
        server_context(
            ServerTls(certificate=certificate, key=key, client_ca=client_ca), where=WHERE
        )
        return pem

    def _content(self, name: str, path: str | None) -> bytes | None:
        if path is None:
            return None
        try:
            with Path(path).open("rb") as stream:
                content = stream.read(PEM_BYTES_MAX + 1)
        except OSError as error:
            raise ConfigError(
                f"{WHERE}.{name}: {path} cannot be read ({error.strerror}): correct the path or its "
                "permissions"
            ) from error
        if len(content) > PEM_BYTES_MAX:
            raise ConfigError(
                f"{WHERE}.{name}: {path} is larger than {PEM_BYTES_MAX} bytes: name a PEM file"
            )
        return content


def _configuration(pem: Pem) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.certificate)], pem.client_ca)
