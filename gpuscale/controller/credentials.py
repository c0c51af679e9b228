"""Who we are to the servers that we ask, and whom we believe there: read from files, as they stand now.

Kubelet and cert-manager replace such files; whoever asks reads them again. Errors name the settings'
keys, which are the same below each `section`.
"""

import base64
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from gpuscale.errors import SourceRefused, foreign

SECRET_BYTES_MAX = 64 * 1024
"""A token is a few kB, a password a line; a larger file is another one."""


class TlsFiles(Protocol):
    """Settings that name the files of a client's TLS."""

    @property
    def ca_file(self) -> str | None:
        """Authorities that the server's certificate is checked against; None for the system's."""
        ...

    @property
    def cert_file(self) -> str | None:
        """Our certificate; None for none."""
        ...

    @property
    def key_file(self) -> str | None:
        """Its key."""
        ...


def bearer(path: str, *, section: str) -> Mapping[str, str]:
    """The header of a bearer token in a file. Raises SourceRefused."""
    return {"Authorization": f"Bearer {_secret(path, 'token', f'{section}.bearer_token_file')}"}


def basic(username: str, path: str, *, section: str) -> Mapping[str, str]:
    """The header of basic authentication with a password in a file (RFC 7617). Raises SourceRefused."""
    password = _secret(path, "password", f"{section}.password_file")
    pair = base64.b64encode(f"{username}:{password}".encode()).decode()
    return {"Authorization": f"Basic {pair}"}


def tls_files(files: TlsFiles, *, section: str) -> tuple[tuple[str, int], ...]:
    """(path, time of its last change in ns) of every file that TLS is made of. Raises SourceRefused."""
    paths = [p for p in (files.ca_file, files.cert_file, files.key_file) if p]
    try:
        return tuple((path, Path(path).stat().st_mtime_ns) for path in paths)
    except OSError as error:
        raise _no_tls(error, section) from error


def client_context(files: TlsFiles, *, section: str) -> ssl.SSLContext:
    """TLS towards a server. Raises SourceRefused."""
    try:
        context = ssl.create_default_context(cafile=files.ca_file)
        if files.cert_file is not None:
            context.load_cert_chain(files.cert_file, files.key_file)
    except (OSError, ssl.SSLError) as error:
        raise _no_tls(error, section) from error
    return context


def _no_tls(error: OSError, section: str) -> SourceRefused:
    return SourceRefused(
        f"the certificates that {section} names cannot be used ({foreign(error)}): check "
        f"{section}.ca_file, cert_file and key_file"
    )


def _secret(path: str, what: str, key: str) -> str:
    """The line in a file of SECRET_BYTES_MAX bytes at most."""
    try:
        with Path(path).open("rb") as file:
            # A token is sent as it stands, and headers are ASCII.
            return (
                file.read(SECRET_BYTES_MAX).decode("ascii" if what == "token" else "utf-8").strip()
            )
    except (OSError, UnicodeDecodeError) as error:
        raise SourceRefused(
            f"the {what} in {path} cannot be read ({foreign(error)}): "
            f"set {key} to a file that this process may read"
        ) from error
