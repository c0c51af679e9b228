"""How the HTTP server protects itself: the same settings for both daemons."""

from typing import Annotated

from msgspec import Meta

from gpuscale.config import Strict


class WebSettings(Strict, frozen=True, kw_only=True):
    """TLS, authentication and limits of the HTTP server."""

    config_file: Annotated[
        Annotated[str, Meta(min_length=1, max_length=4096)] | None,
        Meta(
            description="A Prometheus `web.config.file`: TLS, client certificates, users with bcrypt passwords. "
            "Read again when it or a file it names changes.",
        ),
    ] = None
    max_scrapes_in_flight: Annotated[
        int,
        Meta(
            ge=1,
            le=10_000,
            description="Scrapes answered at the same time; more get a 503 at once.",
        ),
    ] = 40
