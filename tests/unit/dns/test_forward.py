"""Forwarding to real upstream servers that are dead, slow, lossy or gone."""

import asyncio
from collections.abc import Awaitable, Callable

import dns.asyncquery
import dns.flags
import dns.message
import dns.rcode
import pytest
from tests.fakes.name_server import NameServer, address_answer, name_server
from tests.fakes.ports import free_port

from podwire.dns.config import DnsConfig
from podwire.dns.forward import Forwarder, ForwardOptions, Overloaded, parse_upstream
from podwire.dns.server import DnsServer
from podwire.runtime.clock import SystemClock

FAST = ForwardOptions(deadline_s=1.0, resend_s=0.1, attempt_s=0.2)


def a_request(name: str) -> bytes:
    return dns.message.make_query(name, "A").to_wire()


def run(body: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await body()

    asyncio.run(bounded())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


class Forwarding:
    """A forwarder to some servers, closed at the end."""

    def __init__(self, *addresses: str, options: ForwardOptions = FAST) -> None:
        self.forwarder = Forwarder(tuple(parse_upstream(a, "test") for a in addresses), SystemClock(), options)

    async def __aenter__(self) -> Forwarder:
        return self.forwarder

    async def __aexit__(self, *_: object) -> None:
        await self.forwarder.close()


def silent_for(prefix: str) -> Callable[[bytes], bytes | None]:
    """Answers every name but those that begin with ``prefix``."""

    def answer(request: bytes) -> bytes | None:
        name = dns.message.from_wire(request).question[0].name.to_text()
        return None if name.startswith(prefix) else address_answer(request)

    return answer


@pytest.mark.parametrize("tcp", [False, True])
def test_dead_names_never_fail_other_names(tcp: bool) -> None:
    async def body() -> None:
        async with name_server(silent_for("dead")) as upstream, Forwarding(upstream.address) as forwarder:
            dead = [asyncio.ensure_future(forwarder.ask(a_request(f"dead{i}.example"), tcp=tcp)) for i in range(20)]
            for turn in range(30):
                assert await forwarder.ask(a_request(f"good{turn}.example"), tcp=tcp) is not None
                await asyncio.sleep(0.02)
            assert await asyncio.gather(*dead) == [None] * 20

    run(body)


@pytest.mark.parametrize("tcp", [False, True])
def test_slow_name_is_answered_and_delays_no_other(tcp: bool) -> None:
    async def body() -> None:
        delay_s = {"slow.example.": 0.6}
        async with (
            name_server(address_answer, lambda name: delay_s.get(name, 0.0)) as upstream,
            Forwarding(upstream.address) as forwarder,
        ):
            slow = asyncio.ensure_future(forwarder.ask(a_request("slow.example"), tcp=tcp))
            for turn in range(5):
                assert await forwarder.ask(a_request(f"good{turn}.example"), tcp=tcp) is not None
            assert not slow.done() and await slow is not None

    run(body)


def test_lost_packets_are_sent_again() -> None:
    async def body() -> None:
        def second_only(request: bytes) -> bytes | None:
            name = dns.message.from_wire(request).question[0].name.to_text()
            return address_answer(request) if upstream.times(name) >= 2 else None

        upstream: NameServer
        async with name_server(second_only) as upstream, Forwarding(upstream.address) as forwarder:
            for turn in range(3):
                assert await forwarder.ask(a_request(f"name{turn}.example"), tcp=False) is not None
            assert upstream.times("name0.example.") == 2

    run(body)


def test_dead_server_is_avoided_after_its_probes_fail() -> None:
    async def body() -> None:
        async with (
            name_server(lambda _: None) as dead,
            name_server(address_answer) as good,
            Forwarding(dead.address, good.address) as forwarder,
        ):
            assert await forwarder.ask(a_request("first.example"), tcp=False) is not None
            server = parse_upstream(dead.address, "test")
            await until(lambda: not forwarder.health.good(server))
            assert await forwarder.ask(a_request("second.example"), tcp=False) is not None
            assert dead.times("second.example.") == 0 and dead.times(".") >= 2
            dead.answer = address_answer
            await until(lambda: forwarder.health.good(server))

    run(body)


def test_bad_servers_are_asked_when_all_are_bad() -> None:
    async def body() -> None:
        async with name_server(lambda _: None) as upstream, Forwarding(upstream.address) as forwarder:
            server = parse_upstream(upstream.address, "test")
            assert await forwarder.ask(a_request("first.example"), tcp=False) is None
            await until(lambda: not forwarder.health.good(server))
            upstream.answer = address_answer
            assert await forwarder.ask(a_request("second.example"), tcp=False) is not None
            assert forwarder.health.good(server)

    run(body)


@pytest.mark.parametrize("tcp", [False, True])
def test_closed_port_is_passed_over_at_once(tcp: bool) -> None:
    async def body() -> None:
        options = ForwardOptions(deadline_s=10.0, resend_s=9.0, attempt_s=9.0)
        async with (
            name_server(address_answer) as good,
            Forwarding(f"127.0.0.1:{free_port()}", good.address, options=options) as forwarder,
            asyncio.timeout(5),
        ):
            assert await forwarder.ask(a_request("a.example"), tcp=tcp) is not None

    run(body)


def test_equal_requests_that_wait_are_sent_once() -> None:
    async def body() -> None:
        async with name_server(address_answer, lambda _: 0.05) as upstream, Forwarding(upstream.address) as forwarder:
            requests = [a_request("a.example") for _ in range(10)]
            replies = await asyncio.gather(*(forwarder.ask(request, tcp=False) for request in requests))
            assert [reply[:2] for reply in replies if reply] == [request[:2] for request in requests]
            assert upstream.times("a.example.") == 1

    run(body)


def test_reply_to_another_question_does_not_count() -> None:
    def forge(request: bytes) -> bytes:
        other = dns.message.make_query("evil.example", "A", id=dns.message.from_wire(request).id)
        return address_answer(other.to_wire())

    async def body() -> None:
        async with name_server(forge) as upstream, Forwarding(upstream.address) as forwarder:
            assert await forwarder.ask(a_request("a.example"), tcp=False) is None

    run(body)


def test_waiting_requests_are_limited() -> None:
    async def body() -> None:
        options = ForwardOptions(deadline_s=0.3, resend_s=0.3, max_pending=1)
        async with name_server(lambda _: None) as upstream, Forwarding(upstream.address, options=options) as forwarder:
            first = asyncio.ensure_future(forwarder.ask(a_request("a.example"), tcp=False))
            await asyncio.sleep(0)
            with pytest.raises(Overloaded):
                await forwarder.ask(a_request("b.example"), tcp=False)
            assert await first is None and forwarder.rejected == 1

    run(body)


@pytest.mark.parametrize("tcp", [False, True])
def test_failed_foreign_name_has_ra_and_not_aa(tcp: bool) -> None:
    async def body() -> None:
        config = DnsConfig(
            listen=("127.0.0.1",), port=free_port(), upstreams=(f"127.0.0.1:{free_port()}",), resolv_conf="/nonexistent"
        )
        server = DnsServer(config, SystemClock())
        await server.open()
        try:
            send = dns.asyncquery.tcp if tcp else dns.asyncquery.udp
            reply = await send(dns.message.make_query("a.example", "A"), "127.0.0.1", timeout=5, port=server.port)
            assert reply.rcode() == dns.rcode.SERVFAIL
            assert reply.flags & dns.flags.RA and not reply.flags & dns.flags.AA
        finally:
            await server.close()

    run(body)


class LateClock(SystemClock):
    """The machine's clock, ``late_s`` seconds later."""

    late_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.late_s


@pytest.mark.parametrize("tcp", [False, True])
@pytest.mark.parametrize("verify", [False, True])
def test_expired_reply_is_served_when_upstream_is_dead(verify: bool, tcp: bool) -> None:
    async def body() -> None:
        async with name_server(lambda request: address_answer(request, ttl=1)) as upstream:
            config = DnsConfig(
                listen=("127.0.0.1",),
                port=free_port(),
                upstreams=(upstream.address,),
                serve_stale_seconds=60.0,
                serve_stale_verify=verify,
            )
            clock = LateClock()
            server = DnsServer(config, clock)
            await server.open()
            try:
                send = dns.asyncquery.tcp if tcp else dns.asyncquery.udp
                query = dns.message.make_query("a.example", "A")
                first = await send(query, "127.0.0.1", timeout=9, port=server.port)
                clock.late_s = 2.0
                upstream.answer = lambda _: None
                second = await send(query, "127.0.0.1", timeout=9, port=server.port)
                assert (first.answer[0].ttl, second.answer[0].ttl) == (1, 0)
                await until(lambda: upstream.times("a.example.") > 1)
            finally:
                await server.close()

    run(body)
