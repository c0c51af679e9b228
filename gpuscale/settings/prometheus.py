"""Settings of a server that speaks the Prometheus query API: where it is, and who we are to it."""

from typing import Annotated

from msgspec import Meta

from gpuscale.config import HttpUrl, Seconds, Strict


class PrometheusSettings(Strict, frozen=True, kw_only=True):
    """A server that speaks the Prometheus query API (Prometheus, Thanos, Mimir, VictoriaMetrics)."""

    url: Annotated[HttpUrl, Meta(description="Base address, without /api/v1.")]
    timeout_s: Annotated[Seconds, Meta(description="Longest wait for one query.")] = 5.0
    rate_window_s: Annotated[
        Seconds, Meta(description="Window of rates; at least four scrape intervals.")
    ] = 60.0
    bearer_token_file: Annotated[
        str | None, Meta(description="File with a token, read again at each query.")
    ] = None
    username: Annotated[
        Annotated[str, Meta(min_length=1, max_length=256, pattern="^[^:]+$")] | None,
        Meta(description="User of basic authentication; needs password_file."),
    ] = None
    password_file: Annotated[
        str | None, Meta(description="File with the user's password, read again at each query.")
    ] = None
    ca_file: Annotated[
        str | None,
        Meta(
            description="Authorities (PEM) that the server's certificate is checked against; default the system's."
        ),
    ] = None
    cert_file: Annotated[
        str | None, Meta(description="Our client certificate (PEM); needs key_file.")
    ] = None
    key_file: Annotated[str | None, Meta(description="Its private key (PEM).")] = None
    tenant: Annotated[
        Annotated[str, Meta(min_length=1, max_length=256, pattern="^[ -~]+$")] | None,
        Meta(description="Tenant of Mimir, Cortex or Thanos, sent as X-Scope-OrgID."),
    ] = None
    backfill_s: Annotated[
        float,
        Meta(ge=0, le=60 * 86_400, description="History read at start; 0 for none."),
    ] = 14 * 86_400.0
    backfill_step_s: Annotated[Seconds, Meta(description="Step of the history read at start.")] = (
        60.0
    )

    def __post_init__(self) -> None:
        """Refuse half a pair, and two ways to say who we are."""
        if (self.username is None) != (self.password_file is None):
            raise ValueError("username and password_file need each other: give both or none")
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file need each other: give both or none")
        if self.username is not None and self.bearer_token_file is not None:
            raise ValueError("username and bearer_token_file exclude each other: give one of them")
