"""Tunnel devices where peers have single addresses that other nodes lend."""

from ipaddress import ip_network

from podwire.model.meta import ObjectMeta
from podwire.model.node import POD_BLOCKS, Node, NodeSpec
from podwire.routing.nodes import LocalNode, Peer, Underlay, pod_cidrs_of
from podwire.routing.tunnels import gateways, tunnel_addresses, tunnel_sources

RANGES = tuple(map(ip_network, ("10.0.0.0/28", "10.0.0.33/32", "10.0.0.64/28", "fd00::/124", "fd00::77/128")))
MAC = "02:00:00:00:00:01"


def test_single_addresses_go_by_the_first_range_of_their_family() -> None:
    ways = {str(cidr): neighbour.ip for cidr, neighbour in gateways("tunnel", Peer(name="p", pod_cidrs=RANGES), MAC)}
    assert ways == {
        "10.0.0.0/28": "10.0.0.1",
        "10.0.0.33/32": "10.0.0.1",
        "10.0.0.64/28": "10.0.0.65",
        "fd00::/124": "fd00::1",
        "fd00::77/128": "fd00::1",
    }


def test_peer_with_single_addresses_alone_is_its_own_gateway() -> None:
    peer = Peer(name="p", pod_cidrs=(ip_network("10.0.0.33/32"),))
    assert [neighbour.ip for _, neighbour in gateways("tunnel", peer, MAC)] == ["10.0.0.33"]


def test_node_has_no_tunnel_address_among_borrowed_ones() -> None:
    me = LocalNode(name="m", addresses=(), pod_cidrs=RANGES, underlay=Underlay(link="eth0", mtu=1500, addresses=()))
    assert [address.cidr for address in tunnel_addresses("tunnel", me)] == [
        "10.0.0.1/32",
        "10.0.0.65/32",
        "fd00::1/128",
    ]
    assert tunnel_sources(me) == {4: "10.0.0.1", 6: "fd00::1"}


def test_blocks_take_the_place_of_pod_cidrs() -> None:
    spec = NodeSpec(pod_cidrs=("10.9.0.0/24", "10.9.1.1/32"))
    assert pod_cidrs_of(Node(spec=spec)) == (ip_network("10.9.0.0/24"),)
    blocks = ObjectMeta(annotations={POD_BLOCKS: ",".join(map(str, RANGES))})
    assert pod_cidrs_of(Node(metadata=blocks, spec=spec)) == RANGES
    assert pod_cidrs_of(Node(metadata=ObjectMeta(annotations={POD_BLOCKS: ""}), spec=spec)) == ()
