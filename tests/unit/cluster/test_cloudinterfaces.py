"""The annotation with a node's interfaces for pods: what is read back, and what a wrong one means."""

import pytest

from podwire.cluster.cloudinterfaces import NodeInterfaces, PodInterface, pod_networks_of, read_interfaces
from podwire.cluster.names import NODE_CLOUD_INTERFACES
from podwire.model.meta import ObjectMeta
from podwire.model.node import Node, NodeSpec
from podwire.routing.nodes import pod_cidrs_of

PODS = ("10.0.1.8/32", "10.0.1.9/32", "10.0.1.32/28")
ONE = PodInterface(index=1, mac="02:00:00:00:00:01", address="10.0.1.5/24", gateway="10.0.1.1", pods=PODS)
BOTH = NodeInterfaces(("10.0.0.0/16",), (ONE,))


def node(annotations: dict[str, str]) -> Node:
    return Node(metadata=ObjectMeta(name="node-1", annotations=annotations), spec=NodeSpec(pod_cidr="10.244.1.0/24"))


def test_an_annotation_is_read_back() -> None:
    assert read_interfaces(BOTH.annotation()) == BOTH
    assert read_interfaces({}) is None
    six = PodInterface(index=1, mac=ONE.mac, address="", gateway="fe80:ec2::1", pods=("fd10::/80",))
    dual = NodeInterfaces(("10.0.0.0/16", "fd10::/56"), (ONE, six))
    assert read_interfaces(dual.annotation()) == dual


def test_interfaces_replace_the_pod_cidrs_of_a_node() -> None:
    assert [str(network) for network in pod_networks_of(node({}))] == ["10.244.1.0/24"]
    merged = ["10.0.1.8/31", "10.0.1.32/28"]
    assert [str(network) for network in pod_networks_of(node(BOTH.annotation()))] == merged
    alone = NodeInterfaces((), (PodInterface(1, ONE.mac, ONE.address, ONE.gateway, ("10.0.1.9/32",)),))
    assert [str(network) for network in pod_cidrs_of(node(alone.annotation()))] == ["10.0.1.9/32"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"interfaces":[{"index":1}]}',
        '{"networks":["10.0.0.1/16"]}',
        '{"interfaces":[{"index":1,"mac":"x","address":"10.0.1.5/24","gateway":"nowhere"}]}',
        '{"interfaces":[{"index":1,"mac":"x","address":"10.0.1.5/24","gateway":"10.0.1.1","pods":["pods"]}]}',
    ],
)
def test_a_wrong_annotation_means_no_addresses(text: str) -> None:
    assert read_interfaces({NODE_CLOUD_INTERFACES: text}) == NodeInterfaces()
    assert pod_networks_of(node({NODE_CLOUD_INTERFACES: text})) == ()


def test_missing_addresses_are_noticed() -> None:
    less = NodeInterfaces((), (PodInterface(1, ONE.mac, ONE.address, ONE.gateway, PODS[:2]),))
    assert less.lacks(BOTH) and not BOTH.lacks(less) and not BOTH.lacks(BOTH)
