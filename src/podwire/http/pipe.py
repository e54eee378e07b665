"""Joins two connections: what one end receives is written to the other end."""

import asyncio

from podwire.http.frames import FrameCutter

_BUFFER = 1 << 20


class Pipe(asyncio.Protocol):
    """One end of an upgraded connection: passes what it receives to the other end, at the pace of the other end."""

    def __init__(self, own: asyncio.Transport, other: asyncio.Transport, *, frames: bool = False) -> None:
        """With ``frames`` the bytes are WebSocket frames, which are written one by one."""
        self._other = other
        self._cutter = FrameCutter() if frames else None
        own.set_write_buffer_limits(high=_BUFFER)

    def data_received(self, data: bytes) -> None:
        """Passes bytes on."""
        for piece in (data,) if self._cutter is None else self._cutter.cut(data):
            self._other.write(piece)

    def connection_lost(self, exc: Exception | None) -> None:
        """Closes the other end after it has sent the bytes of this end."""
        self._other.close()

    def pause_writing(self) -> None:
        """This end reads slowly: the other end waits."""
        self._other.pause_reading()

    def resume_writing(self) -> None:
        """This end caught up."""
        if not self._other.is_closing():
            self._other.resume_reading()
