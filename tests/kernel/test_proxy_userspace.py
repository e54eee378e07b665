"""The userspace data plane with real packets: every case of the packet table, restart, healing, replacement."""

import contextlib
import os
import select
from collections.abc import Iterator

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
)
from tests.kernel.service_owner import ServiceOwner

from podwire.proxy.dataplanes.userspace.dataplane import UserspaceDataPlane
from podwire.proxy.dataplanes.userspace.layout import TABLE
from podwire.proxy.dataplanes.userspace.messages import Ask, frame
from podwire.proxy.servicemap import ResolvedEndpoint
from podwire.state.nft_text import parse_table

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as created:
        yield created


@pytest.fixture
def plane(world: World) -> Iterator[ServiceOwner]:
    service_owner = ServiceOwner(UserspaceDataPlane(NODE, path("node")))
    yield service_owner
    service_owner.remove()
    service_owner.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_packet_table(world: World, plane: ServiceOwner, case: Case) -> None:
    plane.load(case.resolved())
    assert not failures_of(world, case.by(plane.name))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_restart_writes_nothing(world: World, plane: ServiceOwner, case: Case) -> None:
    plane.load(case.resolved())
    with contextlib.closing(UserspaceDataPlane(NODE, path("node"))) as again:
        assert not any(again.load(case.resolved()))
    assert not any(plane.load(case.resolved()))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_nft_lists_what_is_desired(plane: ServiceOwner, case: Case) -> None:
    plane.load(case.resolved())
    for table in plane.desired():
        listed = inside("node", "nft", "list", "table", table.family, TABLE)
        assert str(parse_table(listed)) == str(table.canonical())


def test_changes_under_traffic_lose_nothing(world: World, plane: ServiceOwner) -> None:
    changes_under_traffic(world, plane, least=50)


def test_affinity_ends_with_a_removed_endpoint(world: World, plane: ServiceOwner) -> None:
    affinity_to_an_endpoint_that_goes(world, plane)


def test_the_proxy_follows_its_sources_and_restores_rules(world: World, plane: ServiceOwner) -> None:
    proxy_follows_and_heals(world, plane.plane)


def test_an_answer_of_the_relay_is_not_a_rule_change(world: World, plane: ServiceOwner) -> None:
    plane.load(by_name("ClusterIP").resolved())
    plane.disturbed()
    peer = plane._client._peer
    assert peer is not None
    peer.sendall(frame(Ask()))
    assert select.select([peer], [], [], 10)[0]
    assert not select.select([plane.fileno()], [], [], 0)[0]
    assert not plane.disturbed()
    peer.recv(1 << 16)


def test_foreign_tables_stay(world: World, plane: ServiceOwner) -> None:
    inside("node", "nft", "add", "table", "ip", "foreign")
    plane.load(by_name("ClusterIP").resolved())
    plane.remove()
    assert inside("node", "nft", "list", "tables") == "table ip foreign\n"
    inside("node", "nft", "delete", "table", "ip", "foreign")


def test_a_changed_endpoint_needs_no_transaction(world: World, plane: ServiceOwner) -> None:
    resolved = by_name("ClusterIP").resolved()
    plane.load(resolved)
    (port,) = resolved["default/web"]
    item = msgspec.structs.replace(port, cluster_endpoints=port.cluster_endpoints[:1])
    *committed, changed = plane.update({"default/web": (item,)})
    assert not any(committed)
    assert changed == "ip default/web/tcp cluster"
    assert {world.connect("far", "10.96.0.10", 80)[0] for _ in range(4)} == {"one"}


def test_a_port_of_the_relay_refuses_direct_connections(world: World, plane: ServiceOwner) -> None:
    plane.load(by_name("ports and protocols are independent").resolved())
    state = plane.relay()
    assert state is not None
    assert state.ports
    for key, port in state.ports.items():
        protocol = "udp" if "/udp" in key else "tcp"
        for source in ("outside", "one", "node"):
            assert world.connect(source, "192.168.99.1", port, protocol)[0] == "refused", (source, key)


def test_endpoint_with_its_service_address_makes_no_loop(world: World, plane: ServiceOwner) -> None:
    resolved = by_name("ClusterIP").resolved()
    (port,) = resolved["default/web"]
    own = msgspec.structs.replace(port, cluster_endpoints=(ResolvedEndpoint("10.96.0.10", 80),))
    plane.load({"default/web": (own,)})
    assert world.connect("far", "10.96.0.10", 80)[0] == "reset"
    state = plane.relay()
    assert state is not None
    assert state.connections == 0


def test_sctp_is_refused(plane: ServiceOwner) -> None:
    (port,) = by_name("ClusterIP").resolved()["default/web"]
    plane.load({"default/web": (msgspec.structs.replace(port, protocol="sctp"),)})
    state = plane.relay()
    assert state is not None
    assert not state.ports
    assert "elements = { 10.96.0.10 }" in str(plane.desired()[0])
