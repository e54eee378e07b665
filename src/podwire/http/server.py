"""HTTP/1.1 server: an asyncio protocol on httptools, for every part that answers HTTP.

Requests on one connection are answered in order; while one is being answered, later ones wait (pipelining), and
reading pauses when more than a few do. Body size, header size, idle time and the time that a request may take to arrive
are limited. What a handler may answer is in :mod:`podwire.http.answer`.

Cost: some 20 us a small request; about 4 KiB a connection without TLS, 30 KiB with; nothing while no client is
connected. Sources: RFC 9112.
"""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

import httptools

from podwire.http.answer import Handler, Result, Stream, Streaming
from podwire.http.message import Limits, Request, Response, text_response
from podwire.runtime.clock import Clock
from podwire.runtime.tasks import TaskSet

_REASONS = {status.value: status.phrase for status in HTTPStatus}
_PIPELINE = 16
_BACKLOG = 1024
_SWEEP_S = 5.0
_SWEEPS = 4
"""Times that connections are looked at within the shortest limit; at least every ``_SWEEP_S``."""
_ACCEPT_TURNS = 2
"""Turns of the loop until asyncio has made the transport of an accepted connection, and then its protocol. A listener
that closes before leaves such a connection open without anyone to answer it (``Server._attach`` of Python 3.11)."""
_NOT_STARTED = b""


class ServerConnection(asyncio.Protocol):
    """One client connection."""

    def __init__(self, server: "HttpServer") -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._peer = ""
        self._certificate: dict[str, Any] | None = None
        self._waiting: deque[Request | Response] = deque()
        self._current: Request | None = None
        self._task: asyncio.Future[Any] | None = None
        self._stream: Stream | None = None
        self._drained: asyncio.Future[None] | None = None
        self._write_paused = False
        self._keep_alive = True
        self._closing = False
        self._leftover = b""
        self._upgraded = False
        self.touched = 0.0
        self._began = 0.0
        self._reset_message()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admits the connection, or refuses it when there are too many."""
        self._transport = transport  # type: ignore[assignment]
        self.touched = self._server.clock.monotonic()
        if not self._server.admit(self):
            transport.close()
            return
        peer = transport.get_extra_info("peername")
        self._peer = peer[0] if isinstance(peer, tuple) else ""
        self._certificate = transport.get_extra_info("peercert") or None
        self._parser = httptools.HttpRequestParser(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the stream or task that runs for this client."""
        self._server.forget(self)
        self._transport = None
        self._waiting.clear()
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        stream, self._stream = self._stream, None
        if stream is not None and not stream.closed:
            stream.closed = True
            if stream.on_close is not None:
                stream.on_close()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        """Feeds the parser."""
        if self._closing or self._parser is None:
            return
        if self._upgraded:
            self._leftover += data
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgraded = True
            self._leftover += data[upgrade.args[0] :]
            self._keep_alive = False
            if self._transport is not None:
                self._transport.pause_reading()
            if self._current is None and self._waiting:
                self._answer(self._waiting.popleft())  # type: ignore[arg-type]
        except httptools.HttpParserError as failure:
            self._refuse(400, f"malformed request: {failure}")

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self._write_paused = True

    def resume_writing(self) -> None:
        """The client caught up."""
        self._write_paused = False
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    # -- httptools callbacks

    def _reset_message(self) -> None:
        self._target = _NOT_STARTED
        self._headers: dict[str, str] = {}
        self._repeated: dict[str, list[str]] = {}
        self._header_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._arriving = False
        self._headed = False

    def on_message_begin(self) -> None:
        """A request starts."""
        self._reset_message()
        self._arriving = True
        self._began = self._server.clock.monotonic()

    def on_url(self, url: bytes) -> None:
        """A piece of the target."""
        self._target += url
        self._header_bytes += len(url)
        self._check_header()

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._header_bytes += len(name) + len(value)
        self._check_header()
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        if key in self._headers:
            self._repeated.setdefault(key, [self._headers[key]]).append(text)
        self._headers[key] = text

    def _check_header(self) -> None:
        if self._header_bytes > self._server.limits.header_bytes:
            self._refuse(431, "request header too large")

    def on_headers_complete(self) -> None:
        """The head has arrived."""
        self._headed = True
        if self._headers.get("expect", "").lower() == "100-continue" and not self._closing:
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        self._body_bytes += len(data)
        if self._body_bytes > self._server.limits.body_bytes:
            self._refuse(413, f"limit is {self._server.limits.body_bytes}")
        else:
            self._body.append(data)

    def on_message_complete(self) -> None:
        """The request is complete."""
        if self._closing:
            return
        self._arriving = False
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        method: str = self._parser.get_method().decode("latin-1")
        request = Request(method, self._target.decode("latin-1"), self._headers, body)
        request.peer = self._peer
        request.peer_certificate = self._certificate
        request.repeated = self._repeated
        self._keep_alive = self._server.limits.keep_alive and bool(self._parser.should_keep_alive())
        if self._current is None and not self._waiting and not self._parser.should_upgrade():
            self._answer(request)
            return
        self._waiting.append(request)
        if len(self._waiting) >= _PIPELINE and self._transport is not None:
            self._transport.pause_reading()

    def _refuse(self, status: int, message: str) -> None:
        if self._closing:
            return
        self._closing = True
        self._keep_alive = False
        refusal = self._server.render_error(status, message)
        if self._current is None:
            self._write_response(refusal)
        else:
            self._waiting.append(refusal)

    # -- answering

    def _answer(self, request: Request) -> None:
        self._current = request
        answered = False
        try:
            result = self._server.handle(request)
            answered = True
        finally:
            if not answered:
                self._failed()
        if isinstance(result, asyncio.Future):
            self._task = result
            result.add_done_callback(self._future_done)
        elif isinstance(result, Coroutine):
            self._task = self._server.tasks.start(f"{request.method} {request.raw_path}", result)
            self._task.add_done_callback(self._future_done)
        else:
            self._write(result)  # type: ignore[arg-type]

    def _future_done(self, future: "asyncio.Future[Result]") -> None:
        self._task = None
        if self._transport is None:
            return
        if future.cancelled() or future.exception() is not None:
            self._failed()
        else:
            self._write(future.result())

    def _failed(self) -> None:
        self._keep_alive = False
        self._write_response(self._server.render_error(500, "internal error"))

    def _write(self, result: Result) -> None:
        if self._transport is None:
            return
        if isinstance(result, Response):
            self._write_response(result)
        elif isinstance(result, Streaming):
            self._begin_stream(result)
        else:
            leftover, self._leftover = self._leftover, b""
            self._server.forget(self)
            transport, self._transport = self._transport, None
            transport.set_protocol(result.take(transport, leftover))
            transport.resume_reading()

    def _write_response(self, response: Response) -> None:
        request = self._current
        status = response.status
        head = [
            f"HTTP/1.1 {status} {_REASONS.get(status, '')}\r\nContent-Type: {response.content_type}\r\n"
            f"Content-Length: {len(response.body)}\r\n"
        ]
        head.extend(f"{name}: {value}\r\n" for name, value in response.headers)
        if not self._keep_alive and not self._waiting:
            head.append("Connection: close\r\n")
        head.append("\r\n")
        data = "".join(head).encode("latin-1")
        self.send(data if request is not None and request.method == "HEAD" else data + response.body)
        self._next()

    def _begin_stream(self, streaming: Streaming) -> None:
        reason = _REASONS.get(streaming.status, "")
        extra = "".join(f"{name}: {value}\r\n" for name, value in streaming.headers)
        self.send(
            f"HTTP/1.1 {streaming.status} {reason}\r\nContent-Type: {streaming.content_type}\r\n"
            f"Transfer-Encoding: chunked\r\n{extra}\r\n".encode("latin-1")
        )
        stream = Stream(self)
        self._stream = stream
        streaming.start(stream)

    def stream_finished(self) -> None:
        """The stream has ended in order."""
        self._stream = None
        self._next()

    def _next(self) -> None:
        self._current = None
        self.touched = self._server.clock.monotonic()
        transport = self._transport
        if transport is None:
            return
        if self._waiting:
            following = self._waiting.popleft()
            if not self._waiting and not self._closing:
                transport.resume_reading()
            if isinstance(following, Response):
                self._write_response(following)
            else:
                self._server.loop.call_soon(self._answer_if_open, following)
        elif not self._keep_alive or self._closing:
            transport.close()

    def _answer_if_open(self, request: Request) -> None:
        if self._transport is not None:
            self._answer(request)

    # -- writing

    def send(self, data: bytes) -> None:
        """Writes to the client if it is still there."""
        if self._transport is not None:
            self._transport.write(data)

    def buffered(self) -> int:
        """Bytes not yet taken by the client."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    async def drain(self) -> None:
        """Returns when the write buffer is low, or the client has gone."""
        if self._write_paused and self._transport is not None:
            self._drained = self._server.loop.create_future()
            await self._drained

    def abort(self) -> None:
        """Cuts the connection."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Closes when buffered data has been sent."""
        if self._transport is not None:
            self._transport.close()

    def expire(self) -> None:
        """Closes an overdue connection; cuts it when the client did not take the rest since the last call."""
        if self._transport is not None and self._transport.is_closing():
            self._transport.abort()
        else:
            self.close()

    def overdue(self, now: float) -> bool:
        """Whether an idle connection, or a request that does not arrive, is too old."""
        if self._current is not None:
            return False
        limits = self._server.limits
        if not self._arriving:
            return now - self.touched > limits.idle_s
        return now - self._began > (limits.arrival_s if self._headed else min(limits.header_s, limits.arrival_s))


class HttpServer:
    """Listening sockets and their connections."""

    def __init__(self, handle: Handler, tasks: TaskSet, clock: Clock, limits: Limits | None = None) -> None:
        self.handle = handle
        self.tasks = tasks
        self.clock = clock
        self.limits = limits or Limits()
        self.loop = asyncio.get_running_loop()
        self.render_error: Callable[[int, str], Response] = text_response
        """Renders what the server itself refuses (400, 413, 431, 500)."""
        self._connections: set[ServerConnection] = set()
        self._listeners: list[asyncio.Server] = []
        self._sweeper: asyncio.TimerHandle | None = None
        shortest = min(self.limits.idle_s, self.limits.header_s, self.limits.arrival_s)
        self._sweep_s = min(_SWEEP_S, shortest / _SWEEPS)

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> tuple[str, int]:
        """Listens on one address; returns the address and port in use (port 0 picks one).

        Raises: OSError when the address is in use or not there.
        """
        listener = await self.loop.create_server(
            self._connect, host, port, ssl=tls, backlog=_BACKLOG,
            ssl_handshake_timeout=15.0 if tls else None, ssl_shutdown_timeout=2.0 if tls else None,
        )  # fmt: skip
        self._listeners.append(listener)
        name = listener.sockets[0].getsockname()
        return str(name[0]), int(name[1])

    async def listen_on(self, listening: socket.socket) -> None:
        """Listens on a bound stream socket, TCP or unix; the server closes the socket at its end."""
        self._listeners.append(await self.loop.create_server(self._connect, sock=listening, backlog=_BACKLOG))

    def adopt(self, transport: asyncio.Transport, received: bytes) -> None:
        """Takes over a connection that another protocol accepted, and the bytes which that protocol has received."""
        connection = ServerConnection(self)
        connection.connection_made(transport)
        transport.set_protocol(connection)
        connection.data_received(received)

    def _connect(self) -> ServerConnection:
        return ServerConnection(self)

    def admit(self, connection: ServerConnection) -> bool:
        """Registers a connection; False when there are too many."""
        if len(self._connections) >= self.limits.connections:
            return False
        self._connections.add(connection)
        if self._sweeper is None:
            self._sweeper = self.loop.call_later(self._sweep_s, self._sweep)
        return True

    def forget(self, connection: ServerConnection) -> None:
        """Removes a connection that ended or was handed over."""
        self._connections.discard(connection)

    def _sweep(self) -> None:
        now = self.clock.monotonic()
        for connection in [c for c in self._connections if c.overdue(now)]:
            connection.expire()
        self._sweeper = self.loop.call_later(self._sweep_s, self._sweep) if self._connections else None

    async def run(self) -> None:
        """Answers until cancelled, then closes."""
        try:
            await self.loop.create_future()
        finally:
            await self.close()

    async def close(self) -> None:
        """Stops listening and cuts every connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for listener in self._listeners:
            for listening in listener.sockets:
                self.loop.remove_reader(listening.fileno())
        for _ in range(_ACCEPT_TURNS):
            await self.clock.sleep(0)
        for listener in self._listeners:
            listener.close()
        for connection in tuple(self._connections):
            connection.abort()
        await self.clock.sleep(0)
