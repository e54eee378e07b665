"""What is special about the backend hostgw: it needs no preparation and reaches one subnet only."""

from ipaddress import ip_address, ip_interface, ip_network

from podwire.routing.backends.hostgw.backend import HostGateway, HostgwOptions
from podwire.routing.nodes import ClusterView, LocalNode, Peer, Underlay

ME = LocalNode(
    name="node-1",
    addresses=(ip_address("10.89.0.11"),),
    pod_cidrs=(ip_network("10.244.0.0/24"),),
    underlay=Underlay("eth0", 1500, (ip_interface("10.89.0.11/24"),)),
)
BACKEND = HostGateway(HostgwOptions())


def peer(address: str, name: str = "node-2") -> Peer:
    return Peer(name=name, addresses=(ip_address(address),), pod_cidrs=(ip_network("10.244.1.0/24"),))


def test_announces_nothing_and_needs_no_tables() -> None:
    assert BACKEND.announce(ME) == {}
    assert (BACKEND.tables, BACKEND.udp_ports, BACKEND.announced) == ((), (), False)


def test_peers_behind_a_router_are_out_of_reach() -> None:
    near, far = peer("10.89.0.12"), peer("10.90.0.12", "node-3")
    assert BACKEND.reaches(ME, near) == ""
    assert BACKEND.reaches(ME, far) == "node node-3 (10.90.0.12) is not on a subnet of eth0"
    plan = BACKEND.plan(ME, [near, far], ClusterView((near, far)))
    assert [route.via for route in plan.network.routes] == ["10.89.0.12"]
