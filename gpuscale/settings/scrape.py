"""How inference pods are scraped directly."""

from typing import Annotated

from msgspec import Meta

from gpuscale.config import Seconds, Strict


class ScrapeSettings(Strict, frozen=True, kw_only=True):
    """Direct scraping of the inference pods, used where no Prometheus is named."""

    timeout_s: Annotated[Seconds, Meta(description="Longest wait for one page.")] = 3.0
    bytes_max: Annotated[
        int,
        Meta(
            ge=1024,
            le=256 * 2**20,
            description="Largest page read; beyond it the pod counts as silent.",
        ),
    ] = 8 * 2**20
    concurrency_max: Annotated[
        int, Meta(ge=1, le=1024, description="Pages read at the same time.")
    ] = 32
