"""The stand-in server: listens on a container's ports and answers with the identity of its pod.

The server runs in a process forked from the pod's shim, without exec, in the container's namespaces. A connection that
begins with an HTTP method is HTTP/1.1. A connection that begins with the HTTP/2 preface is gRPC and gets the answer of
a health service. A connection that begins with a TLS handshake is decrypted, and its content is treated the same way.
On any other connection each line is answered by one line of JSON. Each datagram is answered by one datagram.

After SIGTERM the server keeps serving for 0.3 s, because clients send to the pod until the endpoint is withdrawn from
all nodes; then it ends with status 0. Costs 1 ms to start and 1 to 2 MiB of private memory.
"""

import asyncio
import math
import signal
import socket
import ssl
import sys
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any
from urllib.parse import urlsplit

import msgspec

from podwire.embedded.standin import tls
from podwire.embedded.standin.answers import (
    HttpAnswer,
    PodIdentity,
    StandinOrder,
    StandinPort,
    answer_http,
    called_urls,
    compose_answer,
    line,
)
from podwire.embedded.standin.grpc import PREFACE, HealthServer
from podwire.errors import Disconnected
from podwire.http.client import connect, encode_request
from podwire.http.message import Limits, Request, Response
from podwire.http.server import HttpServer
from podwire.runtime.clock import Clock, SystemClock
from podwire.runtime.tasks import TaskSet

_LAME_DUCK_S = 0.3
_METHODS = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"PATCH ", b"DELETE ", b"OPTIONS ")
_CALL_S = 10.0
_MAX_LINE = 1 << 20
_LIMITS = Limits(body_bytes=64 << 20, idle_s=math.inf, header_s=math.inf, arrival_s=math.inf)


class _StandinState:
    """The state that all connections of one stand-in share."""

    def __init__(self, order: StandinOrder, clock: Clock) -> None:
        self.identity: PodIdentity = order.identity
        self.clock = clock
        self.tasks = TaskSet(lambda name, failure: log(f"{name}: {failure}"))

    @cached_property
    def tls(self) -> ssl.SSLContext:
        """The TLS settings, made for the first client that needs them."""
        return tls.make_context(self.clock)


def log(text: str) -> None:
    """One line on standard output."""
    sys.stdout.write(f"{text}\n")


class _StandinConnection(asyncio.Protocol):
    """One TCP connection; its first bytes decide whether it is TLS, HTTP/1.1, gRPC or lines."""

    def __init__(
        self, server: _StandinState, port: StandinPort, web: HttpServer, *, encrypted: bool = False
    ) -> None:  # fmt: skip
        self._encrypted = encrypted
        self._server = server
        self._port = port
        self._web = web
        self._transport: asyncio.Transport | None = None
        self._client = ""
        self._process: Callable[[bytes], None] | None = None
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        peer = transport.get_extra_info("peername")
        self._client = str(peer[0]) if peer else ""

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        if self._process is None:
            data, self._buffer = self._buffer + data, b""
            if data[0] == tls.HANDSHAKE and not self._encrypted:
                self._decrypt(data)
                return
            self._process = self._choose(data)
            if self._process is None:
                self._buffer = data
                return
        self._process(data)

    def _choose(self, data: bytes) -> Callable[[bytes], None] | None:
        if any(data.startswith(method) for method in _METHODS):
            return self._hand_over
        if data.startswith(PREFACE[: len(data)]) and b"\n" not in data[:-1] and len(data) < 6:
            return None
        if data.startswith(PREFACE[:6]):
            return HealthServer(self._write).feed
        undecided = any(method.startswith(data) for method in _METHODS)
        return None if undecided else self._answer_lines

    def _decrypt(self, data: bytes) -> None:
        if self._transport is not None:
            inner = _StandinConnection(self._server, self._port, self._web, encrypted=True)
            tls.decrypt(self._transport, data, inner, self._server.tls)

    def _hand_over(self, data: bytes) -> None:
        if self._transport is not None:
            self._web.adopt(self._transport, data)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _answer_lines(self, data: bytes) -> None:
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for _ in lines:
            self._write(line(compose_answer(self._server.identity, self._port, self._client)))
        if len(self._buffer) > _MAX_LINE and self._transport is not None:
            self._transport.abort()


class _Web:
    """The HTTP side of one port."""

    def __init__(self, server: _StandinState, port: StandinPort) -> None:
        self._server = server
        self._port = port

    async def answer(self, request: Request) -> Response:
        """Answers and logs a request, after the delay that its path names."""
        identity, clock = self._server.identity, self._server.clock
        answered = compose_answer(identity, self._port, request.peer)
        if urls := called_urls(request.target):
            calls = await asyncio.gather(*(_call(url, clock) for url in urls))
            body = msgspec.json.encode({**msgspec.to_builtins(answered), "calls": calls}) + b"\n"
            answer = HttpAnswer(200 if all(call["ok"] for call in calls) else 503, body)
        else:
            answer = answer_http(request.target, answered)
        if answer.delay_s:
            await clock.sleep(answer.delay_s)
        log(f"{answered.client} {request.method} {request.target} {answer.status}")
        return Response(answer.status, answer.body)


async def _call(url: str, clock: Clock) -> dict[str, Any]:
    """Fetches one URL and returns status, answer or error, and the time in milliseconds."""
    address = urlsplit(url)
    began = clock.monotonic()
    report: dict[str, Any] = {"url": url, "ok": False}
    try:
        async with asyncio.timeout(_CALL_S):
            connection = await connect(address.hostname or "", address.port or 80)
            target = (address.path or "/") + (f"?{address.query}" if address.query else "")
            try:
                connection.send(encode_request("GET", target, (("Host", address.netloc), ("Connection", "close"))))
                await connection.head()
                body = await connection.body()
            finally:
                connection.abort()
        report["status"] = connection.status
        report["ok"] = connection.status < 400
        report["answer"] = body.decode(errors="replace").strip()
    except TimeoutError:
        report["error"] = f"no answer in {_CALL_S:g} s"
    except (OSError, ValueError, Disconnected) as failure:
        report["error"] = str(failure)
    report["ms"] = round((clock.monotonic() - began) * 1000, 1)
    return report


class _UdpPort(asyncio.DatagramProtocol):
    """One UDP port."""

    def __init__(self, server: _StandinState, port: StandinPort) -> None:
        self._server = server
        self._port = port
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        if self._transport is not None:
            self._transport.sendto(line(compose_answer(self._server.identity, self._port, str(addr[0]))), addr)


def _bind(port: StandinPort) -> socket.socket:
    kind = socket.SOCK_STREAM if port.protocol == "TCP" else socket.SOCK_DGRAM
    try:
        listener = socket.socket(socket.AF_INET6, kind)
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        address = "::"
    except OSError:
        listener = socket.socket(socket.AF_INET, kind)
        address = "0.0.0.0"
    if port.protocol == "TCP":
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setblocking(False)
    try:
        listener.bind((address, port.number))
    except OSError as failure:
        listener.close()
        raise OSError(failure.errno, f"listen on {port.number}/{port.protocol}: {failure.strerror}") from failure
    return listener


async def _serve(order: StandinOrder, started: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    clock = SystemClock()
    server = _StandinState(order, clock)
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    for port in order.ports:
        bound = _bind(port)
        if port.protocol == "TCP":
            web = HttpServer(_Web(server, port).answer, server.tasks, clock, _LIMITS)
            await loop.create_server(partial(_StandinConnection, server, port, web), sock=bound, backlog=1024)
        else:
            await loop.create_datagram_endpoint(partial(_UdpPort, server, port), sock=bound)
    ports = ", ".join(f"{port.number}/{port.protocol}" for port in order.ports) or "no port"
    log(f"stand-in for {order.image} listening on {ports}")
    started()
    await stop.wait()
    await clock.sleep(_LAME_DUCK_S)
    await server.tasks.close()


def run_standin(payload: bytes, started: Callable[[], None]) -> None:
    """Runs a stand-in container to its end; ``started`` is called when the server listens."""
    order = msgspec.json.decode(payload, type=StandinOrder)
    if order.ends:
        log(f"stand-in for {order.image}: nothing to do, ending with status 0")
        started()
        return
    supported = tuple(port for port in order.ports if port.protocol in ("TCP", "UDP"))
    try:
        asyncio.run(_serve(msgspec.structs.replace(order, ports=supported), started))
    except OSError as failure:
        log(str(failure))
        raise SystemExit(1) from failure
