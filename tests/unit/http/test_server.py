import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from podwire.http.answer import Stream, Streaming, Upgrade, encode_switching
from podwire.http.message import Limits, Request, Response
from podwire.http.server import HttpServer
from podwire.runtime.clock import SystemClock
from podwire.runtime.tasks import TaskSet

_LARGE = 64 << 20


async def _late(request: Request) -> Response:
    await asyncio.sleep(0.01)
    return Response(200, b"late " + request.body, "text/plain")


class _Echo(asyncio.Protocol):
    def __init__(self, transport: asyncio.Transport, leftover: bytes) -> None:
        self._transport = transport
        transport.write(encode_switching((("Upgrade", "echo"), ("Connection", "Upgrade"))) + leftover)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data.upper())


def _handle(request: Request) -> object:
    if request.path == "/late":
        return _late(request)
    if request.path == "/stream":

        def start(stream: Stream) -> None:
            stream.write(b"one")
            stream.write(b"two")
            stream.close()

        return Streaming(start)
    if request.path == "/echo":
        return Upgrade(_Echo)
    if request.path == "/large":
        return Response(200, bytes(_LARGE))
    if request.path == "/bug":
        raise LookupError("a bug")
    query = ",".join(f"{key}={value}" for key, value in request.query().items())
    return Response(200, f"{request.method} {request.path} {query} ".encode() + request.body, "text/plain")


@asynccontextmanager
async def _server(limits: Limits | None = None) -> AsyncIterator[tuple[str, int]]:
    tasks = TaskSet(lambda name, failure: None)
    server = HttpServer(_handle, tasks, SystemClock(), limits)  # type: ignore[arg-type]
    address = await server.listen("127.0.0.1", 0)
    try:
        yield address
    finally:
        await server.close()
        await tasks.close()


async def _exchange(address: tuple[str, int], sent: bytes, until: bytes = b"") -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(sent)
    data = await asyncio.wait_for(reader.readuntil(until) if until else reader.read(), 5)
    writer.close()
    await writer.wait_closed()
    return data


def _run(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(body())  # type: ignore[arg-type]


def test_pipelined_requests_are_answered_in_order() -> None:
    async def body() -> None:
        async with _server() as address:
            data = await _exchange(
                address,
                b"POST /late HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"
                b"GET /a%20b?x=1&y=%2F HTTP/1.1\r\nHost: x\r\n\r\n"
                b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n"
                b"GET /end HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            )
        assert (
            data.index(b"late hi") < data.index(b"GET /a b x=1,y=/ ") < data.index(b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")
        )
        assert data.endswith(b"GET /end  ")

    _run(body)


def test_repeated_headers_keep_all_their_lines() -> None:
    requests: list[Request] = []

    async def body() -> None:
        tasks = TaskSet(lambda name, failure: None)
        server = HttpServer(lambda request: requests.append(request) or Response(200), tasks, SystemClock())  # type: ignore[func-returns-value]
        address = await server.listen("127.0.0.1", 0)
        await _exchange(address, b"GET / HTTP/1.1\r\nA: 1\r\nB: 2\r\na: 3\r\nConnection: close\r\n\r\n")
        await server.close()
        await tasks.close()

    _run(body)
    result = requests[0]
    assert (result.header_values("a"), result.header_values("b"), result.header_values("c")) == (["1", "3"], ["2"], [])
    assert result.headers["a"] == "3"


def test_limits_are_refused_with_their_status() -> None:
    async def body() -> None:
        async with _server(Limits(body_bytes=4, header_bytes=200)) as address:
            assert b" 413 " in await _exchange(address, b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n123456789")
            assert b" 413 " in await _exchange(address, b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n")
            assert b" 431 " in await _exchange(address, b"GET / HTTP/1.1\r\nX: " + b"y" * 300 + b"\r\n\r\n")
            assert b" 400 " in await _exchange(address, b"nonsense\r\n\r\n")

    _run(body)


def test_an_upgrade_hands_over_the_bytes_behind_the_request() -> None:
    async def body() -> None:
        async with _server() as address:
            data = await _exchange(
                address, b"GET /echo HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nPING", b"PING"
            )
        assert b" 101 " in data

    _run(body)


def test_a_head_request_has_no_body() -> None:
    async def body() -> None:
        async with _server() as address:
            data = await _exchange(address, b"HEAD /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b"Content-Length: 9\r\n" in data
        assert data.endswith(b"\r\n\r\n")

    _run(body)


def test_a_bug_in_a_handler_answers_500() -> None:
    async def body() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        async with _server() as address:
            data = await _exchange(address, b"GET /bug HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b" 500 " in data

    _run(body)


HALVES = {
    "header": b"GET / HTTP/1.1\r\nHost: x\r\nX-Half",
    "header after a request": b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\n",
    "body": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf",
    "nothing": b"",
}
"""Requests that never arrive as a whole."""


@pytest.mark.parametrize("half", HALVES)
def test_a_request_that_never_arrives_is_closed(half: str) -> None:
    async def body() -> None:
        async with _server(Limits(header_s=0.1, arrival_s=0.2, idle_s=0.4)) as address:
            await asyncio.wait_for(_exchange(address, HALVES[half]), 10)

    _run(body)


def test_a_header_that_trickles_is_closed() -> None:
    async def body() -> None:
        async with _server(Limits(header_s=0.2)) as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"GET / HTTP/1.1\r\n")
            ended = asyncio.ensure_future(reader.read())
            for number in range(200):
                writer.write(b"X-%d: y\r\n" % number)
                if (await asyncio.wait((ended,), timeout=0.02))[0]:
                    break
            else:
                pytest.fail("the connection is still open")
            writer.close()

    _run(body)


def test_a_client_that_does_not_read_is_disconnected() -> None:
    async def body() -> None:
        async with _server(Limits(idle_s=0.1)) as address:
            reader, writer = await asyncio.open_connection(*address, limit=1)
            writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
            await reader.readexactly(1)
            await asyncio.sleep(0.6)
            remaining = 0
            while chunk := await reader.read(_LARGE):  # read() takes as many bytes at a time as the limit says: one
                remaining += len(chunk)
            assert remaining < _LARGE
            writer.close()

    _run(body)


def test_a_cancelled_listener_closes_its_socket() -> None:
    async def body() -> None:
        server = HttpServer(_handle, TaskSet(lambda task, failure: None), SystemClock())  # type: ignore[arg-type]
        listening = socket.create_server(("127.0.0.1", 0))
        beginning = asyncio.create_task(server.listen_on(listening))
        await asyncio.sleep(0)
        assert listening.fileno() >= 0 and not beginning.done()
        beginning.cancel()
        await asyncio.gather(beginning, return_exceptions=True)
        assert listening.fileno() == -1

    _run(body)


def test_a_cancelled_close_closes_the_listening_socket() -> None:
    async def body() -> None:
        server = HttpServer(_handle, TaskSet(lambda task, failure: None), SystemClock())  # type: ignore[arg-type]
        listening = socket.create_server(("127.0.0.1", 0))
        await server.listen_on(listening)
        closing = asyncio.create_task(server.close())
        await asyncio.sleep(0)
        assert listening.fileno() >= 0 and not closing.done()
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        assert listening.fileno() == -1

    _run(body)
