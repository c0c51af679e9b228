"""TLS contexts of servers, made from PEM bytes that were read once.

The bytes come from the caller, so that what is loaded is exactly what was compared with the files
of before: a certificate that is being replaced is never loaded by halves.
"""

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from gpuscale.errors import ConfigError, foreign

ClientAuth = Literal[
    "NoClientCert",
    "RequestClientCert",
    "RequireAnyClientCert",
    "VerifyClientCertIfGiven",
    "RequireAndVerifyClientCert",
]

VERSIONS = {
    "TLS10": ssl.TLSVersion.TLSv1,
    "TLS11": ssl.TLSVersion.TLSv1_1,
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}

CIPHERS = {
    f"TLS_ECDHE_{key}_WITH_{go}": f"ECDHE-{key}-{openssl}"
    for key in ("ECDSA", "RSA")
    for go, openssl in {
        "AES_128_GCM_SHA256": "AES128-GCM-SHA256",
        "AES_256_GCM_SHA384": "AES256-GCM-SHA384",
        "CHACHA20_POLY1305_SHA256": "CHACHA20-POLY1305",
        "AES_128_CBC_SHA": "AES128-SHA",
        "AES_256_CBC_SHA": "AES256-SHA",
    }.items()
}
"""Go's names of the cipher suites up to TLS 1.2 that its crypto/tls counts as secure, to OpenSSL's."""
FIXED_CIPHERS = frozenset(
    {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}
)
"""Suites of TLS 1.3: always on there, and not to be chosen (in Go's library neither)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """What a TLS server is made of. `client_ca` None: certificates of clients are not looked at."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None = None
    min_version: str = "TLS12"
    max_version: str = "TLS13"
    ciphers: tuple[str, ...] = ()
    server_preference: bool = True


def server_context(tls: ServerTls, *, where: str) -> ssl.SSLContext:
    """A server's context. Raises ConfigError, which begins with `where`.

    A client's certificate is verified where it is given. That one must be given is for the caller
    to see to: it has endpoints that are open to those who have none.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = VERSIONS[tls.min_version]
    context.maximum_version = VERSIONS[tls.max_version]
    if tls.server_preference:
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    else:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    chosen = [name for name in tls.ciphers if name not in FIXED_CIPHERS]
    unknown = [name for name in chosen if name not in CIPHERS]
    if unknown:
        raise ConfigError(
            f"{where}: cipher_suites: {unknown[0]!r} is not offered: choose among {', '.join(CIPHERS)}"
        )
    if chosen:
        context.set_ciphers(":".join(CIPHERS[name] for name in chosen))
    try:
        with _file(tls.certificate) as certificate, _file(tls.key) as key:
            context.load_cert_chain(certificate, key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"{where}: the certificate and its key cannot be used ({foreign(error)}): give a PEM "
            "certificate (leaf first) and the unencrypted PEM key that belongs to it"
        ) from error
    if tls.client_ca is not None:
        context.verify_mode = ssl.CERT_OPTIONAL
        try:
            context.load_verify_locations(cadata=tls.client_ca.decode())
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(
                f"{where}: the CA of the clients cannot be used ({foreign(error)}): give PEM certificates"
            ) from error
    return context


def _no_password() -> str:
    # Without this OpenSSL would ask on the terminal, and a daemon would wait for ever.
    raise ValueError("the key is encrypted")


@contextmanager
def _file(content: bytes) -> Iterator[str]:
    """A path under which OpenSSL finds `content`; it takes no bytes. In memory: the disk may be read-only."""
    descriptor = os.memfd_create("pem")
    try:
        os.write(descriptor, content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
