"""The nftables data plane with real packets: every case of the packet table, restart, healing, replacement."""

import contextlib
import os
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.cases.service_table import NODE, Case
from tests.kernel.service_namespaces import (
    CASES,
    World,
    affinity_to_an_endpoint_that_goes,
    by_name,
    changes_under_traffic,
    failures_of,
    inside,
    path,
    proxy_follows_and_heals,
    traffic,
)
from tests.kernel.service_owner import ServiceOwner

from podwire.kernel import netns
from podwire.proxy.dataplanes.nftables.dataplane import NftablesDataPlane
from podwire.proxy.dataplanes.nftables.layout import TABLE
from podwire.proxy.servicemap import ResolvedEndpoint
from podwire.state.nft_text import parse_table

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def wait_for(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not check():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.01)


def asked_by(address: str) -> str:
    with netns.inside(path("outside")), socket.socket() as sock:
        sock.settimeout(20)
        sock.bind((address, 0))
        sock.connect(("192.168.99.1", 30080))
        return sock.recv(100).decode().split()[0]


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


def held(family: str) -> str:
    return inside("node", "nft", "list", "table", family, TABLE)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_nft_lists_what_is_desired(plane: ServiceOwner, case: Case) -> None:
    plane.load(case.resolved())
    assert TABLE in inside("node", "nft", "-j", "list", "ruleset")
    for table in plane.desired():
        assert str(parse_table(held(table.family))) == str(table.canonical())


def test_a_restart_writes_nothing(world: World, plane: ServiceOwner) -> None:
    for case in CASES:
        plane.load(case.resolved())
        with contextlib.closing(NftablesDataPlane(NODE, path("node"))) as again:
            assert not any(again.load(case.resolved())), case.name


def test_a_restart_applies_changes_made_meanwhile(world: World, plane: ServiceOwner) -> None:
    plane.load(by_name("externalTrafficPolicy Local").resolved())
    with contextlib.closing(NftablesDataPlane(NODE, path("node"))) as again:
        again.load(by_name("ClusterIP").resolved())
        for table in again.desired():
            assert str(parse_table(held(table.family))) == str(table.canonical())


def test_tables_of_an_older_version_are_adopted_without_gap(world: World, plane: ServiceOwner) -> None:
    case = by_name("session affinity")
    old = Path(__file__).parents[1] / "golden/nft/services-0.1.nft"
    inside("node", "nft", "-f", str(old))
    with traffic(world, "far", "10.96.0.10") as inner, traffic(world, "outside", "192.168.99.1", 30080) as outer:
        wait_for(lambda: len(inner) + len(outer) > 50)
        plane.load(case.resolved())
        count = len(inner) + len(outer)
        wait_for(lambda: len(inner) + len(outer) > count + 50)
    results = inner + outer
    assert set(results) <= {"one", "two"}, {r: results.count(r) for r in set(results)}
    assert "affinity-clients" in held("ip") and "map affinity {" not in held("ip")
    assert not any(plane.heal())
    assert not failures_of(world, case)


def test_clients_beyond_the_size_of_the_affinity_set_are_served(world: World, plane: ServiceOwner) -> None:
    plane.load(by_name("session affinity").resolved())
    small = held("ip").replace("size 1048576", "size 2")
    inside("node", "nft", "delete", "table", "ip", TABLE)
    inside("node", "nft", small)
    inside("outside", "ip", "route", "add", "local", "172.20.0.0/16", "dev", "lo")
    inside("node", "ip", "route", "add", "172.20.0.0/16", "via", "192.168.99.2")
    try:
        clients = [f"172.20.0.{number}" for number in range(1, 31)]
        reached = {client: {asked_by(client) for _ in range(8)} for client in clients}
    finally:
        inside("outside", "ip", "route", "del", "local", "172.20.0.0/16", "dev", "lo")
        inside("node", "ip", "route", "del", "172.20.0.0/16")
    assert set.union(*reached.values()) == {"one", "two"}
    assert all(len(reached[client]) == 1 for client in clients[:2])
    assert any(len(reached[client]) == 2 for client in clients[2:])


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_every_endpoint_gets_its_share(world: World, plane: ServiceOwner, count: int) -> None:
    """This holds also when the capacity is twice the number of endpoints, as after one of them went."""
    (web,) = by_name("ClusterIP").resolved()["default/web"]
    web = msgspec.structs.replace(web, cluster_ip=f"10.96.1.{count}")
    every = tuple(ResolvedEndpoint("10.180.0.1", 9000 + number, True) for number in range(count + 1))
    with contextlib.ExitStack() as stack:
        for endpoint in every:
            with netns.inside(path("one")):
                stack.enter_context(socket.create_server(("10.180.0.1", endpoint.port), backlog=4096))
        for endpoints in (every, every[:count]):
            plane.update({"default/web": (msgspec.structs.replace(web, cluster_endpoints=endpoints),)})
        with netns.inside(path("far")):
            for _ in range(900):
                socket.create_connection((web.cluster_ip, 80), 2).close()
    flows = inside("node", "conntrack", "-L", "-p", "tcp", "--orig-dst", web.cluster_ip).splitlines()
    counter = Counter(match[1] for flow in flows if (match := re.search(r"src=10.180.0.1 .*sport=(9\d+)", flow)))
    assert set(counter) == {str(endpoint.port) for endpoint in every[:count]}
    expected = sum(counter.values()) / count
    assert all(abs(observed - expected) < 6 * expected**0.5 for observed in counter.values()), counter


def test_foreign_tables_stay(world: World, plane: ServiceOwner) -> None:
    inside("node", "nft", "add", "table", "ip", "foreign")
    plane.load(by_name("ClusterIP").resolved())
    plane.remove()
    assert inside("node", "nft", "list", "tables") == "table ip foreign\n"
    inside("node", "nft", "delete", "table", "ip", "foreign")


def test_changes_under_traffic_lose_nothing(world: World, plane: ServiceOwner) -> None:
    changes_under_traffic(world, plane, least=50)


def test_a_full_load_follows_a_refused_commit(world: World, plane: ServiceOwner) -> None:
    plane.load(by_name("ClusterIP").resolved())
    inside("node", "nft", "flush", "map", "ip", TABLE, "services")
    plane.update({"default/web": ()})
    for table in plane.desired():
        assert str(parse_table(held(table.family))) == str(table.canonical())


def test_affinity_ends_with_a_removed_endpoint(world: World, plane: ServiceOwner) -> None:
    affinity_to_an_endpoint_that_goes(world, plane)


@pytest.mark.parametrize(
    "command",
    ["flush chain ip {} dispatch", "flush map ip {} services", "add rule ip {} nat-output drop", "flush table ip {}"],
)
def test_repair_writes_what_was_touched_before_it_reads(plane: ServiceOwner, command: str) -> None:
    plane.load(by_name("NodePort with policy Cluster").resolved())
    before = held("ip")
    inside("node", "nft", command.format(TABLE))
    assert held("ip") != before
    wait_for(plane.disturbed)
    first, *compared = plane.heal()
    assert first and not any(compared)
    assert held("ip") == before
    assert not any(plane.heal())


def test_the_proxy_follows_its_sources_and_restores_rules(world: World, plane: ServiceOwner) -> None:
    proxy_follows_and_heals(world, plane.plane)
