"""What is special about the backend ipip: two devices, routes through nodes, and a guard of two protocols."""

from ipaddress import ip_address, ip_interface, ip_network

from msgspec.structs import replace

from podwire.routing.backend import BackendPlan
from podwire.routing.backends.ipip.backend import GUARD, IpInIp, IpipOptions
from podwire.routing.nodes import ClusterView, LocalNode, Peer, RoutingFacts, Underlay

ME = LocalNode(
    name="node-1",
    addresses=(ip_address("fd89::11"), ip_address("10.89.0.11")),
    pod_cidrs=(ip_network("10.244.0.0/24"), ip_network("fd44::/64")),
    underlay=Underlay("eth0", 1500, (ip_interface("10.89.0.11/24"),)),
)
PEER = Peer(
    name="node-2",
    addresses=(ip_address("10.90.0.12"),),
    pod_cidrs=(ip_network("10.244.1.0/24"), ip_network("fd44:0:0:1::/64")),
    facts=RoutingFacts("ipip", ("ipip",)),
)
PLAN = """\
link podwire-ipip mtu 1480 alias "podwire/routing ipip" up type ipip local 10.89.0.11 ttl 64
link podwire-sit mtu 1480 alias "podwire/routing ipip" up type sit local 10.89.0.11 ttl 64
address 10.244.0.1/32 dev podwire-ipip
address fd44::1/128 dev podwire-sit
route 10.244.1.0/24 via 10.90.0.12 dev podwire-ipip onlink src 10.244.0.1
route fd44:0:0:1::/64 via ::a5a:c dev podwire-sit onlink src fd44::1
sysctl net/ipv4/conf/podwire-ipip/rp_filter = 2
sysctl net/ipv4/conf/podwire-sit/rp_filter = 2
sysctl net/ipv6/conf/podwire-ipip/accept_ra = 0
sysctl net/ipv6/conf/podwire-sit/accept_ra = 0
"""
BACKEND = IpInIp(IpipOptions())


def test_a_peer_is_one_route_per_family() -> None:
    created = BACKEND.plan(ME, [PEER], ClusterView((PEER,)))
    assert str(created.network) == PLAN
    assert created.tunnels == ("podwire-ipip", "podwire-sit")


def test_the_guard_names_both_protocols() -> None:
    (table,) = BACKEND.plan(ME, [PEER], ClusterView((PEER,))).values
    assert f"table inet {GUARD} " in str(table) and IpInIp.tables == (GUARD,)
    assert "meta l4proto 4 " in str(table) and "meta l4proto 41 " in str(table)


def test_nodes_without_ipv4_are_not_reached() -> None:
    only6 = (ip_address("fd89::12"),)
    assert BACKEND.reaches(ME, PEER) == ""
    assert BACKEND.reaches(ME, replace(PEER, addresses=only6)) == "node node-2 has no IPv4 address"
    alone = replace(ME, addresses=only6)
    assert BACKEND.reaches(alone, PEER) == "node node-1 has no IPv4 address, and ipip has IPv4 between nodes"
    assert BACKEND.plan(alone, (), ClusterView()) == BackendPlan()
    early = replace(PEER, facts=RoutingFacts("vxlan", ("vxlan",)))
    assert BACKEND.reaches(ME, early) == "node node-2 does not receive ipip yet"
