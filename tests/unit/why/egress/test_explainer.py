"""What ``podwire why`` says of a pod that an EgressPolicy selects."""

import asyncio
from typing import Any

import msgspec
import pytest

from podwire.cluster.world import World
from podwire.errors import ClusterError
from podwire.model.egress import EgressPolicy
from podwire.model.node import Node
from podwire.model.pod import Pod
from podwire.why.answer import Answer, ConnectionEnd, Hop
from podwire.why.cluster import ClusterAccess
from podwire.why.egress.explainer import explain_egress
from podwire.why.objects import Collection
from podwire.why.question import Question

NODE = msgspec.convert(
    {
        "metadata": {"name": "node-1"},
        "spec": {"podCIDRs": ["10.244.0.0/24"]},
        "status": {"addresses": [{"type": "InternalIP", "address": "10.89.0.11"}]},
    },
    Node,
)
POD = msgspec.convert({"metadata": {"name": "web", "namespace": "shop", "labels": {"app": "web"}}}, Pod)


class NoNodes:
    """Nodes of which nothing is known."""

    def access(self, name: str) -> Any:
        raise ClusterError(name)


def policy(name: str = "out", node: str = "node-2", **spec: object) -> EgressPolicy:
    document = {
        "metadata": {"name": name},
        "spec": {"egressIPs": ["192.0.2.7"]} | spec,
        "status": {"node": node, "conditions": [{"type": "Ready", "message": "no node is Ready"}]},
    }
    return msgspec.convert(document, EgressPolicy)


def explained(*policies: EgressPolicy, target: str = "198.51.100.1") -> Answer:
    source = ConnectionEnd(kind="Pod", name="shop/web", address="10.244.0.2", node="node-1")
    end = ConnectionEnd(kind="External", address=target, port=443)
    question = Question(source=source, target=end, protocol="tcp", node=NODE, on_node=False)
    hop = Hop(
        node="node-1", outcome="untouched", reason="NoService", message="no Service", state="planned", mode="nftables"
    )
    answer = Answer(source=source, target=end, protocol="TCP", outcome="untouched", hops=(hop,))
    objects = Collection(world=World(pods=(POD,), nodes=(NODE,)), egress_policies=policies)
    access = ClusterAccess(objects=objects, nodes=NoNodes())  # type: ignore[arg-type]
    return asyncio.run(explain_egress(question, answer, access))


def test_policy_node_and_source_are_named() -> None:
    answer = explained(policy("z", egressIPs=["192.0.2.9"]), policy())
    assert [finding.message for finding in answer.findings] == [
        "EgressPolicy out: through node node-2, which has 192.0.2.7; the receiver sees 192.0.2.7"
    ]
    snat = answer.hops[-1].snat
    assert snat is not None and snat.message == "192.0.2.7, by EgressPolicy out on node-2"
    assert answer.outcome == "untouched"


def test_without_a_node_the_packet_is_dropped_with_the_reason() -> None:
    answer = explained(policy(node=""))
    assert answer.outcome == "dropped"
    assert answer.findings[0].message == (
        "EgressPolicy out: no node has 192.0.2.7, so the packet is dropped: no node is Ready"
    )
    answer = explained(policy(), target="2001:db8::1")
    assert answer.outcome == "dropped" and "has no IPv6 address" in answer.findings[0].message


@pytest.mark.parametrize(
    ("spec", "target"),
    [
        ({}, "10.89.0.11"),
        ({}, "10.244.0.9"),
        ({"destinationCIDRs": ["203.0.113.0/24"]}, "198.51.100.1"),
        ({"excludedCIDRs": ["198.51.100.0/24"]}, "198.51.100.1"),
        ({"podSelector": {"matchLabels": {"app": "db"}}}, "198.51.100.1"),
        ({"namespaceSelector": {"matchLabels": {"team": "x"}}}, "198.51.100.1"),
        ({"egressIPs": []}, "198.51.100.1"),
    ],
)
def test_other_packets_are_not_explained(spec: dict[str, object], target: str) -> None:
    assert not explained(policy(**spec), target=target).findings  # type: ignore[arg-type]
