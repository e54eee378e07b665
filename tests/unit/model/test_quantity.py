"""Quantities."""

import pytest

from podwire.errors import ConfigError
from podwire.model.quantity import parse_milli


@pytest.mark.parametrize(
    ("text", "milli"),
    [
        ("1", 1000), ("100m", 100), ("0.5", 500), (2, 2000), (1.5, 1500), ("1Ki", 1024000), ("1k", 1000000),
        ("2Gi", 2 * 2**30 * 1000), ("1e3", 1000000), ("100u", 1), ("0", 0), ("1.5Gi", 3 * 2**29 * 1000),
    ],
)  # fmt: skip
def test_parse(text: str, milli: int) -> None:
    assert parse_milli(text) == milli


@pytest.mark.parametrize("text", ["", "x", "1Zi", "1 m2", "Mi", "--1"])
def test_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="cannot parse"):
        parse_milli(text)
