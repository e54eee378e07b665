"""A whole proxy on fake sources, with every data plane: API changes take effect for clients.

The clients keep their sockets, or go on connecting, while endpoints come, move and go.
"""

import asyncio
import contextlib
import errno
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec
import pytest
from tests.cases.service_table import ADDRESSES, NODE, Case, parse_case
from tests.fakes.collection import Collection
from tests.kernel.kernel_dataplanes import every_plane, opened
from tests.kernel.service_namespaces import (
    LATE_S,
    PODS,
    World,
    connecting,
    flush,
    inside,
    is_connected,
    path,
    until,
)

from podwire.kernel import netns
from podwire.model import service as api
from podwire.model.meta import ObjectMeta
from podwire.model.node import ZONE_LABEL, Node
from podwire.proxy.flows import flow_cleaner
from podwire.proxy.modes import open_dataplane
from podwire.proxy.registry import DATAPLANES
from podwire.proxy.runner import ServiceProxy, Sources
from podwire.runtime.clock import SystemClock

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as created:
        yield created


@pytest.fixture(params=every_plane())
def plane(world: World, request: pytest.FixtureRequest) -> Iterator[Any]:
    created = opened(request.param)
    yield created
    created.remove()
    created.close()


def case(endpoints: list[dict[str, Any]], **spec: Any) -> Case:
    service = {"name": "web", "clusterIP": "10.96.0.10", "ports": [{"port": 80}], **spec}
    return parse_case({"name": "web", "services": [service], "endpoints": {"web": endpoints}, "packets": []})


async def becomes(expected: str, ask: Callable[[], str], seconds: float = 15.0) -> None:
    """Polls until the result is the wanted one, while the proxy keeps running."""
    deadline = time.monotonic() + seconds
    while (result := await asyncio.to_thread(ask)) != expected:
        assert time.monotonic() < deadline, f"{result!r} in place of {expected!r}"
        await asyncio.sleep(0.01)


class Api:
    """The sources of a proxy."""

    def __init__(self) -> None:
        self.services = Collection[api.Service]()
        self.slices = Collection[api.EndpointSlice]()
        self.nodes = Collection[Node]()

    def apply(self, expected: Case, *, services: bool = True) -> None:
        """Puts the objects of a case into the sources, one slice after another."""
        if services:
            for service in expected.services:
                self.services.put(f"default/{service.metadata.name}", service)
        chunks = {f"default/{piece.metadata.name}": piece for piece in expected.slices}
        for key, piece in chunks.items():
            if self.slices.objects.get(key) != piece:
                self.slices.put(key, piece)
        for key in [*self.slices.objects]:
            if key not in chunks:
                self.slices.put(key, None)


@contextlib.asynccontextmanager
async def following(plane: Any, known: Case | None = None) -> AsyncIterator[Api]:
    """A running proxy; ``known`` are the objects that exist at its start."""
    sources = Api()
    cleaner = flow_cleaner(lambda: NODE.addresses, path("node"), mode=plane.name)
    proxy = ServiceProxy(Sources(sources.services, sources.slices, sources.nodes), plane, NODE, SystemClock(), cleaner)
    if known is not None:
        sources.apply(known)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(proxy.run())
        for source in (sources.services, sources.slices, sources.nodes):
            source.synced.set()
        await proxy.programmed.wait()
        yield sources
        running.cancel()


class Talker:
    """A UDP client that keeps its socket, and with it its port."""

    def __init__(self, source: str, address: str, port: int) -> None:
        with netns.inside(path(source)):
            self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.settimeout(0.2)
        self.sock.connect((address, port))

    def ask(self) -> str:
        """The endpoint and port that answer; empty without an answer."""
        try:
            with contextlib.suppress(PermissionError):
                self.sock.send(b"x")
            fields = self.sock.recv(100).decode().split()
        except OSError:
            return ""
        return f"{fields[0]}:{fields[2]}"


UDP = [{"port": 53, "protocol": "UDP", "nodePort": 30053}]
LOCAL = {"internalTrafficPolicy": "Local"}
WAYS = [
    ("one", "10.96.0.10", 53, {}),
    ("far", "10.96.0.10", 53, {}),
    ("node", "10.96.0.10", 53, {}),
    ("node", "10.96.0.10", 53, LOCAL),
    ("outside", "192.168.99.1", 30053, {}),
]


@pytest.mark.parametrize(
    ("source", "address", "port", "policy"), WAYS, ids=[f"{w[0]}-{w[2]}-{bool(w[3])}" for w in WAYS]
)
def test_udp_client_with_one_socket_follows_endpoint_changes(
    world: World, plane: Any, source: str, address: str, port: int, policy: dict[str, str]
) -> None:
    """This includes a client that sent before any endpoint existed, and one whose endpoint changes its port."""

    def at(*endpoints: dict[str, Any], number: int = 8080) -> Case:
        chunks = [{"of": list(endpoints), "ports": {"": number}}]
        return case(chunks, type="NodePort", ports=UDP, **policy)

    async def scenario() -> None:
        async with following(plane) as sources:
            talker = Talker(source, address, port)
            with contextlib.closing(talker.sock):
                sources.apply(at({"pod": "two", "ready": False, "serving": False}))
                for _ in range(3):
                    assert await asyncio.to_thread(talker.ask) == ""
                    await asyncio.sleep(0.02)
                for endpoints, number, expected in (
                    (({"pod": "two"},), 8080, "two:8080"),
                    (({"pod": "one"},), 8080, "one:8080"),
                    (({"pod": "one"},), 8081, "one:8081"),
                    ((), 8081, ""),
                    (({"pod": "two"},), 8080, "two:8080"),
                ):
                    sources.apply(at(*endpoints, number=number))
                    await becomes(expected, talker.ask)

    asyncio.run(scenario())


class Connecting(threading.Thread):
    """Connects all the time, and counts the answers of each endpoint."""

    def __init__(self, world: World, source: str, address: str, port: int) -> None:
        super().__init__()
        self.way = (source, address, port, "tcp", "", LATE_S)
        self.world, self.seen, self.stopping = world, Counter[str](), False

    def run(self) -> None:
        while not self.stopping:
            self.seen[self.world.connect(*self.way)[0]] += 1

    def __enter__(self) -> "Connecting":
        self.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.stopping = True
        self.join()


def test_an_endpoint_that_moves_between_slices_stays_reachable(world: World, plane: Any) -> None:
    """The slice that gains the endpoint changes first, then the one that loses it."""

    def at(first: bool, second: bool) -> Case:
        return case([{"of": [{"pod": "one"}] * first}, {"of": [{"pod": "one"}] * second}])

    async def scenario() -> None:
        async with following(plane) as sources:
            sources.apply(at(True, False))
            await becomes("one", lambda: world.connect("far", "10.96.0.10", 80)[0])
            with Connecting(world, "far", "10.96.0.10", 80) as client:
                for _ in range(8):
                    for first, second in ((True, True), (False, True), (True, True), (True, False)):
                        sources.apply(at(first, second))
                        await asyncio.sleep(0.03)
                await until(lambda: client.seen["one"] > 20)
            assert set(client.seen) == {"one"}

    asyncio.run(scenario())


def test_policies_ranges_and_labels_are_followed(world: World, plane: Any) -> None:
    """A change of the Service alone changes who gets in."""
    both: list[dict[str, Any]] = [{"pod": "far"}]
    balanced = {"type": "LoadBalancer", "ports": [{"port": 80, "nodePort": 30080}], "ingress": ["203.0.113.8"]}

    def seen() -> str:
        positions = {"vip": ("10.96.0.10", 80), "node": ("192.168.99.1", 30080), "balancer": ("203.0.113.8", 80)}
        return " ".join(name for name, (a, p) in positions.items() if world.connect("outside", a, p)[0] in PODS)

    async def scenario() -> None:
        async with following(plane) as sources:
            for spec, expected in (
                ({}, "vip node balancer"),
                ({"externalTrafficPolicy": "Local"}, "vip"),
                ({}, "vip node balancer"),
                ({"sourceRanges": ["192.168.99.2/32"]}, "vip node balancer"),
                ({"sourceRanges": ["198.51.100.0/24"]}, "vip node"),
                ({}, "vip node balancer"),
                ({"internalTrafficPolicy": "Local"}, "node balancer"),
                ({"ingress": []}, "vip node"),
                ({"ingress": [{"ip": "203.0.113.8", "ipMode": "Proxy"}]}, "vip node"),
                ({"labels": {"service.kubernetes.io/service-proxy-name": "other"}}, ""),
                ({}, "vip node balancer"),
            ):
                sources.apply(case(both, **(balanced | spec)))
                await becomes(expected, seen)

    asyncio.run(scenario())


def test_an_endpoint_that_becomes_ready_or_goes_is_followed(world: World, plane: Any) -> None:
    """From no endpoint to one and back, also when the Service was recreated with another address."""
    ready = case([{"pod": "two"}])
    (service,) = ready.services
    elsewhere = msgspec.structs.replace(service.spec, cluster_ip="10.96.0.20", cluster_ips=("10.96.0.20",))
    again = api.Service(metadata=ObjectMeta(name="web", namespace="default", uid="2"), spec=elsewhere)

    def at(address: str) -> str:
        return world.connect("one", address, 80)[0]

    async def scenario() -> None:
        async with following(plane) as sources:
            sources.apply(case([{"pod": "two", "ready": False, "serving": False}]))
            await becomes("refused", lambda: at("10.96.0.10"))
            sources.apply(ready)
            await becomes("two", lambda: at("10.96.0.10"))
            sources.apply(case([]))
            await becomes("refused", lambda: at("10.96.0.10"))
            sources.services.put("default/web", None)
            sources.services.put("default/web", again)
            sources.apply(ready, services=False)
            await becomes("two", lambda: at("10.96.0.20"))
            assert at("10.96.0.10") == "dropped"

    asyncio.run(scenario())


@pytest.mark.parametrize("name", [name for name in DATAPLANES if name != "ipvs"])
def test_flows_that_start_without_rules_are_not_refused(world: World, name: str) -> None:
    """When the rules are back, packets of such a flow are dropped untranslated until the flow is forgotten."""
    plane = opened(name)
    services = case([{"pod": "two"}], ports=UDP).resolved()
    talker = Talker("far", "10.96.0.10", 53)
    try:
        with contextlib.closing(talker.sock):
            plane.load(services)
            flush()
            assert talker.ask() == ""
            assert any(plane.load(services))
            talker.sock.send(b"x")
            with pytest.raises(TimeoutError):
                talker.sock.recv(100)
            forget = flow_cleaner(tuple, path("node"), mode=name)((), services["default/web"], gap=True)
            assert forget is not None and forget()["IPv4"] >= 1
            talker.sock.settimeout(10)
            assert talker.ask() == "two:8080"
    finally:
        inside("node", "nft", "delete", "table", "ip", "other")
        plane.remove()
        plane.close()


def test_flows_that_start_before_the_agent_are_served(world: World) -> None:
    plane = opened("nftables")

    async def scenario() -> None:
        with connecting("far", "10.96.0.10", 80) as early:
            async with following(plane, case([{"pod": "two"}])):
                await until(lambda: is_connected(early), 10)

    flush()
    try:
        asyncio.run(scenario())
    finally:
        inside("node", "nft", "delete", "table", "ip", "other")
        plane.remove()
        plane.close()


@pytest.mark.parametrize("write", ["load", "update"])
def test_flow_that_starts_after_a_flush_is_served(world: World, write: str) -> None:
    """The rules are back before the flush is noticed, so no repair follows."""
    plane = opened("nftables")
    known = case([{"pod": "two"}])
    early: list[socket.socket] = []
    original = getattr(plane, write)

    def flushed(*args: Any) -> Any:
        if not early:
            flush()
            early.append(connecting("far", "10.96.0.10", 80))
        return original(*args)

    async def scenario() -> None:
        async with following(plane, known) as sources:
            setattr(plane, write, flushed)
            if write == "load":
                zone = ObjectMeta(name=NODE.name, labels={ZONE_LABEL: "elsewhere"})
                sources.nodes.put(NODE.name, Node(metadata=zone))
            else:
                sources.apply(case([{"pod": "two"}, {"pod": "one"}]))
            await until(lambda: bool(early) and is_connected(early[0]), 10)

    try:
        asyncio.run(scenario())
    finally:
        for client in early:
            client.close()
            inside("node", "nft", "delete", "table", "ip", "other")
        plane.remove()
        plane.close()


GAPS = (
    "flush chain ip podwire-proxy dispatch",
    "flush chain ip podwire-proxy cluster-4",
    "flush map ip podwire-proxy services",
    "flush map ip podwire-proxy endpoints",
    "flush table ip podwire-proxy",
    "delete chain ip podwire-proxy nat-prerouting",
    "delete table ip podwire-proxy",
)


@pytest.mark.parametrize("command", GAPS)
def test_connection_refused_in_a_gap_succeeds_when_sent_again(world: World, command: str) -> None:
    """The proxy cannot repair before the first packets are sent, because this test holds its event loop."""
    plane = opened("nftables")
    ports = [{"name": "web", "port": 80}, {"name": "dns", **UDP[0]}]

    def connected(clients: list[socket.socket]) -> bool:
        """Whether the last client is connected; a refused one is followed by another from the same port."""
        if clients[-1].getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED:
            source = clients[-1].getsockname()
            clients[-1].close()
            clients.append(connecting("far", "10.96.0.10", 80, source))
        return is_connected(clients[-1])

    async def scenario() -> None:
        async with following(plane, case([{"pod": "two"}], ports=ports)):
            talker, clients = Talker("far", "10.96.0.10", 53), []
            with contextlib.closing(talker.sock):
                inside("node", "nft", command)
                clients.append(connecting("far", "10.96.0.10", 80))
                assert talker.ask() == ""
                assert not is_connected(clients[0])
                await until(lambda: connected(clients))
                await becomes("two:8080", talker.ask)
            clients[-1].close()

    try:
        asyncio.run(scenario())
    finally:
        plane.remove()
        plane.close()


@pytest.mark.parametrize("count", [2, 3])
def test_every_endpoint_gets_its_share(world: World, plane: Any, count: int) -> None:
    """Each endpoint gets its share of 600 connections, within six standard deviations."""
    pods = [{"pod": pod} for pod in PODS[:count]]
    plane.load(case(pods).resolved())
    tries = 600
    counter = Counter(world.connect("node", "10.96.0.10", 80, patience_s=LATE_S)[0] for _ in range(tries))
    assert set(counter) == set(PODS[:count])
    due = tries / count
    spread = 6 * (due * (1 - 1 / count)) ** 0.5
    assert all(abs(number - due) <= spread for number in counter.values()), counter


@pytest.mark.parametrize("name", [name for name in ("iptables",) if name in DATAPLANES])
def test_a_firewall_that_forwards_nothing_lets_services_through(world: World, name: str) -> None:
    """As kube-proxy does in its mode iptables, which accepts what it has translated and marked."""
    plane: Any = open_dataplane(name, NODE, path("node"))
    inside("node", "iptables", "-P", "FORWARD", "DROP")
    try:
        assert world.connect("outside", ADDRESSES["two"][0], 8080)[0] == "dropped"
        node_port = {"type": "NodePort", "ports": [{"port": 80, "nodePort": 30080}]}
        plane.load(case([{"pod": "two"}], **node_port).resolved())
        assert world.connect("outside", "192.168.99.1", 30080)[0] == "two"
        assert world.connect("outside", ADDRESSES["two"][0], 8080)[0] == "dropped"
    finally:
        inside("node", "iptables", "-P", "FORWARD", "ACCEPT")
        plane.remove()
        plane.close()
