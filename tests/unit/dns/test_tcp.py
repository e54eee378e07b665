"""TCP connections of clients that do not read, hold many connections, or ask for slow names."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import dns.message
import pytest
from tests.fakes.name_server import address_answer, name_server
from tests.fakes.ports import free_port
from tests.unit.dns.test_spread import set_headless

from podwire.dns.config import DnsConfig
from podwire.dns.server import DnsServer
from podwire.dns.tcp import TcpLimits
from podwire.runtime.clock import SystemClock

NAME = "many.shop.svc.cluster.local"


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await body()

    asyncio.run(bounded())


@asynccontextmanager
async def serving(limits: TcpLimits | None = None, upstream: str = "") -> AsyncIterator[DnsServer]:
    config = DnsConfig(
        listen=("127.0.0.1",), port=free_port(), upstreams=(upstream,) if upstream else (), resolv_conf="/nonexistent"
    )
    server = DnsServer(config, SystemClock(), tcp=limits)
    set_headless(server, "many", 400)
    server.zone.index.mark_synced()
    await server.open()
    try:
        yield server
    finally:
        await server.close()


def framed(name: str = NAME) -> bytes:
    data = dns.message.make_query(name, "A").to_wire()
    return len(data).to_bytes(2, "big") + data


def connect(server: DnsServer, source: str = "127.0.0.1") -> socket.socket:
    link = socket.socket()
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    link.bind((source, 0))
    link.connect(("127.0.0.1", server.port))
    link.setblocking(False)
    return link


async def answered(server: DnsServer, source: str = "127.0.0.1") -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, local_addr=(source, 0))
    writer.write(framed())
    try:
        return len(await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))) > 6_000
    except (asyncio.IncompleteReadError, ConnectionError):
        return False
    finally:
        writer.close()


def send_much(link: socket.socket) -> None:
    """Sends requests whose replies fill the buffers of a connection that nobody reads."""
    link.send(framed() * 100)


async def closed(link: socket.socket) -> bool:
    """Whether the server ends the connection; reads what it had sent."""
    loop = asyncio.get_running_loop()
    try:
        while await loop.sock_recv(link, 1 << 20):
            pass
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.2"])
def test_clients_that_do_not_read_shut_nobody_out(source: str) -> None:
    """260 connections, with the limits that a server has."""

    async def body() -> None:
        async with serving() as server:
            links = []
            for _ in range(260):
                links.append(connect(server))
                send_much(links[-1])
                await asyncio.sleep(0)
            assert await answered(server, source)
            assert server.tcp_connections() <= TcpLimits().connections_per_client + 1
            for link in links:
                link.close()

    run(body)


def test_client_that_does_not_read_is_cut_off() -> None:
    async def body() -> None:
        async with serving(TcpLimits(write_s=0.2)) as server:
            link = connect(server)
            while not server.tcp_connections():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            with contextlib.suppress(BlockingIOError):
                for _ in range(50):
                    send_much(link)
            while server.tcp_connections():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            link.close()

    run(body)


@pytest.mark.parametrize("incomplete", [b"", framed()[:9]], ids=["nothing", "cut"])
def test_idle_connection_is_closed(incomplete: bytes) -> None:
    async def body() -> None:
        async with serving(TcpLimits(idle_s=0.2)) as server:
            link = connect(server)
            link.send(incomplete)
            assert await closed(link)
            link.close()

    run(body)


def test_oldest_idle_connection_makes_room() -> None:
    async def body() -> None:
        async with serving(TcpLimits(connections=3, connections_per_client=2)) as server:
            first, second = connect(server), connect(server)
            while server.tcp_connections() < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            first.send(framed())
            await asyncio.get_running_loop().sock_recv(first, 1)
            third = connect(server)
            assert await closed(second)
            assert await answered(server, "127.0.0.2") and await answered(server, "127.0.0.3")
            for link in (first, second, third):
                link.close()

    run(body)


def test_slow_name_does_not_delay_the_next_request() -> None:
    async def body() -> None:
        async with (
            name_server(address_answer, lambda name: 0.4 if name.startswith("slow") else 0.0) as upstream,
            serving(upstream=upstream.address) as server,
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(framed("slow.example") + framed("fast.example") + framed())
            names = []
            for _ in range(3):
                reply = await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))
                names.append(dns.message.from_wire(reply).question[0].name.to_text(omit_final_dot=True))
            assert names == [NAME, "fast.example", "slow.example"]
            writer.close()

    run(body)


def test_requests_wait_when_too_many_are_under_way() -> None:
    async def body() -> None:
        async with (
            name_server(address_answer, lambda _: 0.05) as upstream,
            serving(TcpLimits(pipelined=3), upstream=upstream.address) as server,
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"".join(framed(f"name{index}.example") for index in range(20)))
            for _ in range(20):
                await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))
            assert sum(name.startswith("name") for name in upstream.asked) == 20
            writer.close()

    run(body)


def test_requests_may_arrive_byte_by_byte() -> None:
    async def body() -> None:
        async with serving() as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            for byte in framed() * 2:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0)
            for _ in range(2):
                assert await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))
            writer.close()

    run(body)
