"""Clients spread over all addresses of a name: which address comes first, over each transport, as a chi-square test."""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import dns.edns
import dns.message
import dns.rdatatype
import dns.rrset
import pytest
from tests.fakes.name_server import name_server
from tests.fakes.ports import free_port

from podwire.dns.config import DnsConfig
from podwire.dns.server import DnsServer
from podwire.model.meta import ObjectMeta
from podwire.model.service import Endpoint, EndpointSlice, Service, ServiceSpec
from podwire.runtime.clock import SystemClock

LIMIT_OF_SEVEN = 32.9
"""Chi-square with seven degrees of freedom exceeds this in 28 of a million runs."""
ASKED = 200


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await body()

    asyncio.run(bounded())


def set_headless(server: DnsServer, name: str, count: int) -> None:
    index = server.zone.index
    service = Service(metadata=ObjectMeta(name=name, namespace="shop"), spec=ServiceSpec(cluster_ip="None"))
    index.set_service(f"shop/{name}", service, 1)
    labels = {"kubernetes.io/service-name": name}
    endpoints = tuple(Endpoint(addresses=(f"10.244.{i // 250}.{i % 250 + 1}",)) for i in range(count))
    meta = ObjectMeta(name=name, namespace="shop", labels=labels)
    index.set_slice(f"shop/{name}", EndpointSlice(metadata=meta, endpoints=endpoints), 1)


def set_alias(server: DnsServer, name: str, target: str) -> None:
    spec = ServiceSpec(type="ExternalName", external_name=target)
    service = Service(metadata=ObjectMeta(name=name, namespace="shop"), spec=spec)
    server.zone.index.set_service(f"shop/{name}", service, 1)


def eight_answers(request: bytes) -> bytes:
    query = dns.message.from_wire(request)
    reply = dns.message.make_response(query, recursion_available=True)
    reply.answer.append(dns.rrset.from_text(query.question[0].name, 60, "IN", "A", *(f"192.0.2.{i}" for i in range(8))))
    return reply.to_wire()


@asynccontextmanager
async def serving() -> AsyncIterator[DnsServer]:
    async with name_server(eight_answers) as upstream:
        config = DnsConfig(listen=("127.0.0.1",), port=free_port(), upstreams=(upstream.address,))
        server = DnsServer(config, SystemClock())
        set_headless(server, "eight", 8)
        set_headless(server, "many", 500)
        set_alias(server, "inside", "eight.shop.svc.cluster.local")
        set_alias(server, "outside", "www.example.com")
        server.zone.index.mark_synced()
        await server.open()
        try:
            yield server
        finally:
            await server.close()


def questions(name: str, *, cookies: bool) -> list[bytes]:
    query = dns.message.make_query(name, "A", use_edns=0 if cookies else False, payload=1232)
    options = (dns.edns.GenericOption(dns.edns.OptionType.COOKIE, index.to_bytes(8, "big")) for index in range(ASKED))
    requests = []
    for option in options:
        if cookies:
            query.use_edns(0, payload=1232, options=[option])
        requests.append(query.to_wire())
    return requests


async def ask_udp(server: DnsServer, requests: list[bytes]) -> list[bytes]:
    loop = asyncio.get_running_loop()
    replies = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        link.setblocking(False)
        link.connect(("127.0.0.1", server.port))
        for request in requests:
            link.send(request)
            replies.append(await loop.sock_recv(link, 65535))
    return replies


async def ask_tcp(server: DnsServer, requests: list[bytes]) -> list[bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    replies = []
    for request in requests:
        writer.write(len(request).to_bytes(2, "big") + request)
        replies.append(await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big")))
    writer.close()
    return replies


def addresses(reply: bytes) -> list[str]:
    message = dns.message.from_wire(reply, one_rr_per_rrset=True)
    return [rrset[0].to_text() for rrset in message.answer if rrset.rdtype == dns.rdatatype.A]


def chi_square(counts: Counter[str], kinds: int) -> float:
    expected = counts.total() / kinds
    absent = kinds - len(counts)
    return sum((count - expected) ** 2 / expected for count in counts.values()) + absent * expected


@pytest.mark.parametrize("ask", [ask_udp, ask_tcp])
@pytest.mark.parametrize("cookies", [False, True])
@pytest.mark.parametrize("name", ["eight.shop", "inside.shop", "outside.shop", "www.example.com"])
def test_each_address_comes_first_equally_often(
    name: str, cookies: bool, ask: Callable[[DnsServer, list[bytes]], Awaitable[list[bytes]]]
) -> None:
    async def body() -> None:
        async with serving() as server:
            whole = f"{name}.svc.cluster.local" if name.endswith("shop") else name
            replies = await ask(server, questions(whole, cookies=cookies))
            listed = [addresses(reply) for reply in replies]
            assert {tuple(sorted(answer)) for answer in listed} == {tuple(sorted(listed[0]))} and len(listed[0]) == 8
            assert chi_square(Counter(answer[0] for answer in listed), 8) < LIMIT_OF_SEVEN

    run(body)


def test_changes_of_the_zone_do_not_start_the_order_again() -> None:
    async def body() -> None:
        async with serving() as server:
            firsts: Counter[str] = Counter()
            for request in questions("eight.shop.svc.cluster.local", cookies=False):
                server.forget()
                firsts[addresses((await ask_udp(server, [request]))[0])[0]] += 1
            assert chi_square(firsts, 8) < LIMIT_OF_SEVEN

    run(body)


def test_truncated_replies_show_every_address_in_time() -> None:
    async def body() -> None:
        async with serving() as server:
            replies = await ask_udp(server, questions("many.shop.svc.cluster.local", cookies=False) * 2)
            listed = [addresses(reply) for reply in replies]
            assert {len(answer) for answer in listed} == {29} and all(reply[2] & 2 for reply in replies)
            assert len({address for answer in listed for address in answer}) == 500

    run(body)
