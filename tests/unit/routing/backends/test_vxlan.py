"""What is special about the backend vxlan: its announcement, its guard, and the addresses of its peers."""

from ipaddress import ip_address, ip_interface, ip_network

from msgspec.structs import replace

from podwire.routing.backends.vxlan.backend import DEVICE, GUARD, SECOND_GUARD, VxlanOptions, VxlanTunnel
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
    assert [value.name for value in plan.values if isinstance(value, Table)] == [GUARD]
    assert list(VxlanTunnel.tables) == [GUARD, SECOND_GUARD]
    assert "udp dport 4789" in str(plan.values[0])
    assert plan.tunnels == (DEVICE,) and plan.children == ()


FLANNELD = Peer(
    name="old",
    addresses=(ip_address("10.89.0.31"), ip_address("fd89::31")),
    pod_cidrs=(ip_network("10.244.31.0/24"), ip_network("fd44:0:0:31::/64")),
    facts=RoutingFacts("vxlan", ("vxlan",), {"mac": "8a:00:00:00:00:04", "mac6": "8a:00:00:00:00:06", "vni": 1}),
)
BOTH = replace(
    ME,
    addresses=(ip_address("10.89.0.11"), ip_address("fd89::11")),
    pod_cidrs=(ip_network("10.244.0.0/24"), ip_network("fd44::/64")),
    underlay=Underlay("eth0", 1500, (ip_interface("10.89.0.11/24"), ip_interface("fd89::11/64"))),
)


def test_flannelds_families_have_a_device_for_each() -> None:
    own = replace(
        peer(),
        addresses=(ip_address("10.89.0.12"), ip_address("fd89::12")),
        pod_cidrs=(ip_network("10.244.1.0/24"), ip_network("fd44:0:0:1::/64")),
    )
    backend, view = VxlanTunnel(VxlanOptions(vni=1)), ClusterView((own, FLANNELD))
    plan = backend.plan(BOTH, [own, FLANNELD], view)
    lines = [line for line in str(plan.network).splitlines() if not line.startswith(("sysctl", "address"))]
    mac, theirs = tunnel_mac("node-1"), tunnel_mac("node-2")
    device = f'address {mac} alias "podwire/routing vxlan" up type vxlan id 1'
    assert lines == [
        f"link podwire-vxlan mtu 1450 {device} local 10.89.0.11 dev eth0 dstport 8472 nolearning",
        f"link podwire-vxlan2 mtu 1430 {device} local fd89::11 dev eth0 dstport 8472 nolearning",
        "route 10.244.1.0/24 via 10.244.1.1 dev podwire-vxlan onlink src 10.244.0.1",
        "route 10.244.31.0/24 via 10.244.31.1 dev podwire-vxlan onlink src 10.244.0.1",
        "route fd44:0:0:1::/64 via fd44:0:0:1::1 dev podwire-vxlan onlink src fd44::1",
        "route fd44:0:0:1::1/128 dev podwire-vxlan",
        "route fd44:0:0:31::/64 via fd44:0:0:31::1 dev podwire-vxlan2 onlink src fd44::1",
        "route fd44:0:0:31::1/128 dev podwire-vxlan2",
        f"neighbour 10.244.1.1 lladdr {theirs} dev podwire-vxlan",
        "neighbour 10.244.31.1 lladdr 8a:00:00:00:00:04 dev podwire-vxlan",
        f"neighbour fd44:0:0:1::1 lladdr {theirs} dev podwire-vxlan",
        "neighbour fd44:0:0:31::1 lladdr 8a:00:00:00:00:06 dev podwire-vxlan2",
        f"fdb {theirs} dev podwire-vxlan dst 10.89.0.12",
        "fdb 8a:00:00:00:00:04 dev podwire-vxlan dst 10.89.0.31",
        "fdb 8a:00:00:00:00:06 dev podwire-vxlan2 dst fd89::31",
    ]
    assert plan.tunnels == ("podwire-vxlan", "podwire-vxlan2")
    assert [value.name for value in plan.values if isinstance(value, Table)] == [GUARD, SECOND_GUARD]
    assert "ip6 saddr != @nodes" in str(plan.values[1]) and "fd89::31" in str(plan.values[1])
    for alone in (ME, replace(BOTH, underlay=ME.underlay)):
        assert [link.name for link in backend.plan(alone, [FLANNELD], view).network.links] == [DEVICE]
    assert backend.plan(BOTH, [own], ClusterView((own,))).tunnels == (DEVICE,)
