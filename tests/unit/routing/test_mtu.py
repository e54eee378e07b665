"""The MTU of pods by family, from the paths to all peers."""

from ipaddress import ip_address, ip_interface, ip_network

import pytest
from msgspec.structs import replace

from podwire.routing.mtu import device_mtu
from podwire.routing.nodes import Device, LocalNode, PathRoute, Peer, RoutingFacts, Underlay
from podwire.routing.plan import Plan, plan
from podwire.routing.settings import RoutingSettings
from podwire.routing.underlay import find
from podwire.state.network import parse

UNDERLAY = Underlay("eth0", 1500, (ip_interface("10.89.0.11/24"), ip_interface("fd89::11/64")))
V4_FIRST = LocalNode(
    name="node-1",
    addresses=(ip_address("10.89.0.11"), ip_address("fd89::11")),
    pod_cidrs=(ip_network("10.244.0.0/24"), ip_network("fd00::/64")),
    underlay=UNDERLAY,
)
V6_FIRST = replace(V4_FIRST, addresses=tuple(reversed(V4_FIRST.addresses)))


def peer(number: int, segment: int = 0, mtu: int = 0) -> Peer:
    return Peer(
        name=f"node-{number}",
        addresses=(ip_address(f"10.89.{segment}.{10 + number}"), ip_address(f"fd89:0:0:{segment}::{10 + number}")),
        pod_cidrs=(ip_network(f"10.244.{number}.0/24"), ip_network(f"fd00:0:0:{number}::/64")),
        facts=RoutingFacts("vxlan", ("hostgw", "vxlan", "ipip"), {"mtu": mtu} if mtu else {}),
    )


def planned(settings: RoutingSettings, *peers: Peer, me: LocalNode = V4_FIRST) -> Plan:
    return plan(me, peers, settings, settings.load())


def over(mtu: int, *routes: tuple[str, int], me: LocalNode = V4_FIRST) -> LocalNode:
    paths = tuple(PathRoute(ip_network(network), size) for network, size in routes)
    return replace(me, underlay=replace(UNDERLAY, mtu=mtu, routes=paths))


@pytest.mark.parametrize(
    ("backend", "v4_first", "v6_first"), [("vxlan", 1450, 1430), ("ipip", 1480, 1480), ("hostgw", 1500, 1500)]
)
def test_the_outer_family_decides_about_the_header(backend: str, v4_first: int, v6_first: int) -> None:
    settings = RoutingSettings(backend=backend)
    for me, size in ((V4_FIRST, v4_first), (V6_FIRST, v6_first)):
        assert planned(settings, peer(2), me=me).pod_mtus == {4: size, 6: size}


def test_a_route_to_a_node_limits_packets_of_its_family() -> None:
    narrow = ("10.89.0.0/24", 1400)
    plain = planned(RoutingSettings(backend="hostgw"), peer(2), me=over(1500, narrow))
    assert plain.pod_mtus == {4: 1400, 6: 1500}
    assert {route.dst: route.mtu for route in plain.state.routes if route.via} == {
        "10.244.2.0/24": 1400,
        "fd00:0:0:2::/64": 0,
    }
    assert planned(RoutingSettings(), peer(2), me=over(1500, narrow)).pod_mtus == {4: 1350, 6: 1350}
    assert planned(RoutingSettings(), peer(2), me=over(1500, narrow, me=V6_FIRST)).pod_mtus == {4: 1430, 6: 1430}
    ipip = RoutingSettings(backend="ipip")
    assert planned(ipip, peer(2), me=over(1500, narrow, me=V6_FIRST)).pod_mtus == {4: 1380, 6: 1380}


def test_a_narrower_path_marks_the_route_of_its_peer_alone() -> None:
    got = planned(RoutingSettings(), peer(2), peer(3, segment=7), me=over(1500, ("10.89.7.0/24", 1400)))
    sizes = {route.dst: route.mtu for route in got.state.routes if route.via}
    assert sizes == {"10.244.2.0/24": 0, "fd00:0:0:2::/64": 0, "10.244.3.0/24": 1350, "fd00:0:0:3::/64": 1350}
    assert got.pod_mtus == {4: 1350, 6: 1350}
    assert got.state.link("podwire-vxlan") == planned(RoutingSettings(), me=over(1500)).state.link("podwire-vxlan")


def test_pods_of_jumbo_nodes_follow_a_peer_that_receives_less() -> None:
    jumbo = over(9000)
    assert planned(RoutingSettings(), peer(2, mtu=9000), me=jumbo).pod_mtu == 8950
    mixed = planned(RoutingSettings(), peer(2, mtu=9000), peer(3, mtu=1500), me=jumbo)
    assert mixed.pod_mtu == 1450
    assert {route.dst: route.mtu for route in mixed.state.routes if route.via}["10.244.3.0/24"] == 1450
    assert planned(RoutingSettings(), peer(3, mtu=100), me=jumbo).pod_mtu == 8950, "not an MTU"


def test_direct_peers_alone_leave_no_room_for_a_header() -> None:
    direct = RoutingSettings(direct_routing=True)
    assert planned(direct).pod_mtu == 1450
    assert planned(direct, peer(2)).pod_mtu == 1500
    assert planned(direct, peer(2), peer(3, segment=7)).pod_mtu == 1450


def test_ipv6_pods_keep_what_ipv6_needs_on_a_narrow_underlay() -> None:
    got = planned(RoutingSettings(), peer(2), me=over(1300))
    assert got.pod_mtus == {4: 1250, 6: 1280}
    device = got.state.link("podwire-vxlan")
    assert device is not None and device.mtu == 1280
    single = replace(over(1300), pod_cidrs=(ip_network("10.244.0.0/24"),))
    assert device_mtu(single, 50) == 1250
    assert planned(RoutingSettings(mtu=1280), peer(2)).pod_mtus == {4: 1280, 6: 1280}


def test_the_device_s_own_mtu_is_announced() -> None:
    behind = replace(over(1400), underlay=replace(UNDERLAY, mtu=1400, devices={"eth0": Device(9000)}))
    assert planned(RoutingSettings(), me=behind).facts.details["mtu"] == 9000


STATE = parse("""
link eth0 mtu 1500 up
link eth1 mtu 1400 up
link podwire-vxlan mtu 1300 up
address 10.89.0.11/24 dev eth0
address fd89::11/64 dev eth0
route default via 10.89.0.1 dev eth0
route 10.89.7.0/24 via 10.89.0.2 dev eth1
route 10.89.0.64/26 dev eth0 mtu 1300
route 10.89.0.64/28 via 10.89.0.9 dev podwire-vxlan proto 113
route fd89::/64 dev eth0 mtu 1350 metric 10
""")


def test_paths_follow_the_routes_of_other_programs() -> None:
    result = find(STATE, [ip_address("10.89.0.11")])
    assert result is not None and result.mtu == 1500
    for address, mtu in (
        ("10.89.0.12", 1500),
        ("10.89.0.70", 1300),
        ("10.89.7.12", 1400),
        ("192.0.2.1", 1500),
        ("fd89::12", 1350),
        ("fd90::1", 1500),
    ):
        assert result.path_mtu(ip_address(address)) == mtu


def test_equal_paths_need_no_routes() -> None:
    wide = parse("link eth0 mtu 1500 up\naddress 10.89.0.11/24 dev eth0\nroute default via 10.89.0.1 dev eth0")
    result = find(wide, [ip_address("10.89.0.11")])
    assert result is not None and result.routes == ()


def test_the_link_local_network_of_a_tunnel_is_no_path() -> None:
    """Every peer would need a look with each change, because of a device that leads to no node."""
    tunnel = parse("""
link eth0 mtu 1500 up
link podwire-vxlan mtu 1450 up
address 10.89.0.11/24 dev eth0
address fe80::1/64 dev podwire-vxlan
route fe80::/64 dev podwire-vxlan metric 256
""")
    result = find(tunnel, [ip_address("10.89.0.11")])
    assert result is not None and result.routes == ()
