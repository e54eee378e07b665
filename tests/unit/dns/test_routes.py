"""Stub domains, policies and transports, with real upstream servers."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import dns.message
import dns.rcode
import pytest
from tests.fakes.name_server import Answerer, NameServer, address_answer, name_server

from podwire.dns.config import DnsConfig, ForwardConfig
from podwire.dns.names import encode_name
from podwire.dns.routes import ForwardRoutes
from podwire.runtime.clock import SystemClock


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await body()

    asyncio.run(bounded())


async def ask(routes: ForwardRoutes, name: str, *, tcp: bool = False) -> dns.message.Message | None:
    reply = await routes.choose(encode_name(name)).ask(dns.message.make_query(name, "A").to_wire(), tcp=tcp)
    return None if reply is None else dns.message.from_wire(reply)


def test_longest_stub_domain_is_asked() -> None:
    async def body() -> None:
        async with (
            name_server(address_answer) as root,
            name_server(address_answer) as outer,
            name_server(address_answer) as inner,
        ):
            stubs = {
                "a.example": ForwardConfig(upstreams=(outer.address,)),
                "b.a.example": ForwardConfig(upstreams=(inner.address,)),
            }
            routes = ForwardRoutes(DnsConfig(upstreams=(root.address,), stub_domains=stubs), SystemClock())
            for name in ("x.B.A.example", "b.a.example", "x.a.example", "xa.example", "example"):
                assert await ask(routes, name) is not None
            assert (len(inner.asked), len(outer.asked), len(root.asked)) == (2, 1, 2)
            await routes.close()

    run(body)


@pytest.mark.parametrize(("policy", "least"), [("sequential", 0), ("round_robin", 15), ("random", 3)])
def test_policy_chooses_the_server(policy: str, least: int) -> None:
    async def body() -> None:
        async with name_server(address_answer) as first, name_server(address_answer) as second:
            forward = ForwardConfig(upstreams=(first.address, second.address), policy=policy)
            routes = ForwardRoutes(DnsConfig(forward=forward), SystemClock())
            for number in range(30):
                assert await ask(routes, f"{number}.example") is not None
            assert len(first.asked) + len(second.asked) == 30
            assert least <= len(second.asked) <= 30 - least and len(first.asked) >= least
            await routes.close()

    run(body)


def _missing(request: bytes) -> bytes:
    reply = dns.message.make_response(dns.message.from_wire(request))
    reply.set_rcode(dns.rcode.NXDOMAIN)
    return reply.to_wire()


def _without_data(request: bytes) -> bytes:
    return dns.message.make_response(dns.message.from_wire(request)).to_wire()


@pytest.mark.parametrize(
    ("answer", "options", "asked"),
    [
        (_missing, {"next_codes": ("NXDOMAIN",)}, True),
        (_missing, {"next_codes": ("SERVFAIL", "REFUSED")}, False),
        (_missing, {"next_without_data": True}, False),
        (_without_data, {"next_without_data": True}, True),
        (_without_data, {"next_codes": ("NXDOMAIN",)}, False),
        (address_answer, {"next_codes": ("NXDOMAIN",), "next_without_data": True}, False),
        (address_answer, {"except_zones": ("example",)}, True),
        (address_answer, {"except_zones": ("b.example",)}, False),
    ],
)
def test_next_servers_are_asked_after_replies_that_do_not_count(
    answer: Answerer, options: dict[str, Any], asked: bool
) -> None:
    async def body() -> None:
        async with name_server(answer) as first, name_server(address_answer) as second:
            following = ForwardConfig(upstreams=(second.address,))
            forward = ForwardConfig(upstreams=(first.address,), next_forward=following, **options)
            routes = ForwardRoutes(DnsConfig(forward=forward), SystemClock())
            for tcp in (False, True):
                reply = await ask(routes, "a.example", tcp=tcp)
                assert reply is not None
                assert bool(reply.answer) == (asked or answer is address_answer)
            assert second.times("a.example.") == (2 if asked else 0)
            assert first.times("a.example.") == (0 if "example" in options.get("except_zones", ()) else 2)
            await routes.close()

    run(body)


def test_reply_of_the_last_server_counts_whatever_it_is() -> None:
    async def body() -> None:
        async with name_server(_missing) as first, name_server(_missing) as second:
            last = ForwardConfig(upstreams=(second.address,), next_codes=("NXDOMAIN",))
            forward = ForwardConfig(upstreams=(first.address,), next_codes=("NXDOMAIN",), next_forward=last)
            routes = ForwardRoutes(DnsConfig(forward=forward), SystemClock())
            reply = await ask(routes, "a.example")
            assert reply is not None and reply.rcode() == dns.rcode.NXDOMAIN
            assert (len(first.asked), len(second.asked)) == (1, 1)
            await routes.close()

    run(body)


class Transports:
    """An answerer that remembers over which transport each request came, and truncates over UDP."""

    def __init__(self) -> None:
        self.server: NameServer | None = None

    def __call__(self, request: bytes) -> bytes:
        reply = bytearray(address_answer(request))
        reply[2] |= 2 if self.server is not None and not self.server.writers else 0
        return bytes(reply)


@pytest.mark.parametrize(
    ("forward", "tcp", "connections"),
    [
        (ForwardConfig(), False, 0),
        (ForwardConfig(), True, 1),
        (ForwardConfig(force_tcp=True), False, 1),
        (ForwardConfig(prefer_udp=True), False, 0),
        (ForwardConfig(prefer_udp=True), True, 1),
    ],
)
def test_transport_follows_the_configuration(forward: ForwardConfig, tcp: bool, connections: int) -> None:
    async def body() -> None:
        answer = Transports()
        async with name_server(answer) as upstream:
            answer.server = upstream
            routes = ForwardRoutes(DnsConfig(upstreams=(upstream.address,), forward=forward), SystemClock())
            reply = await ask(routes, "www.example", tcp=tcp)
            assert reply is not None and len(upstream.writers) == connections
            assert len(upstream.asked) == (2 if forward.prefer_udp and tcp else 1)
            await routes.close()

    run(body)
