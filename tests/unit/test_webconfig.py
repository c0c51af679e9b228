"""The web config: what Prometheus's own exporters accept, and one sentence for what cannot be done."""

from pathlib import Path

import pytest
import trustme

from gpuscale import webconfig
from gpuscale.errors import ConfigError

HASH = "$2b$04$" + "a" * 53


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("web")
    ca = trustme.CA()
    issued = ca.issue_cert("node-1.example")
    issued.cert_chain_pems[0].write_to_path(folder / "tls.crt")
    issued.private_key_pem.write_to_path(folder / "tls.key")
    ca.cert_pem.write_to_path(folder / "ca.crt")
    trustme.CA().issue_cert("other").private_key_pem.write_to_path(folder / "other.key")
    return folder


def read(folder: Path, text: str) -> webconfig.WebConfig:
    path = folder / "web.yml"
    path.write_text(text)
    return webconfig.read(str(path))


def test_an_empty_file_protects_nothing(folder: Path) -> None:
    config = read(folder, "")
    assert config.context is None
    assert not config.users
    assert config.rate_interval_s == 0


def test_files_are_found_beside_the_web_config_whatever_the_working_directory(folder: Path) -> None:
    config = read(folder, "tls_server_config: {cert_file: tls.crt, key_file: tls.key}")
    assert config.context is not None
    assert not config.client_required


def test_certificate_and_key_may_stand_in_the_file_itself(folder: Path) -> None:
    def block(name: str) -> str:
        return "".join(f"\n    {line}" for line in (folder / name).read_text().splitlines())

    config = read(
        folder, f"tls_server_config:\n  cert: |{block('tls.crt')}\n  key: |{block('tls.key')}\n"
    )
    assert config.context is not None


def test_everything_that_the_format_knows_is_read(folder: Path) -> None:
    config = read(
        folder,
        f"""
tls_server_config:
  cert_file: tls.crt
  key_file: tls.key
  client_ca_file: ca.crt
  client_auth_type: RequireAndVerifyClientCert
  client_allowed_sans: [prometheus.monitoring.svc]
  min_version: TLS13
  max_version: TLS13
  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_AES_128_GCM_SHA256]
  prefer_server_cipher_suites: false
http_server_config:
  http2: true
  headers: {{X-Frame-Options: deny, Strict-Transport-Security: max-age=60}}
basic_auth_users: {{prometheus: {HASH}}}
rate_limit: {{interval: 1m30s, burst: 20}}
""",
    )
    assert config.client_required
    assert config.allowed_sans == ("prometheus.monitoring.svc",)
    assert config.users == {"prometheus": HASH.encode()}
    assert config.headers == {"X-Frame-Options": "deny", "Strict-Transport-Security": "max-age=60"}
    assert (config.rate_interval_s, config.rate_burst) == (90.0, 20)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tls_server_config: {cert_file: tls.crt}", "key_file is missing"),
        ("tls_server_config: {key_file: tls.key}", "cert_file is missing"),
        ("tls_server_config: {cert_file: no.crt, key_file: tls.key}", "no.crt cannot be read"),
        ("tls_server_config: {cert_file: tls.crt, key_file: other.key}", "cannot be used"),
        ("tls_server_config: {cert_file: web.yml, key_file: tls.key}", "cannot be used"),
        (
            "tls_server_config: {cert_file: tls.crt, cert: x, key_file: tls.key}",
            "cert and cert_file are both given",
        ),
        (
            "tls_server_config: {cert_file: tls.crt, key_file: tls.key, client_ca_file: ca.crt}",
            "client_auth_type is not",
        ),
        (
            "tls_server_config: {cert_file: tls.crt, key_file: tls.key, client_auth_type: RequireAndVerifyClientCert}",
            "needs client_ca_file",
        ),
        (
            "tls_server_config: {cert_file: tls.crt, key_file: tls.key, client_ca_file: tls.key, "
            "client_auth_type: RequireAndVerifyClientCert}",
            "CA of the clients cannot be used",
        ),
        (
            "tls_server_config: {cert_file: tls.crt, key_file: tls.key, client_auth_type: RequireAnyClientCert}",
            "use RequireAndVerifyClientCert",
        ),
        (
            "tls_server_config: {cert_file: tls.crt, key_file: tls.key, client_allowed_sans: [a]}",
            "client_allowed_sans needs",
        ),
        (
            "tls_server_config: {cert_file: tls.crt, key_file: tls.key, min_version: TLS13, max_version: TLS12}",
            "min_version TLS13 is above",
        ),
        (
            "tls_server_config: {cert_file: tls.crt, key_file: tls.key, cipher_suites: [TLS_RSA_WITH_RC4_128_SHA]}",
            "'TLS_RSA_WITH_RC4_128_SHA' is not offered",
        ),
        (
            "tls_server_config: {cert_file: tls.crt, key_file: tls.key, curve_preferences: [X25519]}",
            "curve_preferences cannot be set",
        ),
        ("tls_config: {}", "unknown key `tls_config`"),
        ("basic_auth_users: {a: plain}", "basic_auth_users"),
        ("basic_auth_users: {a: $2b$31$" + "a" * 53 + "}", "cost of at most"),
        ("rate_limit: {interval: fast, burst: 1}", "'fast' is no duration"),
        ("http_server_config: {headers: {X-Frame-Options: allow}}", "X-Frame-Options"),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_sentence_that_names_it(
    folder: Path, text: str, said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        read(folder, text)
    assert said in str(refused.value)
    assert "web.yml" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_encrypted_key_is_refused_and_asks_nobody_for_a_password(folder: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key((folder / "tls.key").read_bytes(), None)
    (folder / "locked.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(ConfigError, match="unencrypted"):
        read(folder, "tls_server_config: {cert_file: tls.crt, key_file: locked.key}")
