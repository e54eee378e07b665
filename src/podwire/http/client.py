"""HTTP/1.1 client: one connection, an asyncio protocol around httptools' response parser.

One exchange at a time. The body of an answer is read in chunks; reading from the socket pauses while more than 1 MiB
waits, so that a slow reader of a watch slows the server instead of using memory. Cost: about 60 us per small exchange.
Source: RFC 9112.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import Protocol

import httptools

from podwire.errors import Disconnected

_HIGH_WATER = 1 << 20


class ResponseParser(Protocol):
    """The methods of ``httptools.HttpResponseParser`` that are used here."""

    def feed_data(self, data: bytes) -> None: ...  # noqa: D102
    def get_status_code(self) -> int: ...  # noqa: D102
    def should_keep_alive(self) -> bool: ...  # noqa: D102


def encode_request(method: str, target: str, headers: Iterable[tuple[str, str]], body: bytes = b"") -> bytes:
    """A whole request; ``content-length`` is added when the method or the body needs one."""
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    if body or method not in ("GET", "HEAD", "DELETE"):
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


async def connect(host: str, port: int, tls: ssl.SSLContext | None = None, server_name: str = "") -> "ClientConnection":
    """A new connection; with ``tls`` the certificate is checked for ``server_name``, or for the host.

    Raises: OSError.
    """
    _, connection = await asyncio.get_running_loop().create_connection(
        ClientConnection, host, port, ssl=tls, server_hostname=(server_name or host) if tls is not None else None
    )
    return connection


class _Arrival:
    """Wakes the one reader of an answer."""

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None

    def signal(self) -> None:
        """Wakes the reader, if it waits."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Returns at the next :meth:`signal`."""
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


class ClientConnection(asyncio.Protocol):
    """One connection; ``send``, then ``head``, then ``chunks`` to the end."""

    def __init__(self) -> None:
        self.reusable = False
        self.session_stored = False
        """Whether other connections can resume the TLS session of this one, or the one that it has resumed."""
        self.status = 0
        self.headers: dict[str, str] = {}
        self.cookies: list[str] = []
        """The values of all ``set-cookie`` headers."""
        self._transport: asyncio.Transport | None = None
        self._parser: ResponseParser = httptools.HttpResponseParser(self)
        self._chunks: deque[bytes] = deque()
        self._buffered = 0
        self._paused = False
        self._started = False
        self._has_head = False
        self._ended = False
        self._failure: Disconnected | None = None
        self._arrival = _Arrival()
        self._upgraded = b""

    @property
    def alive(self) -> bool:
        """Whether a request can be sent."""
        return self._failure is None and self._transport is not None and not self._transport.is_closing()

    @property
    def transport(self) -> asyncio.Transport | None:
        """The transport; None before it is there and after it was detached."""
        return self._transport

    @property
    def untouched(self) -> bool:
        """Whether no byte of an answer has arrived since the last ``send``."""
        return not self._started

    def send(self, request: bytes) -> None:
        """Writes a whole request and drops the last answer."""
        if self._transport is None:
            raise Disconnected("the connection is not open")
        self.status, self.headers, self.cookies = 0, {}, []
        self._started = self._has_head = self._ended = self.reusable = False
        self._chunks.clear()
        self._buffered = 0
        self._transport.write(request)

    async def head(self) -> None:
        """Returns when ``status`` and ``headers`` have arrived.

        Raises: Disconnected when the connection breaks first.
        """
        while not self._has_head:
            await self._next()

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body in chunks, up to its end.

        Raises: Disconnected when the connection breaks before the end.
        """
        while True:
            while self._chunks:
                chunk = self._chunks.popleft()
                self._buffered -= len(chunk)
                if self._paused and self._buffered < _HIGH_WATER // 2 and self._transport is not None:
                    self._paused = False
                    self._transport.resume_reading()
                yield chunk
            if self._ended:
                return
            await self._next()

    async def body(self) -> bytes:
        """The whole body."""
        return b"".join([chunk async for chunk in self.chunks()])

    def abort(self) -> None:
        """Closes at once; a reader of the answer gets Disconnected."""
        if self._transport is not None:
            self._transport.abort()

    def detach(self) -> tuple[asyncio.Transport, bytes]:
        """After an answer with status 101: the transport, with reading paused, and the bytes behind the answer.

        The caller sets its own protocol and resumes reading.

        Raises: Disconnected when the connection is closed.
        """
        if self._transport is None or self._failure is not None:
            raise Disconnected("the connection is closed")
        transport, self._transport = self._transport, None
        return transport, self._upgraded

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if self.status == 101:
            self._upgraded += data
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgraded = data[upgrade.args[0] :]
            if self._transport is not None:
                self._transport.pause_reading()
        except httptools.HttpParserError as failure:
            self._fail(f"the server does not speak HTTP: {failure}")
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol. An answer with neither a length nor chunks ends when the connection ends."""
        framed = "content-length" in self.headers or "transfer-encoding" in self.headers
        if exc is None and self._has_head and not framed:
            self._ended = True
        self._fail(f"the connection broke: {exc}" if exc else "the server closed the connection")

    def on_message_begin(self) -> None:
        """See httptools."""
        self._started = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """See httptools."""
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        self.headers[key] = text
        if key == "set-cookie":
            self.cookies.append(text)

    def on_headers_complete(self) -> None:
        """See httptools."""
        self.status = self._parser.get_status_code()
        self._has_head = self.status >= 200 or self.status == 101
        self._arrival.signal()

    def on_body(self, body: bytes) -> None:
        """See httptools."""
        self._chunks.append(body)
        self._buffered += len(body)
        if self._buffered > _HIGH_WATER and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._arrival.signal()

    def on_message_complete(self) -> None:
        """See httptools."""
        if self._has_head:
            self._ended = True
            self.reusable = self._parser.should_keep_alive()
            self._arrival.signal()

    async def _next(self) -> None:
        """Returns when more of the answer has arrived.

        Raises: Disconnected when the connection has broken.
        """
        if self._failure is not None:
            raise Disconnected(str(self._failure))
        await self._arrival.wait()

    def _fail(self, problem: str) -> None:
        if self._failure is None:
            self._failure = Disconnected(problem)
        self.reusable = False
        self._arrival.signal()
