"""Container logs in the form of the CRI: ``time stream tag text``, one line a record; writing and parsing.

The tag is ``F`` for a whole line and ``P`` for a part of one longer than 16 KiB. Times carry nanoseconds.
Source: kubernetes/design-proposals-archive, node/kubelet-cri-logging.md.
"""

import os
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

PART = 16 << 10
LIMIT = 10 << 20


class Line(NamedTuple):
    """One record; ``text`` has its line end unless the record is a part."""

    time: str
    stream: str
    text: bytes


def render(time: str, stream: str, text: bytes, *, whole: bool) -> bytes:
    """One record with its line end; ``text`` is without."""
    return b"%b %b %b %b\n" % (time.encode(), stream.encode(), b"F" if whole else b"P", text)


def parse(record: bytes) -> Line | None:
    """The record in one line of a log file; None when it is torn."""
    fields = record.split(b" ", 3)
    if len(fields) < 4 or fields[2] not in (b"F", b"P"):
        return None
    text = fields[3].removesuffix(b"\n")
    return Line(fields[0].decode(), fields[1].decode(), text + b"\n" if fields[2] == b"F" else text)


def stamp(now: datetime) -> str:
    """RFC 3339 with nine digits behind the point; ``now`` is in UTC."""
    return f"{now:%Y-%m-%dT%H:%M:%S.%f}000Z"


class LogWriter:
    """Appends one container's output to its file; past 10 MiB the file becomes ``<file>.1`` and starts anew."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._fd = self._open()
        self._rest = {"stdout": b"", "stderr": b""}
        self._size = os.fstat(self._fd).st_size

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)

    def write(self, stream: str, data: bytes, now: datetime) -> None:
        """Takes a piece of output; the last unfinished line waits for its end."""
        time = stamp(now)
        *lines, rest = (self._rest[stream] + data).split(b"\n")
        out = [piece for line in lines for piece in _pieces(time, stream, line)]
        while len(rest) >= PART:
            out.append(render(time, stream, rest[:PART], whole=False))
            rest = rest[PART:]
        self._rest[stream] = rest
        self._append(b"".join(out))

    def close(self, now: datetime) -> None:
        """Writes what has no line end and closes the file."""
        for stream, rest in self._rest.items():
            if rest:
                self._append(render(stamp(now), stream, rest, whole=True))
        os.close(self._fd)

    def _append(self, data: bytes) -> None:
        if not data:
            return
        if self._size > LIMIT:
            os.close(self._fd)
            self._path.rename(f"{self._path}.1")
            self._fd = self._open()
            self._size = 0
        try:
            os.write(self._fd, data)
        except OSError:  # A full disk loses output, not the container.
            return
        self._size += len(data)


def _pieces(time: str, stream: str, line: bytes) -> list[bytes]:
    out = []
    while len(line) > PART:
        out.append(render(time, stream, line[:PART], whole=False))
        line = line[PART:]
    return [*out, render(time, stream, line, whole=True)]
