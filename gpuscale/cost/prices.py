"""What a GPU-hour costs, by product; a file that people write."""

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated

from msgspec import Meta

from gpuscale.config import Strict

Price = Annotated[float, Meta(ge=0, le=1e6)]


class Prices(Strict, frozen=True, kw_only=True):
    """Prices in one currency. A product that no entry fits has none, and its hours cost an unknown amount."""

    currency: Annotated[str, Meta(max_length=16)] = ""
    default: Price | None = None
    """Of a GPU-hour of every product that is not listed."""
    products: Annotated[dict[str, Price], Meta(max_length=1_000)] = {}  # noqa: RUF012 - msgspec copies it
    """Glob of product names -> price of a GPU-hour; the first that fits holds."""
    energy_per_kwh: Price = 0.0
    """Beside the hours; 0 where their price includes it."""

    def of(self, product: str) -> float | None:
        """Price of a GPU-hour of a product; None where nobody said."""
        exact = self.products.get(product)
        if exact is not None:
            return exact
        fits = (price for glob, price in self.products.items() if fnmatchcase(product, glob))
        return next(fits, self.default)


def from_nodes(
    gpus: Mapping[tuple[str, str], float], prices: Mapping[str, float], currency: str = ""
) -> Prices:
    """Prices by product from prices by node: the mean over the product's GPUs on nodes with a price.

    `gpus` counts GPUs by (node, product), `prices` has the price of a GPU-hour by node.
    """
    sums: dict[str, tuple[float, float]] = {}
    for (node, product), count in gpus.items():
        price = prices.get(node)
        if price is not None and math.isfinite(price) and price >= 0:
            paid, counted = sums.get(product, (0.0, 0.0))
            sums[product] = paid + price * count, counted + count
    means = {product: paid / counted for product, (paid, counted) in sums.items() if counted}
    return Prices(currency=currency, products=means)
