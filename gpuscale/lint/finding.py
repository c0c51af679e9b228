"""What a rule says: a finding, and of each rule what it means, as values."""

from dataclasses import dataclass, field
from typing import Literal, get_args

Severity = Literal["info", "warning", "error"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""From the least on. error: the API server refuses it, or it cannot work; warning: it does not do
what it is for; info: worth a look, and right where the cluster makes it so."""

Path = tuple[str | int, ...]
"""Where in an object: keys and positions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule: its id never changes its meaning."""

    id: str
    severity: Severity
    title: str
    """What it finds, in a few words."""
    why: str
    """What happens where it is found; a sentence or two."""
    cure: str
    """What to write instead; one sentence in the imperative."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A rule that an object breaks, and where."""

    rule: Rule
    severity: Severity
    kind: str
    namespace: str
    """Empty where the object names none."""
    name: str
    path: Path
    """The field in the object, as far as the rule knows."""
    sentence: str
    """What is wrong with this object."""
    container: str = ""
    file: str = field(default="", compare=False)
    """Where the object was read; empty for an object of a live cluster."""
    line: int | None = field(default=None, compare=False)
    """From 1; None where no file is known."""

    @property
    def object(self) -> str:
        """`Kind namespace/name`, as people write it."""
        return (
            f"{self.kind} {self.namespace}/{self.name}"
            if self.namespace
            else f"{self.kind} {self.name}"
        )

    @property
    def where(self) -> str:
        """The path as people write it: `spec.triggers[0].metadata.query`."""
        return written(self.path)


def written(path: Path) -> str:
    """A path as text; a key that is no plain word stands in brackets and quotes."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.replace("_", "a").replace("-", "a").isalnum():
            text += f".{part}" if text else part
        else:
            text += f"[{part!r}]"
    return text
