"""Listeners of health check node ports, on the loopback address."""

import asyncio
import socket

import msgspec
from tests.fakes.clock import FakeClock
from tests.fakes.ports import free_port

from podwire.http.message import Request, Response
from podwire.proxy.health import Pulse
from podwire.proxy.healthchecks import RETRY_S, HealthChecks, MovableServer, listener, serve_at
from podwire.proxy.servicemap import ResolvedPort
from podwire.runtime.tasks import TaskSet


def service(port: int, *ready: str) -> tuple[ResolvedPort, ...]:
    return tuple(
        ResolvedPort(service="t/x", port_name=name, protocol="tcp", family="ip", port=80, cluster_ip="10.96.0.1",
                    health_check_node_port=port, local_ready=ready)
        for name in ("http", "https")
    )  # fmt: skip


async def ask(port: int, address: str = "127.0.0.1") -> str:
    reader, writer = await asyncio.open_connection(address, port)
    writer.write(b"GET /anything HTTP/1.1\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer.split(b" ")[1].decode() + answer.decode().partition("Weight: ")[2].partition("\r")[0]


def path_of(request: Request) -> Response:
    return Response(200, request.path.encode())


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


class Bench:
    """Health checks on a fake clock."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.addresses: tuple[str, ...] = ("127.0.0.1",)
        self.refused: list[tuple[str, str]] = []
        self.tasks = TaskSet(lambda task, failure: None)
        self.checks = HealthChecks(
            Pulse(self.clock),
            listener(),
            lambda: self.addresses,
            self.clock,
            lambda *subject: self.refused.append(subject),
        )

    async def __aenter__(self) -> "Bench":
        self.tasks.start("checks", self.checks.run())
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self.tasks.close()
        assert self.checks.listening == ()


def test_a_listener_follows_the_service() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            item, other = free_port(), free_port()
            bench.checks.update({"t/x": service(item, "10.0.0.1", "10.0.0.2")})
            await settle()
            assert await ask(item) == "2002"
            bench.checks.update({"t/x": service(item)})
            assert await ask(item) == "5030"
            bench.checks.update({"t/x": service(other, "10.0.0.1")})
            await settle()
            assert list(bench.checks.listening) == [("t/x", "127.0.0.1", other)]
            assert await ask(other) == "2001"
            bench.checks.update({"t/x": ()})
            await settle()
            assert list(bench.checks.listening) == []

    asyncio.run(scenario())


def test_pod_with_two_addresses_is_one_endpoint() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            port = free_port()
            both = service(port, "10.0.0.1")
            (http, _) = service(port, "fd00::1")
            bench.addresses = ("127.0.0.1", "::1")
            bench.checks.update({"t/x": (*both, msgspec.structs.replace(http, family="ip6", cluster_ip="fd00:96::1"))})
            await settle()
            assert (await ask(port), await ask(port, "::1")) == ("2001", "2001")
            bench.checks.update({"t/x": both})
            await settle()
            assert list(bench.checks.listening) == [("t/x", "127.0.0.1", port)]

    asyncio.run(scenario())


def test_addresses_may_change() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            port = free_port()
            bench.addresses = ()
            bench.checks.update({"t/x": service(port, "10.0.0.1")})
            await settle()
            assert list(bench.checks.listening) == []
            bench.addresses = ("127.0.0.1", "127.0.0.2")
            bench.checks.update({}, moved=True)
            await settle()
            assert list(bench.checks.listening) == [("t/x", "127.0.0.1", port), ("t/x", "127.0.0.2", port)]

    asyncio.run(scenario())


def test_a_port_in_use_is_reported_once_and_retried() -> None:
    async def scenario() -> None:
        async with Bench() as bench:
            with socket.create_server(("127.0.0.1", 0)) as used:
                port: int = used.getsockname()[1]
                bench.checks.update({"t/x": service(port, "10.0.0.1")})
                await settle()
                await bench.clock.advance(2 * RETRY_S)
                assert bench.refused == [("t/x", f"node port {port} on 127.0.0.1: Address already in use")]
            await bench.clock.advance(RETRY_S)
            await settle()
            assert await ask(port) == "2001"

    asyncio.run(scenario())


def test_a_page_waits_for_its_address() -> None:
    async def scenario() -> None:
        clock, tasks = FakeClock(), TaskSet(lambda task, failure: None)
        with socket.create_server(("127.0.0.1", 0)) as used:
            port: int = used.getsockname()[1]
            tasks.start(
                "page",
                serve_at(
                    listener(), ("127.0.0.1", port), lambda request: Response(200, request.path.encode()), tasks, clock
                ),
            )
            await settle()
        await clock.advance(RETRY_S)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /livez HTTP/1.1\r\n\r\n")
        assert (await reader.read()).endswith(b"\r\n\r\n/livez")
        writer.close()
        await tasks.close()

    asyncio.run(scenario())


def test_a_page_moves_while_it_is_answered() -> None:
    async def scenario() -> None:
        tasks = TaskSet(lambda task, failure: None)
        item, other = ("127.0.0.1", free_port()), ("127.0.0.1", free_port())
        page = MovableServer(listener(), item, path_of, FakeClock())
        tasks.start("page", page.run())

        async def answered() -> list[tuple[str, int]]:
            await settle()
            result = []
            for place in (item, other):
                try:
                    assert await ask(place[1]) == "200"
                except OSError:
                    continue
                result.append(place)
            return result

        assert await answered() == [item]
        page.move(other)
        assert await answered() == [other]
        page.move(None)
        assert await answered() == []
        page.move(item)
        assert await answered() == [item]
        await tasks.close()
        assert await answered() == []

    asyncio.run(scenario())
