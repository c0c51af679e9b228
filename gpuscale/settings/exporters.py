"""Settings of the exporters as the controller reads them for its map of GPUs."""

from typing import Annotated

from msgspec import Meta

from gpuscale.config import HttpUrl, Seconds, Strict


class ExportersSettings(Strict, frozen=True, kw_only=True):
    """The exporters, read for the page's map of GPUs while somebody looks at it."""

    urls: Annotated[
        tuple[HttpUrl, ...],
        Meta(
            max_length=5_000,
            description="Base addresses, without /api/v1; a name with several addresses, such as that of a headless Service, stands for all of them. None: no map.",
        ),
    ] = ()
    timeout_s: Annotated[Seconds, Meta(description="Longest wait for one exporter.")] = 3.0
    fresh_s: Annotated[
        Seconds, Meta(description="What was read is shown for this long before it is read again.")
    ] = 10.0
    username: Annotated[
        Annotated[str, Meta(min_length=1, max_length=256, pattern="^[^:]+$")] | None,
        Meta(description="User of basic authentication; needs password_file."),
    ] = None
    password_file: Annotated[
        str | None, Meta(description="File with the user's password, read each time.")
    ] = None
    ca_file: Annotated[
        str | None,
        Meta(
            description="Authorities (PEM) that the exporters' certificates are checked against; default the system's."
        ),
    ] = None
    cert_file: Annotated[
        str | None, Meta(description="Our client certificate (PEM); needs key_file.")
    ] = None
    key_file: Annotated[str | None, Meta(description="Its private key (PEM).")] = None

    def __post_init__(self) -> None:
        """Refuse half a pair."""
        if (self.username is None) != (self.password_file is None):
            raise ValueError("username and password_file need each other: give both or none")
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file need each other: give both or none")
