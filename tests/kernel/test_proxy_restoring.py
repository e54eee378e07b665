"""Rules of Services that another program takes away are written from what the kernel's notifications name."""

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from tests.cases.service_table import NODE
from tests.fakes.collection import Collection
from tests.kernel.service_namespaces import LATE_S, World, by_name, inside, path, until
from tests.kernel.service_owner import ServiceOwner

from podwire.kernel import netns
from podwire.model.node import Node
from podwire.model.service import EndpointSlice, Service
from podwire.proxy.dataplanes.nftables.dataplane import NftablesDataPlane
from podwire.proxy.dataplanes.nftables.layout import TABLE
from podwire.proxy.flows import flow_cleaner
from podwire.proxy.runner import ServiceProxy, Sources
from podwire.proxy.servicemap import ResolvedEndpoint, ResolvedPort
from podwire.runtime.clock import SystemClock
from podwire.state.nft_diff import AddElements, AddRule, RestoreElements, Transaction
from podwire.state.nft_text import parse_table

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

COUNT = 40
FIRST_THREE = ", ".join(f"10.96.1.{number} . tcp . 80" for number in range(3))
ADDRESS = "10.96.1.1"


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as created:
        yield created


@pytest.fixture
def plane(world: World) -> Iterator[ServiceOwner]:
    service_owner = ServiceOwner(NftablesDataPlane(NODE, path("node")))
    yield service_owner
    service_owner.remove()
    service_owner.close()


def many() -> dict[str, tuple[ResolvedPort, ...]]:
    """Services with two endpoints each."""
    (web,) = by_name("ClusterIP").resolved()["default/web"]
    return {
        f"default/web{number}": (
            msgspec.structs.replace(web, service=f"default/web{number}", cluster_ip=f"10.96.1.{number}"),
        )
        for number in range(COUNT)
    }


def wait_for(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not check():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.01)


def nft(command: str) -> None:
    inside("node", "nft", command.format(t=f"ip {TABLE}"))


def as_desired(plane: ServiceOwner) -> bool:
    tables = (parse_table(inside("node", "nft", "list", "table", t.family, TABLE)) for t in plane.desired())
    return [str(table) for table in tables] == [str(table) for table in plane.desired()]


def count(written: tuple[Transaction, ...]) -> tuple[int, int]:
    """The rules and the elements that transactions add."""
    operations = [operation for transaction in written for operation in transaction.operations]
    elements = [o.elements for o in operations if isinstance(o, AddElements | RestoreElements)]
    return sum(isinstance(o, AddRule) for o in operations), sum(map(len, elements))


@contextlib.contextmanager
def established(world: World, plane: ServiceOwner) -> Iterator[None]:
    """A connection through a Service that goes on after the block."""
    (port,) = plane.services["default/web39"]
    there = msgspec.structs.replace(port, cluster_endpoints=(ResolvedEndpoint("10.180.0.1", 9090, True),))
    plane.update({"default/web39": (there,)})
    with netns.inside(path("one")), socket.create_server(("10.180.0.1", 9090)) as listener:
        with netns.inside(path("far")):
            client = socket.create_connection((port.cluster_ip, 80), 20)
        peer, _ = listener.accept()
    plane.update({"default/web39": (port,)})
    with client, peer:
        yield
        for sender, receiver in ((client, peer), (peer, client)):
            receiver.settimeout(20)
            sender.sendall(b"still")
            assert receiver.recv(5) == b"still"


@contextlib.contextmanager
def connecting(world: World) -> Iterator[list[str]]:
    """A client that connects all the time; the results of its connections."""
    stop, results = threading.Event(), list[str]()

    def connect() -> None:
        while not stop.is_set():
            results.append(world.connect("far", ADDRESS, 80, patience_s=LATE_S)[0])

    client = threading.Thread(target=connect)
    client.start()
    try:
        yield results
    finally:
        stop.set()
        client.join()


@pytest.mark.parametrize(
    ("command", "elements"),
    [
        ("flush map {t} services", COUNT),
        ("flush map {t} endpoints", 2 * COUNT),
        ("flush set {t} cluster-ips", COUNT),
        ("flush set {t} pod-cidrs", 1),
        (f"delete element {{t}} services {{{{ {FIRST_THREE} }}}}", 3),
        (f"delete element {{t}} services {{{{ {FIRST_THREE} }}}}; flush map {{t}} endpoints", 3 + 2 * COUNT),
        ("flush chain {t} dispatch", 0),
    ],
)
def test_only_what_was_taken_away_is_written(world: World, plane: ServiceOwner, command: str, elements: int) -> None:
    plane.load(many())
    with established(world, plane), connecting(world) as results:
        assert not plane.disturbed()
        nft(command)
        assert plane.disturbed()
        rules, written = count(plane.restore())
        assert written == elements
        dispatch = next(table for table in plane.desired() if table.family == "ip").chain("dispatch")
        assert rules == (0 if elements else len(dispatch.rules))
        assert not any(plane.heal()), "nothing else differs"
        assert as_desired(plane)
        before = len(results)
        wait_for(lambda: len(results) > before + 20)
        assert set(results[before + 1 :]) <= {"one", "two"}


def test_a_deleted_table_is_written_without_reading(world: World, plane: ServiceOwner) -> None:
    plane.load(many())
    with established(world, plane), connecting(world) as results:
        nft("delete table {t}")
        assert plane.disturbed()
        (transaction,) = plane.restore()
        desired = next(table for table in plane.desired() if table.family == "ip")
        expected = (
            sum(len(chain.rules) for chain in desired.chains),
            sum(len(declared.elements) for declared in desired.sets),
        )
        assert count((transaction,)) == expected
        assert not any(plane.heal())
        assert as_desired(plane)
        assert world.connect("one", ADDRESS, 80, patience_s=LATE_S)[0] in ("one", "two")
        wait_for(lambda: bool(results))


@pytest.mark.parametrize(
    "case", ["session affinity", "load balancer source ranges", "externalTrafficPolicy Local", "both families"]
)
def test_a_deleted_table_has_all_changes_when_it_is_back(plane: ServiceOwner, case: str) -> None:
    plane.load(many() | by_name(case).resolved())
    (port,) = plane.services["default/web3"]
    large = tuple(ResolvedEndpoint("10.180.0.1", 9000 + number, True) for number in range(100))
    for endpoints in (large, large[:64], large[:1], port.cluster_endpoints):
        changed = msgspec.structs.replace(port, cluster_endpoints=endpoints)
        plane.update({"default/web3": (changed,), "default/web4": ()})
        nft("delete table {t}")
        assert plane.disturbed()
        assert any(plane.restore())
        assert as_desired(plane)
        assert not any(plane.heal())


def test_elements_of_others_are_not_written_again(plane: ServiceOwner) -> None:
    plane.load(many())
    nft("add element {t} cluster-ips {{ 10.99.9.9 }}")
    nft("delete element {t} cluster-ips {{ 10.99.9.9, 10.96.1.1 }}")
    assert plane.disturbed()
    assert count(plane.restore()) == (0, COUNT)
    assert as_desired(plane)


def test_a_replaced_table_is_as_desired(plane: ServiceOwner) -> None:
    plane.load(many())
    nft("delete table {t}; add table {t}; add chain {t} dispatch; add rule {t} dispatch drop")
    assert plane.disturbed()
    assert any(plane.restore())
    assert as_desired(plane)
    assert not any(plane.heal())


def test_changes_without_notifications_are_found_by_comparison(plane: ServiceOwner) -> None:
    plane.load(many())
    with plane.plane._tables.notifications_off():
        nft("flush map {t} services")
    nft("flush map {t} endpoints")
    assert plane.disturbed()
    assert count(plane.restore()) == (0, 2 * COUNT)
    assert count(plane.heal()) == (0, COUNT)
    assert as_desired(plane)


def test_removed_elements_of_a_deleted_service_stay_away(plane: ServiceOwner) -> None:
    """A load that follows a refused change supersedes what notifications named before."""
    plane.load(many())
    nft("flush map {t} services")
    plane.update({"default/web7": ()})
    assert plane.counts().refused_updates == 1
    assert as_desired(plane)
    assert plane.disturbed()
    assert not any(plane.restore())
    assert as_desired(plane)


class Proxied:
    """A proxy on sources that a test changes, with the Services of a case."""

    def __init__(self, plane: NftablesDataPlane) -> None:
        self.case = by_name("ports and protocols are independent")
        self.slices = Collection[EndpointSlice]()
        services, nodes = Collection[Service](), Collection[Node]()
        for collection in (self.slices, services, nodes):
            collection.synced.set()
        services.put("default/web", self.case.services[0])
        for piece in self.case.slices:
            self.slices.put(f"default/{piece.metadata.name}", piece)
        cleaner = flow_cleaner(lambda: NODE.addresses, path("node"), mode=plane.name)
        sources = Sources(services, self.slices, nodes)
        self.proxy = ServiceProxy(sources, plane, NODE, SystemClock(), cleaner)

    @contextlib.asynccontextmanager
    async def running(self) -> Any:
        task = asyncio.get_running_loop().create_task(self.proxy.run())
        try:
            await until(self.proxy.programmed.is_set)
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("command", ["delete table {t}", "flush map {t} services", "flush chain {t} dispatch"])
def test_a_flow_of_the_gap_reaches_a_service_afterwards(world: World, plane: ServiceOwner, command: str) -> None:
    """The datagrams go out of one socket, so the kernel knows a flow of them."""

    def asked(client: socket.socket) -> str:
        with contextlib.suppress(OSError):
            client.send(b"x")
            return client.recv(100).decode().split()[0]
        return ""

    async def scenario() -> None:
        proxied = Proxied(plane.plane)
        async with proxied.running():
            gaps = 0
            while gaps < 3:
                with netns.inside(path("far")):
                    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                with client:
                    client.settimeout(0.3)
                    client.connect(("10.96.0.10", 53))
                    nft(command)
                    if asked(client):
                        continue  # A comparison that another thread had begun restored it at once.
                    gaps += 1
                    deadline = asyncio.get_running_loop().time() + 20
                    while not (result := await asyncio.to_thread(asked, client)):
                        assert asyncio.get_running_loop().time() < deadline
                    assert result == "two"

    asyncio.run(scenario())


@pytest.mark.parametrize("command", ["flush map {t} endpoints", "flush map {t} services; flush map {t} endpoints"])
def test_changes_of_missing_elements_are_not_refused(plane: ServiceOwner, command: str) -> None:
    async def scenario() -> None:
        proxied = Proxied(plane.plane)
        piece = proxied.case.slices[0]
        async with proxied.running():
            for turn in range(20):
                nft(command)
                endpoints = piece.endpoints if turn % 2 else ()
                proxied.slices.put("default/web-0", msgspec.structs.replace(piece, endpoints=endpoints))
                await until(proxied.proxy.programmed.is_set)
            assert plane.counts().refused_updates == 0
            await until(lambda: as_desired(plane))

    asyncio.run(scenario())
