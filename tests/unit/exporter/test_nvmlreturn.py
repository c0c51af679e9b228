"""What NVML answers, by meaning: what is retried, what ends the process, what is merely absent."""

import pytest

from gpuscale.errors import (
    DeviceLost,
    DriverError,
    DriverMissing,
    DriverRestartRequired,
    NotSupported,
)
from gpuscale.exporter import nvmlreturn

MEANINGS = {
    1: DriverMissing,
    2: DriverError,
    3: NotSupported,
    4: NotSupported,
    6: DriverError,
    9: DriverMissing,
    10: DriverError,
    12: DriverMissing,
    13: NotSupported,
    15: DeviceLost,
    16: DeviceLost,
    17: DriverError,
    18: DriverRestartRequired,
    20: DriverError,
    21: DriverError,
    25: NotSupported,
    26: NotSupported,
    28: DeviceLost,
    999: DriverError,
    12345: DriverError,
}


@pytest.mark.parametrize(("code", "kind"), MEANINGS.items())
def test_a_code_becomes_the_error_that_it_means(code: int, kind: type[DriverError]) -> None:
    error = nvmlreturn.as_error("GPU 0: nvmlDeviceGetPowerUsage", code)
    assert type(error) is kind
    assert error.code == code
    assert str(error).startswith("GPU 0: nvmlDeviceGetPowerUsage answered NVML")
    assert str(code) in str(error)


@pytest.mark.parametrize("code", [4, 9, 12, 15, 16, 18, 999])
def test_what_a_person_can_cure_says_how(code: int) -> None:
    assert "): " in str(nvmlreturn.as_error("NVML: nvmlInit", code))


def test_success_without_data_is_an_error_that_says_so() -> None:
    error = nvmlreturn.as_error("GPU 0: nvmlDeviceGetSamples", 0)
    assert type(error) is DriverError
    assert "no data" in str(error)
