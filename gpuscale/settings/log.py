"""What is logged: the same settings for both daemons."""

from typing import Annotated, Literal

from msgspec import Meta

from gpuscale.config import Strict


class LogSettings(Strict, frozen=True, kw_only=True):
    """What is logged, on standard error."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Least level logged.")
    ] = "info"
    format: Annotated[
        Literal["json", "console"],
        Meta(description="One JSON object per line, or text for people."),
    ] = "json"
