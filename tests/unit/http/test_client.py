"""A client connection against a server that plays a fixed answer."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from podwire.errors import Disconnected
from podwire.http.client import ClientConnection, connect, encode_request

T = TypeVar("T")


def exchange(answer: bytes, body: Callable[[ClientConnection], Awaitable[T]]) -> tuple[bytes, T]:
    """The request as the server read it, and what ``body`` returns; the server closes after the answer."""
    asked = b""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked = await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async def main() -> T:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            connection = await connect("127.0.0.1", server.sockets[0].getsockname()[1])
            connection.send(encode_request("GET", "/x?y=1", [("host", "node")]))
            await connection.head()
            try:
                return await body(connection)
            finally:
                connection.abort()

    result = asyncio.run(main())
    return asked, result


async def whole(connection: ClientConnection) -> tuple[int, bytes]:
    return connection.status, await connection.body()


def test_a_request_and_its_answer() -> None:
    asked, answer = exchange(b"HTTP/1.1 404 Not Found\r\nContent-Length: 3\r\n\r\nabc", whole)
    assert asked == b"GET /x?y=1 HTTP/1.1\r\nhost: node\r\n\r\n"
    assert answer == (404, b"abc")


def test_bodies_get_a_length_where_the_method_expects_one() -> None:
    assert encode_request("POST", "/", [], b"{}") == b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}"
    assert encode_request("PUT", "/", []).endswith(b"\r\ncontent-length: 0\r\n\r\n")
    assert b"content-length" not in encode_request("DELETE", "/", [])


def test_a_body_without_length_ends_with_the_connection() -> None:
    assert exchange(b"HTTP/1.0 200 OK\r\n\r\nto the end", whole)[1] == (200, b"to the end")


def test_a_body_that_breaks_off_is_an_error() -> None:
    with pytest.raises(Disconnected, match="the server closed the connection"):
        exchange(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc", whole)


def test_an_upgraded_connection_hands_over_early_bytes() -> None:
    async def detach(connection: ClientConnection) -> bytes:
        transport, early = connection.detach()
        transport.abort()
        return early

    head = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    assert exchange(head + b"\x81\x02hi", detach)[1] == b"\x81\x02hi"
