"""The table of conformance specs names tests that exist, and specs without a test only become fewer."""

import ast
import importlib
from collections import Counter
from functools import cache
from itertools import product
from pathlib import Path

import pytest
from tests.conformance.rows import Known, Row, chosen, expected_failures, read_known, read_rows

TESTS = Path(__file__).parents[2]
SPECS = 446
"""The conformance specs of Kubernetes 1.36."""
ROWS = read_rows()


@cache
def functions(file: str) -> frozenset[str]:
    """The names of the test functions of a file; none for a file that does not exist."""
    path = TESTS / file
    if not path.is_file():
        return frozenset()
    body = ast.parse(path.read_text()).body
    return frozenset(node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@cache
def parameters(file: str, name: str) -> frozenset[str]:
    """The parameters of a test as they stand in brackets; several parametrisations are joined, the last one first."""
    module = importlib.import_module("tests." + file.removesuffix(".py").replace("/", "."))
    marks = [mark for mark in getattr(module, name).pytestmark if mark.name == "parametrize"]
    return frozenset("-".join(map(str, item)) for item in product(*(m.kwargs.get("ids") or m.args[1] for m in marks)))


def exists(test: str) -> bool:
    """Whether there is a test ``FILE::NAME``, with the parameter where one stands in brackets."""
    file, _, name = test.partition("::")
    name, bracket, rest = name.partition("[")
    if name not in functions(file):
        return False
    return not bracket or rest.removesuffix("]") in parameters(file, name)


def test_every_spec_has_one_row() -> None:
    assert len({row.spec for row in ROWS}) == len(ROWS) == SPECS


def test_every_test_of_a_row_exists() -> None:
    missing = {test: row.spec for row in ROWS for test in row.tests if not exists(test)}
    assert missing == {}


def test_specs_without_a_test_become_fewer() -> None:
    known = read_known()
    assert sum(not row.tests for row in ROWS) == known.not_shown, "lower notShown in tests/conformance/known.yaml"
    assert known.failures.keys() <= {row.spec for row in ROWS}


def test_rows_of_a_sig_are_chosen(tmp_path: Path) -> None:
    (tmp_path / "sig-a.yaml").write_text("Group:\n  works: [e2e/test_a.py::test_b]\n  fails: 'known to fail: y'\n")
    rows = read_rows(tmp_path)
    assert rows == [
        Row("sig-a", "[sig-a] Group works [Conformance]", tests=("e2e/test_a.py::test_b",)),
        Row("sig-a", "[sig-a] Group fails [Conformance]", reason="known to fail: y"),
    ]
    assert chosen(rows, ["a"]) == chosen(rows, ["sig-a"]) == chosen(rows, []) == rows
    assert expected_failures(rows, Known(1, {"[sig-a] Group works [Conformance]": "x"})) == {
        "[sig-a] Group works [Conformance]": "x", "[sig-a] Group fails [Conformance]": "known to fail: y",
    }  # fmt: skip
    with pytest.raises(ValueError, match="no specs of sig-b; expected one of sig-a"):
        chosen(rows, ["b"])


@pytest.mark.parametrize("value", ["", "[]", "{a: b}", "[words]", "3"])
def test_a_row_without_tests_and_reason_is_refused(tmp_path: Path, value: str) -> None:
    (tmp_path / "sig-a.yaml").write_text(f"Group:\n  works: {value}\n")
    with pytest.raises(ValueError, match=r"Group works .*: expected a list of tests"):
        read_rows(tmp_path)


def test_numbers_of_the_page_are_those_of_the_rows() -> None:
    page = (TESTS.parent / "docs/conformance.md").read_text()
    specs, shown = Counter(row.sig for row in ROWS), Counter(row.sig for row in ROWS if row.tests)
    lines = [f"| {sig} | {number} | {shown[sig]} |" for sig, number in specs.items()]
    assert [line for line in (*lines, f"| all | {specs.total()} | {shown.total()} |") if line not in page] == []
