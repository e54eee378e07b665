"""Rules of the house that no linter knows: sizes, names, docstrings, mirrored tests, words."""

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest
from tests.unit.house.syntax import MODULES, ROOT, SRC, named, text, tree

pytestmark = pytest.mark.worker("sources")

_MAX_FILE_LINES = 500
_MAX_FUNCTION_LINES = 60
_MAX_METHODS = 20
_LARGE_CLASSES = {
    "kernel/nft_delinearize.py _Reader": "one method for each kind of nftables expression",
    "kernel/nft_linearize.py _Writer": "one method for each kind of nftables statement and expression",
    "trace/nft.py _Walk": "one method for each kind of nftables statement and operand",
}
"""Classes with more than :data:`_MAX_METHODS` methods, and why. This list only shrinks."""
_VAGUE = {"util", "utils", "helper", "helpers", "common", "misc", "base", "core", "manager", "stuff", "lib", "tools"}
_IMPURE = {"os", "socket", "asyncio", "subprocess", "time", "random", "logging"}
_PURE_NAMES = ("plan", "allocate", "compile", "evaluate", "*_codec", "wire", "layout")
"""Module names that promise a pure module wherever they stand."""

_ROLES = {
    "Compiled",
    "Contents",
    "FixedChains",
    "PodElements",
    "Reporter",
    "RuleChains",
    "Sources",
    "Switch",
    "Tracer",
    "Tracing",
}
"""Names of classes that several data planes have in the same role."""

_TEXT_FOLDERS = ("src", "tests", "bench", "docs", "examples", "deploy", "scripts", "requirements")
_TEXT_SUFFIXES = {".py", ".md", ".yaml", ".yml", ".toml", ".c", ".h", ".txt", ".json", ".sh", ""}
# Each pattern is written so that it does not match its own source. One that begins with letters is searched for forty
# times as fast as one that begins with a condition.
_FORBIDDEN = [
    r"TO[D]O\b", r"FIX[M]E\b", r"\bX[X]X\b", r"/work/(?:main|shared)", r"/tm[p]/team", r"Cla[u]de\b",
    r"An[t]hropic\b", r"language mo[d]el\b", r"sub-?ag[e]nts?\b", r"developer [A-H]\b", r"CONTRACTS\.m[d]",
]  # fmt: skip


@cache
def _name(path: Path) -> str:
    return ".".join(path.relative_to(SRC.parent).with_suffix("").parts).removesuffix(".__init__")


@cache
def _definitions_and_imports(path: Path) -> tuple[ast.AST, ...]:
    """The functions of a module and its imports, wherever they stand."""
    expected = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Import, ast.ImportFrom)
    return tuple(node for node in named(path) if isinstance(node, expected))


def _package(path: Path) -> str:
    return ".".join(_name(path).split(".")[:2])


_PACKAGES = sorted({_package(path) for path in MODULES})


def _for_each_package(check: Callable[[Path], None]) -> Callable[[str], None]:
    """A test for each package, of all its modules: one for each module would take longer than what it looks at."""

    @pytest.mark.parametrize("package", _PACKAGES)
    def test(package: str) -> None:
        for path in MODULES:
            if _package(path) == package:
                check(path)

    test.__name__ = check.__name__
    return test


@_for_each_package
def test_a_module_says_what_is_in_it(path: Path) -> None:
    module = tree(path)
    docstring = ast.get_docstring(module) or ""
    sentence = docstring.strip().endswith((".", ":", ")"))
    assert sentence or "\n" in docstring, f"{path}: no docstring of one sentence or more"
    if path.name == "__init__.py":
        assert len(module.body) == 1, f"{path}: holds more than a docstring"


@_for_each_package
def test_files_and_functions_are_of_a_size_to_read(path: Path) -> None:
    lines = len(text(path).splitlines())
    assert lines <= _MAX_FILE_LINES, f"{path}: {lines} lines"
    for node in _definitions_and_imports(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            assert size <= _MAX_FUNCTION_LINES, f"{path}:{node.lineno} {node.name}: {size} lines"


def test_classes_have_few_methods() -> None:
    large = {name for path in MODULES for name in _large_classes(path)}
    added, unused = sorted(large - _LARGE_CLASSES.keys()), sorted(_LARGE_CLASSES.keys() - large)
    assert not added, f"split these classes by responsibility, they have more than {_MAX_METHODS} methods: {added}"
    assert not unused, f"remove from the list of large classes: {unused}"


def _large_classes(path: Path) -> Iterator[str]:
    for node in named(path):
        if isinstance(node, ast.ClassDef):
            methods = [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
            if len(methods) > _MAX_METHODS:
                yield f"{path.relative_to(SRC)} {node.name}"


@_for_each_package
def test_module_names_are_not_vague(path: Path) -> None:
    for part in path.relative_to(SRC).with_suffix("").parts:
        arguments = set(part.lower().strip("_").split("_"))
        assert not arguments & _VAGUE, f"{path}: {part}"


@_for_each_package
def test_public_functions_and_classes_are_described(path: Path) -> None:
    for node in _public(tree(path)):
        assert ast.get_docstring(node), f"{path}:{node.lineno} {node.name}: no docstring"


def _public(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node


def test_a_class_name_stands_for_one_class() -> None:
    modules: dict[str, list[str]] = {}
    for path in MODULES:
        for node in _public(tree(path)):
            if isinstance(node, ast.ClassDef) and node.name not in _ROLES:
                modules.setdefault(node.name, []).append(_name(path))
    shared = [f"{name}: {', '.join(where)}" for name, where in sorted(modules.items()) if len(where) > 1]
    assert not shared, "give each class a name of its own:\n" + "\n".join(shared)


@_for_each_package
def test_nothing_is_mocked_and_no_task_starts_unsupervised(path: Path) -> None:
    source = text(path)
    assert "unittest.mock" not in source, f"{path}: mocks"
    if not {"runtime", "testing"} & set(path.parts):
        for call in ("asyncio.create_task(", "ensure_future(", "asyncio.sleep(", "datetime.now("):
            assert call not in source, f"{path}: {call} belongs to podwire.runtime"
    if "asyncio" in _imports(path) and path.parent.name != "runtime":
        assert "time.sleep(" not in source, f"{path}: time.sleep would stop the loop"


@_for_each_package
def test_nothing_stands_at_module_level_but_definitions(path: Path) -> None:
    allowed = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign,
               ast.AnnAssign, ast.If, ast.Expr, ast.Try, ast.Assert)  # fmt: skip
    for node in tree(path).body:
        assert isinstance(node, allowed), f"{path}:{node.lineno}: {type(node).__name__} at module level"
        if isinstance(node, ast.Expr):
            assert isinstance(node.value, ast.Constant), f"{path}:{node.lineno}: a call at module level"
        assert not isinstance(node, ast.Global), f"{path}:{node.lineno}: global"


@cache
def _pure_patterns() -> list[str]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return next(c["source_modules"] for c in contracts if c["name"].startswith("pure modules"))


def _is_pure(name: str) -> bool:
    return any(_fits(name.split("."), pattern.split(".")) for pattern in _pure_patterns())


def _fits(parts: list[str], pattern: list[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_fits(parts[skip:], pattern[1:]) for skip in range(1, len(parts) + 1))
    return bool(parts) and pattern[0] in ("*", parts[0]) and _fits(parts[1:], pattern[1:])


_PURE = [path for path in MODULES if path.name != "__init__.py" and _is_pure(_name(path))]


@_for_each_package
def test_a_name_that_promises_purity_is_on_the_list(path: Path) -> None:
    if any(fnmatchcase(path.stem, pattern) for pattern in _PURE_NAMES) and _imports(path).isdisjoint(_IMPURE):
        assert _is_pure(_name(path)) or "layout" in path.stem, (
            f"add {_name(path)} to the pure modules in pyproject.toml"
        )


@cache
def _imports(path: Path) -> set[str]:
    result = set()
    for node in _definitions_and_imports(path):
        if isinstance(node, ast.Import):
            result |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            result.add(node.module.split(".")[0])
    return result


_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(podwire[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n#]*)|import[ \t]+([\w., \t]*))", re.M
)


@cache
def _imported(path: Path) -> set[str]:
    """Modules of podwire that a file imports, by full name; read as text, as there are many files of tests."""
    result = set()
    for module, names, modules in _IMPORT.findall(path.read_text(encoding="utf-8")):
        fields = re.sub(r"#[^\n]*|\bas\s+\w+|[(),]", " ", names).split()
        result |= (
            {module, *(f"{module}.{name}" for name in fields)} if module else set(modules.replace(",", " ").split())
        )
    return result


@cache
def _tested(folder: Path) -> set[str]:
    """What the tests of a folder import, and what those modules import of their own package."""
    direct = {name for test in folder.rglob("test_*.py") for name in _imported(test)}
    near = set(direct)
    for path in MODULES:
        package, _, _ = _name(path).rpartition(".")
        if _name(path) in direct:
            near |= {name for name in _imported(path) if name.startswith(package)}
    return near


@pytest.mark.parametrize("path", _PURE, ids=_name)
def test_a_pure_module_has_tests_in_the_mirrored_folder(path: Path) -> None:
    below = path.parent.relative_to(SRC)
    # The tests of a package may stand in the folder of the package above it, but never further away.
    folders = [ROOT / "tests" / "unit" / below] + [ROOT / "tests" / "unit" / below.parent] * (len(below.parts) > 1)
    if not _only_names(path) and not any(_name(path) in _tested(folder) for folder in folders):
        pytest.fail(f"no test under {folders[0].relative_to(ROOT)} imports {_name(path)}")


def _only_names(path: Path) -> bool:
    """Whether a module holds no function: types and constants are tested by their users."""
    return not any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in _definitions_and_imports(path))


def _texts() -> Iterator[Path]:
    for folder in _TEXT_FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.is_file() and path.suffix in _TEXT_SUFFIXES and "__pycache__" not in path.parts:
                yield path
    for pattern in ("*.md", "Makefile", "pyproject.toml", ".ci/*"):
        yield from ROOT.glob(pattern)


def test_the_tree_speaks_of_the_project_alone() -> None:
    patterns = [re.compile(pattern) for pattern in _FORBIDDEN]
    result = []
    for path in _texts():
        try:
            content = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        patterns_here = [pattern for pattern in patterns if pattern.search(content)]
        for number, line in enumerate(content.splitlines() if patterns_here else (), 1):
            result += [f"{path.relative_to(ROOT)}:{number}: {p.pattern}" for p in patterns_here if p.search(line)]
    assert not result, "\n".join(result)


def test_requirements_name_no_index() -> None:
    for path in sorted((ROOT / "requirements").glob("*.txt")):
        assert not re.search(r"https?://|--(extra-)?index-url|--find-links", path.read_text()), path
