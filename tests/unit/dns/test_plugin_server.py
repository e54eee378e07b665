"""Plugins on sockets: upstream servers behind rewritten names, zone transfers, copied zones, TLS upstream."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import dns.asyncquery
import dns.message
import dns.rcode
import dns.zone
import msgspec
from tests.fakes.certificates import make_certificate
from tests.fakes.clock import FakeClock
from tests.fakes.name_server import address_answer, name_server
from tests.fakes.ports import free_port
from tests.unit.dns.names_of_cluster import fill_cluster
from tests.unit.dns.plugins.corefiles import lines, settings

from podwire.dns.names import encode_name
from podwire.dns.plugins.staticzone import StaticZone
from podwire.dns.secondaries import SecondaryZone
from podwire.dns.server import DnsServer
from podwire.runtime.clock import SystemClock

_ZONE = (
    "$TTL 300\n@ IN SOA ns hostmaster {serial} 7200 1800 86400 60\n@ NS ns\nns A 192.0.2.53\nwww A 192.0.2.{serial}\n"
)


@asynccontextmanager
async def serving(text: str, files: dict[str, str] | None = None, port: int = 0) -> AsyncIterator[DnsServer]:
    """A server with a Corefile; ``kubernetes`` is added to its root block."""
    config = settings(text, files)
    server = DnsServer(msgspec.structs.replace(config, listen=("127.0.0.1",), port=port or free_port()), SystemClock())
    fill_cluster(server.zone)
    await server.open()
    try:
        yield server
    finally:
        await server.close()


async def ask(
    server: DnsServer, name: str, *, tcp: bool = False, kind: str = "A", dnssec: bool = False, timeout_s: float = 20
) -> dns.message.Message:
    query = dns.message.make_query(name, kind, want_dnssec=dnssec)
    send = dns.asyncquery.tcp if tcp else dns.asyncquery.udp
    return await send(query, "127.0.0.1", timeout=timeout_s, port=server.port)


def run(body: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await body

    asyncio.run(bounded())


def root(plugins: str) -> str:
    return f". {{\n kubernetes cluster.local\n {plugins}\n}}\n"


def test_rewritten_name_is_asked_for_upstream_and_cached() -> None:
    async def body() -> None:
        async with name_server(address_answer) as upstream:
            text = root(f"rewrite name a.example b.example\n cache\n forward . {upstream.address}")
            async with serving(text) as server:
                for tcp in (False, True, False):
                    assert lines(await ask(server, "a.example.", tcp=tcp)) == ["a.example. 60 A 192.0.2.7"]
                assert upstream.times("b.example.") == 2 and upstream.times("a.example.") == 0

    run(body())


def test_refused_clients_get_no_answer_over_udp_and_tcp() -> None:
    async def body() -> None:
        async with serving(root("acl {\n block net 127.0.0.0/8\n }")) as server:
            for tcp in (False, True):
                reply = await ask(server, "web.shop.svc.cluster.local.", tcp=tcp)
                assert reply.rcode() == dns.rcode.REFUSED

    run(body())


def test_excepted_names_are_not_asked_for_upstream() -> None:
    async def body() -> None:
        async with (
            name_server(address_answer) as upstream,
            serving(root(f"forward . {upstream.address} {{\n except corp.example\n }}")) as server,
        ):
            assert (await ask(server, "a.corp.example.")).rcode() == dns.rcode.SERVFAIL
            assert lines(await ask(server, "a.example.")) == ["a.example. 60 A 192.0.2.7"]
            assert upstream.times("a.corp.example.") == 0

    run(body())


def _refusing(request: bytes) -> bytes:
    reply = dns.message.make_response(dns.message.from_wire(request))
    reply.set_rcode(dns.rcode.SERVFAIL)
    return reply.to_wire()


def test_another_server_is_asked_after_a_failure_of_failover() -> None:
    async def body() -> None:
        async with name_server(_refusing) as bad, name_server(address_answer) as good:
            options = "policy sequential\n failover SERVFAIL"
            text = root(f"forward . {bad.address} {good.address} {{\n {options}\n }}")
            async with serving(text) as server:
                for tcp in (False, True):
                    assert lines(await ask(server, "a.example.", tcp=tcp)) == ["a.example. 60 A 192.0.2.7"]
            async with serving(root(f"forward . {bad.address} {{\n failover SERVFAIL\n }}")) as server:
                assert (await ask(server, "a.example.")).rcode() == dns.rcode.SERVFAIL

    run(body())


@asynccontextmanager
async def tls_server(folder: Path, name: str, answer: Callable[[bytes], bytes]) -> AsyncIterator[tuple[int, list[int]]]:
    """A name server over TLS with a certificate for ``name``: its port, and the requests of each connection."""
    for file, text in zip(("certificate", "key"), make_certificate(name), strict=True):
        (folder / file).write_text(text)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate", folder / "key")
    connections: list[int] = []

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(0)
        number = len(connections) - 1
        try:
            while True:
                request = await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))
                connections[number] += 1
                reply = answer(request)
                writer.write(len(reply).to_bytes(2, "big") + reply)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(converse, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1], connections
    finally:
        server.close()


def test_upstream_over_tls_uses_a_connection_again(tmp_path: Path) -> None:
    async def body() -> None:
        async with tls_server(tmp_path, "dns.example", address_answer) as (port, connections):
            options = f"tls {tmp_path}/certificate\n tls_servername dns.example"
            text = root(f"forward . tls://127.0.0.1:{port} {{\n {options}\n }}")
            async with serving(text) as server:
                for name in ("a.example.", "b.example.", "c.example."):
                    assert lines(await ask(server, name)) == [f"{name} 60 A 192.0.2.7"]
            # The probe for loops may have a connection of its own.
            assert sum(connections) >= 3 and len(connections) <= 2

    run(body())


def test_server_with_a_wrong_certificate_is_not_believed(tmp_path: Path) -> None:
    async def body() -> None:
        async with tls_server(tmp_path, "other.example", address_answer) as (port, _):
            options = f"tls {tmp_path}/certificate"
            text = root(f"forward . tls://127.0.0.1%dns.example:{port} {{\n {options}\n }}")
            async with serving(text) as server:
                assert (await ask(server, "a.example.")).rcode() == dns.rcode.SERVFAIL

    run(body())


def _zone_text(serial: int) -> str:
    return _ZONE.replace("{serial}", str(serial))


def _primary() -> str:
    return "example.org {\n transfer {\n to *\n }\n file /db\n}\n" + root("errors")


def test_zone_transfer_over_tcp_is_what_other_servers_read() -> None:
    async def body() -> None:
        async with serving(_primary(), {"/db": _zone_text(1)}) as server:
            zone = dns.zone.Zone("example.org.", relativize=False)
            await dns.asyncquery.inbound_xfr("127.0.0.1", zone, port=server.port)
            assert len(list(zone.iterate_rdatas())) == 4
            # A server that has the present serial gets the SOA record alone, and keeps its zone.
            await dns.asyncquery.inbound_xfr("127.0.0.1", zone, port=server.port)
            assert len(list(zone.iterate_rdatas())) == 4

    run(body())


def test_copied_zone_follows_its_server_and_expires() -> None:
    async def body() -> None:
        clock, copies = FakeClock(), dict[bytes, StaticZone]()
        origin, changed = encode_name("example.org"), asyncio.Event()
        async with serving(_primary(), {"/db": _zone_text(1)}) as server:
            zone = SecondaryZone(origin, (("127.0.0.1", server.port),), copies, lambda _zone: changed.set())
            task = asyncio.ensure_future(zone.follow(clock))
            await changed.wait()
        assert copies[origin].serial == 1
        changed.clear()
        # Real time passes for each attempt at the server that is gone; the clock of the zone goes on meanwhile.
        while not changed.is_set():
            await clock.advance(3600.0)
            await asyncio.sleep(0.01)  # noqa: ASYNC110
        assert copies == {}
        task.cancel()

    run(body())
