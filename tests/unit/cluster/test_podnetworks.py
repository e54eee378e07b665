"""The pod networks that a Node announces."""

from ipaddress import ip_address

import msgspec
import pytest

from podwire.cluster.addresses import pod_side_addresses
from podwire.cluster.cloudinterfaces import pod_ranges_of
from podwire.cluster.names import NODE_ROUTING_FACTS
from podwire.cluster.podnetworks import NodePodNetwork, network_at, pod_networks_on
from podwire.cluster.ranges import ClusterRanges
from podwire.model.meta import ObjectMeta
from podwire.model.node import Node, NodeAddress, NodeSpec, NodeStatus

NETWORKS = (NodePodNetwork("default", 7, ("10.244.1.0/24",)), NodePodNetwork("blue", 101, ("10.245.1.0/24",)))


def node(facts: object) -> Node:
    text = facts if isinstance(facts, str) else msgspec.json.encode(facts).decode()
    return Node(
        metadata=ObjectMeta(name="node-1", annotations={NODE_ROUTING_FACTS: text}),
        spec=NodeSpec(pod_cidr="10.244.1.0/24", pod_cidrs=("10.244.1.0/24",)),
        status=NodeStatus(addresses=(NodeAddress(type="InternalIP", address="10.89.0.11"),)),
    )


def test_ranges_of_all_networks_are_ranges_of_pods() -> None:
    announced = node({"backend": "vlan", "networks": NETWORKS})
    assert pod_networks_on(announced) == NETWORKS
    assert str(network_at(announced, ip_address("10.245.1.9"))) == "blue (VLAN 101)"
    assert network_at(announced, ip_address("fd00::1")) is None
    assert list(map(str, pod_ranges_of(announced))) == ["10.244.1.0/24", "10.245.1.0/24"]
    assert list(pod_side_addresses(announced)) == ["10.244.1.0", "10.244.1.1", "10.245.1.0", "10.245.1.1"]
    ranges = ClusterRanges()
    ranges.follow("node-1", announced)
    assert ranges.ranges == ("10.244.1.0/24", "10.245.1.0/24")


@pytest.mark.parametrize(
    "facts",
    [
        "",
        '{"networks"',
        {"networks": 3},
        {"networks": [{"name": "blue"}]},
        {"networks": [{"name": "blue", "vlan": 1, "cidrs": ["x"]}]},
        {"backend": "vlan"},
    ],
)
def test_networks_that_are_not_valid_are_none(facts: object) -> None:
    assert pod_networks_on(node(facts)) == ()
