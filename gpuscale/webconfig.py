"""Prometheus's `web.config.file`, as its exporters read it: TLS, client certificates, users, headers, rate.

Format: github.com/prometheus/exporter-toolkit, docs/web-configuration.md. What that file can say
and this server cannot do is refused in a sentence: a protection that is written down and not there
is worse than none.
"""

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, field

from gpuscale.config import WANTED, Strict, load
from gpuscale.errors import ConfigError
from gpuscale.tls import ClientAuth, ServerTls, server_context

PEM_BYTES_MAX = 1024 * 1024
"""A chain is some kB and a bundle of CAs some hundred; more is another file."""
USERS_MAX = 100
"""Basic authentication is for a few; many belong behind a proxy that knows them."""
COST_MAX = 15
"""Highest bcrypt cost: a second or two for each new password; 31 would be years."""

Version = Literal["TLS10", "TLS11", "TLS12", "TLS13"]
Bcrypt = Annotated[
    str,
    Meta(
        pattern=r"^\$2[aby]\$\d\d\$[./A-Za-z0-9]{53}$",
        extra={WANTED: "a bcrypt hash, such as `htpasswd -nB USER` prints, and no password"},
    ),
]


class _Tls(Strict, frozen=True, kw_only=True):
    cert: str | None = None
    key: str | None = None
    client_ca: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    client_ca_file: str | None = None
    client_auth_type: ClientAuth | Literal[""] = "NoClientCert"
    client_allowed_sans: tuple[str, ...] = ()
    min_version: Version = "TLS12"
    max_version: Version = "TLS13"
    cipher_suites: tuple[str, ...] = ()
    prefer_server_cipher_suites: bool = True
    curve_preferences: tuple[str, ...] = ()


class _Headers(Strict, frozen=True, kw_only=True, rename=lambda name: name.replace("_", "-")):
    Content_Security_Policy: str = ""
    X_Frame_Options: Literal["", "deny", "sameorigin"] = ""
    X_Content_Type_Options: Literal["", "nosniff"] = ""
    X_XSS_Protection: str = ""
    Strict_Transport_Security: str = ""


class _Http(Strict, frozen=True, kw_only=True):
    http2: bool = True
    """Read and without effect: HTTP/1.1 is spoken, which every scraper understands."""
    headers: _Headers = field(default_factory=_Headers)


class _Rate(Strict, frozen=True, kw_only=True):
    interval: str | Literal[0] = 0
    burst: Annotated[int, Meta(ge=0, le=1_000_000)] = 0


class _File(Strict, frozen=True, kw_only=True):
    tls_server_config: _Tls | None = None
    http_server_config: _Http = field(default_factory=_Http)
    basic_auth_users: Annotated[dict[str, Bcrypt], Meta(max_length=USERS_MAX)] = field(
        default_factory=dict
    )
    rate_limit: _Rate = field(default_factory=_Rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebConfig:
    """A web config that was read and can be used.

    `content`: the bytes of all files it came from; equal content is an equal configuration.
    `allowed_sans`: a client's certificate must carry one of these; empty, any that verifies will do.
    `rate_interval_s` 0: no limit. `rate_burst`: requests that may come at once.
    """

    content: tuple[bytes, ...]
    context: ssl.SSLContext | None = None
    client_required: bool = False
    allowed_sans: tuple[str, ...] = ()
    users: Mapping[str, bytes] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    rate_interval_s: float = 0.0
    rate_burst: int = 0


def read(path: str) -> WebConfig:
    """Read the file and those it names. Raises ConfigError: one sentence with the file, the key, the cure."""
    where = Path(path)
    file = load(where, _File)
    for user, hashed in file.basic_auth_users.items():
        if int(hashed[4:6]) > COST_MAX:
            raise ConfigError(
                f"{path}: basic_auth_users: the password of {user!r} has bcrypt cost {hashed[4:6]}: "
                f"hash it with a cost of at most {COST_MAX}"
            )
    content = [msgspec.json.encode(file)]
    context = None
    tls = file.tls_server_config
    if tls is not None:
        made = _server_tls(tls, where)
        content += [made.certificate, made.key, made.client_ca or b""]
        context = server_context(made, where=f"{path}: tls_server_config")
    headers = msgspec.to_builtins(file.http_server_config.headers)
    return WebConfig(
        content=tuple(content),
        context=context,
        client_required=tls is not None and tls.client_auth_type == "RequireAndVerifyClientCert",
        allowed_sans=() if tls is None else tls.client_allowed_sans,
        users={user: hashed.encode() for user, hashed in file.basic_auth_users.items()},
        headers={name: value for name, value in headers.items() if value},
        rate_interval_s=_seconds(file.rate_limit.interval, path),
        rate_burst=file.rate_limit.burst,
    )


def _server_tls(tls: _Tls, where: Path) -> ServerTls:
    at = f"{where}: tls_server_config"
    auth = tls.client_auth_type or "NoClientCert"
    if auth in ("RequestClientCert", "RequireAnyClientCert"):
        raise ConfigError(
            f"{at}: client_auth_type {auth} accepts certificates that nobody signed, which is not "
            "supported: use RequireAndVerifyClientCert"
        )
    if tls.curve_preferences:
        raise ConfigError(
            f"{at}: curve_preferences cannot be set here: remove it (OpenSSL's order is used)"
        )
    if tls.min_version > tls.max_version:
        raise ConfigError(
            f"{at}: min_version {tls.min_version} is above max_version {tls.max_version}: swap them"
        )
    if tls.client_allowed_sans and auth != "RequireAndVerifyClientCert":
        raise ConfigError(
            f"{at}: client_allowed_sans needs client_auth_type RequireAndVerifyClientCert: set it"
        )
    ca = _pem(tls.client_ca, tls.client_ca_file, "client_ca", where)
    certificate = _pem(tls.cert, tls.cert_file, "cert", where)
    key = _pem(tls.key, tls.key_file, "key", where)
    if certificate is None or key is None:
        missing = "cert_file" if certificate is None else "key_file"
        raise ConfigError(f"{at}: {missing} is missing: name the PEM file")
    if auth != "NoClientCert" and ca is None:
        raise ConfigError(f"{at}: client_auth_type {auth} needs client_ca_file: name the PEM file")
    if auth == "NoClientCert" and ca is not None:
        raise ConfigError(
            f"{at}: client_ca_file is given and client_auth_type is not: "
            "set RequireAndVerifyClientCert, or remove the CA"
        )
    return ServerTls(
        certificate=certificate,
        key=key,
        client_ca=ca,
        min_version=tls.min_version,
        max_version=tls.max_version,
        ciphers=tls.cipher_suites,
        server_preference=tls.prefer_server_cipher_suites,
    )


def _pem(inline: str | None, file: str | None, key: str, where: Path) -> bytes | None:
    """The PEM given in the file itself or in another one, relative to the first; None where neither is."""
    if inline and file:
        raise ConfigError(
            f"{where}: tls_server_config: {key} and {key}_file are both given: keep one"
        )
    if inline:
        return inline.encode()
    if not file:
        return None
    path = where.parent / file
    try:
        with path.open("rb") as stream:
            content = stream.read(PEM_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(
            f"{where}: tls_server_config: {key}_file {path} cannot be read "
            f"({error.strerror}): correct the path or its permissions"
        ) from error
    if len(content) > PEM_BYTES_MAX:
        raise ConfigError(
            f"{where}: tls_server_config: {key}_file {path} is larger than {PEM_BYTES_MAX} bytes: "
            "name a PEM file"
        )
    return content


_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def _seconds(duration: str | Literal[0], path: str) -> float:
    """Seconds of a Go duration such as 500ms or 1m30s."""
    if duration in (0, "0", ""):
        return 0.0
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h)", str(duration))
    if "".join(number + unit for number, unit in parts) != duration:
        raise ConfigError(
            f"{path}: rate_limit.interval: {duration!r} is no duration: write it like 500ms or 1s"
        )
    return sum(float(number) * _UNITS_S[unit] for number, unit in parts)
