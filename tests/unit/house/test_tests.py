"""Rules for the tests themselves: each one checks something, is named in few words, and stands in a named module."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

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

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def _functions(path: Path) -> tuple[Function, ...]:
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    return tuple(node for node in ast.walk(tree) if isinstance(node, Function))


def _tests() -> Iterator[tuple[Path, Function]]:
    for path in _FILES:
        yield from ((path, function) for function in _functions(path) if function.name.startswith("test_"))


def _checks(function: Function) -> bool:
    """Whether the function itself holds an assertion, an expected failure, or a failure."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert | ast.Raise):
            return True
        if isinstance(node, ast.Call) and _called(node) in ("raises", "fail", "warns"):
            return True
    return False


def _called(call: ast.Call) -> str:
    """The name of what is called; empty where it says nothing of what is called."""
    match call.func:
        case ast.Name(id=name):
            return name
        case ast.Attribute(attr=name) if name not in _COMMON_METHODS:
            return name
    return ""


@cache
def _calls(function: Function) -> frozenset[str]:
    return frozenset(_called(node) for node in ast.walk(function) if isinstance(node, ast.Call))


@cache
def _checking_helpers() -> frozenset[str]:
    """Names of helpers that check something, by themselves or through another helper."""
    helpers = [each for path in _FILES for each in _functions(path) if not each.name.startswith("test_")]
    known = {helper.name for helper in helpers if _checks(helper)}
    while more := {helper.name for helper in helpers if helper.name not in known and _calls(helper) & known}:
        known |= more
    return frozenset(known)


def test_every_test_can_fail() -> None:
    idle = [
        f"{path.relative_to(_ROOT)}:{test.lineno} {test.name}"
        for path, test in _tests()
        if not _checks(test) and not _calls(test) & _checking_helpers()
    ]
    assert not idle, f"add an assertion, or delete the test: {', '.join(idle)}"


def test_names_of_tests_have_ten_words_at_most() -> None:
    long = [
        f"{path.relative_to(_ROOT)}:{test.lineno} {test.name}"
        for path, test in _tests()
        if len(test.name.removeprefix("test_").split("_")) > _MAX_WORDS
    ]
    assert not long, f"say the behaviour in {_MAX_WORDS} words: {', '.join(long)}"


def test_modules_have_no_vague_names() -> None:
    modules = [path for top in ("src", "tests", "bench") for path in (_ROOT / top).rglob("*.py")]
    vague = [str(path.relative_to(_ROOT)) for path in modules if path.stem.removeprefix("test_") in _VAGUE]
    assert not vague, f"name what is in the module: {', '.join(vague)}"
