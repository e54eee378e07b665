"""The server's end of a WebSocket connection on asyncio.

Incoming messages wait in a queue; reading pauses while more than 1 MiB of them does. Writing pauses
(:meth:`WebSocket.drain`) while the client has more than the transport's limit unread. A connection is closed when the
client has closed too: a socket closed with bytes unread is reset, and takes along what the client has not read yet.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from podwire.errors import ProtocolError
from podwire.http.answer import Upgrade, switching
from podwire.http.frames import CLOSE, PING, PONG, Decoder, Message, accept_key, encode, encode_close

_WAITING = 1 << 20
_LINGER_S = 10.0


class WebSocket(asyncio.Protocol):
    """The server's end of one connection."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._decoder = Decoder()
        self._messages: deque[Message] = deque()
        self._size = 0
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._leaving = False
        self._linger: asyncio.TimerHandle | None = None
        self.closed = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        """Takes bytes of the client."""
        try:
            messages = self._decoder.feed(data)
        except ProtocolError:
            self._transport.abort()
            return
        for message in messages:
            if message.opcode == PING:
                self._transport.write(encode(PONG, message.payload))
            elif message.opcode == CLOSE:
                self._say_goodbye()
                self._transport.close()
            elif message.opcode != PONG and not self._leaving:
                self._messages.append(message)
                self._size += len(message.payload)
        if self._size > _WAITING:
            self._transport.pause_reading()
        self._arrived.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        if self._linger is not None:
            self._linger.cancel()
        self.closed.set()
        self._arrived.set()
        self._writable.set()

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The client caught up."""
        self._writable.set()

    async def receive(self) -> Message | None:
        """The next message; None when there will be no more."""
        while not self._messages:
            if self.closed.is_set():
                return None
            self._arrived.clear()
            await self._arrived.wait()
        message = self._messages.popleft()
        self._size -= len(message.payload)
        if self._size <= _WAITING and not self._transport.is_closing():
            self._transport.resume_reading()
        return message

    def send(self, opcode: int, payload: bytes) -> None:
        """Sends one message; nothing when either side has said goodbye."""
        if not self._leaving and not self._transport.is_closing():
            self._transport.write(encode(opcode, payload))

    async def drain(self) -> None:
        """Returns when the client has taken most of what was sent."""
        await self._writable.wait()

    def close(self) -> None:
        """Says goodbye; what the client still sends is dropped until it closes, or for ten seconds."""
        if not self._leaving and not self._transport.is_closing():
            self._messages.clear()
            self._size = 0
            self._transport.resume_reading()
            self._linger = asyncio.get_running_loop().call_later(_LINGER_S, self._transport.close)
        self._say_goodbye()

    def _say_goodbye(self) -> None:
        if not self._leaving and not self._transport.is_closing():
            self._transport.write(encode_close())
        self._leaving = True
        self.closed.set()
        self._arrived.set()


def upgrade(key: str, protocol: str, serve: Callable[[WebSocket], None]) -> Upgrade:
    """The answer that turns a request with ``Sec-WebSocket-Key`` into a connection that ``serve`` is given."""
    headers = (
        ("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", accept_key(key)),
        ("Sec-WebSocket-Protocol", protocol),
    )  # fmt: skip

    def take(transport: asyncio.Transport, leftover: bytes) -> asyncio.BaseProtocol:
        transport.write(switching(headers))
        connection = WebSocket(transport)
        serve(connection)
        if leftover:
            connection.data_received(leftover)
        return connection

    return Upgrade(take)
