"""Joins two connections: bytes that one end receives are written to the other end."""

import asyncio

from podwire.http.frames import FrameSplitter

_BUFFER = 1 << 20


class Pipe(asyncio.Protocol):
    """One end of an upgraded connection; writes received bytes to the other end, as fast as that end reads."""

    def __init__(self, own: asyncio.Transport, other: asyncio.Transport, *, frames: bool = False) -> None:
        """``frames``: the bytes are WebSocket frames, which are written one by one."""
        self._other = other
        self._splitter = FrameSplitter() if frames else None
        own.set_write_buffer_limits(high=_BUFFER)

    def data_received(self, data: bytes) -> None:
        """Writes the bytes to the other end."""
        for frames in (data,) if self._splitter is None else self._splitter.split(data):
            self._other.write(frames)

    def connection_lost(self, exc: Exception | None) -> None:
        """Closes the other end after it has sent the bytes of this end."""
        self._other.close()

    def pause_writing(self) -> None:
        """This end reads slowly: the other end waits."""
        self._other.pause_reading()

    def resume_writing(self) -> None:
        """This end reads fast enough again."""
        if not self._other.is_closing():
            self._other.resume_reading()
