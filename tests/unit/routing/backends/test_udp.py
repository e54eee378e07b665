"""The backend udp: the device, its process, its guard, and the peers that the process gets."""

from ipaddress import ip_address, ip_interface, ip_network

import pytest
from msgspec.structs import replace

from podwire.errors import ConfigError
from podwire.routing.backends.udp.backend import UdpOptions, UdpProcess, UdpSection
from podwire.routing.nodes import ClusterView, LocalNode, Peer, RoutingFacts, Underlay
from podwire.routing.settings import parse_settings

ME = LocalNode(
    name="node-1",
    addresses=(ip_address("10.89.0.11"), ip_address("fd89::11")),
    pod_cidrs=(ip_network("10.244.0.0/24"), ip_network("fd44::/64")),
    underlay=Underlay("eth0", 1500, (ip_interface("10.89.0.11/24"),)),
    run_dir="/run/test",
)
PEER = Peer(
    name="node-2",
    addresses=(ip_address("10.89.0.12"), ip_address("fd89::12")),
    pod_cidrs=(ip_network("10.244.1.0/24"), ip_network("fd44:0:0:1::/64")),
    facts=RoutingFacts("udp", ("udp",), {"udp": {"port": 9000}}),
)
NETWORK = """\
link podwire-udp mtu 1464 alias "podwire/routing udp" up type tun
address 10.244.0.1/32 dev podwire-udp
address fd44::1/128 dev podwire-udp
route 10.244.1.0/24 dev podwire-udp src 10.244.0.1
route fd44:0:0:1::/64 dev podwire-udp src fd44::1
sysctl net/ipv4/conf/podwire-udp/rp_filter = 2
sysctl net/ipv6/conf/podwire-udp/accept_ra = 0
"""
TUNNEL = """\
udp podwire-udp listen 10.89.0.11:8285
udp-peer podwire-udp 10.89.0.12:9000 networks 10.244.1.0/24,10.89.0.12/32,fd44:0:0:1::/64,fd89::12/128\
"""


def backend(port: int = 8285) -> UdpProcess:
    return UdpProcess(UdpOptions(udp=UdpSection(port=port)))


def test_a_peer_is_a_route_and_a_line() -> None:
    created = backend().plan(ME, [PEER], ClusterView((PEER,)))
    assert str(created.network) == NETWORK
    assert [str(value) for value in created.program_values] == [TUNNEL]
    assert created.tunnels == ("podwire-udp",)
    (child,) = created.children
    arguments = ("podwire-udp", "10.89.0.11:8285", "/run/test/podwire-udp.state")
    assert child.argv[-4:] == ("podwire.routing.backends.udp.process", *arguments)
    assert backend().announce(ME) == {"udp": {"port": 8285}}


def test_the_guard_takes_packets_from_nodes_only() -> None:
    (guard,) = backend(7000).plan(ME, [], ClusterView((PEER,), (ip_network("10.244.0.0/16"),))).values
    text = "\n".join(guard.lines())
    assert "table inet podwire-routing-udp {" in text
    assert 'udp dport 7000 ip saddr != @nodes drop comment "not from a node"' in text
    assert backend(7000).udp_ports == (7000,), "policies do not let pods send to the port"


def test_ipv6_between_nodes_takes_twenty_bytes_more() -> None:
    created = backend(7000).plan(replace(ME, addresses=ME.addresses[::-1]), [PEER], ClusterView((PEER,)))
    assert created.network.links[0].mtu == 1444
    assert "listen [fd89::11]:7000\nudp-peer podwire-udp [fd89::12]:9000 " in str(created.program_values[0])


@pytest.mark.parametrize("details", [{}, {"udp": 7}, {"udp": {"port": "many"}}, {"udp": {"port": 70000}}])
def test_a_peer_without_port_has_that_of_this_node(details: dict[str, object]) -> None:
    peer = replace(PEER, facts=RoutingFacts("udp", ("udp",), details))
    created = backend(7000).plan(ME, [peer], ClusterView((peer,)))
    assert "10.89.0.12:7000 " in str(created.program_values[0])


def test_address_of_two_nodes_belongs_to_the_first() -> None:
    claims = [
        replace(PEER, name="node-3"),
        replace(PEER, name="node-4", addresses=(ip_address("10.89.0.14"),)),
        replace(PEER, name="node-5", addresses=ME.addresses),
        replace(PEER, name="node-6", addresses=()),
    ]
    created = backend().plan(ME, [], ClusterView((PEER, *claims)))
    assert str(created.program_values[0]) == (f"{TUNNEL}\nudp-peer podwire-udp 10.89.0.14:9000 networks 10.89.0.14/32")


def test_changed_peers_lead_to_the_plan_of_a_new_backend() -> None:
    kept, peers = backend(), [peer_number(number) for number in range(8)]
    steps: tuple[list[Peer], ...] = (
        peers,
        peers[1:],
        [*peers[1:4], replace(peers[4], pod_cidrs=peers[0].pod_cidrs), *peers[5:]],
        [replace(peers[0], addresses=peers[5].addresses), *peers[1:]],
        [replace(peers[0], facts=RoutingFacts("udp", ("udp",), {"udp": {"port": 9}})), *peers[1:6]],
        [],
        peers,
    )
    for step in steps:
        view = ClusterView(tuple(step))
        (kept_tunnel,), (tunnel,) = (b.plan(ME, step, view).program_values for b in (kept, backend()))
        assert str(kept_tunnel) == str(tunnel)


def peer_number(number: int) -> Peer:
    address, cidr = ip_address(f"10.89.0.{20 + number}"), ip_network(f"10.244.{20 + number}.0/24")
    return replace(PEER, name=f"node-{20 + number}", addresses=(address,), pod_cidrs=(cidr,))


def test_a_peer_is_reached_when_it_receives() -> None:
    assert backend().reaches(ME, PEER) == ""
    assert backend().reaches(ME, replace(PEER, facts=None)) == ""
    flannel = RoutingFacts("udp", ("udp",))
    for facts in (RoutingFacts("vxlan", ("vxlan",)), RoutingFacts("vxlan", (), {"udp": {"port": 1}}), flannel):
        assert backend().reaches(ME, replace(PEER, facts=facts)) == "node node-2 does not receive udp yet"
    assert backend().reaches(ME, replace(PEER, addresses=PEER.addresses[1:])) == "node node-2 has no IPv4 address"


def test_a_port_out_of_range_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"routing.udp.port: 65536 is not in 1..65535"):
        parse_settings({"backend": "udp", "udp.port": 65536}, "test")
    assert parse_settings({"backend": "udp", "udp.port": 7000}, "test").udp_ports() == (6081, 6082, 7000, 8472)
