"""How long the tests take that this tree and another one have in common.

    python -m bench.suite_time OTHER [TIER ...]

OTHER is a worktree with its own ``.venv``, for example of an earlier commit (``git worktree add``, ``make setup``). A
test is in common when both trees have it in the same tier, by name and parameters, as often. Each tree runs them as its
own ``make test`` would, with its own workers and fixtures: ``scripts/suite.py``, or ``scripts/suite`` in trees before
2026-11-24. Without tiers these are unit, kernel and e2e; the thorough unit tests belong to unit. Tests of guests choose
their files before pytest chooses its tests, so the tier uml cannot be compared this way.

Two trees that are compared need a machine that does nothing else: tests wait for each other's processors.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from bench.alone import ROOT

TIERS = ("unit", "kernel", "e2e")
_PLUGIN = """
import json, os
from pathlib import Path

def name(item):
    parts = Path(item.path).parts
    return f"{parts[parts.index('tests') + 1]}/{item.name}"

def pytest_collection_modifyitems(config, items):
    if str(config.rootpath) != os.environ["OF_TREE"]:
        return  # A test runs pytest on other files.
    if "LIST_TESTS" in os.environ:
        Path(os.environ["LIST_TESTS"]).write_text(json.dumps([name(item) for item in items]))
    elif "ONLY_TESTS" in os.environ:
        only = set(json.loads(Path(os.environ["ONLY_TESTS"]).read_text()))
        config.hook.pytest_deselected(items=[item for item in items if name(item) not in only])
        items[:] = [item for item in items if name(item) in only]
"""
"""A plugin for pytest: writes the names of all tests to a file, or leaves those out that are not in a file."""


def in_common(one: Iterable[str], other: Iterable[str]) -> frozenset[str]:
    """The names that both have equally often."""
    counts, others = Counter(one), Counter(other)
    return frozenset(name for name, count in counts.items() if others[name] == count)


def _environment(tree: Path, folder: Path, variable: str, file: Path) -> dict[str, str]:
    """The environment in which pytest has the plugin for the tests of a tree, with a file for it."""
    (folder / "common_tests.py").write_text(_PLUGIN)
    own = {"PYTHONPATH": str(folder), "PYTEST_ADDOPTS": "-p common_tests", "OF_TREE": str(tree), variable: str(file)}
    return {**os.environ, **own}


def _listed(tree: Path, tiers: Iterable[str], folder: Path) -> list[str]:
    """The names of the tests of a tree; a test with parameters has one for each."""
    names: list[str] = []
    for tier in tiers:
        file = folder / "listed.json"
        command = [str(tree / ".venv/bin/python"), "-m", "pytest", "--collect-only", f"tests/{tier}"]
        environment = _environment(tree, folder, "LIST_TESTS", file)
        subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.DEVNULL, check=True)
        names += json.loads(file.read_text())
    return names


def _run(tree: Path, tiers: Iterable[str], folder: Path, only: Path) -> float:
    """The seconds that a tree takes for the tests that are named in a file."""
    suite = tree / "scripts/suite.py"
    program = [str(tree / ".venv/bin/python"), str(suite)] if suite.exists() else [str(tree / "scripts/suite")]
    own = [*tiers, *(["thorough"] if suite.exists() and "unit" in tiers else [])]
    begun = time.monotonic()
    subprocess.run([*program, *own], cwd=tree, env=_environment(tree, folder, "ONLY_TESTS", only), check=False)
    return time.monotonic() - begun


def main(arguments: list[str]) -> int:
    """Runs the tests in both trees and prints their times; the exit status is 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.suite_time", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("other", type=Path, help="a worktree with its own .venv")
    parser.add_argument("tiers", nargs="*", default=TIERS)
    chosen = parser.parse_args(arguments)
    other = chosen.other.resolve()
    with tempfile.TemporaryDirectory() as name:
        folder, only = Path(name), Path(name) / "only.json"
        only.write_text(json.dumps(sorted(in_common(*(_listed(tree, chosen.tiers, folder) for tree in (ROOT, other))))))
        times = {tree: _run(tree, chosen.tiers, folder, only) for tree in (other, ROOT)}
        print(f"\n{len(json.loads(only.read_text())):,} names of tests in {', '.join(chosen.tiers)}")
    for tree, seconds in times.items():
        print(f"{seconds:6.0f} s  {tree}")
    print(f"{100 * (1 - times[ROOT] / times[other]):6.0f} % less")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
