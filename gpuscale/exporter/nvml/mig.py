"""The instances that a GPU is divided into: enumerated through sparse indices, named as the vendor names them."""

import re
from typing import Any

from gpuscale.errors import DeviceLost, DriverError, NotSupported
from gpuscale.exporter import nvmlreturn
from gpuscale.exporter.device import MigInstance
from gpuscale.exporter.nvml.call import Handle, call, optional
from gpuscale.exporter.nvml.check import text
from gpuscale.exporter.nvml.processes import instance_id

INSTANCES_MAX = 16
"""A GPU has seven compute slices today; NVML's own count is asked and held to this."""

_NAMED = re.compile(r"MIG (?P<profile>(?:\d+c\.)?\d+g\.\d+gb(?:\+[\w.+]+)?)\s*$", re.IGNORECASE)
"""The end of an instance's name, e.g. `NVIDIA A100-SXM4-80GB MIG 1c.3g.40gb`."""


class MigView:
    """Handles of the instances of one GPU, as of the last enumeration."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._raw: dict[str, Any] = {}

    def enumerate(self) -> tuple[MigInstance, ...]:
        """Look for every instance; empty where MIG is off. Raises NotSupported on boards without it."""
        current, _ = self._handle.ask("nvmlDeviceGetMigMode")
        self._raw = {}
        if current != 1:
            return ()
        instances: list[MigInstance] = []
        count = min(int(self._handle.ask("nvmlDeviceGetMaxMigDeviceCount")), INSTANCES_MAX)
        for index in range(count):
            try:
                raw = self._handle.ask("nvmlDeviceGetMigDeviceHandleByIndex", index)
                instance = self._instance(raw)
            except DriverError as error:
                # Indices are sparse: a place that is not used, or was just taken away, is no fault.
                if error.code in _NOT_THERE:
                    continue
                raise
            if instance is not None:
                self._raw[instance.uuid] = raw
                instances.append(instance)
        return tuple(instances)

    def ask(self, instance: MigInstance, function: str, *arguments: Any) -> Any:
        """Call `function` on an instance of the last enumeration. That it is lost says nothing of its GPU."""
        subject = f"{self._handle.subject} {instance.uuid}"
        raw = self._raw.get(instance.uuid)
        if raw is None:
            raise DriverError(f"{subject}: there is no such MIG instance")
        try:
            return call(function, raw, *arguments, subject=subject)
        except DeviceLost as error:
            raise DriverError(str(error), code=error.code) from error

    def _instance(self, raw: Any) -> MigInstance | None:
        subject = f"{self._handle.subject} MIG"
        uuid = text(call("nvmlDeviceGetUUID", raw, subject=subject))
        gpu_instance = instance_id(call("nvmlDeviceGetGpuInstanceId", raw, subject=subject))
        compute = instance_id(call("nvmlDeviceGetComputeInstanceId", raw, subject=subject))
        if not uuid or gpu_instance is None or compute is None:
            return None
        return MigInstance(
            uuid=uuid,
            parent_uuid=self._handle.identity.uuid,
            gpu_instance_id=gpu_instance,
            compute_instance_id=compute,
            profile=_profile(raw, subject),
        )


_NOT_THERE = (
    nvmlreturn.NOT_FOUND,
    nvmlreturn.INVALID_ARGUMENT,
    nvmlreturn.GPU_IS_LOST,
)
"""Of a MIG handle: NVML says of an instance that was destroyed that its handle is invalid or lost."""


def _profile(raw: Any, subject: str) -> str:
    """`1g.10gb` from the instance's name; from its attributes where the name does not say."""
    name = optional("nvmlDeviceGetName", raw, subject=subject)
    named = _NAMED.search(text(name)) if name is not None else None
    if named is not None:
        return named["profile"].lower()
    try:
        attributes = call("nvmlDeviceGetAttributes_v2", raw, subject=subject)
    except NotSupported:
        return ""
    slices, compute = attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount
    # The vendor's names round the memory up to whole GB: 4,864 MiB is 5gb.
    gigabytes = -(-int(attributes.memorySizeMB) // 1024)
    part = f"{compute}c." if compute != slices else ""
    return f"{part}{slices}g.{gigabytes}gb"
