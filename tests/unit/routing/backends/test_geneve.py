"""What is special about the backend geneve: the outer header is in the route, and options in a section of its own."""

from ipaddress import ip_address, ip_interface, ip_network

import pytest
from msgspec.structs import replace

from podwire.errors import ConfigError
from podwire.routing.backends.geneve.backend import GUARD, GeneveOptions, GeneveSection, GeneveTunnel
from podwire.routing.nodes import ClusterView, LocalNode, Peer, RoutingFacts, Underlay
from podwire.routing.settings import parse_settings
from podwire.routing.tunnels import tunnel_mac

ME = LocalNode(
    name="node-1",
    addresses=(ip_address("10.89.0.11"), ip_address("fd89::11")),
    pod_cidrs=(ip_network("10.244.0.0/24"), ip_network("fd44::/64")),
    underlay=Underlay("eth0", 1500, (ip_interface("10.89.0.11/24"),)),
)
PEER = Peer(
    name="node-2",
    addresses=(ip_address("10.89.0.12"), ip_address("fd89::12")),
    pod_cidrs=(ip_network("10.244.1.0/24"), ip_network("fd44:0:0:1::/64")),
    facts=RoutingFacts("geneve", ("geneve",), {"geneve": {"mac": "02:00:00:00:00:07"}}),
)
PLAN = """\
link podwire-geneve mtu 1450 address MAC alias "podwire/routing geneve" up type geneve external dstport 6081
address 10.244.0.1/32 dev podwire-geneve
address fd44::1/128 dev podwire-geneve
route 10.244.1.0/24 encap ip id 4096 dst 10.89.0.12 ttl 64 via 10.244.1.1 dev podwire-geneve onlink src 10.244.0.1
route fd44:0:0:1::/64 encap ip id 4096 dst 10.89.0.12 ttl 64 via fd44:0:0:1::1 dev podwire-geneve onlink src fd44::1
route fd44:0:0:1::1/128 encap ip id 4096 dst 10.89.0.12 ttl 64 dev podwire-geneve
neighbour 10.244.1.1 lladdr 02:00:00:00:00:07 dev podwire-geneve
neighbour fd44:0:0:1::1 lladdr 02:00:00:00:00:07 dev podwire-geneve
sysctl net/ipv4/conf/podwire-geneve/rp_filter = 2
sysctl net/ipv6/conf/podwire-geneve/accept_ra = 0
"""
BACKEND = GeneveTunnel(GeneveOptions())


def test_the_outer_header_is_in_the_route() -> None:
    created = BACKEND.plan(ME, [PEER], ClusterView((PEER,)))
    assert str(created.network) == PLAN.replace("MAC", tunnel_mac("node-1"))
    assert created.tunnels == ("podwire-geneve",)
    assert BACKEND.announce(ME) == {"geneve": {"mac": tunnel_mac("node-1")}}


def test_ipv6_between_nodes_takes_twenty_bytes_more() -> None:
    me = replace(ME, addresses=ME.addresses[::-1])
    created = BACKEND.plan(me, [PEER], ClusterView((PEER,)))
    assert {(route.encap, route.tunnel_dst) for route in created.network.routes} == {("ip6", "fd89::12")}
    assert created.network.links[0].mtu == 1430


def test_the_guard_is_for_the_configured_port() -> None:
    settings = parse_settings({"backend": "geneve", "geneve.port": 6082, "geneve.vni": 7}, "test")
    backend = settings.load()["geneve"]
    created = backend.plan(ME, [PEER], ClusterView((PEER,)))
    assert "udp dport 6082" in str(created.values[0]) and f"table inet {GUARD} " in str(created.values[0])
    assert backend.udp_ports == (6082,)
    assert created.network.routes[0].tunnel_id == 7


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        (GeneveSection(vni=0), "routing.geneve.vni: 0 is not in"),
        (GeneveSection(port=0), "routing.geneve.port: 0 is not"),
    ],
)
def test_numbers_out_of_range_are_refused(section: GeneveSection, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        GeneveOptions(geneve=section).check("test")
