"""The syntax trees of the source files; each file is read and parsed once for all rules."""

import ast
import gc
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
SRC = ROOT / "src" / "podwire"
MODULES = sorted(SRC.rglob("*.py"))


@cache
def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def tree(path: Path) -> ast.Module:
    parsed = ast.parse(text(path), filename=str(path))
    gc.freeze()  # The trees stay: each later search for garbage would walk them all, half of the time of these tests.
    return parsed


_KINDS = (
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.arg, ast.Name, ast.Attribute,
    ast.ExceptHandler, ast.MatchAs, ast.MatchStar,
)  # fmt: skip
_LEAVES = (ast.Name, ast.Constant)


def walk(root: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a tree but the contexts of names, in half of the time of :func:`ast.walk`."""
    nodes = [root]
    for node in nodes:
        yield node
        if isinstance(node, _LEAVES):
            continue
        for below in node.__dict__.values():
            if isinstance(below, list):
                nodes += [item for item in below if isinstance(item, ast.AST)]
            elif isinstance(below, ast.AST) and not isinstance(below, ast.expr_context):
                nodes.append(below)


@cache
def named(path: Path) -> tuple[ast.AST, ...]:
    """The definitions, imports and names that are written of a module, wherever they stand: one walk for all rules."""
    return tuple(
        node
        for node in walk(tree(path))
        if isinstance(node, _KINDS) and not isinstance(getattr(node, "ctx", None), ast.Load)
    )
