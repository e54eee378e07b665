"""Channels over WebSocket in their binary and Base64 forms, over a real socket."""

import asyncio
import base64
from collections.abc import Awaitable, Callable

import pytest
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, Event, RejectConnection, Request, TextMessage

from podwire.embedded.kubelet import forward, remote
from podwire.embedded.kubelet.channels import NONE, UNVERSIONED, UNVERSIONED_BASE64, V4, V4_BASE64, V5, Channels
from podwire.http import message
from podwire.http.answer import Result
from podwire.http.handshake import accept, choose_protocol
from podwire.http.message import text_response
from podwire.http.server import HttpServer
from podwire.http.websocket import WebSocket
from podwire.runtime.clock import SystemClock
from podwire.runtime.tasks import TaskSet

BINARY = (V5, V4, UNVERSIONED, NONE)
BASE64 = (V4_BASE64, UNVERSIONED_BASE64)


class Client:
    """A WebSocket client with subprotocols."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._frames = WSConnection(ConnectionType.CLIENT)

    async def open(self, *protocols: str) -> Event:
        self._writer.write(self._frames.send(Request(host="x", target="/", subprotocols=list(protocols))))
        return await self.next()

    async def next(self) -> Event:
        while True:
            for event in self._frames.events():
                return event
            self._frames.receive_data(await self._reader.read(65536) or None)

    def send(self, sent: BytesMessage | TextMessage) -> None:
        self._writer.write(self._frames.send(sent))


def play(scenario: Callable[[Client], Awaitable[None]], known: tuple[str, ...] = remote.PROTOCOLS) -> None:
    """Runs a scenario against a server that sends back what comes on channel 0 on channel 1."""

    async def body() -> None:
        tasks = TaskSet(lambda name, failure: None)

        async def echo(channels: Channels) -> None:
            while (got := await channels.receive()) is not None:
                channels.send(got[0] + 1, got[1])

        def handle(request: message.Request) -> Result:
            protocol = choose_protocol(request.headers.get("sec-websocket-protocol", ""), known)
            if protocol is None:
                return text_response(403, "unknown")

            def serve(connection: WebSocket) -> None:
                tasks.start("echo", echo(Channels(connection, protocol)))

            return accept(request, protocol, serve)

        server = HttpServer(handle, tasks, SystemClock())
        host, port = await server.listen("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(host, port)
        try:
            await scenario(Client(reader, writer))
        finally:
            writer.close()
            await server.close()
            await tasks.close()

    asyncio.run(asyncio.wait_for(body(), 20))


@pytest.mark.parametrize("protocol", BINARY)
def test_the_first_byte_is_the_channel(protocol: str) -> None:
    async def scenario(client: Client) -> None:
        accepted = await client.open(*filter(None, [protocol]))
        assert isinstance(accepted, AcceptConnection) and (accepted.subprotocol or "") == protocol
        client.send(BytesMessage(b"\x00hello"))
        assert await client.next() == BytesMessage(bytearray(b"\x01hello"))
        client.send(BytesMessage(b"\x00"))
        assert await client.next() == BytesMessage(bytearray(b"\x01"))

    play(scenario)


@pytest.mark.parametrize("protocol", BASE64)
def test_the_first_digit_is_the_channel_before_base64(protocol: str) -> None:
    async def scenario(client: Client) -> None:
        accepted = await client.open(protocol)
        assert isinstance(accepted, AcceptConnection) and accepted.subprotocol == protocol
        client.send(TextMessage("0not base64!"))
        client.send(TextMessage("0" + base64.b64encode(b"\xff\x00").decode()))
        assert await client.next() == TextMessage("1" + base64.b64encode(b"\xff\x00").decode())

    play(scenario)


@pytest.mark.parametrize("known", [remote.PROTOCOLS, forward.PROTOCOLS])
def test_a_client_without_a_subprotocol_is_accepted(known: tuple[str, ...]) -> None:
    async def scenario(client: Client) -> None:
        accepted = await client.open()
        assert isinstance(accepted, AcceptConnection) and accepted.subprotocol is None

    play(scenario, known)


def test_an_unknown_subprotocol_is_refused() -> None:
    async def scenario(client: Client) -> None:
        refused = await client.open("v9.channel.k8s.io")
        assert isinstance(refused, RejectConnection) and refused.status_code == 403

    play(scenario)


def test_the_end_is_a_status_from_version_4_on() -> None:
    for protocol in remote.PROTOCOLS:
        channels = Channels(WebSocket(asyncio.Transport()), protocol)
        assert channels.ends_with_status is (protocol in (V5, V4, V4_BASE64))
    assert remote.render_problem(0) == b""
    assert remote.render_problem(3) == b"command terminated with non-zero exit code: exit status 3"
    assert remote.render_problem(None, "no such file") == b"no such file"
