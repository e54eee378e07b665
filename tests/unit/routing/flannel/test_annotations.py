"""Flannel's annotations of Nodes: as flanneld writes them, and in their place in podwire's view of a Node."""

from ipaddress import ip_address

import pytest
from msgspec.structs import replace
from tests.unit.routing.test_paths import ME

from podwire.model.meta import ObjectMeta
from podwire.model.node import Node, NodeAddress, NodeSpec, NodeStatus
from podwire.routing.flannel import annotations as flannel
from podwire.routing.flannel.annotations import FlannelNode, Vtep
from podwire.routing.nodes import ClusterView, RoutingFacts, own_node_of, peer_of
from podwire.routing.settings import parse_settings

WRITTEN = {
    "flannel.alpha.coreos.com/backend-data": '{"VNI":1,"VtepMAC":"8A:34:5e:00:00:07"}',
    "flannel.alpha.coreos.com/backend-type": "vxlan",
    "flannel.alpha.coreos.com/kube-subnet-manager": "true",
    "flannel.alpha.coreos.com/public-ip": "10.89.0.31",
}
SIX = {
    "flannel.alpha.coreos.com/backend-type": "vxlan",
    "flannel.alpha.coreos.com/kube-subnet-manager": "true",
    "flannel.alpha.coreos.com/backend-v6-data": '{"VNI":1,"VtepMAC":"8a:34:5e:00:00:08"}',
    "flannel.alpha.coreos.com/public-ipv6": "fd89::31",
}
ONE = "02:00:00:00:00:01"
MAC = {"mac": "8a:34:5e:00:00:07", "vni": 1}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, FlannelNode("vxlan", ("10.89.0.31",), MAC)),
        ({"public-ip-overwrite": "203.0.113.7"}, FlannelNode("vxlan", ("203.0.113.7",), MAC)),
        ({"public-ip": "no address"}, FlannelNode("vxlan", (), MAC)),
        ({"backend-data": "null"}, FlannelNode("vxlan", ("10.89.0.31",), {})),
        ({"backend-data": "{"}, FlannelNode("vxlan", ("10.89.0.31",), {})),
        ({"backend-data": '{"VtepMAC":"nine"}'}, FlannelNode("vxlan", ("10.89.0.31",), {})),
        ({"backend-data": '{"VtepMAC":"02:00:00:00:00:01"}'}, FlannelNode("vxlan", ("10.89.0.31",), {"mac": ONE})),
        ({"backend-type": "host-gw", "backend-data": "null"}, FlannelNode("hostgw", ("10.89.0.31",), {})),
        ({"backend-type": "ipsec", "backend-data": "null"}, FlannelNode("ipsec", ("10.89.0.31",), {})),
        ({"kube-subnet-manager": "false"}, None),
        ({"backend-type": ""}, None),
    ],
)
def test_annotations_of_flanneld(changed: dict[str, str], expected: FlannelNode | None) -> None:
    assert flannel.read(WRITTEN | {flannel.PREFIX + key: text for key, text in changed.items()}) == expected


def test_annotations_of_an_ipv6_node() -> None:
    assert flannel.read(SIX) == FlannelNode("vxlan", ("fd89::31",), {"mac": "8a:34:5e:00:00:08", "vni": 1})
    assert flannel.read({}) is None


def test_outer_packets_of_each_family_go_to_their_own_device() -> None:
    both = node(**SIX)
    assert peer_of(both).facts == RoutingFacts("vxlan", ("vxlan",), MAC | {"mac6": "8a:34:5e:00:00:08"})
    backend = parse_settings({"vni": 1}, "test").load()["vxlan"]
    for own, mac, outer in (
        (ME.addresses, MAC["mac"], "10.89.0.31"),
        (ME.addresses[::-1], "8a:34:5e:00:00:08", "fd89::31"),
    ):
        network = backend.plan(replace(ME, addresses=own), (peer_of(both),), ClusterView()).network
        assert [(entry.mac, entry.dst) for entry in network.fdb] == [(mac, outer)]


def test_written_annotations_are_those_of_flanneld() -> None:
    written = flannel.write("vxlan", {4: Vtep("8a:34:5e:00:00:07", 1)}, {4: "10.89.0.31"})
    assert written == WRITTEN | {"flannel.alpha.coreos.com/backend-data": '{"VNI":1,"VtepMAC":"8a:34:5e:00:00:07"}'}
    assert flannel.write("vxlan", {6: Vtep("8a:34:5e:00:00:08", 1)}, {6: "fd89::31"}) == SIX
    assert flannel.write("host-gw", {4: None}, {})["flannel.alpha.coreos.com/backend-data"] == "null"


def node(**annotations: str) -> Node:
    return Node(
        metadata=ObjectMeta(name="old", annotations={**WRITTEN, **annotations}),
        spec=NodeSpec(pod_cidr="10.244.31.0/24", pod_cidrs=("10.244.31.0/24",)),
        status=NodeStatus(addresses=(NodeAddress(type="InternalIP", address="192.168.0.31"),)),
    )


def test_a_node_of_flanneld_is_a_peer_that_receives_vxlan() -> None:
    peer = peer_of(node())
    assert peer.addresses == (ip_address("10.89.0.31"), ip_address("192.168.0.31"))
    assert peer.facts == RoutingFacts("vxlan", ("vxlan",), MAC)


def test_facts_of_podwire_come_before_those_of_flanneld() -> None:
    peer = peer_of(node(**RoutingFacts("hostgw", ("hostgw",)).annotations()))
    assert peer.addresses == (ip_address("192.168.0.31"),)
    assert peer.facts == RoutingFacts("hostgw", ("hostgw",))


def test_flannel_annotations_do_not_change_podwire_itself() -> None:
    own = own_node_of(node())
    assert (own.addresses, own.facts) == ((ip_address("192.168.0.31"),), None)


def test_another_network_identifier_is_a_named_problem() -> None:
    problem = "node old has the network identifier 1, and routing.vni is 7"
    for vni, expected in ((1, ""), (7, problem)):
        assert parse_settings({"vni": vni}, "test").load()["vxlan"].reaches(ME, peer_of(node())) == expected
