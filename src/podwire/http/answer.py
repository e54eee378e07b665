"""Results of a handler of the HTTP server: a complete response, a streaming body, another protocol.

A handler takes a :class:`~podwire.http.message.Request` and returns a result, a future or a coroutine of a result. The
first form costs no task and no turn of the event loop. :class:`Streaming` writes a chunked body of any length.
:class:`Upgrade` takes over the transport, with the bytes that the client sent behind its request, and speaks another
protocol. When the client of a stream does not read, the transport's buffer grows; the writer checks
:attr:`Stream.buffered` and aborts, or awaits :meth:`Stream.drain`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

import msgspec

from podwire.http.message import Request, Response


class StreamSink(Protocol):
    """The connection that a stream writes to."""

    def send(self, data: bytes) -> None:
        """Writes to the client if it is still connected."""
        ...

    def buffered(self) -> int:
        """Bytes that the client has not read yet."""
        ...

    async def drain(self) -> None:
        """Returns when the write buffer is low, or the client has disconnected."""
        ...

    def stream_finished(self) -> None:
        """The body is complete."""
        ...

    def abort(self) -> None:
        """Closes the connection at once."""
        ...


class Stream:
    """The open body of a streaming answer."""

    __slots__ = ("_connection", "closed", "on_close")

    def __init__(self, connection: StreamSink) -> None:
        self._connection = connection
        self.closed = False
        """Whether the body has ended or the client has disconnected."""
        self.on_close: Callable[[], None] | None = None
        """Called once when the client disconnects or the server stops; not after ``close``."""

    def write(self, data: bytes) -> None:
        """Sends ``data`` as one chunk; sends nothing after the end or for empty data."""
        if not self.closed and data:
            self._connection.send(b"%x\r\n%b\r\n" % (len(data), data))

    def write_framed(self, chunk: bytes) -> None:
        """Sends bytes that carry their chunk framing already (see :func:`encode_chunk`)."""
        if not self.closed:
            self._connection.send(chunk)

    @property
    def buffered(self) -> int:
        """Bytes that the client has not read yet."""
        return self._connection.buffered()

    async def drain(self) -> None:
        """Returns when the client has read most of the written bytes, or has disconnected."""
        await self._connection.drain()

    def close(self) -> None:
        """Completes the body; the connection can be used again."""
        if not self.closed:
            self.closed = True
            self._connection.send(b"0\r\n\r\n")
            self._connection.stream_finished()

    def abort(self) -> None:
        """Closes the connection at once and drops buffered data."""
        self._connection.abort()


def encode_chunk(data: bytes) -> bytes:
    """``data`` as one HTTP chunk, for bytes that several streams send."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Streaming(msgspec.Struct, frozen=True):
    """An answer of unknown length; the server calls ``start`` with the stream after it has written the head."""

    start: Callable[[Stream], None]
    status: int = 200
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


class Upgrade(msgspec.Struct, frozen=True):
    """Hands the connection over.

    ``take(transport, leftover)`` writes the 101 answer (see :func:`encode_switching`) and returns the protocol that
    takes over the transport. Reading is paused until it returns.
    """

    take: Callable[[asyncio.Transport, bytes], asyncio.BaseProtocol]


Result: TypeAlias = Response | Streaming | Upgrade
Handler: TypeAlias = Callable[[Request], Result | Awaitable[Result]]


def encode_switching(headers: tuple[tuple[str, str], ...]) -> bytes:
    """The head of a 101 answer with these headers."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    return f"HTTP/1.1 101 Switching Protocols\r\n{lines}\r\n".encode("latin-1")
