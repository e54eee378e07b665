"""What is special about the backend bridge: the segment of all nodes, its members, and the uplink."""

from collections.abc import Mapping
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any

import pytest
from msgspec.structs import replace

from podwire.errors import ConfigError
from podwire.routing.backends.bridge.backend import BridgeOptions, BridgeSection, BridgeSegment
from podwire.routing.nodes import ClusterView, Device, LocalNode, Peer, RoutingFacts, Underlay
from podwire.routing.segment import segment_mac
from podwire.routing.settings import parse_settings

DEVICES = {"eth0": Device(1500), "eth1": Device(9000), "eth2": Device(1400), "eth3": Device(1500, "br9")}
ME = LocalNode(
    name="node-1",
    addresses=(ip_address("10.89.0.11"), ip_address("fd89::11")),
    pod_cidrs=(ip_network("10.244.0.0/24"), ip_network("fd44::/64")),
    underlay=Underlay("eth0", 1500, (ip_interface("10.89.0.11/24"), ip_interface("fd89::11/64")), DEVICES),
)


def peer(number: int, mac: object = "", host: str = "10.89.0") -> Peer:
    details: Mapping[str, Any] = {"bridge": {"mac": mac or f"02:00:00:00:00:0{number}"}} if mac is not None else {}
    return Peer(
        name=f"node-{number}",
        addresses=(ip_address(f"{host}.1{number}"), ip_address(f"fd89::1{number}")),
        pod_cidrs=(ip_network(f"10.244.{number}.0/24"), ip_network(f"fd44:0:0:{number}::/64")),
        facts=RoutingFacts("bridge", ("bridge",), details),
    )


PLAN = """\
link podwire-br-port mtu 1500 address MAC master podwire-bridge locked alias "podwire/routing bridge" up \
type macvlan link eth0 mode private
link podwire-bridge mtu 1500 address MAC alias "podwire/routing bridge" up type bridge
address 10.244.0.1/32 dev podwire-bridge
address fd44::1/128 dev podwire-bridge
route 10.244.2.0/24 via 10.244.2.1 dev podwire-bridge onlink src 10.244.0.1
route fd44:0:0:2::/64 via fd44:0:0:2::1 dev podwire-bridge onlink src fd44::1
route fd44:0:0:2::1/128 dev podwire-bridge
neighbour 10.244.2.1 lladdr 02:00:00:00:00:02 dev podwire-bridge
neighbour fd44:0:0:2::1 lladdr 02:00:00:00:00:02 dev podwire-bridge
fdb 02:00:00:00:00:02 dev podwire-br-port master
fdb 02:00:00:00:00:03 dev podwire-br-port master
sysctl net/ipv4/conf/podwire-bridge/rp_filter = 2
sysctl net/ipv6/conf/podwire-bridge/accept_ra = 0
"""


def backend(uplink: str = "") -> BridgeSegment:
    return BridgeSegment(BridgeOptions(bridge=BridgeSection(uplink=uplink)))


def test_the_segment_takes_frames_from_announced_hardware_addresses() -> None:
    created = backend().plan(ME, [peer(2)], ClusterView((peer(2), peer(3))))
    assert str(created.network) == PLAN.replace("MAC", segment_mac("node-1", ME.addresses))
    assert created.tunnels == ("podwire-bridge",) and not created.values


def test_nodes_may_send_before_their_announcement_is_known() -> None:
    """A node that has changed to the backend sends as soon as it knows this one; the others learn of it later."""
    late = (peer(4, None), peer(5, "no address"), peer(6, 7))
    created = backend().plan(ME, [], ClusterView(late))
    assert {entry.mac for entry in created.network.fdb} == {segment_mac(node.name, node.addresses) for node in late}


def test_a_silent_peer_has_the_hardware_address_of_its_name() -> None:
    silent = replace(peer(2), facts=None)
    created = backend().plan(ME, [silent], ClusterView((silent,)))
    assert {entry.mac for entry in created.network.fdb} == {segment_mac("node-2", silent.addresses)}
    assert backend().reaches(ME, silent) == ""


def test_clusters_on_one_network_have_different_hardware_addresses() -> None:
    assert segment_mac("node-1", ME.addresses) != segment_mac("node-1", ME.addresses[1:])


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (peer(2), ""),
        (peer(2, None), "node node-2 does not receive bridge yet"),
        (peer(2, "wrong"), "node node-2 announces no hardware address for bridge"),
        (peer(2, host="10.99.0"), "node node-2 (10.99.0.12) is not on a subnet of eth0"),
    ],
)
def test_peers_beyond_the_segment_are_named(other: Peer, reason: str) -> None:
    assert backend().reaches(ME, other) == reason


def test_another_uplink_may_lead_to_nodes_of_other_subnets() -> None:
    assert backend("eth1").reaches(ME, peer(2, host="10.99.0")) == ""


@pytest.mark.parametrize(
    ("uplink", "reason"),
    [
        ("eth3", "routing.bridge.uplink: eth3 of node node-1 is a port of br9; use br9"),
        ("eth9", "routing.bridge.uplink: node node-1 has no device 'eth9'"),
    ],
)
def test_an_uplink_that_cannot_be_used_is_left_alone(uplink: str, reason: str) -> None:
    refused = backend(uplink)
    assert refused.reaches(ME, peer(2)) == reason
    assert str(refused.plan(ME, [], ClusterView((peer(2),))).network) == ""
    assert refused.announce(ME) == {}


@pytest.mark.parametrize(("uplink", "mtu", "overhead"), [("", 1500, 0), ("eth1", 9000, 0), ("eth2", 1400, 100)])
def test_the_segment_has_the_mtu_of_the_uplink(uplink: str, mtu: int, overhead: int) -> None:
    assert {link.mtu for link in backend(uplink).plan(ME, [], ClusterView()).network.links} == {mtu}
    assert backend(uplink).overhead(ME) == overhead


@pytest.mark.parametrize("name", ["a/b", "a b", "a:b", "..", "name-of-16-bytes", "podwire-bridge", 7])
def test_names_that_are_no_uplinks_are_refused(name: object) -> None:
    with pytest.raises(ConfigError, match=r"routing\.bridge\.uplink"):
        parse_settings({"backend": "bridge", "bridge": {"uplink": name}}, "test")
    assert parse_settings({"bridge.uplink": "eth1"}, "test").options["bridge"].shown() == {"bridge": {"uplink": "eth1"}}
