"""A connection of the API server to a port of a pod, here without a network namespace."""

import asyncio
from collections.abc import Awaitable, Callable

from podwire.embedded.kubelet.podconnect import connect_pod
from podwire.http.server import HttpServer
from podwire.runtime.clock import SystemClock
from podwire.runtime.tasks import TaskSet

Exchange = Callable[[str], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


def play(scenario: Callable[[Exchange, int], Awaitable[None]]) -> None:
    """Runs a scenario with the port of a server that greets and then sends in upper case what it gets."""

    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello ")
        while data := await reader.read(65536):
            writer.write(data.upper())
            await writer.drain()
        writer.close()

    async def body() -> None:
        tasks = TaskSet(lambda name, failure: None)
        server = HttpServer(lambda request: connect_pod(request, "", ("127.0.0.1", "::1")), tasks, SystemClock())
        address = await server.listen("127.0.0.1", 0)
        pod = await asyncio.start_server(shout, "127.0.0.1", 0)

        async def ask(query: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(
                f"GET /podConnect/default/p?{query} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n"
                "Upgrade: tcp\r\n\r\nearly ".encode()
            )
            return reader, writer

        try:
            await scenario(ask, pod.sockets[0].getsockname()[1])
        finally:
            pod.close()
            await server.close()
            await tasks.close()

    asyncio.run(asyncio.wait_for(body(), 20))


def test_bytes_pass_in_both_directions() -> None:
    async def scenario(ask: Exchange, port: int) -> None:
        reader, writer = await ask(f"address=127.0.0.1&port={port}")
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(12) == b"hello EARLY "
        payload = b"x" * 3_000_000
        writer.write(payload)
        assert await reader.readexactly(len(payload)) == payload.upper()
        writer.close()

    play(scenario)


def test_unreachable_address_is_answered_with_an_error_status() -> None:
    async def scenario(ask: Exchange, port: int) -> None:
        for query, status in (
            ("address=10.1.2.3&port=80", b" 400 "),
            (f"address=127.0.0.1&port={1 << 16}", b" 400 "),
            ("address=127.0.0.1&port=http", b" 400 "),
            ("address=127.0.0.1&port=1", b" 503 "),
            (f"address=127.0.0.1&port={port}&tls=1", b" 503 "),
        ):
            reader, writer = await ask(query)
            assert status in await reader.readuntil(b"\r\n\r\n"), query
            writer.close()

    play(scenario)
