"""Builds of podwire that a local cluster runs: this one, a wheel, or a folder with the package.

A build is a folder for Python's search path, and a label: the version, and the beginning of a digest of its files.
Wheels are unpacked below the cluster's state, which ``podwire down`` deletes. A component of another build is a new
Python program with that folder first in its search path; libraries are those of this environment.

``build.json`` in the state of a cluster names the build that started it. ``builds.json`` in its run directory names the
builds of components that differ from the supervisor's; it exists during an upgrade.
"""

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

import podwire
from podwire.errors import ConfigError
from podwire.local.release import version_of
from podwire.local.topology import Topology
from podwire.runtime.files import write_atomically

BUILD_ENTRY = "build"
"""The entry of the fork server that becomes a component of another build."""
VARIABLE = "PODWIRE_BUILD"
"""Names the label in the environment of processes of another build."""
_FILE = "build.json"
_FOLDER = "builds"
_SKIPPED = ("__pycache__", ".pyc")
_DIGITS = 8


class Build(msgspec.Struct, frozen=True):
    """One build: the folder that holds the package ``podwire``, and its label."""

    root: str
    label: str

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a process of this build."""
        return {**os.environ, "PYTHONPATH": self.root, VARIABLE: self.label}


class BuildOrder(msgspec.Struct, frozen=True):
    """A component of another build: its entry in the fork server there, and the path of its configuration."""

    build: Build
    entry: str
    path: str


def own() -> Build:
    """The build of this process."""
    return _build(Path(own_root()))


def own_root() -> str:
    """The folder of this build."""
    return str(Path(podwire.__file__).parents[1])


def check(build: Build) -> None:
    """Raises: ConfigError when a recorded build is not there any more, or is another one now."""
    if not (Path(build.root) / "podwire" / "__init__.py").is_file():
        raise ConfigError(build.root, "", f"the build {build.label}, which the cluster runs, does not exist any more")
    if (label := _build(Path(build.root)).label) != build.label:
        problem = f"the cluster runs the build {build.label}, and the folder has {label} now"
        raise ConfigError(build.root, "", problem)


def resolve(text: str, folder: Path, option: str) -> Build:
    """The build of a wheel, or of a folder that holds the package or its sources; a wheel is unpacked below ``folder``.

    Raises: ConfigError naming ``option`` when it is neither.
    """
    path = Path(text).absolute()
    if path.suffix == ".whl" and path.is_file():
        path = _unpacked(path, folder, option)
    for candidate in (path, path / "src"):
        if (candidate / "podwire" / "__init__.py").is_file():
            return _build(candidate)
    expected = "expected a wheel (podwire-*.whl), or a folder that holds the package podwire or src/podwire"
    raise ConfigError(option, "", f"{text}: {expected}")


def _unpacked(wheel: Path, folder: Path, option: str) -> Path:
    import hashlib
    import zipfile

    target = folder / hashlib.sha256(wheel.read_bytes()).hexdigest()[:16]
    if target.is_dir():
        return target
    fresh = target.with_name(f".{target.name}")
    try:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(fresh)
            for entry in archive.infolist():  # the program for CNI must stay executable
                if mode := entry.external_attr >> 16 & 0o777:
                    (fresh / entry.filename).chmod(mode)
    except (OSError, zipfile.BadZipFile) as failure:
        raise ConfigError(option, "", f"{wheel}: not a wheel: {failure}") from failure
    fresh.rename(target)
    return target


def _build(root: Path) -> Build:
    import hashlib

    digest = hashlib.sha256()
    for name in sorted(_files_of(str(root), "podwire"), key=lambda name: name.split("/")):
        digest.update(f"{name}\0".encode())
        with open(f"{root}/{name}", "rb", buffering=0) as file:  # noqa: PTH123 - a thousand paths would take 50 ms
            digest.update(file.read())
    return Build(str(root), f"{version_of(root)}+{digest.hexdigest()[:_DIGITS]}")


def _files_of(root: str, folder: str) -> Iterator[str]:
    """The files below a folder, relative to ``root``, in no order."""
    for entry in os.scandir(f"{root}/{folder}"):
        name = f"{folder}/{entry.name}"
        if entry.name.endswith(_SKIPPED):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _files_of(root, name)
        elif entry.is_file():
            yield name


def remember(state: Path, build: Build) -> None:
    """Records the build that starts a cluster, in the folder of its state."""
    state.mkdir(parents=True, exist_ok=True)
    write_atomically(state / _FILE, msgspec.json.encode(build))


def recall(state: Path) -> Build | None:
    """The build that started a cluster, or that it was upgraded to; None when it is not recorded."""
    try:
        return msgspec.json.decode((state / _FILE).read_bytes(), type=Build)
    except (OSError, msgspec.DecodeError):
        return None


def forget(state: Path) -> None:
    """Removes what was written for a cluster that did not come into being."""
    shutil.rmtree(state / _FOLDER, ignore_errors=True)
    (state / _FILE).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        state.rmdir()


def read_components(topology: Topology) -> dict[str, Build]:
    """The builds of components that differ from the supervisor's."""
    try:
        return msgspec.json.decode(_components(topology).read_bytes(), type=dict[str, Build])
    except (OSError, msgspec.DecodeError):
        return {}


def write_components(topology: Topology, builds: Mapping[str, Build]) -> None:
    """Records the builds of components that differ from the supervisor's."""
    write_atomically(_components(topology), msgspec.json.encode(builds))


def _components(topology: Topology) -> Path:
    return Path(topology.run) / "builds.json"


def command(*arguments: str) -> list[str]:
    """The command line that runs ``podwire`` of a build, in its environment."""
    return [sys.executable, "-m", "podwire.cli.main", *arguments]


def run_command(build: Build, arguments: list[str]) -> int:
    """Runs ``podwire`` of a build with this process' standard streams; the exit status."""
    return _run(build, command(*arguments))


def run_python(build: Build, program: str) -> int:
    """Runs a program of Python with the modules of a build; the exit status."""
    return _run(build, [sys.executable, "-c", program])


def _run(build: Build, argv: list[str]) -> int:
    pid = os.posix_spawn(argv[0], argv, build.environment)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def label_of(pid: int) -> str:
    """The label in the environment with which a process began; empty without one."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return ""
    prefix = f"{VARIABLE}=".encode()
    return next((item[len(prefix) :].decode() for item in environment.split(b"\0") if item.startswith(prefix)), "")
