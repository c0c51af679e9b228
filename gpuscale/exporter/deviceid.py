"""From a device id, as the kubelet spells it, to a GPU or a MIG instance of this node.

Pure. Device plugins, GKE, WSL and DRA each have a spelling; all are understood at once, since which
one a node uses is not ours to know. An id that names nothing of this node is None, never a guess.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gpuscale.exporter.device import Identity, MigInstance

ID_CHARS_MAX = 256
"""The longest spelling (a claim's CDI name) has some 130."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What an id names."""

    uuid: str
    """Of the GPU, or of the MIG instance."""
    parent_uuid: str | None = None
    """Of the physical GPU; None where `uuid` is one."""
    replica: str = ""
    """Number of the share (time-slicing, MPS); empty for the whole device."""
    share: float = 1.0
    """Of the physical GPU, before it is divided among replicas."""


class Inventory:
    """The GPUs and MIG instances of this node, by everything that an id may call them."""

    def __init__(self, gpus: Iterable[Identity], instances: Iterable[MigInstance] = ()) -> None:
        self.gpus = tuple(gpus)
        self.instances = tuple(instances)
        self._gpu_by_uuid = {gpu.uuid: gpu for gpu in self.gpus}
        self._gpu_by_minor = {gpu.minor: gpu for gpu in self.gpus if gpu.minor is not None}
        self._instance_by_uuid = {instance.uuid: instance for instance in self.instances}
        self._instance_by_place = {
            (instance.parent_uuid, instance.gpu_instance_id, instance.compute_instance_id): instance
            for instance in self.instances
        }

    def __eq__(self, other: object) -> bool:
        """Whether both hold the same devices."""
        if not isinstance(other, Inventory):
            return NotImplemented
        return (self.gpus, self.instances) == (other.gpus, other.instances)

    def __hash__(self) -> int:
        """By what it holds."""
        return hash((self.gpus, self.instances))

    # ----- the device plugins' spellings

    def find(self, device_id: str) -> tuple[Target, ...]:
        """What the id of a device plugin names: nothing, one device, or (WSL's `all`) every GPU."""
        if len(device_id) > ID_CHARS_MAX:
            return ()
        if device_id == "all":
            return tuple(Target(uuid=gpu.uuid) for gpu in self.gpus)
        share = _REPLICA.fullmatch(device_id)
        name, replica = (share["device"], share["replica"]) if share else (device_id, "")
        found = self._by_uuid(name, replica) or self._by_file(name, replica)
        return (found,) if found is not None else ()

    def _by_uuid(self, name: str, replica: str) -> Target | None:
        if name in self._gpu_by_uuid:
            return Target(uuid=name, replica=replica)
        instance = self._instance_by_uuid.get(name)
        old = _OLD_MIG.fullmatch(name)
        if instance is None and old:
            place = (old["uuid"], int(old["gi"]), int(old["ci"]))
            instance = self._instance_by_place.get(place)
        return None if instance is None else self._of(instance, replica)

    def _by_file(self, name: str, replica: str) -> Target | None:
        found = _FILE.fullmatch(name)
        gpu = self._gpu_by_minor.get(int(found["minor"])) if found else None
        if found is None or gpu is None:
            return None
        replica = found["vgpu"] or replica
        if found["gi"] is None:
            return Target(uuid=gpu.uuid, replica=replica)
        inside = self._inside(gpu.uuid, int(found["gi"]))
        return self._of(inside, replica) if inside is not None else None

    def _inside(self, parent_uuid: str, gpu_instance: int) -> MigInstance | None:
        """The only compute instance of a GPU instance; None where there are several, or none."""
        inside = [
            instance
            for instance in self.instances
            if (instance.parent_uuid, instance.gpu_instance_id) == (parent_uuid, gpu_instance)
        ]
        return inside[0] if len(inside) == 1 else None

    # ----- DRA

    def find_claimed(self, device: str, cdi_names: Iterable[str]) -> Target | None:
        """What a device of NVIDIA's DRA driver names: by a UUID in its CDI names, else by its own name.

        `gpu-0` is the minor number; `gpu-0-mig-1g10gb-19-3` and its like begin with the parent's. An
        instance that cannot be told from its siblings is given as its parent, with the share that
        its profile says.
        """
        for name in (device, *cdi_names):
            uuid = _ANY_UUID.search(name[:ID_CHARS_MAX])
            found = self._by_uuid(uuid[0], "") if uuid else None
            if found is not None:
                return found
        named = _DRA.fullmatch(device[:ID_CHARS_MAX])
        gpu = self._gpu_by_minor.get(int(named["minor"])) if named else None
        if named is None or gpu is None:
            return None
        if named["mig"] is None:
            return Target(uuid=gpu.uuid)
        return self._claimed_instance(gpu, named["mig"])

    def _claimed_instance(self, gpu: Identity, mig: str) -> Target | None:
        inside = [i for i in self.instances if i.parent_uuid == gpu.uuid]
        profile = _PROFILE.match(mig)
        if profile:
            inside = [i for i in inside if _plain(i.profile) == _plain(profile[0])]
        if len(inside) == 1:
            return self._of(inside[0], "")
        if not inside:
            return None
        # A part of the GPU that cannot be told from its siblings: the parent is what is known.
        return Target(uuid=gpu.uuid, replica=mig, share=self._share(inside[0]))

    def _of(self, instance: MigInstance, replica: str) -> Target:
        return Target(
            uuid=instance.uuid,
            parent_uuid=instance.parent_uuid,
            replica=replica,
            share=self._share(instance),
        )

    def _share(self, instance: MigInstance) -> float:
        parent = self._gpu_by_uuid.get(instance.parent_uuid)
        return slice_share(instance.profile, "" if parent is None else parent.product)


def slice_share(profile: str, product: str) -> float:
    """Share of the physical GPU that a MIG profile stands for: its compute slices over those of the GPU.

    `3g.40gb` is three of seven; `1c.3g.40gb` (a compute instance within it) one of seven. A GPU has
    seven slices, the smaller boards four (NVIDIA MIG User Guide, supported profiles).
    """
    slices = _SLICES.match(profile)
    of = 4 if _FOUR_SLICES.search(product) else 7
    return min(1.0, (int(slices[1]) if slices else 1) / of)


_SLICES = re.compile(r"([1-9])[cg]\b")
_FOUR_SLICES = re.compile(r"\bA30\b|\bRTX PRO\b")

_REPLICA = re.compile(r"(?P<device>.+)::(?P<replica>\d{1,6})")
"""`GPU-<uuid>::3`: the fourth share that NVIDIA's device plugin made (time-slicing, MPS)."""

_OLD_MIG = re.compile(r"MIG-(?P<uuid>GPU-[^/]{1,64})/(?P<gi>\d{1,4})/(?P<ci>\d{1,4})")
"""Drivers before R470: the parent's UUID, the GPU instance, the compute instance."""

_FILE = re.compile(r"nvidia(?P<minor>\d{1,4})(?:/gi(?P<gi>\d{1,4}))?(?:/vgpu(?P<vgpu>\d{1,6}))?")
"""The device plugin of GKE: the device file, the GPU instance of it, the share of it."""

_DRA = re.compile(r"gpu-(?P<minor>\d{1,4})(?:-mig-(?P<mig>[a-z0-9.+-]{1,64}))?")
_PROFILE = re.compile(r"(?:\d+c\.?)?\d+g\.?\d+gb")
_ANY_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def _plain(profile: str) -> str:
    return profile.replace(".", "").lower()
