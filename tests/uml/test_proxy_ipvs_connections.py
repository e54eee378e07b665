"""Connections through the ``ipvs`` data plane: the choice of the endpoint, and the removal of an endpoint."""

import socket
from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from tests.cases.service_table import NODE
from tests.kernel.kernel_dataplanes import opened
from tests.kernel.service_namespaces import (
    World,
    affinity_to_an_endpoint_that_goes,
    inside,
    path,
)
from tests.kernel.service_owner import ServiceOwner
from tests.uml.ipvs_connections import (
    PODS,
    OpenConnections,
    another,
    differences,
    eventually,
    ipvsadm,
    kept_service,
    shares,
)

from podwire.errors import Unsupported
from podwire.proxy.dataplanes.ipvs.dataplane import IpvsDataPlane
from podwire.proxy.servicemap import IpvsSettings

pytestmark = pytest.mark.uml


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    socket.socket(socket.AF_INET6).close()  # which makes the kernel load IPv6
    with World() as created:
        yield created


@pytest.fixture
def plane(world: World) -> Iterator[ServiceOwner]:
    service_owner = ServiceOwner(opened("ipvs"))
    yield service_owner
    service_owner.remove()
    service_owner.close()


def test_a_removed_endpoint_keeps_its_connections(world: World, plane: ServiceOwner) -> None:
    """Scenario 90: an endpoint has weight 0 while a connection is open and is removed soon after; so is a Service."""
    other = tuple(replace(port, service="default/other", cluster_ip="10.96.0.11") for port in kept_service("far"))
    plane.load({"default/web": kept_service("one"), "default/other": other})
    with OpenConnections("one", "two", "far") as connections:
        assert [connections.connect(), connections.connect(address="10.96.0.11")] == ["one", "far"]
        plane.update({"default/web": kept_service("two"), "default/other": ()})
        assert "-r 10.180.0.1:9090 -m -w 0" in ipvsadm("-S", "-n")
        assert {connections.connect() for _ in range(6)} == {"two"}
        assert world.connect("outside", "10.96.0.11", 80)[0] == "dropped"
        assert connections.talk()
        assert differences(plane) == []
        with another() as again:
            assert not any(again.load({"default/web": kept_service("two")})), "also after a restart"
        assert connections.talk()
        for pod in ("one", "far"):
            connections.reset(pod)
        eventually(lambda: not plane.disturbed() and not {"10.180.0.1:9090", "10.96.0.11:80"} & served())
        assert "10.96.0.11" not in inside("node", "ip", "address", "show", "kube-ipvs0")
        assert connections.talk()


def served() -> set[str]:
    """Virtual servers and their endpoints."""
    return set(ipvsadm("-S", "-n").split())


def test_an_endpoint_that_comes_back_gets_its_weight_back(world: World, plane: ServiceOwner) -> None:
    """Scenario 91."""
    plane.load({"default/web": kept_service("one", "two")})
    with OpenConnections("one", "two") as connections:
        assert {connections.connect() for _ in range(2)} == {"one", "two"}
        plane.update({"default/web": kept_service("two")})
        assert (
            plane.update({"default/web": kept_service("one", "two")})[-1]
            == "-e -t 10.96.0.10:80 -r 10.180.0.1:9090 -m -w 1"
        )
        assert connections.talk()
        assert {connections.connect() for _ in range(4)} == {"one", "two"}


def test_connections_to_a_removed_endpoint_end_on_request(world: World, plane: ServiceOwner) -> None:
    """A terminating endpoint that still serves keeps them."""
    (both,) = kept_service("one", "two")
    (rest,) = kept_service("two")
    plane.load({"default/web": kept_service("one")}, replace(NODE, reset_connections=True))
    with OpenConnections("one", "two") as connections:
        connections.connect()
        plane.update({"default/web": (replace(rest, serving=both.serving),)})
        assert connections.talk()
        plane.update({"default/web": (rest,)})
        eventually(lambda: not plane.disturbed() and "10.180.0.1:9090" not in ipvsadm("-S", "-n"))
        _, client, _ = connections.clients[0]
        with pytest.raises(ConnectionResetError):
            for _ in range(3):
                client.sendall(b"anybody?")
                client.recv(5)


@pytest.mark.parametrize("scheduler", ["rr", "wrr", "lc", "wlc", "sed", "nq", "sh", "mh"])
def test_no_connection_is_refused_while_an_endpoint_leaves(world: World, plane: ServiceOwner, scheduler: str) -> None:
    facts = replace(NODE, ipvs=IpvsSettings(scheduler=scheduler))
    plane.load({"default/web": kept_service("one", "two", "far")}, facts)
    with OpenConnections("one", "two", "far") as connections:
        for _ in range(6):
            connections.connect()
        plane.update({"default/web": kept_service("two")})
        assert {connections.connect(port=20000 + port) for port in range(12)} == {"two"}
        assert connections.talk()


@pytest.mark.parametrize("scheduler", ["rr", "wrr", "lc", "wlc", "sed", "nq"])
def test_connections_are_spread_evenly(world: World, plane: ServiceOwner, scheduler: str) -> None:
    plane.load({"default/web": kept_service(*PODS)}, replace(NODE, ipvs=IpvsSettings(scheduler=scheduler)))
    assert f"-A -t 10.96.0.10:80 -s {scheduler} " in ipvsadm("-S", "-n")
    with OpenConnections(*PODS) as connections:
        assert shares(connections, 6) == {"one": 2, "two": 2, "far": 2}


@pytest.mark.parametrize(("scheduler", "counts"), [("rr", False), ("wrr", False), ("lc", True), ("wlc", True),
                                                   ("sed", True), ("nq", True)])  # fmt: skip
def test_some_schedulers_prefer_endpoints_with_fewer_connections(
    world: World, plane: ServiceOwner, scheduler: str, counts: bool
) -> None:
    """With four connections at each of two pods and none at the third, schedulers that count them choose the third."""
    facts = replace(NODE, ipvs=IpvsSettings(scheduler=scheduler))
    plane.load({"default/web": kept_service("one", "two")}, facts)
    with OpenConnections(*PODS) as connections:
        shares(connections, 8)
        plane.update({"default/web": kept_service(*PODS)})
        assert (shares(connections, 2)["far"] == 2) == counts


def test_sh_chooses_by_the_client_and_dh_by_the_address(world: World, plane: ServiceOwner) -> None:
    other = tuple(replace(port, service="default/other", cluster_ip="10.96.0.11") for port in kept_service(*PODS))
    both = {"default/web": kept_service(*PODS), "default/other": other}
    plane.load(both, replace(NODE, ipvs=IpvsSettings(scheduler="sh")))
    with OpenConnections(*PODS) as connections:
        for source in ("outside", "one"):
            assert len({connections.connect(source) for _ in range(6)}) == 1
            assert {connections.connect(source, "10.96.0.11") for _ in range(3)} == {connections.connect(source)}
    plane.load(both, replace(NODE, ipvs=IpvsSettings(scheduler="dh")))
    with OpenConnections(*PODS) as connections:
        first = connections.connect("outside")
        assert {connections.connect(source) for source in ("outside", "far", "node") for _ in range(3)} == {first}


def test_mh_chooses_by_the_client_and_its_port(world: World, plane: ServiceOwner) -> None:
    plane.load({"default/web": kept_service(*PODS)}, replace(NODE, ipvs=IpvsSettings(scheduler="mh")))
    assert "-s mh -b mh-fallback,mh-port" in ipvsadm("-S", "-n")
    ports = range(21000, 21016)
    observed: list[dict[int, str]] = []
    for _ in range(2):
        with OpenConnections(*PODS) as connections:
            observed.append({port: connections.connect(port=port) for port in ports})
            for pod in PODS:
                connections.reset(pod)
    assert observed[0] == observed[1]
    assert len(set(observed[0].values())) > 1


def test_a_scheduler_that_the_kernel_lacks_is_named() -> None:
    with pytest.raises(Unsupported, match="the kernel has no scheduler nonesuch"):
        IpvsDataPlane(replace(NODE, ipvs=IpvsSettings(scheduler="nonesuch")), path("node"))


def test_another_scheduler_takes_effect_on_existing_servers(world: World, plane: ServiceOwner) -> None:
    plane.load({"default/web": kept_service("one")})
    with OpenConnections("one") as connections:
        connections.connect()
        written = plane.load({"default/web": kept_service("one")}, replace(NODE, ipvs=IpvsSettings(scheduler="wlc")))
        assert written == ("-E -t 10.96.0.10:80 -s wlc -b flag-3",)
        assert connections.talk()


def test_affinity_ends_with_a_removed_endpoint(world: World, plane: ServiceOwner) -> None:
    affinity_to_an_endpoint_that_goes(world, plane)
