"""Names in ``src`` say what they stand for."""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.unit.house.syntax import MODULES, SRC, named

pytestmark = pytest.mark.worker("sources")

_VAGUE = {
    "pieces", "words", "given", "seen", "notes", "ways", "stored", "described", "places", "found", "others", "each",
    "one", "some", "what", "who", "said", "told", "made", "kept", "taken", "wanted", "left", "thing",
}  # fmt: skip
"""Words that could stand for anything. Use the term of the field, or the type."""

_ALLOWED = {
    # JSON fields of the answer of ``podwire why``, and the values that become them.
    "cli/policy_objects.py": {"notes"},
    "local/offline/cluster.py": {"notes"},
    "why/answer.py": {"found", "notes"},
    "why/cluster.py": {"notes"},
    "why/kernels.py": {"notes"},
    "why/nodes.py": {"notes"},
    "why/policies/enforced.py": {"notes"},
    "why/policies/explainer.py": {"notes"},
    "why/question.py": {"notes"},
    "why/routing/explainer.py": {"notes"},
    "why/routing/planned.py": {"notes"},
    "why/services/hop.py": {"notes"},
}


def _names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name


@cache
def _vague_names(path: Path) -> set[str]:
    names = {name.strip("_").lower() for name in (path.stem, *_names(named(path)))}
    opposites = {"left"} if "right" in names else set()
    return names & _VAGUE - opposites


def test_names_say_what_they_stand_for() -> None:
    vague = {str(path.relative_to(SRC)): _vague_names(path) for path in MODULES}
    added = {path: sorted(names - _ALLOWED.get(path, set())) for path, names in vague.items()}
    problems = [f"{path}: {', '.join(names)}" for path, names in added.items() if names]
    assert not problems, "choose a name that says what it stands for:\n" + "\n".join(problems)


def test_list_of_allowed_names_has_no_unused_entry() -> None:
    for path, names in _ALLOWED.items():
        unused = names - _vague_names(SRC / path)
        assert not unused, f"remove from the list of {path}: {', '.join(sorted(unused))}"
