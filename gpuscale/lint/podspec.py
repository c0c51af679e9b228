"""What the rules ask of a pod: its containers of every kind, the GPUs they ask for, their environment.

Pod specs are found wherever an object holds one (Deployments, Jobs, LeaderWorkerSets, PyTorchJobs,
RayClusters and what comes after them), by their shape. Fields may be missing or of another type:
then they say nothing.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from gpuscale.lint.finding import Path

PODS_MAX = 1_000
"""Pod specs in one object; a RayCluster has a dozen."""
ITEMS_MAX = 10_000
"""Entries of one list that are looked at: the API server's bound on an object's size allows no more."""

QUANTITY_MAX = Decimal(2**63)
"""The API server holds no larger one."""

CONTAINER_KEYS = ("containers", "initContainers", "ephemeralContainers")
VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"

GPU = re.compile(r"nvidia\.com/(gpu|gpu\.shared|mig-.+)")
"""Resources of NVIDIA's device plugin, as it names them by default."""
SHARED = re.compile(r"nvidia\.com/.+\.shared")
MIG = re.compile(r"nvidia\.com/mig-\d{1,2}g\.\d{1,4}gb([.-][a-z]+)*(\.shared)?")
"""As the device plugin writes a MIG profile: `+me` and the like become `.me`."""
_MISTAKEN = re.compile(
    r"(nvidia\.com/(gpus?|mig.*|gpu[-_].*)|nvidia\.com\.gpu|gpus?|alpha\.kubernetes\.io/nvidia-gpu)",
    re.IGNORECASE,
)
"""What people write in place of a resource of the device plugin."""
_QUANTITY = re.compile(
    r"(?P<number>[+-]?(\d{1,40}(\.\d{0,40})?|\.\d{1,40}))"
    r"(?P<suffix>[eE][+-]?\d{1,2}|[numkMGTPE]|[KMGTPE]i)?"
)
_SUFFIXES = {
    "": Decimal(1),
    **{
        s: Decimal(10) ** p
        for s, p in zip("numkMGTPE", (-9, -6, -3, 3, 6, 9, 12, 15, 18), strict=True)
    },
    **{f"{s}i": Decimal(1024) ** (i + 1) for i, s in enumerate("KMGTPE")},
}


def mapping(value: object) -> Mapping[str, Any]:
    """The value if it is a mapping, else an empty one."""
    # A dict, as decoders make it: asking for any Mapping takes four times as long.
    return value if isinstance(value, dict) else {}


def listed(value: object) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(position, entry) of a list's mappings."""
    if isinstance(value, list):
        for i, entry in enumerate(value[:ITEMS_MAX]):
            if isinstance(entry, dict):
                yield i, entry


def text(value: object) -> str:
    """The value if it is text, else the empty string."""
    return value if isinstance(value, str) else ""


def quantity(value: object) -> Decimal | None:
    """A quantity of the API (`1`, `"500m"`, `"2Gi"`); None for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        match = _QUANTITY.fullmatch(str(value).strip()[:128])
        if match is None:
            return None
        suffix = match["suffix"] or ""
        known = suffix in _SUFFIXES
        amount = Decimal(match["number"] + ("" if known else suffix))
        amount *= _SUFFIXES[suffix] if known else 1
    except InvalidOperation:
        return None
    return amount if abs(amount) <= QUANTITY_MAX else None


def is_gpu(resource: str) -> bool:
    """Whether a resource is one of NVIDIA's device plugin."""
    return GPU.fullmatch(resource) is not None


def is_mistaken(resource: str) -> bool:
    """Whether a resource is meant to be a GPU, and no device plugin has it."""
    if _MISTAKEN.fullmatch(resource) is None or resource in (
        "nvidia.com/gpu",
        "nvidia.com/gpu.shared",
    ):
        return False
    return MIG.fullmatch(resource) is None


@dataclass(frozen=True, slots=True)
class Container:
    """A container of a pod spec."""

    raw: Mapping[str, Any]
    path: Path

    @property
    def name(self) -> str:
        """Empty where it has none."""
        return text(self.raw.get("name"))

    @property
    def requests(self) -> Mapping[str, Any]:
        """resources.requests."""
        return mapping(mapping(self.raw.get("resources")).get("requests"))

    @property
    def limits(self) -> Mapping[str, Any]:
        """resources.limits."""
        return mapping(mapping(self.raw.get("resources")).get("limits"))

    def gpus(self) -> dict[str, Decimal | None]:
        """What it asks for of each GPU resource; None for an amount that is no quantity."""
        asked = {**self.requests, **self.limits}
        return {name: quantity(value) for name, value in asked.items() if is_gpu(name)}

    def holds_gpu(self) -> bool:
        """Whether it is given a GPU: by a resource, or by a claim (of whatever class)."""
        claims = mapping(self.raw.get("resources")).get("claims")
        return any(v is None or v > 0 for v in self.gpus().values()) or (
            isinstance(claims, list) and bool(claims)
        )

    def env(self, name: str) -> tuple[Path, Mapping[str, Any]] | None:
        """(path, entry) of an environment variable; of entries that repeat it, the last, which holds."""
        found = None
        for i, entry in listed(self.raw.get("env")):
            if entry.get("name") == name:
                found = (*self.path, "env", i), entry
        return found


@dataclass(frozen=True, slots=True)
class PodSpec:
    """A pod spec in an object, with the metadata beside it."""

    spec: Mapping[str, Any]
    metadata: Mapping[str, Any]
    path: Path
    """Of the spec."""

    def containers(self) -> Iterator[Container]:
        """Of every kind: init and ephemeral ones use GPUs like the others."""
        for key in CONTAINER_KEYS:
            for i, raw in listed(self.spec.get(key)):
                yield Container(raw, (*self.path, key, i))

    def holds_gpu(self) -> bool:
        """Whether any container is given a GPU."""
        return any(c.holds_gpu() for c in self.containers())

    def tolerates(self, key: str) -> bool:
        """Whether it may run on nodes with a NoSchedule taint of that key, whatever its value."""
        for _, entry in listed(self.spec.get("tolerations")):
            if entry.get("operator") == "Exists" and entry.get("key") in (None, "", key):
                return True
            if entry.get("key") == key:
                return True
        return False

    def selects_gpu_nodes(self) -> bool:
        """Whether it says by itself that it is to run where GPUs are."""
        keys = set(mapping(self.spec.get("nodeSelector")))
        affinity = mapping(mapping(self.spec.get("affinity")).get("nodeAffinity"))
        required = mapping(affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))
        for _, term in listed(required.get("nodeSelectorTerms")):
            keys |= {text(e.get("key")) for _, e in listed(term.get("matchExpressions"))}
        if any(key.startswith(("nvidia.com/", "cloud.google.com/gke-accelerator")) for key in keys):
            return True
        return any(
            e.get("key") == "nvidia.com/gpu" for _, e in listed(self.spec.get("tolerations"))
        )


def pods(raw: Mapping[str, Any]) -> Iterator[PodSpec]:
    """The pod specs in an object, wherever they stand: a mapping with a list of named containers."""
    found = 0
    stack: list[tuple[Path, Any, Mapping[str, Any]]] = [((), raw, {})]
    while stack and found < PODS_MAX:
        path, value, above = stack.pop()
        if isinstance(value, list):
            children = [((*path, i), entry, above) for i, entry in enumerate(value[:ITEMS_MAX])]
        elif isinstance(value, dict):
            if _is_podspec(value):
                found += 1
                yield PodSpec(value, mapping(above.get("metadata")), path)
                continue
            children = [
                ((*path, str(key)), child, value)
                for key, child in value.items()
                if key not in ("status", "metadata")
            ]
        else:
            continue
        stack.extend(reversed(children))


def _is_podspec(value: Mapping[str, Any]) -> bool:
    containers = [entry for _, entry in listed(value.get("containers"))]
    return bool(containers) and all("name" in c for c in containers)
