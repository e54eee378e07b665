"""The table of scenarios names cases and tests that exist, and every scenario once."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/network-policy-conformance.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| ")]
SCENARIOS = 59


def _cases() -> set[str]:
    files = (ROOT / "tests/cases/policies").glob("*.yaml")
    documents = [yaml.load(file.read_text(), Loader=yaml.CSafeLoader) for file in files]
    return {case["name"] for document in documents if isinstance(document, list) for case in document}


CASES = _cases()


@cache
def functions(path: Path) -> frozenset[str]:
    """The functions of a file."""
    if not path.is_file():
        return frozenset()
    body = ast.parse(path.read_text()).body
    return frozenset(node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def exists(reference: str) -> bool:
    """Whether there is a case of this name, or a test at ``path::function``."""
    file, sign, function = reference.partition("::")
    return function in functions(ROOT / file) if sign else reference in CASES


def test_every_scenario_is_there_once() -> None:
    assert [int(row[0]) for row in ROWS if row[0].isdigit()] == list(range(1, SCENARIOS + 1))
    assert len({row[1] for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", [row for row in ROWS if row[0].isdigit()], ids=lambda row: row[0])
def test_listed_tests_exist(row: list[str]) -> None:
    _, _, shown = row
    references = re.findall(r"`([^`]+)`", shown)
    assert references
    assert [reference for reference in references if not exists(reference)] == []
