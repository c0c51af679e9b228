"""What is known of a metric family before it has a value."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "info"]
Wing = Literal["exporter", "controller"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric family. `labels` are all its label names, in order."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    wing: Wing
