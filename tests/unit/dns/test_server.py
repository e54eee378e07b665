"""The server on loopback sockets: UDP, TCP, forwarding, health, and what happens when upstream is away."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager

import dns.asyncquery
import dns.flags
import dns.message
import dns.rcode
import pytest
from tests.fakes.name_server import address_answer, name_server
from tests.fakes.ports import free_port

from podwire.dns.config import DnsConfig
from podwire.dns.forward import parse_upstream, read_resolv_conf
from podwire.dns.server import DnsServer
from podwire.errors import ConfigError
from podwire.model.meta import ObjectMeta
from podwire.model.service import Service, ServiceSpec
from podwire.runtime.clock import Clock, SystemClock


@asynccontextmanager
async def serving(*upstreams: str, query_log: bool = False, clock: Clock | None = None) -> AsyncIterator[DnsServer]:
    config = DnsConfig(
        listen=("127.0.0.1",),
        port=free_port(),
        upstreams=upstreams,
        resolv_conf="/nonexistent",
        query_log=query_log,
    )
    server = DnsServer(config, clock or SystemClock())
    server.zone.index.set_service("shop/web", a_service("10.96.0.1"), 1)
    out = Service(
        metadata=ObjectMeta(name="out", namespace="shop"),
        spec=ServiceSpec(type="ExternalName", external_name="www.example.com"),
    )
    server.zone.index.set_service("shop/out", out, 1)
    server.zone.index.mark_synced()
    await server.open()
    try:
        yield server
    finally:
        await server.close()


def a_service(ip: str) -> Service:
    return Service(metadata=ObjectMeta(name="web", namespace="shop"), spec=ServiceSpec(cluster_ip=ip))


async def ask(server: DnsServer, name: str, *, tcp: bool = False, kind: str = "A") -> dns.message.Message:
    query = dns.message.make_query(name, kind)
    send = dns.asyncquery.tcp if tcp else dns.asyncquery.udp
    return await send(query, "127.0.0.1", timeout=5, port=server.port)


def run(body: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await body

    asyncio.run(bounded())


@pytest.mark.parametrize("tcp", [False, True])
def test_a_changed_service_is_answered_at_once(tcp: bool) -> None:
    async def body() -> None:
        async with serving() as server:
            for ip in ("10.96.0.1", "10.96.0.2", "10.96.0.3"):
                if server.zone.index.set_service("shop/web", a_service(ip), 2):
                    server.forget()
                for _ in range(2):
                    reply = await ask(server, "web.shop.svc.cluster.local", tcp=tcp)
                    assert [rdata.to_text() for rdata in reply.answer[0]] == [ip]

    run(body())


def test_a_foreign_name_is_forwarded_once_and_then_cached() -> None:
    async def body() -> None:
        async with name_server(address_answer) as upstream, serving(upstream.address) as server:
            for _ in range(3):
                reply = await ask(server, "www.example.com")
                assert reply.answer[0][0].to_text() == "192.0.2.7"
                assert not reply.flags & dns.flags.AA and reply.flags & dns.flags.RA
            assert upstream.times("www.example.com.") == 1
            text = server.metrics().decode()
            assert "coredns_cache_hits_total" in text and 'plugin="forward"} 3' in text

    run(body())


class SetClock(SystemClock):
    """A clock whose monotonic time the test sets."""

    now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


def test_ready_foreign_replies_have_own_ids_and_count_down() -> None:
    async def body() -> None:
        clock = SetClock()
        async with name_server(address_answer) as upstream, serving(upstream.address, clock=clock) as server:
            ttls, now_s = [], (0.0, 0.0, 0.5, 0.5, 1.0, 1.5, 2.25)
            for seconds in now_s:
                clock.now_s = 1000.0 + seconds
                # The client checks that ID and question of the reply are its own.
                ttls.append((await ask(server, "www.example.com")).answer[0].ttl)
            life_s = ttls[0]
            assert ttls == [life_s - int(seconds) for seconds in now_s]
            clock.now_s += life_s
            assert (await ask(server, "www.example.com")).answer[0].ttl == life_s
            assert upstream.times("www.example.com.") == 2
            lines = server.metrics().decode().splitlines()
            hits = [line for line in lines if line.startswith("coredns_cache_hits_total") and 'type="success"' in line]
            misses = [line for line in lines if line.startswith("coredns_cache_misses_total")]
            assert [line.rpartition(" ")[2] for line in (*hits, *misses)] == ["6", "2"]

    run(body())


def test_ready_foreign_reply_ends_when_the_zone_changes() -> None:
    async def body() -> None:
        async with name_server(address_answer) as upstream, serving(upstream.address) as server:
            for _ in range(3):
                reply = await ask(server, "9.0.96.10.in-addr.arpa")
                assert not reply.flags & dns.flags.AA
            server.zone.index.set_service("shop/web", a_service("10.96.0.9"), 2)
            server.forget()
            reply = await ask(server, "9.0.96.10.in-addr.arpa", kind="PTR")
            assert reply.answer[0][0].to_text() == "web.shop.svc.cluster.local."
            assert (await ask(server, "9.0.96.10.in-addr.arpa")).flags & dns.flags.AA

    run(body())


def test_an_alias_is_followed_upstream() -> None:
    async def body() -> None:
        async with name_server(address_answer) as upstream, serving(upstream.address) as server:
            reply = await ask(server, "out.shop.svc.cluster.local")
            assert [rrset.to_text().split(" ", 2)[2] for rrset in reply.answer] == [
                "IN CNAME www.example.com.",
                "IN A 192.0.2.7",
            ]

    run(body())


def test_the_second_upstream_is_asked_when_the_first_refuses_connections() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as used:
        used.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{used.getsockname()[1]}"

    async def body() -> None:
        async with name_server(address_answer) as upstream, serving(dead, upstream.address) as server:
            started = asyncio.get_running_loop().time()
            reply = await ask(server, "www.example.com")
            assert reply.answer and asyncio.get_running_loop().time() - started < 1

    run(body())


@pytest.mark.parametrize("tcp", [False, True])
def test_without_upstream_a_foreign_name_fails_at_once(tcp: bool) -> None:
    async def body() -> None:
        async with serving() as server:
            started = asyncio.get_running_loop().time()
            reply = await ask(server, "www.example.com", tcp=tcp)
            assert reply.rcode() == dns.rcode.SERVFAIL and asyncio.get_running_loop().time() - started < 1

    run(body())


def test_many_questions_on_one_tcp_connection() -> None:
    async def body() -> None:
        async with serving() as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            for _ in range(50):
                query = dns.message.make_query("web.shop.svc.cluster.local", "A")
                data = query.to_wire()
                writer.write(len(data).to_bytes(2, "big") + data)
                reply = await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))
                assert query.is_response(dns.message.from_wire(reply))
            writer.close()

    run(body())


def test_closing_does_not_wait() -> None:
    async def body() -> None:
        async with serving() as server:
            await ask(server, "web.shop.svc.cluster.local")
            started = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - started < 1

    run(body())


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("192.0.2.1", ("192.0.2.1", 53)),
        ("192.0.2.1:54", ("192.0.2.1", 54)),
        ("[fd00::1]:54", ("fd00::1", 54)),
        ("fd00::1", ("fd00::1", 53)),
        ("[fd00::1]", ("fd00::1", 53)),
    ],
)
def test_an_upstream_is_an_address_with_or_without_port(text: str, address: tuple[str, int]) -> None:
    assert parse_upstream(text, "f") == address


@pytest.mark.parametrize("text", ["", "dns.example", "192.0.2.1:0", "192.0.2.1:x", "[fd00::1"])
def test_a_wrong_upstream_is_named(text: str) -> None:
    if text == "[fd00::1":
        assert parse_upstream(text, "f") == ("fd00::1", 53)
        return
    with pytest.raises(ConfigError, match="expected address"):
        parse_upstream(text, "f")


def test_resolv_conf_gives_name_servers_other_than_loopback(tmp_path: object) -> None:
    path = f"{tmp_path}/resolv.conf"
    with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(
            "search a.b\nnameserver 127.0.0.53\nnameserver 192.0.2.1\n# nameserver 192.0.2.9\n"
            "nameserver fe80::1%eth0\nnameserver x\nnameserver 192.0.2.1\n"
        )
    assert read_resolv_conf(path) == (("192.0.2.1", 53), ("fe80::1%eth0", 53))
    assert read_resolv_conf("/nonexistent") == ()


def test_name_server_of_the_zone_has_the_served_address() -> None:
    async def body() -> None:
        async with serving() as server:
            reply = await ask(server, "cluster.local", kind="NS")
            assert [rrset.to_text() for rrset in reply.additional] == ["ns.dns.cluster.local. 5 IN A 127.0.0.1"]
            address = await ask(server, "ns.dns.cluster.local")
            assert [rdata.to_text() for rdata in address.answer[0]] == ["127.0.0.1"]

    run(body())


@pytest.mark.parametrize("tcp", [False, True])
def test_query_log_has_a_line_for_each_answer(tcp: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        async with name_server(address_answer) as upstream, serving(upstream.address, query_log=True) as server:
            for _ in range(2):
                for name in ("web.shop.svc.cluster.local", "www.example.com", "gone.shop.svc.cluster.local"):
                    await ask(server, name, tcp=tcp)

    caplog.set_level("INFO")
    run(body())
    assert sum(record.name == "dns.query" for record in caplog.records) == 6
