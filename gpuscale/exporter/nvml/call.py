"""The one door to pynvml. It is imported at the first call, so that a node without a GPU pays nothing for it."""

from types import ModuleType
from typing import Any

from gpuscale.errors import (
    DeviceLost,
    DriverError,
    DriverMissing,
    DriverRestartRequired,
    NotSupported,
    foreign,
)
from gpuscale.exporter import nvmlreturn
from gpuscale.exporter.device import Identity


def pynvml() -> ModuleType:
    """The vendor's module, loaded at the first need. Raises DriverMissing where it is not installed."""
    try:
        import pynvml as module  # noqa: PLC0415 - a node without a GPU never pays for it
    except ImportError as error:
        raise DriverMissing(
            f"the Python package nvidia-ml-py cannot be imported ({foreign(error)}): "
            "install it (pip install nvidia-ml-py)"
        ) from error
    loaded: ModuleType = module
    return loaded


def call(function: str, *arguments: Any, subject: str = "NVML") -> Any:
    """Call pynvml's `function`; whatever it raises is raised again as an error of our tree."""
    nvml = pynvml()
    try:
        return getattr(nvml, function)(*arguments)
    except nvml.NVMLError as error:
        raise nvmlreturn.as_error(f"{subject}: {function}", int(error.value)) from error
    except nvml.NVMLLibraryMismatchError as error:
        # Raised in place of "function not found" when only a newer spelling is missing.
        raise NotSupported(
            f"{subject}: {function} is not in this driver's library",
            code=nvmlreturn.FUNCTION_NOT_FOUND,
        ) from error
    except AttributeError as error:
        raise NotSupported(
            f"{subject}: {function} is not in this version of nvidia-ml-py: upgrade it",
            code=nvmlreturn.FUNCTION_NOT_FOUND,
        ) from error
    except UnicodeDecodeError as error:
        raise DriverError(f"{subject}: {function} gave text that is not UTF-8") from error


def code_of(function: str, *arguments: Any, subject: str = "NVML") -> int:
    """What the library's own `function` returns to ctypes arguments, past pynvml's wrapper.

    For calls that are made many times a second. Raises where the library has no such function.
    """
    nvml = pynvml()
    try:
        pointer = nvml._nvmlGetFunctionPointer(function)  # noqa: SLF001 - there is no other way to it
    except nvml.NVMLError as error:
        raise nvmlreturn.as_error(f"{subject}: {function}", int(error.value)) from error
    return int(pointer(*arguments))


def optional(function: str, *arguments: Any, subject: str = "NVML") -> Any | None:
    """What `function` gives, None where this driver or device does not give it."""
    try:
        return call(function, *arguments, subject=subject)
    except (DeviceLost, DriverMissing, DriverRestartRequired):
        raise
    except DriverError:
        return None


class Handle:
    """One GPU's handle, and who it is: what every part of a device asks through."""

    def __init__(self, raw: Any, identity: Identity) -> None:
        self.raw = raw
        self.identity = identity
        self.subject = ""
        self.rebind(raw, identity)

    def rebind(self, raw: Any, identity: Identity) -> None:
        """The same GPU after a new enumeration."""
        self.raw = raw
        self.identity = identity
        self.subject = f"GPU {identity.index} ({identity.uuid})"

    def ask(self, function: str, *arguments: Any) -> Any:
        """Call `function` with the handle in front."""
        try:
            return call(function, self.raw, *arguments, subject=self.subject)
        except DriverError as error:
            # Our arguments are constants that the driver knows, so what is invalid is the handle,
            # unless the call is one of those that newer drivers taught new arguments.
            if error.code == nvmlreturn.INVALID_ARGUMENT and not arguments:
                raise DeviceLost(str(error), code=error.code) from error
            raise

    def refuse(self, what: str) -> NotSupported:
        """The error to raise where the driver answered something that cannot be true."""
        return NotSupported(f"{self.subject}: {what}")

    def lack(self, what: str) -> NotSupported:
        """The error to raise where the driver answered that there is nothing to tell."""
        return NotSupported(f"{self.subject}: {what}", code=nvmlreturn.NOT_SUPPORTED)
