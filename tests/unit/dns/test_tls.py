"""DNS over TLS: the answers of TCP, certificates of clients, and clients that do not finish the handshake."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import dns.asyncquery
import dns.message
import dns.rcode
import pytest
from tests.fakes.certificates import make_certificate
from tests.fakes.name_server import address_answer, name_server
from tests.fakes.ports import free_port
from tests.unit.dns.names_of_cluster import fill_cluster
from tests.unit.dns.plugins.corefiles import lines

from podwire.dns.config import DnsConfig, ServingTls, parse_config
from podwire.dns.server import DnsServer
from podwire.dns.tcp import TcpLimits
from podwire.errors import ConfigError
from podwire.runtime.clock import SystemClock

_NAME = "dns.example"


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await body()

    asyncio.run(bounded())


def certificate(folder: Path, owner: str) -> tuple[str, str]:
    """The files of a certificate and its key."""
    paths = folder / f"{owner}.crt", folder / f"{owner}.key"
    for path, text in zip(paths, make_certificate(_NAME if owner == "server" else owner), strict=True):
        path.write_text(text)
    return str(paths[0]), str(paths[1])


@asynccontextmanager
async def serving(folder: Path, *, clients: str = "none", upstream: str = "") -> AsyncIterator[DnsServer]:
    own, key = certificate(folder, "server")
    trusted, _ = certificate(folder, "client")
    tls = ServingTls(certificate=own, key=key, authorities=trusted if clients != "none" else "", clients=clients)
    config = DnsConfig(
        listen=("127.0.0.1",),
        port=free_port(),
        tls_port=free_port(),
        serving_tls=tls,
        upstreams=(upstream,) if upstream else (),
        resolv_conf="",
    )
    server = DnsServer(config, SystemClock(), tcp=TcpLimits(write_s=1.0))
    fill_cluster(server.zone)
    await server.open()
    try:
        yield server
    finally:
        await server.close()


def client_context(folder: Path, owner: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=folder / "server.crt")
    if owner:
        context.load_cert_chain(folder / f"{owner}.crt", folder / f"{owner}.key")
    return context


async def ask(server: DnsServer, name: str, context: ssl.SSLContext, kind: str = "A") -> dns.message.Message:
    query = dns.message.make_query(name, kind)
    return await dns.asyncquery.tls(
        query, "127.0.0.1", port=server.config.tls_port, server_hostname=_NAME, ssl_context=context, timeout=20
    )


def test_answers_over_tls_are_those_over_tcp(tmp_path: Path) -> None:
    async def body() -> None:
        async with name_server(address_answer) as upstream, serving(tmp_path, upstream=upstream.address) as server:
            context = client_context(tmp_path)
            for name in ("web.shop.svc.cluster.local.", "gone.shop.svc.cluster.local.", "www.example.com."):
                query = dns.message.make_query(name, "A")
                plain = await dns.asyncquery.tcp(query, "127.0.0.1", port=server.port, timeout=20)
                secret = await ask(server, name, context)
                assert (secret.rcode(), lines(secret)) == (plain.rcode(), lines(plain))
            assert server.tcp_connections() <= 6

    run(body)


def test_many_requests_share_a_connection(tmp_path: Path) -> None:
    async def body() -> None:
        async with serving(tmp_path) as server:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", server.config.tls_port, ssl=client_context(tmp_path), server_hostname=_NAME
            )
            query = dns.message.make_query("web.shop.svc.cluster.local.", "A").to_wire()
            writer.write((len(query).to_bytes(2, "big") + query) * 50)
            for _ in range(50):
                reply = await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))
                assert reply[:2] == query[:2] and reply[3] & 0xF == dns.rcode.NOERROR
            writer.close()

    run(body)


@pytest.mark.parametrize(
    ("clients", "owner", "accepted"),
    [
        ("none", "", True),
        ("optional", "", True),
        ("optional", "client", True),
        ("optional", "stranger", False),
        ("required", "client", True),
        ("required", "", False),
    ],
)
def test_certificates_of_clients_are_verified(tmp_path: Path, clients: str, owner: str, accepted: bool) -> None:
    async def body() -> None:
        certificate(tmp_path, "stranger")
        async with serving(tmp_path, clients=clients) as server:
            try:
                reply = await ask(server, "web.shop.svc.cluster.local.", client_context(tmp_path, owner))
            except (OSError, EOFError):
                assert not accepted
            else:
                assert accepted and reply.answer

    run(body)


def test_client_that_does_not_finish_the_handshake_is_cut_off(tmp_path: Path) -> None:
    async def body() -> None:
        async with serving(tmp_path) as server:
            link = socket.create_connection(("127.0.0.1", server.config.tls_port))
            link.setblocking(False)
            with link:
                assert await asyncio.get_running_loop().sock_recv(link, 1) == b""
            assert (await ask(server, "web.shop.svc.cluster.local.", client_context(tmp_path))).answer

    run(body)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("tlsPort: 853", "servingTls"),
        ("tlsPort: 853\nservingTls: {certificate: a, key: b, clients: some}", "servingTls.clients"),
    ],
)
def test_wrong_settings_of_tls_are_named(text: str, field: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_config(text, "dns.yaml")
    assert raised.value.path == field
