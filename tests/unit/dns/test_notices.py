"""Notices of changed zones (NOTIFY): sent to the servers of ``transfer``, taken by ``secondary``."""

import asyncio

import dns.asyncquery
import dns.flags
import dns.message
import dns.opcode
import dns.rcode
import pytest
from tests.fakes.name_server import name_server
from tests.fakes.ports import free_port
from tests.unit.dns.plugins.corefiles import lines
from tests.unit.dns.test_plugin_server import ask, root, run, serving

from podwire.runtime.clock import SystemClock
from podwire.runtime.supervise import Supervisor

_ZONE = "$TTL 300\n@ IN SOA ns hostmaster {} 7200 1800 86400 60\n@ NS ns\nns A 192.0.2.53\nwww A 192.0.2.{}\n"


def primary(*told: str) -> str:
    return f"example.org {{\n transfer {{\n to {' '.join(told)}\n }}\n file /db\n}}\n" + root("errors")


def notice(zone: str) -> dns.message.QueryMessage:
    message = dns.message.make_query(zone, "SOA", flags=dns.flags.AA)
    message.set_opcode(dns.opcode.NOTIFY)
    return message


def test_servers_of_a_transfer_are_told_until_they_take_it() -> None:
    received: list[dns.message.Message] = []
    taken = asyncio.Event()

    def answer(request: bytes) -> bytes:
        message = dns.message.from_wire(request)
        received.append(message)
        reply = dns.message.make_response(message)
        reply.set_rcode(dns.rcode.REFUSED if len(received) == 1 else dns.rcode.NOERROR)
        if len(received) == 2:
            taken.set()
        return reply.to_wire()

    async def body() -> None:
        async with name_server(answer) as other:
            text = primary(other.address, "198.51.100.0/24")
            async with serving(text, {"/db": _ZONE.replace("{}", "1")}):
                await taken.wait()
        for message in received:
            assert message.opcode() == dns.opcode.NOTIFY and message.flags & dns.flags.AA
            assert message.question[0].to_text() == "example.org. IN SOA"

    run(body())


def test_copied_zone_follows_a_notice_at_once() -> None:
    async def body() -> None:
        ports = [free_port(), free_port()]
        copied = f"example.org {{\n secondary {{\n transfer from 127.0.0.1:{ports[0]}\n }}\n}}\n" + root("errors")
        told = primary(f"127.0.0.1:{ports[1]}")
        async with (
            serving(copied, port=ports[1]) as secondary,
            Supervisor(SystemClock(), lambda name, failure: None) as supervisor,
        ):
            running = asyncio.all_tasks()
            for serial in ("1", "2"):
                async with serving(told, {"/db": _ZONE.replace("{}", serial)}, port=ports[0]):
                    if serial == "1":
                        secondary.follow_copies(supervisor)
                    # Without the notice, the copy would be compared after 7200 seconds.
                    expected = [f"www.example.org. 300 A 192.0.2.{serial}"]
                    while lines(await ask(secondary, "www.example.org.")) != expected:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
            for task in asyncio.all_tasks() - running:
                task.cancel()

    run(body())


@pytest.mark.parametrize(("source", "rcode"), [("127.0.0.1", "NOERROR"), ("192.0.2.1", "REFUSED"), ("", "NOTIMP")])
def test_notice_is_taken_from_the_servers_of_the_zone_alone(source: str, rcode: str) -> None:
    block = f"example.org {{\n secondary {{\n transfer from {source}\n }}\n}}\n" if source else ""

    async def body() -> None:
        async with serving(block + root("errors")) as server:
            for send in (dns.asyncquery.udp, dns.asyncquery.tcp):
                reply = await send(notice("example.org"), "127.0.0.1", timeout=20, port=server.port)
                assert dns.rcode.to_text(reply.rcode()) == rcode and reply.opcode() == dns.opcode.NOTIFY
            if source:
                other = await dns.asyncquery.udp(notice("example.net"), "127.0.0.1", timeout=20, port=server.port)
                assert other.rcode() == dns.rcode.REFUSED

    run(body())
