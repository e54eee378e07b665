"""Upstream servers that lead back to the server: directly, through another server, and from some moment on."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import dns.asyncquery
import dns.message
import dns.rcode
import pytest
from tests.fakes.name_server import NameServer, address_answer, name_server
from tests.fakes.ports import free_port

from podwire.dns.config import DnsConfig
from podwire.dns.server import DnsServer
from podwire.runtime.clock import SystemClock


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await body()

    asyncio.run(bounded())


@asynccontextmanager
async def serving(port: int, *upstreams: str) -> AsyncIterator[DnsServer]:
    config = DnsConfig(listen=("127.0.0.1",), port=port, upstreams=upstreams, resolv_conf="/nonexistent")
    server = DnsServer(config, SystemClock())
    server.zone.index.mark_synced()
    await server.open()
    try:
        yield server
    finally:
        await server.close()


class Relay(NameServer):
    """A name server that passes requests on to another one, with a new ID."""

    def __init__(self, port: int) -> None:
        super().__init__(lambda _: None, lambda _: 0.0)
        self._port = port
        self.on = True
        self._passing: list[asyncio.Future[None]] = []

    def respond(self, data: bytes, send: Callable[[bytes], None]) -> None:
        self.asked.append(dns.message.from_wire(data).question[0].name.to_text())
        self._passing.append(asyncio.ensure_future(self._pass_on(data, send)))

    async def _pass_on(self, data: bytes, send: Callable[[bytes], None]) -> None:
        if not self.on:
            send(address_answer(data))
            return
        query = dns.message.from_wire(data)
        ident, query.id = query.id, (query.id + 1) % 65536
        try:
            reply = await dns.asyncquery.udp(query, "127.0.0.1", timeout=5, port=self._port)
        except dns.exception.Timeout:
            return
        reply.id = ident
        send(reply.to_wire())


@asynccontextmanager
async def relay(port: int) -> AsyncIterator[Relay]:
    place = ("127.0.0.1", free_port())
    transport, server = await asyncio.get_running_loop().create_datagram_endpoint(lambda: Relay(port), place)
    server.address = f"127.0.0.1:{place[1]}"
    try:
        yield server
    finally:
        transport.close()


async def ask(port: int, name: str, *, tcp: bool = False) -> dns.message.Message:
    send = dns.asyncquery.tcp if tcp else dns.asyncquery.udp
    return await send(dns.message.make_query(name, "A"), "127.0.0.1", timeout=8, port=port)


async def looping(server: DnsServer) -> None:
    while "podwire_dns_forward_looping_servers 1" not in server.metrics().decode():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def forwards(server: DnsServer) -> int:
    line = next(x for x in server.metrics().decode().splitlines() if x.startswith("podwire_dns_forward_requests_total"))
    return int(line.split()[1])


@pytest.mark.parametrize("tcp", [False, True])
def test_server_that_forwards_to_itself_refuses(tcp: bool) -> None:
    async def body() -> None:
        port = free_port()
        async with serving(port, f"127.0.0.1:{port}") as server:
            await looping(server)
            assert (await ask(port, "www.example.com", tcp=tcp)).rcode() == dns.rcode.REFUSED
            assert forwards(server) == 0

    run(body)


def test_loop_through_another_server_refuses() -> None:
    async def body() -> None:
        port = free_port()
        async with relay(port) as other, serving(port, other.address) as server:
            await looping(server)
            assert (await ask(port, "www.example.com")).rcode() == dns.rcode.REFUSED
            assert other.times("www.example.com.") == 0

    run(body)


def test_server_without_a_loop_is_still_asked() -> None:
    async def body() -> None:
        port = free_port()
        async with name_server(address_answer) as good, serving(port, f"127.0.0.1:{port}", good.address) as server:
            await looping(server)
            assert (await ask(port, "www.example.com")).rcode() == dns.rcode.NOERROR

    run(body)


def test_loop_that_begins_later_makes_few_requests() -> None:
    async def body() -> None:
        port = free_port()
        async with relay(port) as other:
            other.on = False
            async with serving(port, other.address) as server:
                assert (await ask(port, "www.example.com")).rcode() == dns.rcode.NOERROR
                other.on = True
                reply = await ask(port, "other.example.com")
                assert reply.rcode() in (dns.rcode.REFUSED, dns.rcode.SERVFAIL)
                await looping(server)
                assert other.times("other.example.com.") < 40 and forwards(server) < 40

    run(body)
