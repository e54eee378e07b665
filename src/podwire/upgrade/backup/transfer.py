"""What a pod on a node sends to the command that started it: files as lines of its log. Pure.

A log is text in lines, and runtimes split lines of more than 16 KiB. So each file is compressed and becomes lines of at
most :data:`_LINE` characters of base64. The last line has the number of files and a digest of everything: a log that
was cut off or rotated away is recognized.
"""

import base64
import binascii
import hashlib
import zlib
from collections.abc import Iterable, Iterator

import msgspec

from podwire.errors import ClusterError
from podwire.model.meta import Fact
from podwire.upgrade.backup.index import EntryKind

_LINE = 8000
_FILE = "file "
_DATA = "data "
_END = "end "


class NodeFile(Fact, frozen=True, kw_only=True):
    """One file of a node: a configuration, or a text made from the kernel."""

    kind: EntryKind
    name: str
    data: bytes = b""


class _Head(Fact, frozen=True, kw_only=True):
    kind: EntryKind
    name: str


class _End(Fact, frozen=True, kw_only=True):
    files: int
    digest: str


def lines(files: Iterable[NodeFile]) -> Iterator[str]:
    """The files as lines."""
    digest, count = hashlib.sha256(), 0
    for file in files:
        yield _FILE + msgspec.json.encode(_Head(kind=file.kind, name=file.name)).decode()
        text = base64.b64encode(zlib.compress(file.data, 6)).decode()
        for start in range(0, len(text), _LINE):
            yield _DATA + text[start : start + _LINE]
        digest.update(file.data)
        count += 1
    yield _END + msgspec.json.encode(_End(files=count, digest=digest.hexdigest())).decode()


def parse(log: str, source: str) -> tuple[NodeFile, ...]:
    """The files in a log; further lines are left out.

    Raises: ClusterError when the log is not complete.
    """
    heads: list[_Head] = []
    texts: list[list[str]] = []
    end: _End | None = None
    try:
        for line in log.splitlines():
            if line.startswith(_FILE):
                heads.append(msgspec.json.decode(line.removeprefix(_FILE), type=_Head))
                texts.append([])
            elif line.startswith(_DATA) and texts:
                texts[-1].append(line.removeprefix(_DATA))
            elif line.startswith(_END):
                end = msgspec.json.decode(line.removeprefix(_END), type=_End)
        contents = [zlib.decompress(base64.b64decode("".join(text), validate=True)) for text in texts]
    except (msgspec.DecodeError, zlib.error, binascii.Error) as failure:
        raise ClusterError(f"{source}: the answer does not decode: {failure}") from failure
    digest = hashlib.sha256(b"".join(contents)).hexdigest()
    if end is None or end != _End(files=len(heads), digest=digest):
        raise ClusterError(f"{source}: the answer is not complete; the pod's last lines: {_tail(log)}")
    return tuple(
        NodeFile(kind=head.kind, name=head.name, data=data) for head, data in zip(heads, contents, strict=True)
    )


def _tail(log: str) -> str:
    readable = [line for line in log.splitlines() if not line.startswith((_FILE, _DATA, _END))]
    return "; ".join(readable[-3:]) or "none"
