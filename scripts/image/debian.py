"""Packages of Debian for one processor, fetched by apt and unpacked without dpkg.

apt is called with its own sources and keys, and with a state of its own: neither the processor of this machine nor the
packages that are installed on it matter. No script of a package runs; what scripts would do (links of alternatives,
users) is in ``scripts/make_image.py``. Source: deb(5), a common ``ar`` archive of ``control.tar`` and ``data.tar``.
"""

import hashlib
import io
import lzma
import re
import subprocess
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from image import tree

_LISTS_AGE_S = 24 * 3600
"""Lists of packages are fetched again after a day; when that fails, the old ones serve."""
_URI = re.compile(r"^'[^']+' (?P<file>\S+) (?P<size>\d+) (?:SHA256:(?P<sha256>[0-9a-f]{64}))?")


class PackageError(Exception):
    """A package cannot be fetched or unpacked."""


@dataclass(frozen=True)
class Package:
    """A fetched package."""

    name: str
    version: str
    architecture: str
    sha256: str
    control: str
    """The text of its control file."""
    files: tree.Tree

    def __str__(self) -> str:
        return f"{self.name} {self.version} {self.architecture} {self.sha256}"


def fetch(names: Sequence[str], architecture: str, cache: Path) -> list[Package]:
    """The packages ``name`` or ``name=version``, in the order of the names.

    Raises: PackageError when apt cannot fetch one.
    """
    home = cache / architecture
    for folder in ("state/lists/partial", "cache/archives/partial", "debs"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    lists = home / "state/lists"
    stamp = home / "updated"
    fresh = stamp.exists() and time.time() - stamp.stat().st_mtime < _LISTS_AGE_S
    if not fresh or not any(lists.glob("*Packages*")):
        try:
            _apt(home, architecture, "update")
        except PackageError:
            if not any(lists.glob("*Packages*")):
                raise
        stamp.touch()
    answer = _apt(home, architecture, "download", "--print-uris", *names)
    matches = [match for line in answer.splitlines() if (match := _URI.match(line))]
    missing = [m for m in matches if not _intact(home / "debs" / m["file"], m["sha256"])]
    if missing:
        _apt(home, architecture, "download", *names, folder="debs")
    packages = {package.name: package for package in (_unpack(home / "debs" / m["file"]) for m in matches)}
    wanted = [name.partition("=")[0] for name in names]
    if absent := [name for name in wanted if name not in packages]:
        raise PackageError(f"{architecture}: apt knows no package {', '.join(absent)}")
    return [packages[name] for name in wanted]


def _apt(home: Path, architecture: str, *arguments: str, folder: str = "state") -> str:
    settings = {
        "APT::Architecture": architecture, "APT::Architectures::": architecture, "Dir::State": home / "state",
        "Dir::State::status": "/dev/null", "Dir::Cache": home / "cache", "APT::Sandbox::User": "",
    }  # fmt: skip
    options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
    command = ["apt-get", "-q", *options, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=home / folder)
    except FileNotFoundError as failure:
        raise PackageError("apt-get is missing: the image is made on Debian") from failure
    if done.returncode:
        reasons = [line for line in done.stderr.splitlines() if line.startswith("E:")]
        raise PackageError(f"{architecture}: apt-get {arguments[0]}: {' '.join(reasons) or done.stderr.strip()}")
    return done.stdout


def _intact(path: Path, sha256: str | None) -> bool:
    return path.exists() and (sha256 is None or hashlib.sha256(path.read_bytes()).hexdigest() == sha256)


def _unpack(path: Path) -> Package:
    data = path.read_bytes()
    members = dict(_members(data, path))
    control = next(value for key, value in members.items() if key.startswith("control.tar"))
    content = next(value for key, value in members.items() if key.startswith("data.tar"))
    with _open(control, path) as files:
        stream = files.extractfile(next(m for m in files if m.name.removeprefix("./") == "control"))
        text = stream.read().decode() if stream else ""
    fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line and not line.startswith(" "))
    with _open(content, path) as files:
        unpacked = tree.from_tar(files)
    sha256 = hashlib.sha256(data).hexdigest()
    return Package(fields["Package"], fields["Version"], fields["Architecture"], sha256, text, unpacked)


def _members(data: bytes, path: Path) -> Iterator[tuple[str, bytes]]:
    if not data.startswith(b"!<arch>\n"):
        raise PackageError(f"{path.name}: expected a Debian package")
    at = 8
    while at + 60 <= len(data):
        head = data[at : at + 60]
        size = int(head[48:58])
        yield head[:16].decode().strip().rstrip("/"), data[at + 60 : at + 60 + size]
        at += 60 + size + size % 2


def _open(data: bytes, path: Path) -> tarfile.TarFile:
    if data.startswith(b"\xfd7zXZ"):
        data = lzma.decompress(data)
    elif data.startswith(b"\x28\xb5\x2f\xfd"):
        raise PackageError(f"{path.name}: compressed with zstd, which this Python cannot read")
    return tarfile.open(fileobj=io.BytesIO(data))
