"""The table of scenarios names cases and tests that exist, and every scenario once."""

import ast
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/services-conformance.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| ")]
SCENARIOS = 94


def _cases() -> set[str]:
    files = (ROOT / "tests/cases/services").glob("*.yaml")
    documents = [yaml.load(file.read_text(), Loader=yaml.CSafeLoader) for file in files]
    return {case["name"] for document in documents if isinstance(document, list) for case in document}


CASES = _cases()


def exists(reference: str) -> bool:
    """Whether there is a case of this name, or a test at ``path::function``."""
    file, sign, function = reference.partition("::")
    if not sign:
        return reference in CASES
    path = ROOT / file
    if not path.is_file():
        return False
    return any(isinstance(node, ast.FunctionDef) and node.name == function for node in ast.parse(path.read_text()).body)


def test_every_scenario_is_there_once() -> None:
    assert [int(row[0]) for row in ROWS if row[0].isdigit()] == list(range(1, SCENARIOS + 1))


@pytest.mark.parametrize("row", [row for row in ROWS if row[0].isdigit()], ids=lambda row: row[0])
def test_what_shows_it_exists(row: list[str]) -> None:
    _, _, shown = row
    references = re.findall(r"`([^`]+)`", shown)
    assert references
    assert [reference for reference in references if not exists(reference)] == []


DIFFERENCES = [row for row in ROWS if len(row) == 5 and "`" in row[4]]


def test_what_shows_each_difference_exists() -> None:
    assert len(DIFFERENCES) > 10
    missing = [name for row in DIFFERENCES for name in re.findall(r"`([^`]+)`", row[4]) if not exists(name)]
    assert missing == []
