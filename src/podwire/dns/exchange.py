"""One request and its reply over UDP, with repetition, to one or several upstream servers.

How it works: an exchange opens a socket of its own for each server, so the request leaves from a random port, with a
new random ID. The sockets stay open until the exchange ends: a server that was asked first and replies late still
answers. Source: RFC 5452 (which replies count). TCP: :mod:`podwire.dns.streams`.
"""

import asyncio
import secrets
import socket

from podwire.dns import wire
from podwire.errors import ProtocolError

Address = tuple[str, int]


class UdpExchange:
    """A request on its way to upstream servers over UDP; :meth:`close` releases its sockets.

    A reply with one of the response codes ``unwanted`` counts as a refusal, and is in ``rejected``.
    """

    def __init__(self, request: bytes, unwanted: frozenset[int] = frozenset()) -> None:
        self._request = request
        self._unwanted = unwanted
        self._loop = asyncio.get_running_loop()
        self._links: dict[Address, tuple[socket.socket, bytes]] = {}
        self._news: asyncio.Future[None] | None = None
        self.refused: set[Address] = set()
        """The servers whose port is closed or that cannot be reached."""
        self.reply: tuple[Address, bytes] | None = None
        """The server that replied first, and its reply under the ID of the request."""
        self.rejected: tuple[Address, bytes] | None = None

    def send(self, server: Address) -> bool:
        """Sends the request, or sends it again; False when the server cannot be reached."""
        try:
            if server not in self._links:
                self._links[server] = self._open(server)
            link, message = self._links[server]
            link.send(message)
        except BlockingIOError:
            return True  # A full send queue is a lost packet: the request is repeated later.
        except OSError:
            self.refused.add(server)
            return False
        return True

    def _open(self, server: Address) -> tuple[socket.socket, bytes]:
        family = socket.AF_INET6 if ":" in server[0] else socket.AF_INET
        link = socket.socket(family, socket.SOCK_DGRAM)
        try:
            link.setblocking(False)
            # Connected: the kernel drops datagrams of other senders and reports an unreachable port as an error.
            link.connect(server)
        except OSError:
            link.close()
            raise
        message = prepare(self._request)
        self._loop.add_reader(link, self._receive, server, link, message)
        return link, message

    def _receive(self, server: Address, link: socket.socket, message: bytes) -> None:
        try:
            data = link.recv(65535)
        except BlockingIOError:
            return
        except OSError:
            self.refused.add(server)
        else:
            if self.reply is not None or not matches(message, data):
                return
            outcome = server, self._request[:2] + data[2:]
            if data[3] & 0xF in self._unwanted:
                self.refused.add(server)
                self.rejected = outcome
            else:
                self.reply = outcome
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Returns when a reply or a refusal arrives, or after ``seconds``."""
        if self.reply is not None:
            return
        self._news = self._loop.create_future()
        try:
            async with asyncio.timeout(seconds):
                await self._news
        except TimeoutError:
            return

    def close(self) -> None:
        """Closes the sockets."""
        for link, _ in self._links.values():
            self._loop.remove_reader(link)
            link.close()


def prepare(request: bytes) -> bytes:
    """The request under a new random ID."""
    return secrets.token_bytes(2) + request[2:]


def matches(request: bytes, reply: bytes) -> bool:
    """Whether a message is the reply to a request: the same ID and the same question."""
    if len(reply) < wire.HEADER_BYTES or reply[:2] != request[:2] or not reply[2] & 0x80:
        return False
    if reply[4:6] == b"\x00\x00":
        # A server that refuses (FORMERR, REFUSED) may omit the question.
        return reply[3] & 0xF != 0
    try:
        question = wire.read_question(request).lower()
    except ProtocolError:
        return False
    return (
        reply[4:6] == b"\x00\x01" and reply[wire.HEADER_BYTES : wire.HEADER_BYTES + len(question)].lower() == question
    )
