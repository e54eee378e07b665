"""What podwire holds in the kernel for packets between nodes is what the commands of ip(8) and bridge(8) make.

The answers of the kernel are compared as bytes. The same commands in a namespace whose devices have the same numbers
give the same routes, neighbours, forwarding entries and options of the device; left out are times that the kernel
counts. So packets take the same way as in a setup by hand; the tables of nftables come on top.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kernel.routing_nodes import Cluster, ClusterNode, inside, ip_batch

from podwire.kernel import link_codec, netns, route_codec
from podwire.kernel.attributes import spans
from podwire.kernel.netlink import Message, Netlink
from podwire.kernel.uapi import RTM_GETLINK, RTM_GETNEIGH, RTM_GETROUTE
from podwire.routing.settings import RoutingSettings
from podwire.routing.tunnels import tunnel_mac

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

NDA_CACHEINFO, IFLA_MTU, IFLA_LINKINFO, IFLA_ADDRESS = 3, 4, 18, 1
"""linux/neighbour.h, linux/if_link.h."""
COUNT = 3


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    created = Cluster(tmp_path, COUNT)
    yield created
    created.close()


@pytest.fixture
def hand(cluster: Cluster) -> Iterator[Path]:
    """A namespace with the card of the first node, under the same number."""
    place, node = cluster.root / "hand", cluster.all[0]
    netns.create(place)
    ip_batch(cluster.fabric, f"link add h1 type veth peer name eth0 netns {place}", "link set h1 master br0 up")
    ip_batch(place, "link set lo up", "link set eth0 up", f"address add {node.ip}/24 dev eth0")
    yield place
    netns.delete(place)


def attributes(payload: bytes, header: int, left_out: tuple[int, ...]) -> bytes:
    """A payload without some attributes."""
    kept = [payload[at - 4 : at + size] for kind, at, size in spans(payload, header) if kind not in left_out]
    return payload[:header] + b"".join(kept)


def routes(place: Path, proto: int) -> list[bytes]:
    """The IPv4 routes of a protocol number, without those that refuse packets."""
    with Netlink(place) as netlink:
        body = route_codec.encode_route_dump(2, proto=proto)
        payloads = netlink.dump(Message(RTM_GETROUTE, 0, body, "list", "routes"))
    return sorted(payload for payload in payloads if payload[7] == 1)  # RTN_UNICAST


def neighbours(place: Path, body: bytes, index: int) -> list[bytes]:
    with Netlink(place) as netlink:
        payloads = netlink.dump(Message(RTM_GETNEIGH, 0, body, "list", "neighbours"))
    of_device = [
        payload for payload in payloads if struct.unpack_from("=i", payload, 4)[0] == index and payload[0] != 10
    ]
    return sorted(attributes(payload, 12, (NDA_CACHEINFO,)) for payload in of_device)


def device(place: Path, name: str) -> tuple[int, list[bytes]]:
    """The number of a device; its hardware address, MTU and the options of its kind."""
    with Netlink(place) as netlink:
        payload = netlink.get(Message(RTM_GETLINK, 0, link_codec.encode_get(name), "read", name))[1]
    wanted = (IFLA_ADDRESS, IFLA_MTU, IFLA_LINKINFO)
    return struct.unpack_from("=i", payload, 4)[0], [
        payload[at : at + n] for kind, at, n in spans(payload, 16) if kind in wanted
    ]


def peers(cluster: Cluster) -> list[ClusterNode]:
    return cluster.all[1:]


def test_routes_of_hostgw_are_those_of_ip_route(cluster: Cluster, hand: Path) -> None:
    cluster.configure(RoutingSettings(backend="hostgw"))
    cluster.settle()
    first = cluster.all[0]
    assert device(first.place, "eth0")[0] == device(hand, "eth0")[0]
    ip_batch(hand, *(f"route add {p.cidr} via {p.ip} dev eth0 src {first.ip} proto 113" for p in peers(cluster)))
    assert routes(first.place, 113) == routes(hand, 113) and len(routes(hand, 113)) == COUNT - 1


def test_the_tunnel_of_vxlan_is_that_of_ip_and_bridge(cluster: Cluster, hand: Path) -> None:
    cluster.configure(RoutingSettings(backend="vxlan"))
    cluster.settle()
    first, mac = cluster.all[0], tunnel_mac("node-1")
    tunnel = f"id 4096 local {first.ip} dev eth0 dstport 8472 nolearning"
    own = first.cidr.replace("0/24", "1")
    ip_batch(
        hand,
        f"link add podwire-vxlan address {mac} mtu 1450 type vxlan {tunnel}",
        "link set podwire-vxlan up",
        f"address add {own}/32 dev podwire-vxlan",
    )
    for peer in peers(cluster):
        theirs, gateway = tunnel_mac(peer.name), peer.cidr.replace("0/24", "1")
        ip_batch(hand, f"neigh add {gateway} lladdr {theirs} dev podwire-vxlan nud permanent proto 113")
        inside(hand, "bridge", "fdb", "append", theirs, "dev", "podwire-vxlan", "dst", peer.ip, "self", "permanent")
        ip_batch(hand, f"route add {peer.cidr} via {gateway} dev podwire-vxlan onlink src {own} proto 113")
    index, options = device(first.place, "podwire-vxlan")
    assert (index, options) == device(hand, "podwire-vxlan")
    assert routes(first.place, 113) == routes(hand, 113) and len(routes(hand, 113)) == COUNT - 1
    entries = [route_codec.encode_neighbour_dump(), route_codec.encode_fdb_dump(index)]
    for body in entries:
        assert neighbours(first.place, body, index) == neighbours(hand, body, index) != []


def test_bgp_has_the_routes_of_hostgw(cluster: Cluster) -> None:
    cluster.configure(RoutingSettings(backend="hostgw"))
    cluster.settle()
    by_hostgw = [routes(node.place, 113) for node in cluster.all]
    cluster.configure(RoutingSettings(backend="bgp"))
    cluster.settle()
    plan = cluster.all[0].router.plan
    assert plan is not None and set(plan.senders.values()) == {"bgp"}
    assert [routes(node.place, 113) for node in cluster.all] == by_hostgw
