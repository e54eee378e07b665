"""How a WebSocket connection ends, over a real socket."""

import asyncio
import struct

from podwire.http.frames import BINARY, CLOSE
from podwire.http.websocket import WebSocket

MUCH = 8 << 20


def masked(opcode: int, payload: bytes) -> bytes:
    """A client's frame; the mask of zeros leaves the payload as it is."""
    return struct.pack("!BBQ", 0x80 | opcode, 0x80 | 127, len(payload)) + bytes(4) + payload


def ends(client: object, server: object) -> None:
    """Runs both ends of a connection; ``server`` is given the connection, ``client`` its streams."""

    async def body() -> None:
        made: asyncio.Queue[WebSocket] = asyncio.Queue()

        class Accepting(WebSocket):
            def __init__(self) -> None:
                """Made without a transport, which ``connection_made`` brings."""

            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                assert isinstance(transport, asyncio.Transport)
                super().__init__(transport)
                made.put_nowait(self)

        listening = await asyncio.get_running_loop().create_server(Accepting, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
        async with asyncio.timeout(20):
            await asyncio.gather(client(reader, writer), server(await made.get()))  # type: ignore[operator]
        writer.close()
        listening.close()

    asyncio.run(body())


def test_what_was_sent_arrives_although_the_client_still_sends() -> None:
    async def server(connection: WebSocket) -> None:
        await connection.receive()
        connection.send(BINARY, bytes(MUCH))
        connection.close()
        assert await connection.receive() is None
        connection.send(BINARY, b"too late")

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(8):
            writer.write(masked(BINARY, bytes(MUCH // 8)))
        await writer.drain()
        assert len(await reader.readexactly(10 + MUCH)) == 10 + MUCH
        assert (await reader.readexactly(4))[0] == 0x80 | CLOSE
        writer.write(masked(CLOSE, b"\x03\xe8"))
        assert await reader.read() == b""

    ends(client, server)


def test_what_was_said_before_the_goodbye_is_heard() -> None:
    async def server(connection: WebSocket) -> None:
        await connection.closed.wait()
        first, second = await connection.receive(), await connection.receive()
        assert first is not None and first.payload == b"last words"
        assert second is None

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(masked(BINARY, b"last words") + masked(CLOSE, b"\x03\xe8"))
        assert (await reader.read())[0] == 0x80 | CLOSE

    ends(client, server)
