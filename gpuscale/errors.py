"""The exception tree: every operating error that gpuscale raises on purpose.

    GpuscaleError                    str() is one sentence that names the thing and the cure
    ├── ConfigError                  settings, policies or trigger metadata that cannot be used
    ├── InputError                   a file or argument that a person gave (a trace, a manifest)
    ├── ListenError                  an address that cannot be listened on
    ├── DriverError                  the NVIDIA driver, by NVML
    │   ├── DriverMissing            no library or no driver: may appear later, so retried
    │   ├── DriverRestartRequired    only a new process cures it (library and kernel module differ)
    │   ├── DeviceLost               this device fell off the bus or was removed
    │   └── NotSupported             this device does not give this value: absent, never 0
    ├── SourceError                  a signal source that gave nothing usable
    │   ├── SourceUnreachable        connection, DNS or time-out
    │   ├── SourceRefused            it answered, and said no (4xx, 5xx, an error in its protocol)
    │   └── SourceMalformed          it answered what its protocol does not allow, or too much of it
    └── ApiError                     the Kubernetes API
        ├── ApiUnreachable           connection, DNS or time-out
        ├── ApiRefused               401 or 403: credentials or RBAC
        ├── ApiConflict              409: somebody else wrote first
        ├── ApiGone                  410: the resourceVersion is too old, list again
        └── ApiNotFound              404: no such object, or no such resource type

Anything else that escapes is a programming error and ends the process with its traceback.
A vendor's exception never leaves its door: it is raised again as one of these, `from` the
original, and foreign text in the message is cut at `FOREIGN_TEXT_MAX` characters.
"""

FOREIGN_TEXT_MAX = 256
"""Characters of a foreign message that are kept: enough to recognise it, too few to leak a page."""


def printable(text: str) -> str:
    """The text with what would command a terminal (escape sequences, control characters) replaced."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in text)


def foreign(text: object) -> str:
    """The text of a foreign error on one line, cut at FOREIGN_TEXT_MAX characters."""
    line = printable(" ".join(str(text).split()))
    return line if len(line) <= FOREIGN_TEXT_MAX else line[: FOREIGN_TEXT_MAX - 1] + "…"


class GpuscaleError(Exception):
    """The root: str() is one sentence that names what is wrong and what to do about it."""

    exit_code = 1


class ConfigError(GpuscaleError):
    """Settings that cannot be used; the message names the key (as a path), the value, the cure."""

    exit_code = 2


class InputError(GpuscaleError):
    """A file or an argument given by a person that cannot be used."""

    exit_code = 2


class ListenError(GpuscaleError):
    """An address that cannot be listened on: busy, not ours, or not permitted."""

    exit_code = 69


class DriverError(GpuscaleError):
    """The NVIDIA driver answered an error; `code` is the nvmlReturn_t, None where there was none."""

    exit_code = 69

    def __init__(self, message: str, *, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class DriverMissing(DriverError):
    """There is no libnvidia-ml.so.1 or no driver behind it; it may appear later."""


class DriverRestartRequired(DriverError):
    """NVML cannot work again in this process (library and kernel module differ)."""


class DeviceLost(DriverError):
    """The device fell off the bus, was removed, or its handle is no longer valid."""


class NotSupported(DriverError):
    """The device does not give this value (a card, a MIG mode or a permission)."""


class SourceError(GpuscaleError):
    """A signal source gave nothing usable: the reading is missing, never zero."""


class SourceUnreachable(SourceError):
    """No connection, no such name, or no answer in time."""


class SourceRefused(SourceError):
    """The source answered an error."""


class SourceMalformed(SourceError):
    """The source answered something that its protocol does not allow, or too much of it."""


class ApiError(GpuscaleError):
    """The Kubernetes API answered an error; `status` is the HTTP status, None where there was none."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class ApiUnreachable(ApiError):
    """No connection to the API server, or no answer in time."""


class ApiRefused(ApiError):
    """401 or 403: the credentials or the RBAC rules do not allow it."""


class ApiConflict(ApiError):
    """409: the object changed since it was read."""


class ApiGone(ApiError):
    """410: the resourceVersion is too old; list again."""


class ApiNotFound(ApiError):
    """404: the object or the resource type does not exist."""
