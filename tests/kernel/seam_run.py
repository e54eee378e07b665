"""A run of pytest with one more data plane in the registry, and which tests the data plane got.

The module is also a plugin of that run, where it writes down the names of all collected tests, also of those that are
not chosen. So one process, which reads the files of tests once, shows both: which cases exist, and that some pass.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
NAME = "renamed"
"""The name of the data plane of the modules ``renamed_*_dataplane``."""
_LISTED = "PODWIRE_COLLECTED_TESTS"
"""The environment variable with the file of names."""


class SeamRun(NamedTuple):
    """The tests of the data plane by their names: all that were collected, and those that ran and passed."""

    collected: tuple[str, ...]
    passed: tuple[str, ...]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if _LISTED in os.environ:
        Path(os.environ[_LISTED]).write_text("\n".join(item.nodeid for item in items))


def environment(**more: str) -> dict[str, str]:
    """The environment of a Python that imports the tests."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), *sys.path)), **more}


def run_with(module: str, chosen: str, files: tuple[str, ...], folder: Path) -> SeamRun:
    """Runs the tests of the data plane of a module that the expression ``chosen`` names; none may fail."""
    listed = folder / "collected"
    plugins = ("-p", module, "-p", __name__, "-p", "no:randomly")
    command = [sys.executable, "-m", "pytest", *plugins, "-rp", "-k", f"{NAME} and ({chosen})", *files]
    variables = environment(**{_LISTED: str(listed)})
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = [line.removeprefix("PASSED ") for line in done.stdout.splitlines() if line.startswith("PASSED ")]
    collected = [line for line in listed.read_text().splitlines() if NAME in line]
    return SeamRun(tuple(collected), tuple(passed))
