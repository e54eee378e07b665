"""Where the CNI program is: the compiled one for this machine, or its stand-in in Python.

A container runtime executes it under the ``type`` of its network configuration, so it is put into the runtime's
directory of programs under that name: by rename, because overwriting a program that runs fails.
"""

import os
import platform
import shutil
from pathlib import Path

NAME = "podwire-cni"


def path() -> Path:
    """The program that this machine can run."""
    here = Path(__file__).parent
    compiled = here / "bin" / f"{NAME}-{platform.machine()}"
    return compiled if compiled.exists() else here / "shim.py"


def install(directory: Path, name: str = NAME) -> Path:
    """Puts the program into a runtime's directory and gives its place."""
    directory.mkdir(parents=True, exist_ok=True)
    place, fresh = directory / name, directory / f".{name}.{os.getpid()}"
    shutil.copyfile(path(), fresh)
    fresh.chmod(0o755)
    fresh.replace(place)
    return place


def write_configuration(directory: Path, text: bytes, name: str = "10-podwire.conflist") -> Path:
    """Writes the network configuration that makes a runtime use the program.

    By a temporary file in the same directory and a rename: containerd does not notice files that are renamed
    into the directory from elsewhere, and reads half-written ones.
    """
    directory.mkdir(parents=True, exist_ok=True)
    place, fresh = directory / name, directory / f".{name}.tmp"
    if place.exists() and place.read_bytes() == text:
        return place
    with fresh.open("wb") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    fresh.replace(place)
    return place
