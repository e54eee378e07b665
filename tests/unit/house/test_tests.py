"""Rules for the tests themselves: each one checks something, is named in few words, and stands in a named module."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.unit.house.syntax import walk

_ROOT = Path(__file__).parents[3]
_FILES = sorted((_ROOT / "tests").rglob("*.py"))
_MAX_WORDS = 10
_VAGUE = {
    "pieces", "parts", "words", "others", "given", "seen", "notes", "holdings", "sites", "guards", "ways", "places",
    "stored", "described", "found", "each", "one", "some",
}  # fmt: skip
"""Names of modules that say nothing of what is in them."""

_COMMON_METHODS = {"run", "start", "join", "get", "put", "close", "append"}
"""Methods of many classes: a call of one is no check, though a helper of that name checks something."""


class WrittenFunction(NamedTuple):
    """What the rules ask of a function; its tree is not kept."""

    name: str
    line: int
    checks: bool
    """Whether the function itself holds an assertion, an expected failure, or a failure."""
    calls: frozenset[str]
    """The names of what it calls."""


@cache
def _functions(path: Path) -> tuple[WrittenFunction, ...]:
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    return tuple(_written(node) for node in _functions_in(tree))


def _functions_in(block: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions in a module, class, function or compound statement; expressions have none."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        below = getattr(block, field, ())
        for node in below if isinstance(below, list) else ():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node
            yield from _functions_in(node)


def _written(function: ast.FunctionDef | ast.AsyncFunctionDef) -> WrittenFunction:
    checks, called = False, set()
    for node in walk(function):
        checks = checks or isinstance(node, ast.Assert | ast.Raise)
        if isinstance(node, ast.Call):
            called.add(_called(node))
    checks = checks or not called.isdisjoint(("raises", "fail", "warns"))
    return WrittenFunction(function.name, function.lineno, checks, frozenset(called))


def _called(call: ast.Call) -> str:
    """The name of what is called; empty where it says nothing of what is called."""
    match call.func:
        case ast.Name(id=name):
            return name
        case ast.Attribute(attr=name) if name not in _COMMON_METHODS:
            return name
    return ""


def _tests() -> Iterator[tuple[Path, WrittenFunction]]:
    for path in _FILES:
        yield from ((path, function) for function in _functions(path) if function.name.startswith("test_"))


@cache
def _checking_helpers() -> frozenset[str]:
    """Names of helpers that check something, by themselves or through another helper."""
    helpers = [function for path in _FILES for function in _functions(path) if not function.name.startswith("test_")]
    known = {helper.name for helper in helpers if helper.checks}
    while more := {helper.name for helper in helpers if helper.name not in known and helper.calls & known}:
        known |= more
    return frozenset(known)


def test_every_test_can_fail() -> None:
    idle = [
        f"{path.relative_to(_ROOT)}:{test.line} {test.name}"
        for path, test in _tests()
        if not test.checks and not test.calls & _checking_helpers()
    ]
    assert not idle, f"add an assertion, or delete the test: {', '.join(idle)}"


def test_names_of_tests_have_ten_words_at_most() -> None:
    long = [
        f"{path.relative_to(_ROOT)}:{test.line} {test.name}"
        for path, test in _tests()
        if len(test.name.removeprefix("test_").split("_")) > _MAX_WORDS
    ]
    assert not long, f"say the behaviour in {_MAX_WORDS} words: {', '.join(long)}"


def test_modules_have_no_vague_names() -> None:
    modules = [path for top in ("src", "tests", "bench") for path in (_ROOT / top).rglob("*.py")]
    vague = [str(path.relative_to(_ROOT)) for path in modules if path.stem.removeprefix("test_") in _VAGUE]
    assert not vague, f"name what is in the module: {', '.join(vague)}"


def test_yaml_is_read_by_the_parser_in_c() -> None:
    """The parser in Python took half of the time in which a process collects the end-to-end tests."""
    slow = "yaml.safe" + "_load"
    assert not [path for path in _FILES if slow in path.read_text(encoding="utf-8")]
