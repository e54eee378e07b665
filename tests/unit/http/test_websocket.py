"""The server's end of a WebSocket connection: frames of clients as a transcript, and its end over a real socket."""

import asyncio
import os
import struct
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from podwire.http.handshake import accept, choose_protocol, is_upgrade
from podwire.http.message import Request
from podwire.http.websocket import WebSocket

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
FINAL = 0x80
MUCH = 8 << 20


def client_frame(opcode: int, payload: bytes, mask: bytes = b"\x01\x02\x03\x04", *, final: bool = True) -> bytes:
    """A frame as clients send it."""
    size = len(payload)
    head = bytes((opcode | (FINAL if final else 0),))
    if size < 126:
        head += bytes((0x80 | size,))
    elif size < 1 << 16:
        head += struct.pack("!BH", 0x80 | 126, size)
    else:
        head += struct.pack("!BQ", 0x80 | 127, size)
    return head + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))


class Recorded(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def pause_reading(self) -> None:
        """Nothing more is fed then."""

    def resume_reading(self) -> None:
        """Nothing more is fed then."""


def received(*chunks: bytes) -> tuple[list[bytes], Recorded]:
    """The messages that these bytes of a client make, and what was written and closed."""

    async def body() -> tuple[list[bytes], Recorded]:
        transport = Recorded()
        connection = WebSocket(transport)
        for chunk in chunks:
            connection.data_received(chunk)
        connection.connection_lost(None)
        messages: list[bytes] = []
        while (message := await connection.receive()) is not None:
            messages.append(message)
        return messages, transport

    return asyncio.run(body())


def test_the_answer_carries_the_key_of_the_rfc() -> None:
    request = Request("GET", "/exec", {"upgrade": "WebSocket", "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ=="}, b"")
    assert is_upgrade(request)
    web_sockets: list[WebSocket] = []

    async def body() -> Recorded:
        transport = Recorded()
        accept(request, "v5.channel.k8s.io", web_sockets.append).take(transport, client_frame(PING, b"early"))
        return transport

    written = asyncio.run(body()).written
    assert b"\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in written
    assert b"\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n\r\n\x8a\x05early" in written
    assert len(web_sockets) == 1
    assert not is_upgrade(Request("GET", "/exec", {"upgrade": "websocket"}, b""))


def test_the_first_known_protocol_is_chosen() -> None:
    known = ("v5.channel.k8s.io", "v4.channel.k8s.io")
    assert choose_protocol("v4.channel.k8s.io, v5.channel.k8s.io", known) == "v5.channel.k8s.io"
    assert choose_protocol("v1", known) is None
    assert choose_protocol("", known) is None
    assert choose_protocol("", (*known, "")) == ""
    assert choose_protocol("v4.channel.k8s.io", (*known, "")) == "v4.channel.k8s.io"


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536])
def test_frames_of_every_length_form_arrive(size: int) -> None:
    payload = os.urandom(size)
    assert received(client_frame(BINARY, payload, os.urandom(4)))[0] == [payload]


@given(st.lists(st.binary(max_size=300), max_size=5), st.integers(1, 50))
def test_messages_do_not_depend_on_how_bytes_are_cut(payloads: list[bytes], step: int) -> None:
    data = b"".join(client_frame(BINARY, payload) for payload in payloads)
    assert received(*(data[start : start + step] for start in range(0, len(data), step)))[0] == payloads


def test_fragments_are_joined_and_pings_between_them_answered() -> None:
    messages, transport = received(
        client_frame(TEXT, b"ab", final=False), client_frame(PING, b"!"),
        client_frame(CONTINUATION, b"\xc3", final=False), client_frame(PONG, b"?"), client_frame(CONTINUATION, b"\xbc"),
    )  # fmt: skip
    assert messages == ["abü".encode()]
    assert transport.written == b"\x8a\x01!"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x82\x03abc", 1002),  # not masked
        (client_frame(CONTINUATION, b"x"), 1002),  # nothing to continue
        (client_frame(TEXT, b"\xff"), 1007),  # not UTF-8
        (client_frame(BINARY, b"a", final=False) + client_frame(BINARY, b"b"), 1002),
    ],
)
def test_broken_frames_end_the_connection_with_their_code(data: bytes, code: int) -> None:
    messages, transport = received(data)
    assert messages == []
    assert transport.closing
    assert transport.written[0] == FINAL | CLOSE
    assert struct.unpack_from("!H", transport.written, 2) == (code,)


def test_messages_above_the_limit_end_the_connection() -> None:
    part = client_frame(BINARY, bytes(1 << 20), bytes(4), final=False)
    rest = client_frame(CONTINUATION, bytes(1 << 20), bytes(4), final=False)
    messages, transport = received(part, *([rest] * 32))
    assert messages == []
    assert transport.closing
    assert struct.unpack_from("!H", transport.written, 2) == (1009,)


def test_the_code_of_a_client_that_closes_is_sent_back() -> None:
    _, transport = received(client_frame(CLOSE, struct.pack("!H", 4001) + b"bye"))
    assert transport.closing
    assert transport.written[0] == FINAL | CLOSE
    assert struct.unpack_from("!H", transport.written, 2) == (4001,)


Client = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def ends(client: Client, server: Callable[[WebSocket], Awaitable[None]]) -> None:
    """Runs both ends of a connection over a socket."""

    async def body() -> None:
        created: asyncio.Queue[WebSocket] = asyncio.Queue()

        class Accepting(WebSocket):
            def __init__(self) -> None:
                """Made without a transport, which ``connection_made`` brings."""

            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                assert isinstance(transport, asyncio.Transport)
                super().__init__(transport)
                created.put_nowait(self)

        listening = await asyncio.get_running_loop().create_server(Accepting, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
        async with asyncio.timeout(20):
            await asyncio.gather(client(reader, writer), server(await created.get()))
        writer.close()
        listening.close()

    asyncio.run(body())


def test_sent_messages_arrive_although_the_client_still_sends() -> None:
    async def server(connection: WebSocket) -> None:
        await connection.receive()
        connection.send(bytes(MUCH))
        connection.close()
        assert await connection.receive() is None
        connection.send(b"too late")

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frame = struct.pack("!BBQ", FINAL | BINARY, 0x80 | 127, MUCH // 8) + bytes(4) + bytes(MUCH // 8)
        for _ in range(8):
            writer.write(frame)
        await writer.drain()
        assert len(await reader.readexactly(10 + MUCH)) == 10 + MUCH
        assert (await reader.readexactly(4))[0] == FINAL | CLOSE
        writer.write(client_frame(CLOSE, b"\x03\xe8"))
        assert await reader.read() == b""

    ends(client, server)


def test_messages_before_the_close_are_received() -> None:
    async def server(connection: WebSocket) -> None:
        await connection.closed.wait()
        assert await connection.receive() == b"last words"
        assert await connection.receive() is None

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(client_frame(BINARY, b"last words") + client_frame(CLOSE, b"\x03\xe8"))
        assert (await reader.read())[0] == FINAL | CLOSE

    ends(client, server)
