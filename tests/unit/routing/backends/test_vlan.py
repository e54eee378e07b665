"""What is special about the backend vlan: the port of the segment tags its frames."""

from ipaddress import ip_address, ip_network

import pytest
from tests.unit.routing.backends.test_bridge import ME

from podwire.cluster.podnetworks import NodePodNetwork
from podwire.errors import ConfigError
from podwire.routing.backend import BackendPlan
from podwire.routing.backends.vlan.backend import VlanSegment
from podwire.routing.backends.vlan.options import VlanOptions, VlanSection
from podwire.routing.nodes import ClusterView, Network, Peer, RoutingFacts
from podwire.routing.paths import PathState
from podwire.routing.podnetworks import PodNetworkSection
from podwire.routing.segment import segment_mac
from podwire.routing.settings import parse_settings

PLAN = """\
link podwire-vlan mtu 1400 address MAC alias "podwire/routing vlan" up type bridge
link podwire-vlan-up mtu 1400 address MAC master podwire-vlan locked alias "podwire/routing vlan" up \
type vlan link eth2 id 7
address 10.244.0.1/32 dev podwire-vlan
address fd44::1/128 dev podwire-vlan
sysctl net/ipv4/conf/podwire-vlan/rp_filter = 2
sysctl net/ipv6/conf/podwire-vlan/accept_ra = 0
"""


def test_the_port_is_in_the_configured_vlan_of_the_uplink() -> None:
    settings = parse_settings({"backend": "vlan", "vlan": {"id": 7, "uplink": "eth2"}}, "test")
    options = VlanOptions(vlan=VlanSection(id=7, uplink="eth2"))
    assert settings.options["vlan"] == options
    backend = VlanSegment(options)
    created = backend.plan(ME, [], ClusterView())
    assert str(created.network) == PLAN.replace("MAC", segment_mac("node-1", ME.addresses))
    assert backend.announce(ME) == {"vlan": {"mac": segment_mac("node-1", ME.addresses)}}
    assert backend.overhead(ME) == 100


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({"vlan.id": 0}, r"routing\.vlan\.id: 0 is not in 1\.\.4094"),
        ({"vlan.id": 4095}, r"routing\.vlan\.id: 4095 is not in"),
        ({"vlan.uplink": "a b"}, r"routing\.vlan\.uplink: 'a b' is not a device name"),
        ({"vlan.id": "seven"}, r"routing\.vlan\.id"),
    ],
)
def test_a_vlan_that_cannot_be_is_refused(section: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_settings(section, "test")


NETWORKS = """\
link podwire-v101 mtu 1400 address MAC alias "podwire/routing vlan" up type bridge
link podwire-vp101 mtu 1400 address MAC master podwire-v101 locked alias "podwire/routing vlan" up \
type vlan link eth2 id 101
address 10.245.0.1/32 dev podwire-v101
route 10.245.1.0/24 via 10.245.1.1 dev podwire-v101 onlink src 10.245.0.1
neighbour 10.245.1.1 lladdr 02:00:00:00:00:22 dev podwire-v101
fdb 02:00:00:00:00:22 dev podwire-vp101 master
sysctl net/ipv4/conf/podwire-v101/rp_filter = 2
"""
BLUE = PodNetworkSection(name="blue", id=101, cidrs=("10.245.0.0/16",))
VIEW_CIDRS = (ip_network("10.244.0.0/16"), ip_network("fd44::/48"))


def member(ranges: str, vlan: int = 101, name: str = "blue") -> Peer:
    """A peer that has announced that it is in a network."""
    networks = [{"name": name, "vlan": vlan, "cidrs": [ranges]}]
    facts = RoutingFacts("vlan", ("vlan",), {"vlan": {"mac": "02:00:00:00:00:22"}, "networks": networks})
    return Peer(
        name="node-2", addresses=(ip_address("10.89.0.12"),), pod_cidrs=(ip_network("10.244.1.0/24"),), facts=facts
    )


def planned(peer: Peer, clusters: tuple[Network, ...] = VIEW_CIDRS) -> BackendPlan:
    backend = VlanSegment(VlanOptions(vlan=VlanSection(id=7, uplink="eth2", networks=(BLUE,))))
    return backend.plan(ME, [peer], ClusterView((peer,), cluster_cidrs=clusters))


def test_each_network_has_a_vlan_and_ranges_of_its_own() -> None:
    created = planned(member("10.245.1.0/24"))
    lines = [line for line in str(created.network).splitlines(keepends=True) if "v101" in line or "vp101" in line]
    assert "".join(lines) == NETWORKS.replace("MAC", segment_mac("node-1", ME.addresses))
    assert created.tunnels == ("podwire-vlan", "podwire-v101")
    assert created.pod_networks == (
        NodePodNetwork("default", 7, tuple(map(str, ME.pod_cidrs))),
        NodePodNetwork("blue", 101, ("10.245.0.0/24",)),
    )


@pytest.mark.parametrize(
    "peer",
    [
        member("10.245.1.0/24", vlan=102),
        member("10.245.1.0/24", name="red"),
        member("10.245.0.0/24"),
        member("10.244.9.0/24"),
        member("nonsense"),
    ],
    ids=["other VLAN", "other network", "range of another node", "foreign range", "no range"],
)
def test_peers_outside_of_the_network_get_no_route(peer: Peer) -> None:
    created = planned(peer)
    assert [route.link for route in created.network.routes] == ["podwire-vlan"]
    assert "vp101" not in "".join(map(str, created.network.fdb))


def test_networks_without_a_range_of_the_node_say_why() -> None:
    created = planned(member("10.245.1.0/24"), ())
    assert created.degraded == (
        "pods cannot be in the network blue: expected one IPv4 range in clusterCIDRs of the node's agent, not none"
    )
    assert [network.name for network in created.pod_networks] == ["default"]


def test_why_follows_the_path_of_each_network() -> None:
    backend = VlanSegment(VlanOptions(vlan=VlanSection(id=7, uplink="eth2", networks=(BLUE,))))
    peer = member("10.245.1.0/24")
    state = PathState(network=backend.plan(ME, [peer], ClusterView((peer,), cluster_cidrs=VIEW_CIDRS)).network)
    for address, link in (("10.245.1.9", "podwire-v101"), ("10.244.1.9", "podwire-vlan")):
        path = backend.path(ME, peer, ip_address(address), state)
        assert path.missing == ()
        assert path.route is not None and path.route.link == link
