"""TLS of the external scaler's gRPC server."""

from typing import Annotated

from msgspec import Meta

from gpuscale.config import Strict

PemPath = Annotated[str, Meta(min_length=1, max_length=4096)]


class GrpcTlsSettings(Strict, frozen=True, kw_only=True):
    """Certificates of the external scaler; read again when a file changes, as cert-manager renews them."""

    cert_file: Annotated[
        PemPath,
        Meta(
            description="PEM certificate, leaf first; its names must hold the host of scalerAddress."
        ),
    ]
    key_file: Annotated[PemPath, Meta(description="Its unencrypted PEM key.")]
    client_ca_file: Annotated[
        PemPath | None,
        Meta(
            description="PEM of who signs KEDA's client certificates; with it, a call without one is refused (mTLS)."
        ),
    ] = None
