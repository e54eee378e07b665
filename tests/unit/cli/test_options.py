"""Options that several commands share."""

import pytest

from podwire.cli.options import without_option


@pytest.mark.parametrize(
    ("line", "remaining"),
    [
        ("up --version a.whl --nodes 2", "up --nodes 2"),
        ("up --version=a.whl --nodes 2", "up --nodes 2"),
        ("up --version --version --nodes 2", "up --nodes 2"),
        ("up --nodes 2 --version", "up --nodes 2"),
        ("up --versions a", "up --versions a"),
    ],
)
def test_an_option_goes_with_its_value(line: str, remaining: str) -> None:
    assert without_option(line.split(), "--version") == remaining.split()
