"""podwire's wheel and the wheels that it needs, for one processor, as files of the image; and compiled sources.

pip fetches the pinned versions with their hashes. A wheel is unpacked as it is: none of ours has scripts or data
outside of its packages. Sources are compiled by the image's own interpreter on this machine's processor; bytecode is
the same on every processor. Files with bytecode carry the hash of the source instead of its time.
"""

import os
import platform
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from image import tree

MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
_PLATFORMS = {"amd64": "x86_64", "arm64": "aarch64"}
_MANYLINUX = (
    "manylinux2014", "manylinux_2_17", "manylinux_2_26", "manylinux_2_27", "manylinux_2_28", "manylinux_2_31",
    "manylinux_2_34",
)  # fmt: skip
SITE = "usr/local/lib/python3.11/dist-packages"
TRIPLES = {"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}
_LOADERS = {"amd64": "usr/lib64/ld-linux-x86-64.so.2", "arm64": "usr/lib/ld-linux-aarch64.so.1"}


class WheelError(Exception):
    """A wheel cannot be fetched or made."""


def fetch(requirements: Path, without: Iterable[str], architecture: str, cache: Path) -> list[Path]:
    """The wheels of a requirements file for a processor, but for those named in ``without``.

    Raises: WheelError when pip cannot fetch one.
    """
    folder = cache / architecture / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    pins = _pins(requirements, tuple(without))
    chosen = folder / "requirements.txt"
    chosen.write_text("".join(pins.values()))
    wheels = sorted(folder.glob("*.whl"))
    wanted = {name.lower().replace("-", "_") for name in pins}
    if {_distribution(wheel) for wheel in wheels} != wanted:
        for wheel in wheels:
            wheel.unlink()
        platforms = [f"--platform={name}_{_PLATFORMS[architecture]}" for name in _MANYLINUX]
        _run(
            sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps",
            "--require-hashes", "--only-binary=:all:", "--python-version=3.11", *platforms, "-r", str(chosen),
            "-d", str(folder),
        )  # fmt: skip
    return sorted(folder.glob("*.whl"))


def _distribution(wheel: Path) -> str:
    """Name and version of a wheel; its name may have a build number between version and tags (PEP 427)."""
    return "_".join(wheel.name.split("-")[:2]).lower()


def _pins(requirements: Path, without: tuple[str, ...]) -> dict[str, str]:
    """The lines of a requirements file by ``name-version``."""
    pins: dict[str, str] = {}
    name = ""
    for line in requirements.read_text(encoding="utf-8").splitlines(keepends=True):
        if line[0] not in " #\n":
            distribution, _, rest = line.partition("==")
            name = f"{distribution}-{rest.split()[0]}" if distribution not in without else ""
        if name and not line.startswith(("#", "\n")):
            pins[name] = pins.get(name, "") + line
    return pins


def build(project: Path, folder: Path, epoch: int) -> Path:
    """Makes podwire's own wheel.

    Raises: WheelError when that fails.
    """
    _run(
        sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), cwd=project,
        SOURCE_DATE_EPOCH=str(max(epoch, 315532800)),
    )  # fmt: skip
    return next(folder.glob("podwire-*.whl"))


def unpack(wheels: Iterable[Path]) -> tree.Tree:
    """The files of wheels, in the image's folder of packages."""
    files: tree.Tree = {}
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for info in archive.infolist():
                if info.is_dir():
                    continue
                mode = 0o755 if info.external_attr >> 16 & 0o111 else 0o644
                tree.put(files, f"{SITE}/{info.filename}", tree.Entry(mode, archive.read(info)))
    return files


def compiled(system: tree.Tree, sources: tree.Tree, architecture: str) -> tree.Tree:
    """The bytecode of the sources, by the interpreter of ``system``, which is for this machine's processor.

    The interpreter itself must not write any: its own files would have the time of the sources in them.

    Raises: WheelError when the interpreter does not run.
    """
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        tree.write({**system, **sources}, root)
        libraries = f"{root}/usr/lib/{TRIPLES[architecture]}"
        python = [str(root / _LOADERS[architecture]), "--library-path", libraries, str(root / "usr/bin/python3.11")]
        folders = [str(root / "usr/lib/python3.11"), str(root / SITE)]
        _run(
            *python, "-s", "-S", "-m", "compileall", "-f", "-q", "-j1", "--invalidation-mode=unchecked-hash",
            "-s", name, "-p", "/", *[folder for folder in folders if Path(folder).is_dir()],
            PYTHONHOME=str(root / "usr"), PYTHONHASHSEED="0", PYTHONDONTWRITEBYTECODE="1",
        )  # fmt: skip
        return tree.read(root, ".pyc")


def own_architecture() -> str:
    """Debian's name of this machine's processor.

    Raises: WheelError for one that no image is made for.
    """
    machine = platform.machine()
    if machine not in MACHINES:
        raise WheelError(f"expected a machine with {' or '.join(MACHINES)} to make images on, this is {machine}")
    return MACHINES[machine]


def _run(*command: str, cwd: Path | None = None, **environment: str) -> None:
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env={**clean, **environment})
    if done.returncode:
        raise WheelError(f"{' '.join(command[:4])}: {(done.stderr or done.stdout).strip()[-2000:]}")
