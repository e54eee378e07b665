"""Wheels of earlier commits of podwire, which upgrades start from; built once and kept.

``earlier_builds.json`` names the commits, the latest release first. A wheel is built from the commit's files by
hatchling, and kept in ``~/.cache/podwire/earlier-builds``. Without the git history there is none, and the tests that
need one are skipped with the reason.
"""

import io
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CACHE = Path.home() / ".cache/podwire/earlier-builds"
_DATA = json.loads(Path(__file__).with_suffix(".json").read_text())
COMMITS: list[str] = _DATA["commits"]
WITH_GATEWAY: str = _DATA["with_gateway"]
_BUILD_S = 120


def wheel(commit: str) -> Path:
    """The wheel of a commit.

    Raises: LookupError when this checkout does not have the commit.
    """
    folder = CACHE / commit
    known = list(folder.glob("*.whl"))
    return known[0] if known else _build(commit, folder)


def wheel_or_skip(commit: str) -> Path:
    """The wheel of a commit, for a test that is skipped without it."""
    try:
        return wheel(commit)
    except LookupError as absent:
        pytest.skip(str(absent))


def _build(commit: str, folder: Path) -> Path:
    archived = subprocess.run(
        ["git", "archive", "--format=tar", commit, "--", "src", "pyproject.toml", "README.md", "LICENSE", "NOTICE"],
        cwd=ROOT, capture_output=True, timeout=_BUILD_S, check=False,
    )  # fmt: skip
    if archived.returncode != 0:
        raise LookupError(f"the git history has no commit {commit}: {archived.stderr.decode().strip()}")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        with tarfile.open(fileobj=io.BytesIO(archived.stdout)) as archive:
            archive.extractall(home, filter="data")
        hatchling = [
            str(Path(sys.executable).parent / "hatchling"),
            "build",
            "-t",
            "wheel",
            "-d",
            str(Path(home, "out")),
        ]
        subprocess.run(hatchling, cwd=home, capture_output=True, timeout=_BUILD_S, check=True)
        (built,) = Path(home, "out").glob("*.whl")
        target = folder / built.name
        partial = target.with_suffix(".part")
        partial.write_bytes(built.read_bytes())
        partial.rename(target)
    return target
