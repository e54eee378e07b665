"""Which flows run between nodes and from outside."""

import pytest

from podwire.flows import plan
from podwire.flows.plan import FlowAddresses, FlowServer

ADDRESSES = FlowAddresses(
    servers=(FlowServer("a", ("10.244.0.2",)), FlowServer("b", ("10.244.1.2", "fd44::2"))),
    service=("10.96.0.9",),
    dns=("10.96.0.10", "fd96::a"),
    node_ports=(("10.89.0.11", 30080),),
    balancers=("10.89.0.200",),
    ingresses=("10.89.0.201",),
)


def test_each_node_sends_to_each_and_to_all_addresses() -> None:
    flows = {(flow.path, flow.kind, flow.address) for flow in plan.inside(ADDRESSES, "b")}
    assert {("pod on a", "udp", "10.244.0.2"), ("pod on b", "tcp", "fd44::2"), ("service", "new", "10.96.0.9")} <= flows
    assert {("dns", "dns", "10.96.0.10"), ("dns", "dns-tcp", "fd96::a"), ("pod on a", "denied", "10.244.0.2")} <= flows
    records = {flow.address: flow.record for flow in plan.inside(ADDRESSES, "a") if flow.kind == "dns"}
    assert records == {"10.96.0.10": "A", "fd96::a": "AAAA"}


def test_flows_from_outside_reach_ports_balancers_and_ingresses() -> None:
    flows = [(flow.path, flow.address, flow.port, flow.name) for flow in plan.outside(ADDRESSES)]
    assert flows == [
        ("nodeport", "10.89.0.11", 30080, ""),
        ("loadbalancer", "10.89.0.200", 7008, ""),
        ("ingress", "10.89.0.201", 80, "podwire-flows.internal"),
    ]
    assert plan.outside(FlowAddresses(servers=())) == []


@pytest.mark.parametrize("size", [7, 10, 100, 1000])
def test_flows_of_large_clusters_grow_with_the_nodes(size: int) -> None:
    nodes = [f"node-{number}" for number in range(size)]
    sent = {node: plan.peers(nodes, node) for node in nodes}
    assert {len(peers) for peers in sent.values()} == {5}
    assert all(peers[0] == node for node, peers in sent.items())
    received = [peer for peers in sent.values() for peer in peers]
    assert all(received.count(node) == 5 for node in nodes[:20])


def test_small_clusters_have_a_full_mesh() -> None:
    assert plan.peers(["a", "b", "c"], "b") == ["b", "c", "a"]
