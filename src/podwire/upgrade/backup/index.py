"""The index of a backup: what is in it, and under which digest. Pure.

A backup is a folder: ``index.json`` and, below ``blobs``, one file for each content, named by its SHA-256. The index is
written last, so a folder without an index is no backup. The index has a digest of its own entries: an index that was
cut off or edited is refused.
"""

import hashlib
from collections.abc import Iterable
from typing import Literal

import msgspec

from podwire.errors import ConfigError
from podwire.model.meta import Fact

INDEX = "index.json"
BLOBS = "blobs"
VERSION = 1
EntryKind = Literal["object", "configuration", "kernel", "programs"]
"""An object of the API; a configuration file of the container runtime; one kind of kernel state as text; the digests of
the CNI programs."""


class BackupEntry(Fact, frozen=True, kw_only=True):
    """One content. ``node`` is empty for objects."""

    kind: EntryKind
    name: str
    """Of an object as ``ConfigMap kube-system/coredns``; otherwise the name of the file or of the kind of state."""
    node: str = ""
    digest: str
    """SHA-256 in hexadecimal."""
    size: int

    @property
    def title(self) -> str:
        """In words."""
        return f"{self.node}: {self.kind} {self.name}" if self.node else self.name


class BackupIndex(Fact, frozen=True, kw_only=True):
    """The whole index."""

    version: int = VERSION
    cluster: str = ""
    """The UID of the namespace kube-system."""
    created: str = ""
    """As ``2026-01-02T03:04:05Z``."""
    podwire: str = ""
    """The version that wrote it."""
    entries: tuple[BackupEntry, ...] = ()
    digest: str = ""
    """SHA-256 of the index without this field."""

    def nodes(self) -> tuple[str, ...]:
        """The nodes that were read, by name."""
        return tuple(sorted({entry.node for entry in self.entries if entry.node}))

    def of(self, kind: EntryKind, node: str = "") -> Iterable[BackupEntry]:
        """The entries of a kind and a node."""
        return (entry for entry in self.entries if entry.kind == kind and entry.node == node)


def content_digest(data: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def render(index: BackupIndex) -> bytes:
    """The index as JSON, with its digest."""
    complete = msgspec.structs.replace(index, digest=_digest(index))
    return msgspec.json.format(msgspec.json.encode(complete), indent=2) + b"\n"


def parse(data: bytes, source: str) -> BackupIndex:
    """The index of a file.

    Raises: ConfigError when it is no index, was changed, or is of a later version.
    """
    try:
        index = msgspec.json.decode(data, type=BackupIndex)
    except msgspec.DecodeError as failure:
        raise ConfigError(source, "", f"expected the index of a backup: {failure}") from failure
    if index.version != VERSION:
        raise ConfigError(source, "version", f"expected {VERSION}, got {index.version}; use the podwire that wrote it")
    if index.digest != (expected := _digest(index)):
        raise ConfigError(source, "digest", f"expected {expected} for these entries, got {index.digest!r}")
    return index


def _digest(index: BackupIndex) -> str:
    return content_digest(msgspec.json.encode(msgspec.structs.replace(index, digest=""), order="sorted"))
