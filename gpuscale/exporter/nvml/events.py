"""Errors that the driver announces (XIDs): one event set over all GPUs, waited on by a thread of its own."""

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

from gpuscale.errors import DriverError, NotSupported
from gpuscale.exporter import nvmlreturn
from gpuscale.exporter.device import XidEvent
from gpuscale.exporter.nvml.call import Handle, call, code_of, pynvml
from gpuscale.exporter.nvml.processes import instance_id

XID_MAX = 0xFFFF
"""XIDs number some two hundred; what is larger is no XID."""

_WAIT = "nvmlEventSetWait_v2"


class NvmlXidEvents:
    """A subscription of this session; it ends with it."""

    def __init__(self, handles: Sequence[Handle]) -> None:
        """Raises NotSupported where no GPU gives events, DriverError where the driver fails."""
        self._set: Any = call("nvmlEventSetCreate")
        self._uuids: Mapping[int, str] = {}
        unsupported: list[str] = []
        uuids: dict[int, str] = {}
        for handle in handles:
            try:
                handle.ask("nvmlDeviceRegisterEvents", _xid_type(), self._set)
            except DriverError:
                unsupported.append(handle.identity.uuid)
            else:
                uuids[_address(handle.raw)] = handle.identity.uuid
        self._uuids = uuids
        self._unsupported = tuple(unsupported)
        if handles and not uuids:
            self.close()
            raise NotSupported(
                "no GPU of this node announces errors", code=nvmlreturn.NOT_SUPPORTED
            )

    @property
    def unsupported(self) -> tuple[str, ...]:
        """Uuids of the GPUs whose events cannot be had."""
        return self._unsupported

    def wait(self, timeout_s: float) -> XidEvent | None:
        """The next event; None when none came in time."""
        if self._set is None:
            raise DriverError("the subscription to errors has ended")
        # Nearly every wait ends in vain: that is told by the code, and costs no exception.
        data = pynvml().c_nvmlEventData_t()
        timeout_ms = ctypes.c_uint(int(timeout_s * 1000))
        code = code_of(_WAIT, self._set, ctypes.byref(data), timeout_ms)
        if code == nvmlreturn.TIMEOUT:
            return None
        if code != nvmlreturn.SUCCESS:
            raise nvmlreturn.as_error(f"NVML: {_WAIT}", code)
        if int(data.eventType) != _xid_type() or not 0 < int(data.eventData) <= XID_MAX:
            return None
        return XidEvent(
            uuid=self._uuids.get(_address(data.device), ""),
            xid=int(data.eventData),
            gpu_instance_id=instance_id(int(data.gpuInstanceId)),
            compute_instance_id=instance_id(int(data.computeInstanceId)),
        )

    def close(self) -> None:
        """End the subscription; idempotent."""
        events, self._set = self._set, None
        if events is None:
            return
        try:
            call("nvmlEventSetFree", events)
        except DriverError:
            return  # the session is gone, and the set with it


def _xid_type() -> int:
    return int(pynvml().nvmlEventTypeXidCriticalError)


def _address(raw: Any) -> int:
    """What tells handles apart: the driver gives the same one for the same GPU within a session."""
    return ctypes.cast(raw, ctypes.c_void_p).value or 0
