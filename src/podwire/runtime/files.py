"""Writes files so that readers never see an incomplete one."""

import os
from pathlib import Path


def write_atomically(path: Path, data: bytes, mode: int = 0o644, *, durable: bool = False) -> None:
    """Replaces a file by rename, so that a reader sees either the old or the new content.

    With ``durable`` this also holds after the machine lost power: the content is on the disk before the name is.

    Raises: OSError; the file then has its old content.
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
