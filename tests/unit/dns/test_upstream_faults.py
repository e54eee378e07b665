"""Upstream servers that lie or cut their replies, and clients that ask for both families on one socket."""

import asyncio
import socket
from collections.abc import Callable

import dns.flags
import dns.message
import dns.rcode
import pytest
from tests.fakes.name_server import address_answer, name_server
from tests.unit.dns.plugins.corefiles import lines
from tests.unit.dns.test_plugin_server import ask, root, run, serving

Lie = Callable[[bytes, bytes], bytes]


def _other_id(_request: bytes, reply: bytes) -> bytes:
    return bytes([reply[0] ^ 1]) + reply[1:]


def _other_question(request: bytes, _reply: bytes) -> bytes:
    query = dns.message.from_wire(request)
    lie = dns.message.make_query("evil.example.", "A")
    lie.id = query.id
    return address_answer(lie.to_wire(), "192.0.2.66")


def _no_reply_bit(_request: bytes, reply: bytes) -> bytes:
    return reply[:2] + bytes([reply[2] & 0x7F]) + reply[3:]


def _noise(request: bytes, _reply: bytes) -> bytes:
    return request[:2] + b"\x84"


@pytest.mark.parametrize("lie", [_other_id, _other_question, _no_reply_bit, _noise])
def test_lies_do_not_count_and_the_true_reply_does(lie: Lie) -> None:
    lies: list[bytes] = []

    def answer(request: bytes) -> bytes:
        reply = address_answer(request)
        if lies or b"www" not in request:
            return reply
        lies.append(lie(request, reply))
        return lies[0]

    async def body() -> None:
        async with name_server(answer) as upstream, serving(root(f"forward . {upstream.address}")) as server:
            assert lines(await ask(server, "www.example.")) == ["www.example. 60 A 192.0.2.7"]
            assert lies and upstream.times("www.example.") == 2

    run(body())


def test_cut_replies_are_passed_on_and_whole_over_tcp() -> None:
    def cut(request: bytes) -> bytes:
        reply = dns.message.make_response(dns.message.from_wire(request))
        reply.flags |= dns.flags.TC
        return reply.to_wire()

    async def body() -> None:
        async with name_server(cut) as upstream, serving(root(f"cache\n forward . {upstream.address}")) as server:
            for _ in range(2):
                assert (await ask(server, "big.example.")).flags & dns.flags.TC
            assert upstream.times("big.example.") == 2
            upstream.answer = address_answer
            assert lines(await ask(server, "big.example.", tcp=True)) == ["big.example. 60 A 192.0.2.7"]

    run(body())


def test_replies_with_broken_records_are_no_crash() -> None:
    def broken(request: bytes) -> bytes:
        return address_answer(request)[:-3]

    async def body() -> None:
        async with name_server(broken) as upstream:
            text = root(f"rewrite name a.example b.example\n forward . {upstream.address}")
            async with serving(text) as server:
                assert (await ask(server, "a.example.")).rcode() == dns.rcode.SERVFAIL
                assert lines(await ask(server, "web.shop.svc.cluster.local."))

    run(body())


def test_both_families_on_one_socket_get_their_own_answers() -> None:
    async def body() -> None:
        async with name_server(_by_family) as upstream:
            text = root(f"cache\n forward . {upstream.address}")
            async with serving(text) as server:
                await asyncio.to_thread(_race, server.port)

    run(body())


def _by_family(request: bytes) -> bytes:
    query = dns.message.from_wire(request)
    if query.question[0].rdtype == 1:
        return address_answer(request)
    return dns.message.make_response(query).to_wire()


def _race(port: int) -> None:
    """Sends A and AAAA back to back, as glibc does, and reads both replies in any order."""
    with socket.socket(type=socket.SOCK_DGRAM) as link:
        link.settimeout(20)
        link.connect(("127.0.0.1", port))
        for turn in range(40):
            name = ("web.shop.svc.cluster.local.", f"www{turn % 9}.example.", "gone.shop.svc.cluster.local.")[turn % 3]
            queries = [dns.message.make_query(name, kind) for kind in ("A", "AAAA")]
            for query in queries:
                link.send(query.to_wire())
            replies = {reply.id: reply for reply in (dns.message.from_wire(link.recv(4096)) for _ in queries)}
            for query in queries:
                assert query.is_response(replies[query.id])
            families = [bool(lines(replies[query.id])) for query in queries]
            assert families == ([False, False] if name.startswith("gone") else [True, False])
