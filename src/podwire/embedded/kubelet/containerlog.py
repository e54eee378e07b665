"""Writes and parses container logs in the format of the CRI: one line ``time stream tag text`` per record.

The tag is ``F`` for a full line and ``P`` for a part of a line that is longer than 16 KiB or has no end. Times have
nine decimal places.
Source: kubernetes/design-proposals-archive, node/kubelet-cri-logging.md.
"""

import os
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

PART = 16 << 10
LIMIT = 10 << 20


class Line(NamedTuple):
    """One record; ``text`` ends with a line feed unless the record is a part of a line."""

    time: str
    stream: str
    text: bytes


def render(time: str, stream: str, text: bytes, *, whole: bool) -> bytes:
    """One record with a line feed at its end; ``text`` has no line feed."""
    return b"%b %b %b %b\n" % (time.encode(), stream.encode(), b"F" if whole else b"P", text)


def parse(record: bytes) -> Line | None:
    """The record in one line of a log file; None when the line is incomplete."""
    fields = record.split(b" ", 3)
    if len(fields) < 4 or fields[2] not in (b"F", b"P"):
        return None
    text = fields[3].removesuffix(b"\n")
    return Line(fields[0].decode(), fields[1].decode(), text + b"\n" if fields[2] == b"F" else text)


def stamp(now: datetime) -> str:
    """RFC 3339 with nine decimal places; ``now`` is in UTC."""
    return f"{now:%Y-%m-%dT%H:%M:%S.%f}000Z"


class LogWriter:
    """Appends the output of one container to a file; a file over 10 MiB is renamed to ``<file>.1`` first."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._fd = self._open()
        self._rest = {"stdout": b"", "stderr": b""}
        self._size = os.fstat(self._fd).st_size

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)

    def write(self, stream: str, data: bytes, now: datetime) -> None:
        """Appends the complete lines in ``data``; an unfinished line is kept until its end arrives."""
        time = stamp(now)
        *lines, rest = (self._rest[stream] + data).split(b"\n")
        out = [record for line in lines for record in _records(time, stream, line)]
        while len(rest) >= PART:
            out.append(render(time, stream, rest[:PART], whole=False))
            rest = rest[PART:]
        self._rest[stream] = rest
        self._append(b"".join(out))

    def close(self, now: datetime) -> None:
        """Writes unfinished lines as parts of a line, so that readers add no line feed, and closes the file."""
        for stream, rest in self._rest.items():
            if rest:
                self._append(render(stamp(now), stream, rest, whole=False))
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
        except OSError:  # When the disk is full, output is lost and the container goes on.
            return
        self._size += len(data)


def _records(time: str, stream: str, line: bytes) -> list[bytes]:
    out = []
    while len(line) > PART:
        out.append(render(time, stream, line[:PART], whole=False))
        line = line[PART:]
    return [*out, render(time, stream, line, whole=True)]
