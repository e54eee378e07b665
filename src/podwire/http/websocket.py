"""The server's end of a WebSocket connection: frames by wsproto, on asyncio.

Messages are bytes; a text message arrives as its UTF-8 bytes. Fragments are joined, pings are answered. Received
messages wait in a queue; reading from the socket pauses while more than 1 MiB waits. Writing pauses
(:meth:`WebSocket.drain`) while more than the transport's limit is unsent. The socket is closed only after the client
has closed its side: closing a socket with unread bytes resets the connection, and the reset discards bytes that the
client has not read yet. Costs: docs/adr/0010-websocket-wsproto.md; importing wsproto takes 50 ms, so the first
connection imports this module (:mod:`podwire.http.handshake`). Source: RFC 6455.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage
from wsproto.frame_protocol import CloseReason

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
        """Set when either side has sent a close frame, or the client has disconnected."""
        self.on_closed: Callable[[], None] | None = None
        """Called once when ``closed`` is set."""

    def data_received(self, data: bytes) -> None:
        """Handles bytes of the client."""
        if self._frames.state not in (ConnectionState.OPEN, ConnectionState.LOCAL_CLOSING):
            return
        self._frames.receive_data(data)
        for event in self._frames.events():
            self._handle_event(event)
        if self._messages_size > _WAITING:
            self._transport.pause_reading()
        self._arrived.set()

    def _handle_event(self, event: Event) -> None:
        if isinstance(event, BytesMessage):
            self._add_fragment(bytes(event.data), final=event.message_finished)
        elif isinstance(event, TextMessage):
            self._add_fragment(event.data.encode(), final=event.message_finished)
        elif isinstance(event, Ping):
            if not self.closed.is_set():
                self._transport.write(self._frames.send(event.response()))
        elif isinstance(event, CloseConnection):  # The client closes, or its frames break the protocol.
            self._send_close(event.response())
            self._transport.close()

    def _add_fragment(self, data: bytes, *, final: bool) -> None:
        if self.closed.is_set():
            return
        self._fragments.append(data)
        self._fragments_size += len(data)
        if self._fragments_size > _MAX_MESSAGE:
            self._fragments = []
            self._send_close(CloseConnection(CloseReason.MESSAGE_TOO_BIG, f"the limit is {_MAX_MESSAGE} bytes"))
            self._transport.close()
        elif final:
            self._messages.append(self._fragments[0] if len(self._fragments) == 1 else b"".join(self._fragments))
            self._messages_size += self._fragments_size
            self._fragments, self._fragments_size = [], 0

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has disconnected."""
        if self._linger is not None:
            self._linger.cancel()
        self._mark_closed()
        self._arrived.set()
        self._writable.set()

    def _mark_closed(self) -> None:
        self.closed.set()
        on_closed, self.on_closed = self.on_closed, None
        if on_closed is not None:
            on_closed()

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The client reads fast enough again."""
        self._writable.set()

    async def receive(self) -> bytes | None:
        """The next message; None when the connection is closed."""
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
        """Sends one binary message; nothing when either side has sent a close frame."""
        if not self.closed.is_set() and not self._transport.is_closing():
            self._transport.write(self._frames.send(BytesMessage(message)))

    def send_text(self, message: str) -> None:
        """Sends one text message; nothing when either side has sent a close frame."""
        if not self.closed.is_set() and not self._transport.is_closing():
            self._transport.write(self._frames.send(TextMessage(message)))

    @property
    def buffered(self) -> int:
        """Bytes that the client has not taken yet."""
        return self._transport.get_write_buffer_size()

    def abort(self) -> None:
        """Closes the connection at once and drops unsent bytes."""
        self._transport.abort()

    async def drain(self) -> None:
        """Returns when the client has read most of the sent bytes."""
        await self._writable.wait()

    def close(self) -> None:
        """Sends a close frame; drops further messages until the client closes too, at most for ten seconds."""
        if not self.closed.is_set() and not self._transport.is_closing():
            self._messages.clear()
            self._messages_size = 0
            self._transport.resume_reading()
            self._linger = asyncio.get_running_loop().call_later(_LINGER_S, self._transport.close)
        self._send_close(CloseConnection(CloseReason.NORMAL_CLOSURE))

    def _send_close(self, close: CloseConnection) -> None:
        if not self.closed.is_set() and not self._transport.is_closing():
            self._transport.write(self._frames.send(close))
        self._mark_closed()
        self._arrived.set()
