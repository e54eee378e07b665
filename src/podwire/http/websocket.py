"""The server's end of a WebSocket connection: frames by wsproto, on asyncio.

Messages are bytes; a text message arrives as its UTF-8 bytes. Fragments are joined, pings are answered. Received
messages wait in a queue, and reading from the socket pauses while more than 1 MiB of them waits. Writing pauses
(:meth:`WebSocket.drain`) while the client has more than the transport's limit unread. The socket is closed only when
the client has closed its side too: a socket that is closed with unread bytes is reset, and the reset discards what the
client has not read yet. Costs: docs/adr/0010-websocket-wsproto.md. Source: RFC 6455.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import generate_accept_token

from podwire.http.answer import Upgrade, encode_switching
from podwire.http.message import Request

_WAITING = 1 << 20
_MAX_MESSAGE = 32 << 20
_LINGER_S = 10.0


class WebSocket(asyncio.Protocol):
    """The server's end of one connection."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._frames = Connection(ConnectionType.SERVER)
        self._fragments: list[bytes] = []
        self._fragments_size = 0
        self._messages: deque[bytes] = deque()
        self._messages_size = 0
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._linger: asyncio.TimerHandle | None = None
        self.closed = asyncio.Event()
        """Set when either side has said that it closes, or the client has gone."""

    def data_received(self, data: bytes) -> None:
        """Takes bytes of the client."""
        if self._frames.state not in (ConnectionState.OPEN, ConnectionState.LOCAL_CLOSING):
            return
        self._frames.receive_data(data)
        for event in self._frames.events():
            self._take(event)
        if self._messages_size > _WAITING:
            self._transport.pause_reading()
        self._arrived.set()

    def _take(self, event: Event) -> None:
        if isinstance(event, BytesMessage):
            self._take_fragment(bytes(event.data), final=event.message_finished)
        elif isinstance(event, TextMessage):
            self._take_fragment(event.data.encode(), final=event.message_finished)
        elif isinstance(event, Ping):
            if not self.closed.is_set():
                self._transport.write(self._frames.send(event.response()))
        elif isinstance(event, CloseConnection):  # The client closes, or its frames break the protocol.
            self._say_goodbye(event.response())
            self._transport.close()

    def _take_fragment(self, data: bytes, *, final: bool) -> None:
        if self.closed.is_set():
            return
        self._fragments.append(data)
        self._fragments_size += len(data)
        if self._fragments_size > _MAX_MESSAGE:
            self._fragments = []
            self._say_goodbye(CloseConnection(CloseReason.MESSAGE_TOO_BIG, f"the limit is {_MAX_MESSAGE} bytes"))
            self._transport.close()
        elif final:
            self._messages.append(self._fragments[0] if len(self._fragments) == 1 else b"".join(self._fragments))
            self._messages_size += self._fragments_size
            self._fragments, self._fragments_size = [], 0

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

    async def receive(self) -> bytes | None:
        """The next message; None when there will be no more."""
        while not self._messages:
            if self.closed.is_set():
                return None
            self._arrived.clear()
            await self._arrived.wait()
        message = self._messages.popleft()
        self._messages_size -= len(message)
        if self._messages_size <= _WAITING and not self._transport.is_closing():
            self._transport.resume_reading()
        return message

    def send(self, message: bytes) -> None:
        """Sends one binary message; nothing when either side has said that it closes."""
        if not self.closed.is_set() and not self._transport.is_closing():
            self._transport.write(self._frames.send(BytesMessage(message)))

    def send_text(self, message: str) -> None:
        """Sends one text message; nothing when either side has said that it closes."""
        if not self.closed.is_set() and not self._transport.is_closing():
            self._transport.write(self._frames.send(TextMessage(message)))

    async def drain(self) -> None:
        """Returns when the client has taken most of what was sent."""
        await self._writable.wait()

    def close(self) -> None:
        """Says that this side closes; what the client still sends is dropped until it closes, or for ten seconds."""
        if not self.closed.is_set() and not self._transport.is_closing():
            self._messages.clear()
            self._messages_size = 0
            self._transport.resume_reading()
            self._linger = asyncio.get_running_loop().call_later(_LINGER_S, self._transport.close)
        self._say_goodbye(CloseConnection(CloseReason.NORMAL_CLOSURE))

    def _say_goodbye(self, close: CloseConnection) -> None:
        if not self.closed.is_set() and not self._transport.is_closing():
            self._transport.write(self._frames.send(close))
        self.closed.set()
        self._arrived.set()


def choose_protocol(offered: str, known: tuple[str, ...]) -> str | None:
    """The first of ``known`` among the offered subprotocols (a comma-separated list); None when none is known.

    An empty list offers the subprotocol without a name, which is the empty text in ``known``.
    """
    offers = {name.strip() for name in offered.split(",")} - {""} or {""}
    return next((name for name in known if name in offers), None)


def is_upgrade(request: Request) -> bool:
    """Whether the client asks for a WebSocket connection."""
    return request.headers.get("upgrade", "").lower() == "websocket" and "sec-websocket-key" in request.headers


def accept(request: Request, protocol: str, serve: Callable[[WebSocket], None]) -> Upgrade:
    """The answer that turns a request (see :func:`is_upgrade`) into a connection, which ``serve`` is given.

    The answer names the subprotocol, except the empty one.
    """
    token = generate_accept_token(request.headers["sec-websocket-key"].encode("latin-1")).decode()
    named = (("Sec-WebSocket-Protocol", protocol),) if protocol else ()
    headers = (("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", token), *named)

    def take(transport: asyncio.Transport, leftover: bytes) -> asyncio.BaseProtocol:
        transport.write(encode_switching(headers))
        connection = WebSocket(transport)
        serve(connection)
        if leftover:
            connection.data_received(leftover)
        return connection

    return Upgrade(take)
