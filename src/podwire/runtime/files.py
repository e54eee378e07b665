"""Writes files so that readers never see an incomplete one."""

import os
from pathlib import Path


def write_atomically(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Replaces a file by rename, so that a reader sees either the old or the new content.

    Raises: OSError; the file then has its old content.
    """
    temporary = path.with_name(f".{path.name}.new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
    temporary.rename(path)
