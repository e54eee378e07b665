"""Which nodes can be asked what policies do."""

import pytest

from podwire.cluster.names import NODE_HEALTH_PORT, NODE_POLICY
from podwire.model.meta import ObjectMeta
from podwire.model.node import Node
from podwire.policy.status.nodes import NO_PORT, complaints, enforcing, port_of


def node(name: str, **annotations: str) -> Node:
    keys = {"mode": NODE_POLICY, "port": NODE_HEALTH_PORT}
    return Node(metadata=ObjectMeta(name=name, annotations={keys[key]: text for key, text in annotations.items()}))


@pytest.mark.parametrize(
    ("address", "port", "output"),
    [
        ("0.0.0.0", 9440, "9440"),
        ("::", 9440, "9440"),
        ("10.0.0.5", 80, "80"),
        ("0.0.0.0", 0, ""),
        ("127.0.0.1", 9440, ""),
        ("::1", 9440, ""),
        ("localhost", 9440, ""),
        ("node-1.example", 9440, "9440"),
    ],
)
def test_only_ports_reachable_by_network_are_announced(address: str, port: int, output: str) -> None:
    assert port_of(address, port) == output


def test_nodes_that_enforce_policies_with_the_ports_that_they_tell() -> None:
    nodes = (
        node("node-1", mode="nftables", port="9440"),
        node("node-2", mode="iptables"),
        node("node-3", mode="nftables", port="soon"),
        node("node-4", port="9440"),
        node("node-5", mode="", port="9440"),
    )
    assert enforcing(nodes) == {"node-1": 9440, "node-2": 0, "node-3": 0}


def test_nodes_that_could_not_be_asked_are_named_by_reason() -> None:
    failures = {f"node-{n}": NO_PORT for n in range(12, 3, -1)} | {"node-1": "away"}
    assert complaints(failures) == [
        f"no answer from node-4, node-5, node-6, node-7, node-8 and 4 more: {NO_PORT}",
        "no answer from node-1: away",
    ]
    assert complaints({}) == []
