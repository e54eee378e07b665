"""The table of docs/masquerade.md is the table that real packets test."""

import re
from pathlib import Path

from tests.cases.masquerade_table import MASQUERADE

_PAGE = Path(__file__).parents[3] / "docs/masquerade.md"


def test_the_documented_table_is_the_tested_one() -> None:
    section = _PAGE.read_text().partition("## Which source")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([\w -]+) \| (\w+) \| (\w+) \| (\w+) \|$", section, re.M)
    assert {destination: tuple(observed) for destination, *observed in rows} == MASQUERADE
