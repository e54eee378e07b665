"""Writes the files of :mod:`podwire.routing.linkfiles` below a directory, and deletes them.

A file of another program with the same name stays. A file is replaced as a whole, so that its reader never finds half
of it; one that is equal already is not touched.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from podwire.routing.linkfiles import MARK, LinkFile


def write(etc: Path, files: Iterable[LinkFile]) -> Iterator[str]:
    """Writes the files whose reader is installed; returns what was changed, and what could not be, as text."""
    for file in files:
        target = etc / file.path
        if not (etc / file.program).is_dir():
            continue
        try:
            if not _is_own(target):
                yield f"{target} belongs to another program and stays"
            elif not target.exists() or target.read_text() != file.text:
                target.parent.mkdir(parents=True, exist_ok=True)
                temporary = target.with_name(f".{target.name}.tmp")
                temporary.write_text(file.text)
                temporary.replace(target)
                yield f"wrote {target}"
        except OSError as failure:
            yield f"cannot write {target}: {failure.strerror or failure}"


def remove(etc: Path, files: Iterable[LinkFile]) -> Iterator[str]:
    """Deletes the files that podwire wrote; returns what was deleted, and what could not be, as text."""
    for file in files:
        target = etc / file.path
        try:
            if target.exists() and _is_own(target):
                target.unlink()
                yield f"deleted {target}"
        except OSError as failure:
            yield f"cannot delete {target}: {failure.strerror or failure}"


def _is_own(target: Path) -> bool:
    """Whether a file is podwire's, or does not exist."""
    return not target.exists() or target.read_text(errors="replace").startswith(MARK)
