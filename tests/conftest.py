"""What all tests share: Hypothesis profiles, and an end without leftovers.

Profiles: `dev` on a desk, `ci` deeper and repeatable (HYPOTHESIS_PROFILE=ci).
"""

import asyncio
import os
import warnings

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "dev", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "ci",
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """pytest-asyncio leaves one event loop set and open; unclosed, it would be reported as ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            loop = asyncio.get_event_loop_policy().get_event_loop()
        except RuntimeError:
            return
    loop.close()
    asyncio.set_event_loop(None)
