"""The proxy's health pages and health check node ports in a node's namespace, asked from another machine."""

import asyncio
import http.client
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from podwire.http.message import Request, Response
from podwire.kernel import netns
from podwire.model.meta import ObjectMeta
from podwire.model.node import Node
from podwire.proxy.health import Pulse
from podwire.proxy.healthchecks import HealthChecks, listener, serve_at
from podwire.proxy.nodeaddresses import node_port_addresses
from podwire.proxy.servicemap import NodeFacts, ResolvedPort
from podwire.runtime.clock import SystemClock
from podwire.runtime.tasks import TaskSet

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

MARK = f"pwt-health-{os.getpid()}"
NODE, OUTSIDE = Path(f"/run/netns/{MARK}-node"), Path(f"/run/netns/{MARK}-outside")
ADDRESSES = ("192.168.99.1", "fd99::1")


def ip(where: Path | None, *arguments: str) -> None:
    subprocess.run(["ip", *(["-n", where.name] if where else []), *arguments], check=True)


@pytest.fixture(scope="module")
def world() -> Iterator[None]:
    for item in (NODE, OUTSIDE):
        ip(None, "netns", "add", item.name)
        ip(item, "link", "set", "lo", "up")
    ip(NODE, "link", "add", "outside", "type", "veth", "peer", "name", "eth0", "netns", OUTSIDE.name)
    for where, device, host in ((NODE, "outside", 1), (OUTSIDE, "eth0", 2)):
        ip(where, "addr", "add", f"192.168.99.{host}/24", "dev", device)
        ip(where, "addr", "add", f"fd99::{host}/64", "dev", device, "nodad")
        ip(where, "link", "set", device, "up")
    ip(NODE, "addr", "add", "192.168.99.3/24", "dev", "outside")
    yield
    for item in (NODE, OUTSIDE):
        ip(None, "netns", "delete", item.name)


def ask(address: str, port: int, path: str = "/") -> tuple[int, str, dict[str, object]]:
    """Status, weight and body; status 0 when nobody listens."""
    connection = http.client.HTTPConnection(address, port)
    with netns.inside(OUTSIDE):
        sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    with closing(connection):
        sock.settimeout(20)
        connection.sock = sock
        try:
            sock.connect((address, port))
            connection.request("GET", path)
            answer = connection.getresponse()
        except ConnectionError:  # a reset is what who is waiting gets when the listener goes
            return 0, "", {}
        body = answer.read()
    counts = json.loads(body) if answer.status == 200 or body[:1] == b"{" else {}  # the rest is text
    return answer.status, answer.getheader("X-Load-Balancing-Endpoint-Weight", ""), counts


def service(*ready: str) -> tuple[ResolvedPort, ...]:
    return tuple(
        ResolvedPort(service="t/x", port_name="", protocol="tcp", family=family, port=80, cluster_ip=address,
                    health_check_node_port=32000, local_ready=ready)
        for family, address in (("ip", "10.96.0.1"), ("ip6", "fd00:96::1"))
    )  # fmt: skip


def test_health_check_node_ports_count_local_endpoints(world: None) -> None:
    async def scenario() -> None:
        refused: list[tuple[str, str]] = []
        clock = SystemClock()
        checks = HealthChecks(
            Pulse(clock), listener(NODE), lambda: ADDRESSES, clock, lambda *subject: refused.append(subject)
        )
        tasks = TaskSet(lambda task, failure: None)
        tasks.start("checks", checks.run())

        async def asked(address: str = ADDRESSES[0]) -> tuple[int, str]:
            return (await asyncio.to_thread(ask, address, 32000))[:2]

        async def becomes(expected: tuple[int, str]) -> None:
            async with asyncio.timeout(20):
                while await asked() != expected:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

        assert await asked() == (0, "")
        checks.update({"t/x": service("10.0.0.1", "10.0.0.2")})
        await becomes((200, "2"))
        assert await asked(ADDRESSES[1]) == (200, "2")
        assert await asked("192.168.99.3") == (0, "")
        checks.update({"t/x": service()})
        await becomes((503, "0"))
        checks.update({"t/x": ()})
        await becomes((0, ""))
        assert refused == []
        await tasks.close()

    asyncio.run(scenario())


def test_node_ports_answer_at_the_configured_addresses(world: None) -> None:
    facts = NodeFacts(name="n1", addresses=ADDRESSES)
    assert node_port_addresses(facts, NODE) == ADDRESSES
    subset = msgspec.structs.replace(facts, node_port_ranges=("192.168.99.2/31", "::/0"))
    assert node_port_addresses(subset, NODE) == ("192.168.99.3", "fd99::1")


def test_healthz_and_livez_report_the_proxy(world: None) -> None:
    async def scenario() -> None:
        pulse = Pulse(SystemClock())
        node = Node(metadata=ObjectMeta(name="n1"))
        tasks = TaskSet(lambda task, failure: None)

        def page(request: Request) -> Response:
            return pulse.livez() if request.path == "/livez" else pulse.healthz(node)

        tasks.start("page", serve_at(listener(NODE), ("0.0.0.0", 10256), page, tasks, SystemClock()))

        async def asked(path: str) -> tuple[int, object]:
            status, _, body = await asyncio.to_thread(ask, ADDRESSES[0], 10256, path)
            return status, body.get("nodeEligible")

        async with asyncio.timeout(20):
            while await asked("/healthz") != (200, True):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        node = Node(metadata=ObjectMeta(name="n1", deletion_timestamp="2026-01-01T00:00:00Z"))
        assert await asked("/healthz") == (503, False)
        assert await asked("/livez") == (200, None)
        await tasks.close()

    asyncio.run(scenario())
