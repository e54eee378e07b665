"""HTTP/1.1 server: an asyncio protocol over :mod:`podwire.http.requestparser`.

Requests on one connection are answered in order. Requests that arrive meanwhile wait (pipelining); reading pauses when
16 wait. Body size, header size, idle time and the time in which a request must arrive are limited.
:mod:`podwire.http.answer` has the results that a handler may return.

Cost: about 20 us per small request; 4 KiB per connection without TLS, 30 KiB with TLS; nothing while no client is
connected. Source: RFC 9112.
"""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

from podwire.http.answer import Handler, Result, Stream, Streaming
from podwire.http.message import Limits, Request, Response, text_response
from podwire.http.output import ClientOutput
from podwire.http.requestparser import RequestParser
from podwire.runtime.clock import Clock
from podwire.runtime.tasks import TaskSet

_REASONS = {status.value: status.phrase for status in HTTPStatus}
_PIPELINE = 16
_BACKLOG = 1024
_SWEEP_S = 5.0
_SWEEPS = 4
"""Overdue connections are searched this many times within the shortest limit, and at least every ``_SWEEP_S``."""
_ACCEPT_TURNS = 2
"""Turns of the event loop until asyncio has made the transport of an accepted connection, and then its protocol. When a
listener closes earlier, the connection stays open and unanswered (``Server._attach`` of Python 3.11)."""


class ServerConnection(asyncio.Protocol):
    """One client connection."""

    def __init__(self, server: "HttpServer") -> None:
        self._server = server
        self.output = ClientOutput(server.loop, self._finish_stream)
        self._parser: RequestParser | None = None
        self._peer = ""
        self._certificate: dict[str, Any] | None = None
        self._waiting: deque[Request | Response] = deque()
        self._current: Request | None = None
        self._task: asyncio.Future[Any] | None = None
        self._stream: Stream | None = None
        self._keep_alive = True
        self._closing = False
        self._leftover = b""
        self._upgraded = False
        self._idle_since = 0.0

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admits the connection, or refuses it when there are too many."""
        self.output.transport = transport  # type: ignore[assignment]
        self._idle_since = self._server.clock.monotonic()
        if not self._server.admit(self):
            transport.close()
            return
        peer = transport.get_extra_info("peername")
        self._peer = peer[0] if isinstance(peer, tuple) else ""
        self._certificate = transport.get_extra_info("peercert") or None
        self._parser = RequestParser(self, self._server.limits, self._server.clock)

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the stream or task that runs for this client."""
        self._server.forget(self)
        self.output.transport = None
        self._waiting.clear()
        self.output.release()
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
        leftover = self._parser.feed(data)
        if leftover is None:
            return
        self._upgraded = True
        self._leftover += leftover
        self._keep_alive = False
        if self.output.transport is not None:
            self.output.transport.pause_reading()
        if self._current is None and self._waiting:
            self._answer(self._waiting.popleft())  # type: ignore[arg-type]

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self.output.pause()

    def resume_writing(self) -> None:
        """The client reads fast enough again."""
        self.output.resume()

    # -- requests, from the parser

    def receive_request(self, request: Request, *, keep_alive: bool, upgrade: bool) -> None:
        """Answers a request, or queues it behind the one that is being answered."""
        request.peer = self._peer
        request.peer_certificate = self._certificate
        self._keep_alive = self._server.limits.keep_alive and keep_alive
        if self._current is None and not self._waiting and not upgrade:
            self._answer(request)
            return
        self._waiting.append(request)
        if len(self._waiting) >= _PIPELINE and self.output.transport is not None:
            self.output.transport.pause_reading()

    def refuse(self, status: int, message: str) -> None:
        """Answers with an error, after the requests that came before, and closes."""
        self._closing = True
        self._keep_alive = False
        refusal = self._server.render_error(status, message)
        if self._current is None:
            self._write_response(refusal)
        else:
            self._waiting.append(refusal)

    def send(self, data: bytes) -> None:
        """Writes an interim answer."""
        self.output.send(data)

    # -- answering

    def _answer(self, request: Request) -> None:
        self._current = request
        handled = False
        try:
            result = self._server.handle(request)
            handled = True
        finally:
            if not handled:
                self._answer_internal_error()
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
        if self.output.transport is None:
            return
        if future.cancelled() or future.exception() is not None:
            self._answer_internal_error()
        else:
            self._write(future.result())

    def _answer_internal_error(self) -> None:
        self._keep_alive = False
        self._write_response(self._server.render_error(500, "internal error"))

    def _write(self, result: Result) -> None:
        if self.output.transport is None:
            return
        if isinstance(result, Response):
            self._write_response(result)
        elif isinstance(result, Streaming):
            self._begin_stream(result)
        else:
            leftover, self._leftover = self._leftover, b""
            self._server.forget(self)
            transport, self.output.transport = self.output.transport, None
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
        self.output.send(data if request is not None and request.method == "HEAD" else data + response.body)
        self._next()

    def _begin_stream(self, streaming: Streaming) -> None:
        reason = _REASONS.get(streaming.status, "")
        extra = "".join(f"{name}: {value}\r\n" for name, value in streaming.headers)
        self.output.send(
            f"HTTP/1.1 {streaming.status} {reason}\r\nContent-Type: {streaming.content_type}\r\n"
            f"Transfer-Encoding: chunked\r\n{extra}\r\n".encode("latin-1")
        )
        stream = Stream(self.output)
        self._stream = stream
        streaming.start(stream)

    def _finish_stream(self) -> None:
        self._stream = None
        self._next()

    def _next(self) -> None:
        self._current = None
        self._idle_since = self._server.clock.monotonic()
        transport = self.output.transport
        if transport is None:
            return
        if self._waiting:
            request_or_refusal = self._waiting.popleft()
            if not self._waiting and not self._closing:
                transport.resume_reading()
            if isinstance(request_or_refusal, Response):
                self._write_response(request_or_refusal)
            else:
                self._server.loop.call_soon(self._answer_if_open, request_or_refusal)
        elif not self._keep_alive or self._closing:
            transport.close()

    def _answer_if_open(self, request: Request) -> None:
        if self.output.transport is not None:
            self._answer(request)

    def overdue(self, now: float) -> bool:
        """Whether the connection is idle, or a request is arriving, for longer than its limit."""
        if self._current is not None:
            return False
        if self._parser is not None and self._parser.arriving:
            return self._parser.is_late(now)
        return now - self._idle_since > self._server.limits.idle_s


class HttpServer:
    """Listening sockets and their connections."""

    def __init__(self, handle: Handler, tasks: TaskSet, clock: Clock, limits: Limits | None = None) -> None:
        self.handle = handle
        self.tasks = tasks
        self.clock = clock
        self.limits = limits or Limits()
        self.loop = asyncio.get_running_loop()
        self.render_error: Callable[[int, str], Response] = text_response
        """Renders errors of the server itself (400, 413, 431, 500)."""
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
        """Listens on a bound stream socket, TCP or unix; the server closes the socket at its end, or when cancelled."""
        listener = await self.loop.create_server(
            self._connect, sock=listening, backlog=_BACKLOG, start_serving=False
        )  # Without start_serving, this never waits: a cancellation finds the listener here.
        try:
            await listener.start_serving()
        except BaseException:
            listener.close()
            raise
        self._listeners.append(listener)

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
            connection.output.expire()
        self._sweeper = self.loop.call_later(self._sweep_s, self._sweep) if self._connections else None

    async def run(self) -> None:
        """Answers until cancelled, then closes."""
        try:
            await self.loop.create_future()
        finally:
            await self.close()

    async def close(self) -> None:
        """Stops listening and aborts every connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for listener in self._listeners:
            for listening in listener.sockets:
                self.loop.remove_reader(listening.fileno())
        try:
            for _ in range(_ACCEPT_TURNS):
                await self.clock.sleep(0)
        finally:  # Also when cancelled.
            for listener in self._listeners:
                listener.close()
            for connection in tuple(self._connections):
                connection.output.abort()
        await self.clock.sleep(0)
