"""Times and names as people write them on the command line."""

import pytest

from gpuscale.controller.lookup import from_api, parse_key, parse_time
from gpuscale.errors import InputError

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("text", "at"),
    [
        (None, None),
        ("1700000000", 1_700_000_000.0),
        ("1700000000.5", 1_700_000_000.5),
        ("2023-11-14T22:13:20Z", 1_700_000_000.0),
        ("2023-11-14T22:13:20", 1_700_000_000.0),
        ("2023-11-14T23:13:20+01:00", 1_700_000_000.0),
        ("-90s", NOW - 90),
        ("-15m", NOW - 900),
        ("-1.5h", NOW - 5400),
        ("-2d", NOW - 172_800),
    ],
)
def test_a_time_is_understood(text: str | None, at: float | None) -> None:
    assert parse_time(text, NOW) == at


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "-m",
        "-xh",
        "nan",
        "-infs",
        "1e999",
        "15m",
        "-99999999999d",
        "99999999999999999",
    ],
)
def test_what_is_no_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InputError, match="-15m"):
        parse_time(text, NOW)


@pytest.mark.parametrize("text", ["llama", "/llama", "inference/", "a/b/c", ""])
def test_what_is_no_workload_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InputError, match="NAMESPACE/NAME"):
        parse_key(text)


@pytest.mark.parametrize("url", ["ftp://x", "http://[::1", "http://", "http://h:99999", "nowhere"])
def test_what_is_no_address_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(InputError, match="http://HOST:PORT"):
        from_api(url, "a/b", None)
