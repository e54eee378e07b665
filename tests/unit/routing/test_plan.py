"""Plans of routing compared whole, and the choices while a cluster switches its backend."""

from ipaddress import ip_address, ip_interface, ip_network

import pytest
from msgspec.structs import replace

from podwire.model.meta import ObjectMeta
from podwire.model.node import Node, NodeAddress, NodeSpec, NodeStatus
from podwire.routing.clustersets import ClusterUnions
from podwire.routing.nodes import LocalNode, Peer, RoutingFacts, Underlay, peer_of
from podwire.routing.plan import Plan, choose, plan
from podwire.routing.settings import RoutingSettings
from podwire.routing.tunnels import tunnel_mac
from podwire.state.network import parse


def me(*, mtu: int = 1500) -> LocalNode:
    return LocalNode(
        name="node-1",
        addresses=(ip_address("10.89.0.11"),),
        pod_cidrs=(ip_network("10.244.0.0/24"),),
        underlay=Underlay("eth0", mtu, (ip_interface("10.89.0.11/24"),)),
    )


def peer(number: int, facts: RoutingFacts | None = None, segment: int = 0) -> Peer:
    return Peer(
        name=f"node-{number}",
        addresses=(ip_address(f"10.89.{segment}.{10 + number}"),),
        pod_cidrs=(ip_network(f"10.244.{number - 1}.0/24"),),
        facts=facts,
    )


def planned(settings: RoutingSettings, *peers: Peer, mtu: int = 1500) -> Plan:
    return plan(me(mtu=mtu), peers, settings, settings.load())


VXLAN = """\
link podwire-vxlan mtu 1450 address 02:71:aa:85:4c:99 alias "podwire/routing vxlan" up type vxlan id 4096 \
local 10.89.0.11 dev eth0 dstport 8472 nolearning
address 10.244.0.1/32 dev podwire-vxlan
route 10.244.0.0/24 type unreachable metric 4096
route 10.244.1.0/24 via 10.244.1.1 dev podwire-vxlan onlink src 10.244.0.1
neighbour 10.244.1.1 lladdr 02:e3:3b:9a:5e:94 dev podwire-vxlan
fdb 02:e3:3b:9a:5e:94 dev podwire-vxlan dst 10.89.0.12
sysctl net/ipv4/conf/eth0/rp_filter = 2
sysctl net/ipv4/conf/podwire-vxlan/rp_filter = 2
sysctl net/ipv4/ip_forward = 1
"""

HOSTGW = """\
route 10.244.0.0/24 type unreachable metric 4096
route 10.244.1.0/24 via 10.89.0.12 dev eth0 src 10.89.0.11
sysctl net/ipv4/conf/eth0/rp_filter = 2
sysctl net/ipv4/ip_forward = 1
"""


def test_vxlan() -> None:
    got = planned(RoutingSettings(backend="vxlan"), peer(2))
    expected = VXLAN.replace("02:71:aa:85:4c:99", tunnel_mac("node-1")).replace(
        "02:e3:3b:9a:5e:94", tunnel_mac("node-2")
    )
    assert str(got.state) == expected
    assert parse(expected) == got.state
    assert got.pod_mtu == 1450
    assert got.facts == RoutingFacts("vxlan", ("hostgw", "vxlan"), {"mtu": 1500, "mac": tunnel_mac("node-1")})


def test_vxlan_reaches_ipv6_gateways_by_separate_routes() -> None:
    other = replace(peer(2), pod_cidrs=(ip_network("10.244.1.0/24"), ip_network("fd44:0:0:1::/64")))
    routes = [
        str(route) for route in planned(RoutingSettings(backend="vxlan"), other).state.routes if "fd44" in route.dst
    ]
    assert sorted(routes) == [
        "route fd44:0:0:1::/64 via fd44:0:0:1::1 dev podwire-vxlan onlink",
        "route fd44:0:0:1::1/128 dev podwire-vxlan",
    ]


def test_hostgw() -> None:
    got = planned(RoutingSettings(backend="hostgw"), peer(2))
    assert str(got.state) == HOSTGW
    assert got.pod_mtu == 1500
    assert got.facts == RoutingFacts("hostgw", ("hostgw",), {"mtu": 1500})


def test_hostgw_cannot_cross_a_router() -> None:
    got = planned(RoutingSettings(backend="hostgw"), peer(2, segment=1))
    assert [str(p) for p in got.problems] == ["node-2: node node-2 (10.89.1.12) is not on a subnet of eth0"]


def test_direct_routing_uses_the_tunnel_across_a_router_alone() -> None:
    got = planned(RoutingSettings(backend="vxlan", direct_routing=True), peer(2), peer(3, segment=1))
    assert got.senders == {"node-2": "hostgw", "node-3": "vxlan"}


HOSTGW_ONLY = RoutingFacts("hostgw", ("hostgw",))
TUNNEL = RoutingFacts("vxlan", ("hostgw", "vxlan"))
LEAVING = RoutingFacts("hostgw", ("hostgw", "vxlan"))


@pytest.mark.parametrize(
    ("configured", "facts", "sender", "keeps_device"),
    [
        ("vxlan", None, "vxlan", True),
        ("vxlan", HOSTGW_ONLY, "hostgw", True),
        ("vxlan", LEAVING, "vxlan", True),
        ("vxlan", TUNNEL, "vxlan", True),
        ("hostgw", None, "hostgw", False),
        ("hostgw", TUNNEL, "hostgw", True),
        ("hostgw", LEAVING, "hostgw", False),
        ("hostgw", HOSTGW_ONLY, "hostgw", False),
    ],
)
def test_what_is_sent_and_received_while_a_peer_lags(
    configured: str, facts: RoutingFacts | None, sender: str, *, keeps_device: bool
) -> None:
    got = planned(RoutingSettings(backend=configured), peer(2, facts))
    assert got.senders == {"node-2": sender}
    assert (got.state.link("podwire-vxlan") is not None) == keeps_device
    assert not got.problems


def test_lagging_peer_across_a_router_keeps_the_tunnel() -> None:
    backends = RoutingSettings(backend="hostgw").load()
    assert choose(me(), peer(2, TUNNEL, segment=1), RoutingSettings(backend="hostgw"), backends) == ("vxlan", "")
    name, reason = choose(me(), peer(2, HOSTGW_ONLY, segment=1), RoutingSettings(backend="hostgw"), backends)
    assert name == "" and "not on a subnet" in reason


def test_a_node_without_pod_cidr_or_address_is_left_out() -> None:
    got = planned(RoutingSettings(), Peer(name="a"), Peer(name="b", addresses=(ip_address("10.89.0.40"),)))
    assert got.senders == {} and not got.problems


@pytest.mark.parametrize(
    ("underlay", "asked", "expected"),
    [
        (9000, 0, 8950),
        (1400, 0, 1350),
        (1500, 1400, 1400),
        (1500, 9000, 1450),
        (1300, 0, 1250),
        (600, 0, 576),
    ],
)
def test_pod_mtu(underlay: int, asked: int, expected: int) -> None:
    assert planned(RoutingSettings(mtu=asked), mtu=underlay).pod_mtu == expected


def test_dual_stack() -> None:
    both = LocalNode(
        name="node-1",
        addresses=(ip_address("fd89::11"), ip_address("10.89.0.11")),
        pod_cidrs=(ip_network("fd00:0:0:1::/64"), ip_network("10.244.0.0/24")),
        underlay=Underlay("eth0", 1500, (ip_interface("10.89.0.11/24"), ip_interface("fd89::11/64"))),
    )
    other = Peer(
        name="node-2",
        addresses=(ip_address("fd89::12"), ip_address("10.89.0.12")),
        pod_cidrs=(ip_network("fd00:0:0:2::/64"), ip_network("10.244.1.0/24")),
    )
    for name, mtu, via in (("vxlan", 1430, "fd00:0:0:2::1"), ("hostgw", 1500, "fd89::12")):
        settings = RoutingSettings(backend=name)
        got = plan(both, [other], settings, settings.load())
        assert got.pod_mtu == mtu
        assert {route.dst: route.via for route in got.state.routes if route.via}["fd00:0:0:2::/64"] == via
        assert parse(str(got.state)) == got.state


def test_cluster_networks_are_merged() -> None:
    cidrs = [ip_network("10.244.0.0/16"), ip_network("10.0.0.0/24")]
    networks = ClusterUnions().take(me(), [peer(2)], cidrs).pod_networks
    assert [str(n) for n in networks] == ["10.0.0.0/24", "10.244.0.0/16"]


def test_peer_from_a_node_object() -> None:
    node = Node(
        metadata=ObjectMeta(
            name="n", annotations={"podwire.io/routing-facts": '{"backend":"vxlan","receives":["vxlan"]}'}
        ),
        spec=NodeSpec(pod_cidrs=("10.244.3.0/24", "nonsense")),
        status=NodeStatus(
            addresses=(NodeAddress(type="InternalIP", address="10.89.0.12"), NodeAddress(type="Hostname", address="n"))
        ),
    )
    got = peer_of(node)
    assert got.addresses == (ip_address("10.89.0.12"),)
    assert got.pod_cidrs == (ip_network("10.244.3.0/24"),)
    assert got.facts == RoutingFacts("vxlan", ("vxlan",))
    damaged = Node(metadata=ObjectMeta(name="n", annotations={"podwire.io/routing-facts": "{"}))
    assert peer_of(damaged) == Peer(name="n")
