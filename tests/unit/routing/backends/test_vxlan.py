"""What is special about the backend vxlan: its announcement, its guard, and the addresses of its peers."""

from ipaddress import ip_address, ip_interface, ip_network

from podwire.routing.backends.vxlan.backend import DEVICE, GUARD, VxlanOptions, VxlanTunnel
from podwire.routing.nodes import ClusterView, LocalNode, Peer, RoutingFacts, Underlay
from podwire.routing.tunnels import tunnel_mac
from podwire.state.nft import Table

ME = LocalNode(
    name="node-1",
    addresses=(ip_address("10.89.0.11"),),
    pod_cidrs=(ip_network("10.244.0.0/24"),),
    underlay=Underlay("eth0", 1500, (ip_interface("10.89.0.11/24"),)),
)


def peer(**details: object) -> Peer:
    return Peer(
        name="node-2",
        addresses=(ip_address("10.89.0.12"),),
        pod_cidrs=(ip_network("10.244.1.0/24"),),
        facts=RoutingFacts("vxlan", ("vxlan",), details),
    )


def hardware_address(of: Peer) -> str:
    plan = VxlanTunnel(VxlanOptions()).plan(ME, [of], ClusterView((of,)))
    return plan.network.fdb[0].mac


def test_announces_the_hardware_address_of_the_device() -> None:
    facts = RoutingFacts("vxlan", ("hostgw", "vxlan"), VxlanTunnel(VxlanOptions()).announce(ME))
    assert facts.annotations()["podwire.io/routing-facts"] == (
        f'{{"backend":"vxlan","receives":["hostgw","vxlan"],"mac":"{tunnel_mac("node-1")}"}}'
    )


def test_takes_the_announced_hardware_address_of_a_peer() -> None:
    assert hardware_address(peer(mac="02:00:00:00:00:07")) == "02:00:00:00:00:07"
    assert hardware_address(peer()) == hardware_address(peer(mac=7)) == tunnel_mac("node-2")


def test_guards_the_configured_port() -> None:
    plan = VxlanTunnel(VxlanOptions(port=4789)).plan(ME, [peer()], ClusterView((peer(),)))
    assert [value.name for value in plan.values if isinstance(value, Table)] == [GUARD] == list(VxlanTunnel.tables)
    assert "udp dport 4789" in str(plan.values[0])
    assert plan.tunnels == (DEVICE,) and plan.children == ()
