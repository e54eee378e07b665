"""The syntax trees of the source files; each file is read and parsed once for all rules."""

import ast
import gc
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
