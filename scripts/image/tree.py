"""The files of an image as values, and a layer made of them.

A tree is a dictionary from a path without a leading ``/`` to an :class:`Entry`. It is kept in memory (100 MB at
most, 250 MB with Envoy), so that no step needs root and no file of the machine decides about owner, mode or time.
Layers are sorted by path, with owner 0, one time for all, and gzip without a name or time: the same tree gives the same
bytes.
"""

import gzip
import io
import os
import re
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

MERGED = ("bin", "sbin", "lib", "lib64")
"""Folders of ``/`` that are links into ``usr`` since Debian 12."""


@dataclass(frozen=True)
class Entry:
    """A file, a folder (``data`` and ``link`` are None) or a symbolic link."""

    mode: int = 0o755
    data: bytes | None = None
    link: str | None = None


Tree = dict[str, Entry]
_FOLDER = Entry()


def merged(path: str) -> str:
    """A path below ``usr`` instead of the folders that are links to there."""
    clean = path.removeprefix("./").strip("/")
    first, _, rest = clean.partition("/")
    return f"usr/{first}/{rest}".rstrip("/") if first in MERGED else clean


def put(tree: Tree, path: str, entry: Entry) -> None:
    """Adds an entry and the folders above it."""
    tree[path] = entry
    parent = path.rpartition("/")[0]
    while parent:
        tree.setdefault(parent, _FOLDER)
        parent = parent.rpartition("/")[0]


def from_tar(files: tarfile.TarFile) -> Tree:
    """The tree of an archive; hard links become copies, devices are left out, nothing is setuid."""
    tree: Tree = {}
    for member in files:
        path = merged(member.name)
        if not path or path == ".":
            continue
        mode = member.mode & 0o777
        if member.isdir():
            tree.setdefault(path, Entry(mode))
        elif member.issym():
            put(tree, path, Entry(0o777, link=member.linkname))
        elif member.islnk():
            put(tree, path, tree[merged(member.linkname)])
        elif member.isfile():
            stream = files.extractfile(member)
            put(tree, path, Entry(mode, stream.read() if stream else b""))
    return tree


def write(tree: Mapping[str, Entry], folder: Path) -> None:
    """Writes a tree below a folder of this machine; links stay inside of the folder."""
    for path, entry in sorted(tree.items()):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if entry.link is not None:
            target.symlink_to(folder / entry.link.lstrip("/") if entry.link.startswith("/") else entry.link)
        elif entry.data is None:
            target.mkdir(exist_ok=True)
        else:
            target.write_bytes(entry.data)
            target.chmod(entry.mode | 0o600)


def without(tree: Tree, patterns: Iterable[str]) -> Tree:
    """A tree without the paths that match a pattern (``*`` is any text), and what is below them."""
    removed = re.compile(
        "|".join(f"(?:{re.escape(pattern).replace(re.escape('*'), '[^/]*')})(?:/.*)?" for pattern in patterns)
    )
    return {path: entry for path, entry in tree.items() if not removed.fullmatch(path)}


def layer(tree: Mapping[str, Entry], epoch: int) -> bytes:
    """The archive of a layer, not compressed."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as files:
        for path, entry in sorted(tree.items()):
            member = tarfile.TarInfo(path)
            member.mode, member.mtime = entry.mode, epoch
            member.uname = member.gname = "root"
            if entry.link is not None:
                member.type, member.linkname = tarfile.SYMTYPE, entry.link
            elif entry.data is None:
                member.type = tarfile.DIRTYPE
            else:
                member.size = len(entry.data)
            files.addfile(member, io.BytesIO(entry.data) if entry.data is not None else None)
    return out.getvalue()


def compress(data: bytes, level: int) -> bytes:
    """Gzip without a name and with time 0."""
    return gzip.compress(data, compresslevel=level, mtime=0)


def read(folder: Path, suffix: str) -> Tree:
    """The files of a folder of this machine whose names end with ``suffix``."""
    tree: Tree = {}
    for base, _, names in os.walk(folder):
        for name in names:
            path = Path(base, name)
            if name.endswith(suffix) and not path.is_symlink():
                put(tree, str(path.relative_to(folder)), Entry(0o644, path.read_bytes()))
    return tree
