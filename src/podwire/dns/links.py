"""The UDP sockets to one upstream server, each for many requests at a time.

How it works: a socket is connected to the server, so the kernel drops datagrams of other senders and reports an
unreachable port. A request gets a socket at random and a random ID that no other request on the socket has; the reply
is found by its ID and its question. A socket takes requests for ``_LIFE_S`` at most, so source ports change. This saves
five system calls a request. Source: RFC 5452 (source ports, IDs, which replies count).
"""

import asyncio
import random
import secrets
import socket
from collections.abc import Callable

from podwire.dns import wire
from podwire.errors import ProtocolError

Address = tuple[str, int]

OnReply = Callable[[bytes | None], None]
"""Called with the reply to a request, or with None when the server cannot be reached."""

_SOCKETS = 16
_LIFE_S = 10.0
_MOST_WAITING = 4096


class UdpLinks:
    """The sockets to a server; they are opened when they are needed."""

    def __init__(self, server: Address) -> None:
        self._server = server
        self._links: list[UdpLink] = []
        self.reused = 0
        self.opened = 0

    def send(self, request: bytes, on_reply: OnReply) -> "SentRequest":
        """Sends a request; its reply arrives later.

        Raises: OSError when the server cannot be reached.
        """
        return self._take().send(request, on_reply)

    def _take(self) -> "UdpLink":
        if len(self._links) < _SOCKETS:
            self.opened += 1
            self._links.append(UdpLink(self._server))
            return self._links[-1]
        link = random.choice(self._links)
        if link.old or len(link.waiting) >= _MOST_WAITING:
            self._links.remove(link)
            link.retire()
            self.opened += 1
            link = UdpLink(self._server)
            self._links.append(link)
        else:
            self.reused += 1
        return link

    def close(self) -> None:
        """Closes the sockets; requests under way get no reply."""
        for link in self._links:
            link.close()
        self._links = []


class SentRequest:
    """A request that was sent over a link; it can be sent again, and must be cancelled at the end."""

    __slots__ = ("_link", "_message", "on_reply", "question")

    def __init__(self, link: "UdpLink", message: bytes, on_reply: OnReply) -> None:
        self._link = link
        self._message = message
        self.on_reply = on_reply
        self.question = wire.read_question(message).lower()

    def repeat(self) -> None:
        """Sends the request again.

        Raises: OSError when the server cannot be reached.
        """
        self._link.transmit(self._message)

    def cancel(self) -> None:
        """Waits for no reply any more."""
        self._link.forget(self._message[:2])


class UdpLink:
    """One connected socket; ``waiting`` has its requests by ID."""

    def __init__(self, server: Address) -> None:
        """Opens the socket.

        Raises: OSError when the address cannot be used.
        """
        self._loop = asyncio.get_running_loop()
        family = socket.AF_INET6 if ":" in server[0] else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            self._socket.connect(server)
        except OSError:
            self._socket.close()
            raise
        self._expires_s = self._loop.time() + _LIFE_S
        self._retired = False
        self.waiting: dict[bytes, SentRequest] = {}
        self._loop.add_reader(self._socket.fileno(), self._receive)

    @property
    def old(self) -> bool:
        """Whether the socket takes no more requests."""
        return self._loop.time() > self._expires_s

    def send(self, request: bytes, on_reply: OnReply) -> SentRequest:
        """Sends a request under an ID of its own.

        Raises: OSError.
        """
        ident = secrets.token_bytes(2)
        while ident in self.waiting:
            ident = secrets.token_bytes(2)
        message = ident + request[2:]
        sent = self.waiting[ident] = SentRequest(self, message, on_reply)
        try:
            self.transmit(message)
        except OSError:
            del self.waiting[ident]
            raise
        return sent

    def transmit(self, message: bytes) -> None:
        """Sends a message; a full send queue counts as a lost packet, because requests are repeated.

        Raises: OSError.
        """
        try:
            self._socket.send(message)
        except BlockingIOError:
            return

    def _receive(self) -> None:
        try:
            data = self._socket.recv(65535)
        except BlockingIOError:
            return
        except OSError:
            # The port is closed, or there is no route: this is about all requests of the socket.
            for sent in tuple(self.waiting.values()):
                sent.on_reply(None)
            return
        sent_request = self.waiting.get(data[:2])
        if sent_request is not None and is_reply(sent_request.question, data):
            sent_request.on_reply(data)

    def forget(self, ident: bytes) -> None:
        """Drops a request."""
        self.waiting.pop(ident, None)
        if self._retired and not self.waiting:
            self.close()

    def retire(self) -> None:
        """Closes the socket when its last request has ended."""
        self._retired = True
        if not self.waiting:
            self.close()

    def close(self) -> None:
        """Closes the socket."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()


def is_reply(question: bytes, reply: bytes) -> bool:
    """Whether a message with the right ID is the reply to a question, which is in lower case."""
    if len(reply) < wire.HEADER_BYTES or not reply[2] & 0x80:
        return False
    counts = reply[4:6]
    if counts == b"\x00\x00":
        # A server that refuses (FORMERR, REFUSED) may omit the question.
        return reply[3] & 0xF != 0
    end = wire.HEADER_BYTES + len(question)
    return counts == b"\x00\x01" and reply[wire.HEADER_BYTES : end].lower() == question


def matches(request: bytes, reply: bytes) -> bool:
    """Whether a message is the reply to a request: the same ID and the same question."""
    try:
        return reply[:2] == request[:2] and is_reply(wire.read_question(request).lower(), reply)
    except ProtocolError:
        return False
