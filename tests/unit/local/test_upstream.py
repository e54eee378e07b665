"""The relay to the machine's own name servers, on loopback sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import cast

import dns.asyncquery
import dns.message
import dns.rcode
import dns.rrset
from tests.fakes.ports import free_port

from podwire.local.upstream import UpstreamRelay, refusal
from podwire.runtime.clock import SystemClock

NAME = "www.example.org."


def reply_to(request: bytes) -> bytes:
    query = dns.message.from_wire(request)
    reply = dns.message.make_response(query, recursion_available=True)
    reply.answer.append(dns.rrset.from_text(query.question[0].name, 60, "IN", "A", "192.0.2.7"))
    return reply.to_wire()


class World(asyncio.DatagramProtocol):
    """A name server of the machine."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._transport.sendto(reply_to(data), addr)


async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The name server's TCP."""
    size = int.from_bytes(await reader.readexactly(2), "big")
    reply = reply_to(await reader.readexactly(size))
    writer.write(len(reply).to_bytes(2, "big") + reply)
    await writer.drain()
    writer.close()


@asynccontextmanager
async def relay(*upstreams: tuple[str, int]) -> AsyncIterator[int]:
    """The port of a relay that serves."""
    port = free_port()
    serving = asyncio.ensure_future(UpstreamRelay(("127.0.0.1", port), upstreams, SystemClock()).serve())
    await asyncio.sleep(0.05)
    try:
        yield port
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


@asynccontextmanager
async def world() -> AsyncIterator[tuple[str, int]]:
    place = ("127.0.0.1", free_port())
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(World, place)
    server = await asyncio.start_server(converse, *place)
    try:
        yield place
    finally:
        transport.close()
        server.close()


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await body()

    asyncio.run(bounded())


def test_queries_are_relayed_over_both_transports() -> None:
    async def body() -> None:
        async with world() as place, relay(place) as port:
            for send in (dns.asyncquery.udp, dns.asyncquery.tcp):
                query = dns.message.make_query(NAME, "A", use_edns=0)
                reply = await send(query, "127.0.0.1", timeout=5, port=port)
                assert [str(item) for item in reply.answer] == [f"{NAME} 60 IN A 192.0.2.7"]

    run(body)


def test_without_upstream_answer_the_reply_is_servfail() -> None:
    async def body() -> None:
        async with relay(("127.0.0.1", free_port())) as away, relay() as nobody:
            for port in (away, nobody):
                for send in (dns.asyncquery.udp, dns.asyncquery.tcp):
                    query = dns.message.make_query(NAME, "A", use_edns=0)
                    reply = await send(query, "127.0.0.1", timeout=8, port=port, ignore_trailing=False)
                    assert (reply.rcode(), reply.answer) == (dns.rcode.SERVFAIL, [])

    run(body)


def test_garbage_gets_no_answer_and_the_next_request_does() -> None:
    async def body() -> None:
        async with world() as place, relay(place) as port:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                sock.connect(("127.0.0.1", port))
                for noise in (b"", b"x", bytes(12), b"\xff" * 40):
                    sock.send(noise)
                reply = await dns.asyncquery.udp(dns.message.make_query(NAME, "A"), "127.0.0.1", timeout=5, port=port)
                assert len(reply.answer) == 1
                try:
                    assert sock.recv(100) == b"", "an answer to noise"
                except BlockingIOError:
                    pass
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"\0\4noop")
            assert await reader.read() == b""
            writer.close()

    run(body)


def test_a_refusal_repeats_the_question_alone() -> None:
    query = dns.message.make_query(NAME, "AAAA", use_edns=0, payload=1232)
    result = dns.message.from_wire(refusal(query.to_wire()))
    assert (result.id, result.question, result.edns) == (query.id, query.question, -1)
    assert refusal(b"short") == b""
