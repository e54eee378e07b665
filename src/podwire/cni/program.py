"""Installs the CNI program: the compiled program for this machine, or its replacement in Python.

A container runtime executes the program that has the ``type`` of its network configuration as name, so the program is
put into the runtime's directory under that name: by rename, because a running program cannot be overwritten.
"""

import os
import platform
import shutil
from collections.abc import Iterable
from pathlib import Path

NAME = "podwire-cni"
STAND_INS = ("loopback", "tuning", "bandwidth", "firewall")
"""The program is also installed under these names of other plugins, where the directory does not have them."""
_MARK = b"PODWIRE1"
"""The beginning of a request, which every version of the program contains."""


def path() -> Path:
    """The path of the program that this machine can run."""
    here = Path(__file__).parent
    compiled = here / "bin" / f"{NAME}-{platform.machine()}"
    return compiled if compiled.exists() else here / "shim.py"


def install(directory: Path, name: str = NAME) -> Path:
    """Puts the program into a runtime's directory; returns its path there."""
    directory.mkdir(parents=True, exist_ok=True)
    target, temporary = directory / name, directory / f".{name}.{os.getpid()}"
    shutil.copyfile(path(), temporary)
    temporary.chmod(0o755)
    temporary.replace(target)
    return target


def replace_foreign(directory: Path, name: str) -> Path:
    """Installs the program under the name of another plugin; that plugin's program is kept as ``<name>.podwire-saved``.

    Returns its path.
    """
    target, saved = directory / name, directory / f"{name}.podwire-saved"
    if target.exists() and not saved.exists() and _MARK not in target.read_bytes():
        target.rename(saved)
    return install(directory, name)


def is_free(directory: Path, name: str) -> bool:
    """Whether a runtime's directory has no program of this name, or a version of this one."""
    target = directory / name
    return not target.exists() or _MARK in target.read_bytes()


def is_installed(directory: Path, name: str = NAME) -> bool:
    """Whether a runtime's directory has this program, and it can be executed."""
    target = directory / name
    if not target.exists() or not os.access(target, os.X_OK):
        return False
    return target.stat().st_size == path().stat().st_size and target.read_bytes() == path().read_bytes()


def fingerprint(directory: Path, more: Iterable[str] = ()) -> tuple[object, ...]:
    """A value that changes with the programs in a runtime's directory under any of their names, and with the program
    that is installed; ``more`` are further names. Reads no file, as :func:`is_installed` does.
    """
    files = (path(), *(directory / name for name in (NAME, *STAND_INS, *more)))
    return tuple(map(_state_of, files))


def _state_of(file: Path) -> tuple[int, ...] | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_mode, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def write_configuration(directory: Path, text: bytes, name: str = "10-podwire.conflist") -> Path:
    """Writes the network configuration that makes a runtime use the program.

    The text goes to a temporary file in the same directory, which is then renamed: containerd does not notice files
    that are renamed into the directory from elsewhere, and it reads files that are only half written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    target, temporary = directory / name, directory / f".{name}.tmp"
    if target.exists() and target.read_bytes() == text:
        return target  # A second event would make the runtime load it again.
    with temporary.open("wb") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(target)
    return target
