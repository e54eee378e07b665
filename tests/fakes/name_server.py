"""A name server on sockets of loopback that answers each request as a function says: also late, never, or twice."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import dns.message
import dns.rrset
from tests.fakes.ports import free_port

Answerer = Callable[[bytes], bytes | None]


class NameServer(asyncio.DatagramProtocol):
    """Answers by ``answer`` after ``delay_s`` of the name; ``asked`` holds the names of the requests in order."""

    def __init__(self, answer: Answerer, delay_s: Callable[[str], float]) -> None:
        self.answer = answer
        self.delay_s = delay_s
        self.asked: list[str] = []
        self.address = ""
        self.transport: asyncio.DatagramTransport | None = None
        self.writers: list[asyncio.StreamWriter] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        transport = self.transport
        assert transport is not None
        self.respond(data, lambda reply: transport.sendto(reply, addr))

    def respond(self, data: bytes, send: Callable[[bytes], None]) -> None:
        name = dns.message.from_wire(data).question[0].name.to_text()
        self.asked.append(name)
        reply = self.answer(data)
        if reply is not None:
            asyncio.get_running_loop().call_later(self.delay_s(name), send, reply)

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(2), "big")
                data = await reader.readexactly(size)
                self.respond(data, lambda reply: writer.write(len(reply).to_bytes(2, "big") + reply))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def times(self, name: str) -> int:
        """How often a name was asked for."""
        return self.asked.count(name)


@asynccontextmanager
async def name_server(
    answer: Answerer, delay_s: Callable[[str], float] = lambda _: 0.0, port: int = 0
) -> AsyncIterator[NameServer]:
    """A server for UDP and TCP on a free port."""
    place = ("127.0.0.1", port or free_port())
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(lambda: NameServer(answer, delay_s), place)
    listener = await asyncio.start_server(server.converse, *place)
    server.address = f"{place[0]}:{place[1]}"
    try:
        yield server
    finally:
        transport.close()
        listener.close()
        for writer in server.writers:
            writer.close()
        await asyncio.sleep(0)


def address_answer(request: bytes, address: str = "192.0.2.7", ttl: int = 60) -> bytes:
    """An answer with one A record."""
    query = dns.message.from_wire(request)
    reply = dns.message.make_response(query, recursion_available=True)
    reply.answer.append(dns.rrset.from_text(query.question[0].name, ttl, "IN", "A", address))
    return reply.to_wire()
